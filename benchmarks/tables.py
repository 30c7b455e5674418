"""Tables as people have them: raw units, hand-written public bounds, one task each; nothing is rescaled.

Bounds are what somebody who knows the kind of data would state before seeing the file. Categories become 0/1 columns of
a public list; rows with missing values in a used column are left out (a precondition, as for any estimator of ours).
Found like the data of ``data.py``; breast cancer, diabetes, digits and wine come with scikit-learn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from data import _arrays, folder
from numpy.typing import NDArray
from run import parser

__all__ = ["TASKS", "Task", "task"]

Array = NDArray[np.float64]
Numbers = dict[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Task:
    """A table and what is to be predicted.

    Attributes:
        name: of the table and the target.
        X: features in raw units.
        y: labels 0/1 (or more classes), or the target of a regression.
        low: public lower bounds of the features.
        high: public upper bounds.
        target: public bounds of the target; None for classes.
        model: "logistic", "ridge", "poisson" or "gamma".
    """

    name: str
    X: Array
    y: Array
    low: Array
    high: Array
    target: tuple[float, float] | None
    model: str

    @property
    def labels(self) -> bool:
        """Whether it is a classification."""
        return self.target is None

    def split(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows to train on and rows to test on: 80 % and 20 %, another split for each seed."""
        order = np.random.default_rng(10_000 + seed).permutation(len(self.y))
        train, test = np.split(order, [round(0.8 * len(order))])
        return train, test


def _frame(name: str) -> Any:
    import pandas as pd

    place = folder()
    if place is None:
        raise FileNotFoundError("set TACIT_DATA_DIR to the folder that holds tables/*.parquet")
    return pd.read_parquet(place / "tables" / f"{name}.parquet")


def _table(
    name: str,
    target: str,
    numbers: Numbers,
    words: dict[str, tuple[Any, ...]],
    *,
    positive: Any = None,
    bounds: tuple[float, float] | None = None,
    model: str = "logistic",
) -> Task:
    """A task of one of ``tables/``: columns of numbers with bounds, columns of categories with their public lists."""
    frame = _frame(name)[[*numbers, *words, target]].dropna()
    blocks = [frame[list(numbers)].to_numpy(np.float64)]
    low, high = ([end[k] for end in numbers.values()] for k in (0, 1))
    for column, values in words.items():
        one = np.stack([(frame[column] == value).to_numpy(np.float64) for value in values], axis=1)
        blocks.append(one)
        low, high = low + [0.0] * len(values), high + [1.0] * len(values)
    y = frame[target]
    aim = (y == positive).to_numpy(np.float64) if positive is not None else y.to_numpy(np.float64)
    return Task(f"{name} {target}", np.hstack(blocks), aim, np.array(low, float), np.array(high, float), bounds, model)


RAND: Numbers = {
    "coins": (0, 100), "female": (0, 1), "black": (0, 1), "xage": (0, 70), "educdec": (0, 25), "income": (0, 30_000),
    "num": (1, 15), "child": (0, 1), "hlthg": (0, 1), "hlthf": (0, 1), "hlthp": (0, 1), "disea": (0, 60),
    "physlm": (0, 1), "mhi": (0, 100), "year": (1, 5),
}  # fmt: skip
RAND_WORDS = {"site": (1, 2, 3, 4, 5, 6)}
NLS: Numbers = {
    "year": (68, 88), "age": (14, 50), "msp": (0, 1), "nev_mar": (0, 1), "grade": (0, 18), "not_smsa": (0, 1),
    "c_city": (0, 1), "south": (0, 1), "ttl_exp": (0, 30), "tenure": (0, 30), "hours": (0, 100),
}  # fmt: skip
NLS_WORDS = {"race": (1, 2, 3), "occ_code": tuple(range(1, 14)), "ind_code": tuple(range(1, 13))}
NMES: Numbers = {"chronic": (0, 10), "age": (6, 11), "school": (0, 20), "income": (-2, 60), "hospital": (0, 10)}
YES_NO = ("no", "yes")
NMES_WORDS = {
    "health": ("average", "poor", "excellent"),
    "adl": ("normal", "limited"),
    "region": ("other", "midwest", "northeast", "west"),
    "afam": YES_NO,
    "gender": ("male", "female"),
    "married": YES_NO,
    "employed": YES_NO,
}
INSURED: Numbers = {"age": (18, 65), "family": (1, 15)}
INSURED_WORDS = {
    "limit": YES_NO,
    "gender": ("male", "female"),
    "married": YES_NO,
    "selfemp": YES_NO,
    "region": ("south", "west", "northeast", "midwest"),
    "ethnicity": ("cauc", "afam", "other"),
    "education": ("bachelor", "highschool", "ged", "none", "master", "phd", "other"),
}
GSS: Numbers = {"year": (1970, 2020), "age": (18, 90), "prestg10": (10, 90), "childs": (0, 8)}
GSS_WORDS = {
    "gender": ("Male", "Female"),
    "educcat": ("High School", "Bachelor", "Less Than High School", "Graduate", "Junior College"),
    "maritalcat": ("Married", "Widowed", "Never Married", "Divorced", "Separated"),
    "wrkstat": (
        "School", "Full-Time", "Housekeeper", "Retired", "Other", "Part-Time", "Unemployed, Laid Off",
        "Temporarily Not Working",
    ),
}  # fmt: skip


