"""The data sets of the benchmarks, in mapped units: features in [−1, 1] by public bounds, one-hot columns 0/1.

They are found through TACIT_DATA_DIR, else in ``../shared/data`` beside the repository; breast cancer comes with
scikit-learn. Bounds are round numbers that somebody who knows the kind of data would state (California: rooms up to 20,
bedrooms up to 5, 10000 people, 10 to a household; the target 0 to 5), except for breast cancer: 0 to 1.5 times the
maximum, as in the prototype.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from run import parser

__all__ = ["PROBLEMS", "Problem", "folder", "load"]

Array = NDArray[np.float64]
TRAIN = 0.8


@dataclass(frozen=True, eq=False)
class Problem:
    """One data set with a loss and a penalty, split once.

    Attributes:
        X: training features, mapped.
        y: training target in [−1, 1], or labels ±1.
        X_test: the rest.
        y_test: the rest.
        loss: "squared" or "logistic".
        penalty: "l1" or "l2".
        alpha: its weight, beside the mean loss.
        low: lower bounds, −1 or 0.
        row_norm: the largest ‖x‖ that public knowledge allows (one-hot groups hold a single 1).
    """

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    loss: str
    penalty: str
    alpha: float
    low: Array
    row_norm: float

    @property
    def n(self) -> int:
        """Training records."""
        return len(self.y)

    @property
    def size(self) -> int:
        """Coordinates, the intercept included."""
        return int(self.X.shape[1]) + 1

    def objective(self, w: Array, b: float) -> float:
        """The training objective; **private**."""
        f = self.X @ w + b
        loss = np.square(f - self.y).mean() / 2 if self.loss == "squared" else np.logaddexp(0, -self.y * f).mean()
        ridge = np.square(w).sum() / 2 if self.penalty == "l2" else np.abs(w).sum()
        return float(loss + self.alpha * ridge)

    def test_score(self, w: Array, b: float) -> float:
        """R² or accuracy on the test part."""
        f = self.X_test @ w + b
        if self.loss == "squared":
            return float(1 - np.square(f - self.y_test).sum() / np.square(self.y_test - self.y_test.mean()).sum())
        return float(((f > 0) == (self.y_test > 0)).mean())


def folder() -> pathlib.Path | None:
    """Where the data is, or None."""
    given = os.environ.get("TACIT_DATA_DIR")
    place = pathlib.Path(given) if given else pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    return place if (place / "small").is_dir() else None


def _arrays(name: str) -> dict[str, NDArray[Any]]:
    place = folder()
    if place is None:
        raise FileNotFoundError("set TACIT_DATA_DIR to the folder that holds small/*.npz")
    with np.load(place / "small" / f"{name}.npz", allow_pickle=False) as z:
        return {key: z[key] for key in z.files}


def _mapped(X: Array, low: ArrayLike, high: ArrayLike) -> Array:
    lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return 2 * (np.clip(X, lows, highs) - lows) / (highs - lows) - 1


def _signs(positive: NDArray[np.bool_]) -> Array:
    return np.where(positive, 1.0, -1.0)


def _one_hot(codes: NDArray[np.int8]) -> Array:
    return np.concatenate([np.eye(column.max() + 1)[column] for column in codes.T], axis=1)


def _california() -> tuple[Array, Array]:
    z = _arrays("california_housing")
    low, high = (0, 0, 0, 0, 0, 0, 32, -125), (15, 52, 20, 5, 10_000, 10, 42, -114)
    return _mapped(z["X"], low, high), _mapped(z["y"], 0, 5)


def _electricity() -> tuple[Array, Array]:
    z = _arrays("electricity")
    low, high = np.eye(8)[1], 1 + 6 * np.eye(8)[1]  # the day of the week is 1 to 7, all else 0 to 1
    return _mapped(z["X"], low, high), _signs(z["y"] == 1)


def _adult() -> tuple[Array, Array]:
    z = _arrays("adult")
    numbers = _mapped(z["X_num"], (17, 0, 1, 0, 0, 1), (90, 1.5e6, 16, 1e5, 5e3, 99))
    return np.concatenate([numbers, _one_hot(z["X_cat"])], axis=1), _signs(z["y"] == 1)


def _a9a() -> tuple[Array, Array]:
    z = _arrays("a9a")
    X = np.zeros((len(z["y_train"]), int(z["n_features"])))
    X[np.repeat(np.arange(len(X)), np.diff(z["indptr_train"])), z["indices_train"]] = 1
    return X, _signs(z["y_train"] > 0)


def _breast_cancer() -> tuple[Array, Array]:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return _mapped(X, np.zeros(X.shape[1]), 1.5 * X.max(axis=0)), _signs(y == 1)


def _heart() -> tuple[Array, Array]:
    z = _arrays("heart_cleveland")
    whole = ~np.isnan(z["X"]).any(axis=1)
    low = (20, 0, 1, 80, 100, 0, 0, 60, 0, 0, 1, 0, 3)
    high = (80, 1, 4, 220, 600, 1, 2, 220, 1, 7, 3, 3, 7)
    return _mapped(z["X"][whole], low, high), _signs(z["y"][whole] > 0)


def _madelon() -> tuple[Array, Array]:
    z = _arrays("madelon")
    X = np.concatenate([z["X_train"], z["X_valid"]]).astype(np.float64)
    return _mapped(X, 0, 999), _signs(np.concatenate([z["y_train"], z["y_valid"]]) > 0)


PROBLEMS: dict[str, tuple[Callable[[], tuple[Array, Array]], str, str, float, float | None]] = {
    "California ridge": (_california, "squared", "l2", 1e-3, None),
    "California lasso": (_california, "squared", "l1", 2e-3, None),
    "Electricity": (_electricity, "logistic", "l2", 1e-4, None),
    "a9a": (_a9a, "logistic", "l2", 1e-3, 14**0.5),
    "breast cancer": (_breast_cancer, "logistic", "l2", 1e-3, None),
    "Adult": (_adult, "logistic", "l2", 1e-3, 14**0.5),
    "heart (Cleveland)": (_heart, "logistic", "l2", 1e-3, None),
    "Madelon": (_madelon, "logistic", "l2", 1e-3, None),
}
"""Loader, loss, penalty, its weight, and a row norm where public knowledge says more than the bounds."""


def load(name: str) -> Problem:
    """A problem by name; the split is the same in every run.

    Args:
        name: of PROBLEMS.

    Returns:
        The problem.

    Raises:
        FileNotFoundError: if the data is not there.
    """
    read, loss, penalty, alpha, norm = PROBLEMS[name]
    X, y = read()
    order = np.random.default_rng(0).permutation(len(y))
    train, test = np.split(order, [round(TRAIN * len(y))])
    low = np.where(np.isin(X, (0, 1)).all(axis=0), 0.0, -1.0)
    bound = float(np.sqrt(X.shape[1])) if norm is None else norm
    return Problem(X[train], y[train], X[test], y[test], loss, penalty, alpha, low, bound)


if __name__ == "__main__":
    parser(__doc__).parse_args()
