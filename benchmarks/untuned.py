"""Untuned defaults against other private methods, tuned ones, diffprivlib and the optimum.

Medians over seeds of the relative error (f(w) − f*)/f* of the training objective, and of the test score, on one split
(80 % to train) at δ = 1/n², replace-one. Cells accumulate in ``results/untuned.jsonl``; a cell is made again only when
code that it runs has changed. ``python benchmarks/untuned.py --seeds 5 --only a9a,Adult`` makes a part.

Not all columns promise the same: *cyclic* shows the final model only; *tuned* picks, without privacy,
the best of a small grid for every solver (so no private method can be expected to match it); diffprivlib is ε-DP.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import itertools
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from data import PROBLEMS, Problem, folder, load
from peers import venvs
from run import record, recorded

import tacit
from tacit.accounting import gdp_mu
from tacit.errors import InvalidInput
from tacit.estimators import DPLasso, DPLogisticRegression, DPRidge
from tacit.solvers import (
    CoordinateDescent,
    MetricDescent,
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisyStatistics,
    ProximalSGD,
    Solver,
)

EPSILONS = (0.1, 1.0, 10.0)
SEEDS, SLOW_SEEDS, TUNING_SEEDS = 20, 5, 2
SLOW = ("sgd", "cyclic", "diffprivlib")
PROTOCOL, GRID = "1", "grid 2"
BARS = {
    "California ridge": (0.031, 5.1e-3, 2.7e-4),
    "California lasso": (0.025, 4.6e-3, 2.4e-4),
    "Electricity": (9.5e-3, 1.1e-4, 1.0e-5),
    "a9a": (0.125, 0.020, 2.5e-3),
    "breast cancer": (3.9, 0.97, 0.14),
}
"""What the prototype of metric descent reached (its split and bounds were its own)."""
METHODS = ("auto", "coordinate", "gradient", "sgd", "statistics", "cyclic")
SOLVED_IN = {
    "auto": "metric",
    "metric": "metric",
    "coordinate": "coordinate",
    "gradient": "gradient",
    "sgd": "gradient",
    "statistics": "statistics",
    "cyclic": "cyclic",
}
WATCHED = ("solvers", "release", "records", "maps", "problem", "kernels")

Cell = dict[str, object]


def grid(method: str, size: int) -> list[dict[str, float]]:
    """Settings that tuning tries: the defaults, and a grid; clips in units of √p."""
    p = size**0.5
    clips, counts = (0.1, 0.3, 1.0), (5, 20, 80)
    axes: dict[str, dict[str, tuple[float, ...]]] = {
        "metric": {"steps": (4, 15, 50, 100), "clip": (0.3, 1.0, 3.0, 10.0)},
        "coordinate": {"passes": (1, 5, 20), "clip": tuple(c * p for c in clips)},
        "gradient": {"steps": counts, "clip": tuple(c * p for c in clips)},
        "sgd": {"passes": (5, 20), "clip": (0.3 * p, p)},
        "statistics": {"clip": (0.3 * p, 0.6 * p, p), "ridge": (0.1, 1.0)},
        "cyclic": {"epochs": (5, 20), "row_norm": (0.75, 1.5)},
    }
    names = axes[method]
    return [{}, *(dict(zip(names, values, strict=True)) for values in itertools.product(*names.values()))]


def solver(method: str, settings: dict[str, float]) -> Solver:
    kinds = (
        MetricDescent,
        CoordinateDescent,
        NoisyGradientDescent,
        ProximalSGD,
        NoisyStatistics,
        NoisyCyclicDescent,
    )
    return {kind.name: kind for kind in kinds}[method](**settings)


def fitted(problem: Problem, method: str | Solver, epsilon: float, seed: int) -> tuple[np.ndarray, float]:
    """Coefficients and intercept of one fit."""
    name = method if isinstance(method, str) else method.name
    common = {
        "epsilon": epsilon,
        "delta": 1 / problem.n**2,
        "feature_bounds": (problem.low, np.ones(problem.size - 1)),
        "solver": method,
        "view": "final_model" if name == "cyclic" else "all_iterates",
        "random_state": seed,
    }
    if problem.loss == "logistic":
        model = DPLogisticRegression(problem.alpha, classes=[-1, 1], **common)
    else:
        model = (DPRidge if problem.penalty == "l2" else DPLasso)(problem.alpha, target_bounds=(-1, 1), **common)
    model.fit(problem.X, problem.y)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])


def optimum(problem: Problem) -> tuple[np.ndarray, float]:
    """Without privacy."""
    from sklearn.linear_model import Lasso, LogisticRegression, Ridge

    if problem.loss == "logistic":
        C = 1 / (problem.n * problem.alpha)
        model = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-9, max_iter=1000)
    elif problem.penalty == "l2":
        model = Ridge(alpha=problem.n * problem.alpha, solver="cholesky")
    else:
        model = Lasso(alpha=problem.alpha, tol=1e-12, max_iter=100_000)
    model.fit(problem.X, problem.y)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])


def constant(problem: Problem) -> tuple[np.ndarray, float]:
    """The best model without slopes, without privacy."""
    mean = float(problem.y.mean())
    b = mean if problem.loss == "squared" else float(np.log((1 + mean) / (1 - mean)))
    return np.zeros(problem.size - 1), b


@functools.cache
def code_version(module: str) -> str:
    """A digest of all code of ours that a solver's module can run; docstrings and comments do not count."""
    root = pathlib.Path(tacit.__file__).parent
    seen: dict[str, str] = {}
    todo = [f"tacit.solvers.{module}"]
    while todo:
        name = todo.pop()
        parts = name.split(".")[1:]
        if name in seen or not parts or parts[0] not in WATCHED:
            continue
        path = root.joinpath(*parts)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
                todo.append(str(node.module))
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                todo += [one for one in inner if root.joinpath(*one.split(".")[1:]).with_suffix(".py").exists()]
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                body[:] = body[1:] if isinstance(body[0].value, ast.Constant) else body
        seen[name] = ast.dump(tree)
    return hashlib.sha256("".join(f"{k}{seen[k]}" for k in sorted(seen)).encode()).hexdigest()[:10]