def _without(words: dict[str, tuple[Any, ...]], *names: str) -> dict[str, tuple[Any, ...]]:
    return {name: values for name, values in words.items() if name not in names}


def _plain(name: str, X: Array, y: Array, low: Any, high: Any, target: Any = None, model: str = "logistic") -> Task:
    ends = (np.broadcast_to(np.asarray(end, float), X.shape[1]).copy() for end in (low, high))
    return Task(name, np.asarray(X, float), np.asarray(y, float), *ends, target, model)


def _adult() -> Task:
    z = _arrays("adult")
    hot = [np.eye(column.max() + 1)[column] for column in z["X_cat"].T]
    X = np.hstack([z["X_num"], *hot])
    rest = X.shape[1] - 6
    low, high = [17, 0, 1, 0, 0, 1] + [0] * rest, [90, 1.5e6, 16, 1e5, 5e3, 99] + [1] * rest
    return _plain("Adult", X, z["y"], low, high)


def _electricity() -> Task:
    z = _arrays("electricity")
    return _plain("Electricity", z["X"], z["y"], np.eye(8)[1], 1 + 6 * np.eye(8)[1])


def _a9a() -> Task:
    z = _arrays("a9a")
    X = np.zeros((len(z["y_train"]), int(z["n_features"])))
    X[np.repeat(np.arange(len(X)), np.diff(z["indptr_train"])), z["indices_train"]] = 1
    return _plain("a9a", X, z["y_train"] > 0, 0, 1)


def _madelon() -> Task:
    z = _arrays("madelon")
    X = np.concatenate([z["X_train"], z["X_valid"]]).astype(float)
    return _plain("Madelon", X, np.concatenate([z["y_train"], z["y_valid"]]) > 0, 0, 999)


def _heart() -> Task:
    z = _arrays("heart_cleveland")
    whole = ~np.isnan(z["X"]).any(axis=1)
    low = (20, 0, 1, 80, 100, 0, 0, 60, 0, 0, 1, 0, 3)
    high = (80, 1, 4, 220, 600, 1, 2, 220, 1, 7, 3, 3, 7)
    return _plain("heart", z["X"][whole], z["y"][whole] > 0, low, high)


def _california() -> Task:
    z = _arrays("california_housing")
    low, high = (0, 0, 0, 0, 0, 0, 32, -125), (15, 52, 20, 5, 10_000, 10, 42, -114)
    return _plain("California", z["X"], z["y"], low, high, (0, 5), "ridge")


def _cancer() -> Task:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    high = [30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.2, 0.3, 0.1, 3, 5, 20, 500, 0.03, 0.15, 0.4, 0.05, 0.08, 0.03]
    return _plain("breast cancer", X, y, 0, [*high, 40, 50, 250, 4000, 0.25, 1, 1.3, 0.3, 0.7, 0.2])


def _diabetes() -> Task:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, scaled=False)
    low, high = (18, 1, 15, 60, 80, 30, 10, 1, 3, 50), (90, 2, 50, 150, 350, 250, 110, 10, 7, 150)
    return _plain("diabetes", X, y, low, high, (0, 400), "ridge")


TASKS: dict[str, Callable[[], Task]] = {
    "Adult": _adult,
    "Electricity": _electricity,
    "a9a": _a9a,
    "Madelon": _madelon,
    "heart": _heart,
    "breast cancer": _cancer,
    "California": _california,
    "diabetes": _diabetes,
    "RAND expenses": lambda: _table("rand_hie", "binexp", RAND, RAND_WORDS, positive=1),
    "RAND visits": lambda: _table("rand_hie", "mdvis", RAND, RAND_WORDS, bounds=(0, 30), model="poisson"),
    "RAND costs": lambda: _table("rand_hie", "meddol", RAND, RAND_WORDS, bounds=(0, 2000), model="ridge"),
    "NLS wages": lambda: _table("nlswork", "ln_wage", NLS, NLS_WORDS, bounds=(0, 5), model="ridge"),
    "NLS union": lambda: _table("nlswork", "union", NLS, NLS_WORDS, positive=1),
    "NMES visits": lambda: _table("nmes1988", "visits", NMES, NMES_WORDS, bounds=(0, 50), model="poisson"),
    "NMES insurance": lambda: _table("nmes1988", "insurance", NMES, NMES_WORDS, positive="yes"),
    "insurance": lambda: _table("health_insurance", "insurance", INSURED, INSURED_WORDS, positive="yes"),
    "health": lambda: _table("health_insurance", "health", INSURED, INSURED_WORDS, positive="yes"),
    "GSS income": lambda: _table("gss_wages", "realrinc", GSS, GSS_WORDS, bounds=(0, 100_000), model="ridge"),
    "GSS incomes (gamma)": lambda: _table(
        "gss_wages", "realrinc", GSS, GSS_WORDS, bounds=(200, 100_000), model="gamma"
    ),
    "GSS full time": lambda: _table("gss_wages", "wrkstat", GSS, _without(GSS_WORDS, "wrkstat"), positive="Full-Time"),
}
"""Every task by name."""


@functools.cache
def task(name: str) -> Task:
    """A task by name.

    Args:
        name: of TASKS.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if the data is not there.
    """
    return TASKS[name]()


if __name__ == "__main__":
    parser(__doc__).parse_args()
