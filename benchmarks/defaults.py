"""Untouched estimators on tables as people have them: AUC or R² on held-out rows, nothing rescaled, nothing tuned.

Ours is exactly ``Estimator(epsilon=…, delta=1/n², feature_bounds=…)`` with ``target_bounds`` or ``classes``, in raw
units (``tables.py``); each seed has another split (80 % to train) and, for the benchmark only, a public noise seed.
*not private* is scikit-learn's default behind a ``StandardScaler`` on rows clipped to the same bounds; *constant* is
the private constant model of the same budget. diffprivlib 0.6.6 promises ε-DP, which is more; its features are mapped
by the bounds and scaled to norm 1 for it. One JSON line per cell with the scores of all seeds accumulates in
``results/defaults.jsonl``; a cell that is there is not made again unless ``--again`` is given.

``python benchmarks/defaults.py --seeds 5 --only heart,California`` makes a part; ``--wide`` the table of bounds that
are 10 and 100 times too wide.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable

import numpy as np
from data import folder
from numpy.typing import NDArray
from peers import venvs
from run import parser, record, recorded
from scipy import stats
from tables import TASKS, Task, task

from tacit.accounting import gdp_mu
from tacit.estimators import DPGammaRegressor, DPLogisticRegression, DPPoissonRegressor, DPRidge

EPSILONS = (0.1, 0.5, 1.0, 3.0, 10.0)
METHODS = ("tacit", "constant", "not private", "diffprivlib")
LEVEL, CLOSE, ENOUGH = 0.05, 0.02, 30.0
WIDE = (1.0, 10.0, 100.0)
FAMILIES = {
    "logistic": DPLogisticRegression,
    "ridge": DPRidge,
    "poisson": DPPoissonRegressor,
    "gamma": DPGammaRegressor,
}
Array = NDArray[np.float64]
Cell = dict[str, object]


def private(one: Task, X: Array, y: Array, epsilon: float, seed: int, **more: object):
    """What a newcomer writes."""
    told: dict[str, object] = {"epsilon": epsilon, "delta": 1 / len(y) ** 2, "feature_bounds": (one.low, one.high)}
    told |= {"classes": [0, 1]} if one.labels else {"target_bounds": one.target}
    return FAMILIES[one.model](**told, random_state=seed, **more).fit(X, y)


def not_private(one: Task, X: Array, y: Array):
    from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kinds = {
        "logistic": LogisticRegression(max_iter=5000),
        "ridge": Ridge(),
        "poisson": PoissonRegressor(max_iter=1000),
        "gamma": GammaRegressor(max_iter=1000),
    }
    return make_pipeline(StandardScaler(), kinds[one.model]).fit(X, y)


def score(one: Task, model, X: Array, y: Array) -> float:
    """AUC, or R² of predictions and targets within the bounds."""
    if one.labels:
        return auc(y, model.decision_function(X))
    target = np.clip(y, *one.target)
    return r_squared(target, np.clip(model.predict(X), *one.target))


def auc(y: Array, scores: Array) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(y, scores))


def r_squared(y: Array, predictions: Array) -> float:
    return float(1 - np.square(predictions - y).sum() / np.square(y - y.mean()).sum())


def parts(one: Task, seed: int) -> tuple[Array, Array, Array, Array]:
    """Training and test rows of a seed; targets of a regression within their bounds."""
    train, test = one.split(seed)
    y = one.y if one.labels else np.clip(one.y, *one.target)
    return one.X[train], y[train], one.X[test], y[test]


def signal(one: Task, epsilon: float) -> float:
    n = round(0.8 * len(one.y))
    return n * float(gdp_mu(epsilon, 1 / n**2)) / (one.X.shape[1] + 1)


def cell(name: str, epsilon: float, method: str, seeds: int) -> Cell:
    """Scores of one method at one ε."""
    one, scores, start = task(name), [], time.process_time()
    for seed in range(seeds):
        X, y, X_test, y_test = parts(one, seed)
        if method == "diffprivlib":
            scores.append(peer(one, X, y, X_test, y_test, epsilon))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if method == "not private":
                model = not_private(one, np.clip(X, one.low, one.high), y)
            else:
                model = private(one, X, y, epsilon, seed, **({"solver": "constant"} if method == "constant" else {}))
        inside = np.clip(X_test, one.low, one.high) if method == "not private" else X_test
        scores.append(score(one, model, inside, y_test))
    key = {"task": name, "epsilon": epsilon, "method": method, "seeds": seeds, "x": signal(one, epsilon)}
    return {**key, "scores": scores, "cpu_seconds": time.process_time() - start}


def peer(one: Task, X: Array, y: Array, X_test: Array, y_test: Array, epsilon: float) -> float:
    """One fit of diffprivlib in its own environment; nan if there is none."""
    half = np.where(one.high > one.low, (one.high - one.low) / 2, 1.0)
    U, U_test = (np.clip((part - one.low) / half - 1, -1, 1) for part in (X, X_test))
    centre, scale = (0.0, 1.0) if one.labels else (np.mean(one.target), (one.target[1] - one.target[0]) / 2)
    loss = "logistic" if one.labels else "squared"
    target = np.where(y > 0, 1.0, -1.0) if one.labels else (y - centre) / scale
    told = {"X": U, "y": target, "loss": loss, "alpha": 1 / len(y), "low": -np.ones(U.shape[1])}
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "problem.npz"
        np.savez(path, **told, row_norm=np.sqrt(U.shape[1]))
        out = venvs.run("diffprivlib", "diffprivlib_fit.py", path, epsilon, 1)
    if not out:
        return float("nan")
    fit = json.loads(out.splitlines()[0])
    f = U_test @ np.array(fit["w"]) + fit["b"]
    return auc(y_test, f) if one.labels else r_squared(y_test, np.clip(centre + scale * f, *one.target))


def wide_cell(name: str, epsilon: float, factor: float, seeds: int) -> Cell:
    """Scores with the upper ends of all bounds but those of 0/1 columns too far away."""
    one, scores = task(name), []
    numbers = ~((one.low == 0) & (one.high == 1))
    high = np.where(numbers, one.low + factor * (one.high - one.low), one.high)
    crude = Task(one.name, one.X, one.y, one.low, high, one.target, one.model)
    for seed in range(seeds):
        X, y, X_test, y_test = parts(one, seed)
        scores.append(score(one, private(crude, X, y, epsilon, seed), X_test, y_test))
    key = {"task": name, "epsilon": epsilon, "method": f"bounds × {factor:g}", "seeds": seeds}
    return {**key, "x": signal(one, epsilon), "scores": scores}


def lost(first: Iterable[float], second: Iterable[float]) -> float:
    """The p-value of "the first is no worse than the second", paired over seeds."""
    gap = np.asarray(list(second)) - np.asarray(list(first))
    if not np.isfinite(gap).all() or np.ptp(gap) == 0:
        return 0.0 if np.isfinite(gap).all() and gap.mean() > 1e-12 else 1.0
    return float(stats.ttest_1samp(gap, 0.0, alternative="greater").pvalue)


def holm(values: list[float]) -> list[bool]:
    """Which are significant together at 5 %."""
    order, out = np.argsort(values), [False] * len(values)
    for rank, k in enumerate(order):
        if values[k] > LEVEL / (len(values) - rank):
            break
        out[k] = True
    return out


def latest(names: list[str]) -> dict[tuple[str, float, str], list[float]]:
    found = {}
    for line in recorded("defaults"):
        if line["task"] in names:
            found[line["task"], line["epsilon"], line["method"]] = [float(s) for s in line["scores"]]
    return found


def show(names: list[str]) -> None:
    """One table, and what is significant in it."""
    found = latest(names)
    print("task | ε | x | " + " | ".join(METHODS) + " | remarks")
    pairs, where = [], []
    for name, epsilon in itertools.product(names, EPSILONS):
        mine = found.get((name, epsilon, "tacit"))
        for other in ("constant", "diffprivlib"):
            if mine and (theirs := found.get((name, epsilon, other))):
                k = min(len(mine), len(theirs))
                pairs.append(lost(mine[:k], theirs[:k]))
                where.append((name, epsilon, other))
    worse = {key for key, is_worse in zip(where, holm(pairs), strict=True) if is_worse}
    for name, epsilon in itertools.product(names, EPSILONS):
        cells = [found.get((name, epsilon, method)) for method in METHODS]
        if cells[0] is None:
            continue
        x, base = signal(task(name), epsilon), 0.5 if task(name).labels else 0.0
        remarks = [f"worse than {other}" for n, e, other in worse if (n, e) == (name, epsilon)]
        if cells[2] is not None and x >= ENOUGH and np.mean(cells[0]) < (1 - CLOSE) * np.mean(cells[2]):
            remarks.append("not within 2 %")
        if cells[2] is not None:
            remarks.append(f"{(np.mean(cells[0]) - base) / (np.mean(cells[2]) - base):.0%} of the gain")
        shown = ["–" if c is None or not np.isfinite(c).any() else f"{np.nanmean(c):.3f}" for c in cells]
        print(f"{name} | {epsilon:g} | {x:.3g} | " + " | ".join(shown) + " | " + ", ".join(remarks))
    wide = [f"bounds × {factor:g}" for factor in WIDE]
    for name, epsilon in sorted({(n, e) for n, e, method in found if method in wide}):
        shown = [f"{np.mean(found[name, epsilon, method]):.3f}" for method in wide if (name, epsilon, method) in found]
        print(f"{name} | {epsilon:g} | {signal(task(name), epsilon):.3g} | {', '.join(wide)}: " + " / ".join(shown))


def main(arguments: list[str]) -> int:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=20)
    options.add_argument("--only", default=",".join(TASKS), help="tasks, separated by commas")
    options.add_argument("--epsilons", default=",".join(map(str, EPSILONS)), help="separated by commas")
    options.add_argument("--methods", default=",".join(METHODS), help="columns, separated by commas")
    options.add_argument("--wide", action="store_true", help="bounds that are too wide, instead")
    options.add_argument("--again", action="store_true", help="make cells that are there, too")
    given = options.parse_args(arguments)
    names = given.only.split(",")
    if folder() is None:
        print("defaults: skipped, set TACIT_DATA_DIR to the folder that holds tables/", file=sys.stderr)
        return 0
    for name, epsilon in itertools.product(names, map(float, given.epsilons.split(","))):
        if given.wide:
            for factor in WIDE:
                record("defaults", [wide_cell(name, epsilon, factor, given.seeds)])
            continue
        for method in given.methods.split(","):
            key = (name, epsilon, method)
            if given.again or len(latest([name]).get(key, [])) < given.seeds:
                record("defaults", [cell(name, epsilon, method, given.seeds)])
                print(*key, flush=True)
    show(names)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