def version(method: str) -> str:
    if method == "diffprivlib":
        return f"{PROTOCOL} {(venvs.HERE / 'diffprivlib.txt').read_text().split()[0]}"
    if method == "not private":
        return PROTOCOL
    tuned = method.removeprefix("tuned ")
    protocol = PROTOCOL if tuned == method else f"{PROTOCOL} {GRID}"
    return f"{protocol} {code_version(SOLVED_IN[tuned])}"


def measured(problem: Problem, best: float, fits: list[tuple[np.ndarray, float]]) -> Cell:
    errors = np.array([problem.objective(w, b) / best - 1 for w, b in fits])
    low, high = np.quantile(errors, (0.25, 0.75))
    scores = [problem.test_score(w, b) for w, b in fits]
    return {"error": float(np.median(errors)), "quartiles": [low, high], "test": float(np.median(scores))}


class Board:
    """Cells that are there already, and new ones as they finish."""

    def __init__(self) -> None:
        self._cells = {self._key(cell): cell for cell in recorded("untuned")}

    @staticmethod
    def _key(cell: Cell) -> str:
        return json.dumps([cell[name] for name in ("dataset", "epsilon", "method", "seeds", "version")])

    def find(self, key: Cell) -> Cell | None:
        """The cell, if the present code made it."""
        return self._cells.get(self._key(key))

    def latest(self, key: Cell) -> Cell | None:
        """The cell, or else what older code left under its settings."""
        like = {**key, "version": ""}
        found = [cell for cell in self._cells.values() if self._key({**cell, "version": ""}) == self._key(like)]
        return self.find(key) or (found[-1] if found else None)

    def add(self, cell: Cell) -> None:
        """Keep, record and print it."""
        record("untuned", [cell])
        print(json.dumps(cell), flush=True)
        self._cells[self._key(cell)] = cell


def ours(problem: Problem, best: float, key: Cell, epsilon: float) -> Cell | None:
    """One cell: a method with its defaults, or the best of its grid."""
    method, seeds = str(key["method"]), int(str(key["seeds"]))
    start = time.process_time()
    chosen: str | Solver = method
    more: Cell = {}
    try:
        if method.startswith("tuned "):
            name = method.removeprefix("tuned ")
            runs = []
            for settings in grid(name, problem.size):
                one = solver(name, settings)
                tries = [fitted(problem, one, epsilon, 1000 + seed) for seed in range(TUNING_SEEDS)]
                runs.append((float(np.median([problem.objective(*fit) for fit in tries])), settings, one))
            _, more["settings"], chosen = min(runs, key=lambda run: run[0])
        fits = [fitted(problem, chosen, epsilon, seed) for seed in range(seeds)]
    except InvalidInput:
        return None  # this solver does not take this loss or penalty
    return {**key, **measured(problem, best, fits), "cpu_seconds": time.process_time() - start, **more}


def diffprivlib(problem: Problem, best: float, keys: list[Cell]) -> Iterator[Cell]:
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "problem.npz"
        parts = {name: getattr(problem, name) for name in ("X", "y", "loss", "alpha", "low", "row_norm")}
        np.savez(path, **parts)
        epsilons = ",".join(str(key["epsilon"]) for key in keys)
        out = venvs.run("diffprivlib", "diffprivlib_fit.py", path, epsilons, SLOW_SEEDS)
    fits = [json.loads(line) for line in (out or "").splitlines()]
    for key in keys:
        mine = [fit for fit in fits if fit["epsilon"] == key["epsilon"]]
        if mine:
            cpu = sum(fit["cpu"] for fit in mine)
            found = measured(problem, best, [(np.array(fit["w"]), fit["b"]) for fit in mine])
            yield {**key, **found, "cpu_seconds": cpu, "guarantee": "ε-DP, δ = 0"}


