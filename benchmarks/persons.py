"""Accuracy for persons with several rows, beside a promise about rows and a model without privacy.

RAND HIE (5,912 persons, 1 to 5 years each: whether somebody had expenses, and how often they saw a doctor) and nlswork
(4,711 women, 1 to 15 years each: logarithm of the wage, member of a union). Whole persons are held out. Bounds are
written by hand from what the columns mean. ``python benchmarks/persons.py --seeds 5``.

By person: ``groups=ids``. By row: the same ε about single rows, and what that promises to somebody with five rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from data import folder
from run import parser, record, recorded
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import d2_tweedie_score, r2_score, roc_auc_score

from tacit import DPLogisticRegression, DPPoissonRegressor, DPRidge

EPSILONS = (0.5, 1.0, 3.0)
PROTOCOL, KEYS = "1", ("protocol", "task", "epsilon", "seed")
RAND = {
    "xage": (0, 65),
    "educdec": (0, 25),
    "income": (0, 30_000),
    "num": (1, 14),
    "coins": (0, 100),
    "disea": (0, 60),
    "mhi": (0, 100),
    "female": (0, 1),
    "black": (0, 1),
    "child": (0, 1),
    "hlthg": (0, 1),
    "hlthf": (0, 1),
    "hlthp": (0, 1),
    "physlm": (0, 1),
}
WORK = {
    "age": (14, 50),
    "grade": (0, 18),
    "ttl_exp": (0, 30),
    "tenure": (0, 26),
    "hours": (0, 100),
    "year": (68, 88),
    "nev_mar": (0, 1),
    "collgrad": (0, 1),
    "not_smsa": (0, 1),
    "c_city": (0, 1),
    "south": (0, 1),
    "msp": (0, 1),
}


class Task(NamedTuple):
    """A table with persons.

    Attributes:
        X: (rows, features), missing values at the middle of their bounds.
        y: (rows,).
        ids: whose each row is.
        bounds: (low, high) of all features.
        private: makes the private model.
        plain: the model without privacy.
        score: of targets and predictions.
    """

    X: np.ndarray
    y: np.ndarray
    ids: np.ndarray
    bounds: tuple[list[float], list[float]]
    private: Any
    plain: Any
    score: Any


def tasks() -> Iterator[tuple[str, Task]]:
    """All tasks, by name."""
    rand, work = (pd.read_parquet(folder() / "tables" / f"{name}.parquet") for name in ("rand_hie", "nlswork"))
    classes, count, wage = {"classes": [0, 1]}, {"target_bounds": (0, 80)}, {"target_bounds": (0, 5)}
    yield "RAND HIE: any expense", task(rand, RAND, "binexp", DPLogisticRegression, classes, LogisticRegression())
    yield (
        "RAND HIE: visits",
        task(rand, RAND, "mdvis", DPPoissonRegressor, count, PoissonRegressor(alpha=1e-6, max_iter=500)),
    )
    yield "nlswork: wage", task(work, WORK, "ln_wage", DPRidge, wage, Ridge())
    members = work[work["union"].notna()]
    yield "nlswork: union", task(members, WORK, "union", DPLogisticRegression, classes, LogisticRegression())


def task(table: pd.DataFrame, columns: dict[str, Any], target: str, private: Any, more: Any, plain: Any) -> Task:
    low, high = (list(end) for end in zip(*columns.values(), strict=True))
    X = table[list(columns)].fillna(dict(zip(columns, (np.array(low) + high) / 2, strict=True))).to_numpy(float)
    y = table[target].to_numpy(float)
    y = y.astype(int) if "classes" in more else y
    score = {DPLogisticRegression: roc_auc_score, DPRidge: r2_score}.get(private, _poisson)
    make = lambda epsilon, n, seed: private(  # noqa: E731
        epsilon=epsilon, delta=1 / n**2, feature_bounds=(low, high), random_state=seed, **more
    )
    return Task(X, y, table["person"].to_numpy(), (low, high), make, plain, score)


def _poisson(truth: np.ndarray, found: np.ndarray) -> float:
    return float(d2_tweedie_score(truth, np.maximum(found, 1e-6), power=1))


def answered(model: Any, X: np.ndarray) -> np.ndarray:
    return model.predict_proba(X)[:, 1] if hasattr(model, "predict_proba") else model.predict(X)


def cell(one: Task, epsilon: float, seed: int) -> dict[str, float]:
    """Scores on held-out persons, and what the promise about rows is worth to somebody with five."""
    rng = np.random.default_rng(seed)
    everybody = rng.permutation(np.unique(one.ids))
    test = np.isin(one.ids, everybody[: len(everybody) // 5])
    X, y, ids = one.X[~test], one.y[~test], one.ids[~test]
    persons = len(np.unique(ids))
    by_person = one.private(epsilon, persons, seed).fit(X, y, groups=ids)
    by_row = one.private(epsilon, persons, seed).fit(X, y)
    low, high = np.array(one.bounds)
    half = (high - low) / 2
    plain = one.plain.fit((np.clip(X, low, high) - low) / half, y)
    return {
        "person": one.score(one.y[test], answered(by_person, one.X[test])),
        "row": one.score(one.y[test], answered(by_row, one.X[test])),
        "plain": one.score(one.y[test], answered(plain, (np.clip(one.X[test], low, high) - low) / half)),
        "epsilon of five rows": by_row.certificate_.group_epsilon(5, 1 / persons**2),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    seeds = options.parse_args().seeds
    known = {tuple(line[k] for k in KEYS): line for line in recorded("persons")}
    for name, one in tasks():
        for epsilon in EPSILONS:
            keys = [(PROTOCOL, name, epsilon, seed) for seed in range(seeds)]
            for key in keys:
                if key not in known:
                    known[key] = dict(zip(KEYS, key, strict=True)) | cell(one, epsilon, key[-1])
                    record("persons", [known[key]])
            found = [known[key] for key in keys]
            mean = {
                k: float(np.mean([f[k] for f in found])) for k in ("person", "row", "plain", "epsilon of five rows")
            }
            spread = {k: float(np.std([f[k] for f in found])) for k in ("person", "row")}
            print(
                f"{name:22s} ε = {epsilon:<4g} by person {mean['person']:.3f} ± {spread['person']:.3f}   "
                f"by row {mean['row']:.3f} ± {spread['row']:.3f} (five rows: ε = {mean['epsilon of five rows']:.1f})   "
                f"without privacy {mean['plain']:.3f}"
            )


if __name__ == "__main__":
    main()
