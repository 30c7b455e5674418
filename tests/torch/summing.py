"""A query of per-record gradients together with records: what tests of sums ask."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective
from tacit.torch.records import Records


class Summed:
    """Sums of clipped gradients over one set of records."""

    def __init__(self, objective: Objective, rows: Records, bound: float, **how: Any) -> None:
        self.query, self.rows = PerRecordGradients(objective, bound, **how), rows
        self.records, self.bound = len(rows), bound

    def total(self, state: Any, members: Any) -> Any:
        return self.query.total(self.rows, state, members)

    def contributions(self, state: Any, index: Any = None) -> Any:
        found = self.query.contributions(self.rows, state)
        return found if index is None else found[:, np.asarray(index)]