def dataset(name: str, seeds: int, methods: list[str], board: Board) -> None:
    """All cells of a data set that are not there yet."""
    problem = load(name)
    w, b = optimum(problem)
    best = problem.objective(w, b)
    keys = [key(name, epsilon, method, seeds) for epsilon in EPSILONS for method in methods]
    missing = [one for one in keys if board.find(one) is None]
    for one in missing:
        if one["method"] == "diffprivlib":
            continue
        if one["method"] == "not private":
            base = problem.objective(*constant(problem)) / best - 1
            x = problem.n * float(gdp_mu(float(str(one["epsilon"])), 1 / problem.n**2)) / problem.size
            cell = {"error": 0.0, "test": problem.test_score(w, b), "constant": base, "x": x, "optimum": best}
            board.add({**one, **cell, "n": problem.n, "p": problem.size})
        elif (done := ours(problem, best, one, float(str(one["epsilon"])))) is not None:
            board.add(done)
    left = [one for one in missing if one["method"] == "diffprivlib"]
    for cell in diffprivlib(problem, best, left) if left and problem.penalty == "l2" else ():
        board.add(cell)


def _methods() -> list[str]:
    tuned = [f"tuned {name}" for name in SOLVED_IN if name != "auto"]
    return ["not private", *METHODS, *tuned, "diffprivlib"]


def key(name: str, epsilon: float, method: str, seeds: int) -> Cell:
    slow = method.removeprefix("tuned ") in SLOW
    count = min(seeds, SLOW_SEEDS) if slow else seeds
    count = 1 if method == "not private" else count
    return {"dataset": name, "epsilon": epsilon, "method": method, "seeds": count, "version": version(method)}


def rows(names: list[str], seeds: int, board: Board) -> list[Cell]:
    """One row per data set and ε."""
    out = []
    for name, (k, epsilon) in itertools.product(names, enumerate(EPSILONS)):
        keys = {m: key(name, epsilon, m, seeds) for m in _methods()}
        cells = {m: board.latest(one) for m, one in keys.items()}
        if cells["not private"] is None or cells["auto"] is None:
            continue
        error = {m: float(str(cell["error"])) for m, cell in cells.items() if cell is not None}
        others = [error[m] for m in (*METHODS, "diffprivlib") if m in error and m != "auto"]
        tuned = {m: value for m, value in error.items() if m.startswith("tuned ")}
        row: Cell = {"data": name, "ε": epsilon, "x": cells["not private"]["x"]}
        row |= {m: error.get(m) for m in (*METHODS, "diffprivlib")}
        row["constant"] = cells["not private"]["constant"]
        row["tuned"] = min(tuned.values(), default=None)
        row["tuned by"] = min(tuned, key=tuned.__getitem__, default="").removeprefix("tuned ")
        row["bar"] = BARS[name][k] if name in BARS else None
        mine = error["auto"]
        row["/bar"] = mine / BARS[name][k] if name in BARS else None
        row["/best"] = mine / min(others) if others else None
        row["/tuned"] = mine / min(tuned.values()) if tuned else None
        row["test"] = cells["auto"]["test"]
        scores = {m: float(str(cell["test"])) for m, cell in cells.items() if cell is not None and m in METHODS}
        row["best other test"] = max((score for m, score in scores.items() if m != "auto"), default=None)
        row["optimum test"] = cells["not private"]["test"]
        row["code"] = "present" if board.find(keys["auto"]) else "older"
        out.append(row)
    return out


def show(table: list[Cell]) -> None:
    """Plain text, one line per row."""
    if not table:
        return
    shown = [[_short(row[column]) for column in row] for row in table]
    names = list(table[0])
    widths = [max(len(name), *(len(row[k]) for row in shown)) for k, name in enumerate(names)]
    for line in [names, *shown]:
        print("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)))


def _short(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default=",".join(PROBLEMS), help="data sets, separated by commas")
    parser.add_argument("--methods", default=",".join(_methods()), help="columns, separated by commas")
    options = parser.parse_args(arguments)
    names, board = options.only.split(","), Board()
    if folder() is None:
        print("untuned: skipped, set TACIT_DATA_DIR to the folder that holds small/*.npz", file=sys.stderr)
        return 0
    for name in names:
        dataset(name, options.seeds, options.methods.split(","), board)
    print(
        f"\nRelative error of the training objective, median of {options.seeds} seeds ({', '.join(SLOW)}: "
        f"{min(options.seeds, SLOW_SEEDS)}); x = nμ/p.\ncyclic: final model only; diffprivlib: ε-DP "
        f"(δ = 0), linear regression without penalty; tuned: non-private, best of a grid.\n"
    )
    show(rows(names, options.seeds, board))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
