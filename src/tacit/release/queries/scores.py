"""How well a fitted model predicts records: what a private search compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.records import Rows
from tacit.release.queries.values import Statistic

__all__ = ["SCORES", "Score"]

Array = NDArray[np.float64]
SCORES = {True: ("accuracy", "brier"), False: ("absolute_error", "squared_error")}
"""For classifiers and for regressors."""


@dataclass(frozen=True, eq=False)
class Score(Statistic):
    """A number in [0, 1] for each record, by that record and the model alone; 0 where the model fails.

    The model's products may round a record by its place in the table, never by what other records hold: sums of scores
    are for relations under which the number of records, and so every place, is public.

    Attributes:
        model: fitted, a function of earlier releases.
        scoring: one of SCORES.
    """

    model: Any
    scoring: str

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        model, X, y = self.model, rows.X, rows.y
        if self.scoring == "accuracy":
            return np.asarray(model.predict(X) == y, np.float64)
        if self.scoring == "brier":
            truth = np.asarray(y)[:, None] == model.classes_[None, :]
            values = 1 - np.square(model.predict_proba(X) - truth).sum(axis=1) / 2
        else:
            low, high = (float(end) for end in model.target_bounds)
            error = np.abs(np.clip(model.predict(X), low, high) - np.clip(y, low, high)) / ((high - low) or 1.0)
            values = 1 - (error if self.scoring == "absolute_error" else error**2)
        return np.asarray(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), np.float64)
