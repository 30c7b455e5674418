"""How long ``fit`` takes: against scikit-learn, diffprivlib and Opacus, over the bare kernel, and in a new process.

Medians of several repeats, wall and CPU seconds, ratios within one run. Cells accumulate in ``results/timing.jsonl``
and are made again when any code of ours has changed (``--again``: in any case).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
from data import Problem, folder, load
from peers import venvs
from run import record, recorded, table
from untuned import fitted, optimum

import tacit
from tacit.kernels import coordinate
from tacit.maps import feature_bounds, target_bounds
from tacit.problem import ElasticNet, Facts, Logistic, Squared
from tacit.problem import Problem as Task
from tacit.solvers import Budget, CoordinateDescent

EPSILON, REPEATS, PASSES, COLD = 1.0, 7, 20, 4
DATA = ("California ridge", "Electricity", "a9a")
TARGETS = {"overhead": 8e-3, "first": 3.0, "later": 0.7}
LOSSES = {"squared": 0, "logistic": 2}
NEW_PROCESS = """
import time
import numpy as np
import sklearn.linear_model
rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (2000, 8))
y = np.where(X @ np.arange(8.0) + rng.logistic(size=2000) > 0, 1, -1)
start, cpu = time.perf_counter(), time.process_time()
from tacit.estimators import {estimator}
imported = time.perf_counter()
model = {estimator}(1e-3, epsilon=1.0, delta=1e-7, feature_bounds=(-1, 1), {more}, solver={solver!r})
model.fit(X, y)
end = time.perf_counter()
print(end - start, time.process_time() - cpu, imported - start)
"""
ESTIMATORS = {
    "logistic": ("DPLogisticRegression", "classes=[-1, 1]"),
    "squared": ("DPRidge", "target_bounds=(-1, 1)"),
}

Cell = dict[str, object]


def spent(f: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float, float]:
    """Median wall, median CPU and least wall seconds, after one call to compile."""
    f()
    times = []
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        f()
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    wall, used = np.array(times).T
    return float(np.median(wall)), float(np.median(used)), float(wall.min())


def seconds(times: tuple[float, float, float]) -> Cell:
    return dict(zip(("seconds", "cpu", "least"), times, strict=True))


def version() -> str:
    root = pathlib.Path(tacit.__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(root.rglob("*.py")))
    return hashlib.sha256(text).hexdigest()[:10]


def peer(name: str, problem: Problem, *arguments: object) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "problem.npz"
        parts = ("X", "y", "loss", "alpha", "low", "row_norm")
        np.savez(path, **{part: getattr(problem, part) for part in parts})
        out = venvs.run(name, f"{name}_fit.py", path, *arguments)
    return [json.loads(line) for line in (out or "").splitlines()]


def plain(problem: Problem) -> object:
    """scikit-learn with its own settings, the same penalty."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if problem.loss == "squared":
        return Ridge(alpha=problem.n * problem.alpha).fit(problem.X, problem.y)
    return LogisticRegression(C=1 / (problem.n * problem.alpha), max_iter=1000).fit(problem.X, problem.y)


def compared(name: str) -> Iterator[Cell]:
    """Fits of one problem, all in one run."""
    problem = load(name)
    best = problem.objective(*optimum(problem))
    base = spent(lambda: plain(problem))
    yield {"cell": f"{name}: scikit-learn, not private", **seconds(base), "ratio": 1.0, "error": 0.0}
    for method in ("auto", "coordinate", "sgd"):
        found: list[float] = []

        def call(method: str = method, found: list[float] = found) -> None:
            found.append(problem.objective(*fitted(problem, method, EPSILON, len(found))) / best - 1)

        times = spent(call, REPEATS if method != "sgd" else 3)
        error = float(np.median(found))
        yield {"cell": f"{name}: ours, {method}", **seconds(times), "ratio": times[0] / base[0], "error": error}
    batch = min(problem.n, round(8 * problem.n**0.5))
    others = {"diffprivlib": (EPSILON, 5), "opacus": (EPSILON, PASSES, batch, 2)}
    for library, arguments in others.items():
        runs = peer(library, problem, *arguments)
        if runs:
            wall, cpu = np.array([[one["seconds"], one["cpu"]] for one in runs]).T
            times = float(np.median(wall)), float(np.median(cpu)), float(wall.min())
            error = float(np.median([problem.objective(np.array(one["w"]), one["b"]) for one in runs])) / best - 1
            yield {"cell": f"{name}: {library}", **seconds(times), "ratio": times[0] / base[0], "error": error}


def overhead(name: str) -> Iterator[Cell]:
    """``fit`` with solver="coordinate" beyond as many updates of the bare kernel (p = 8, and an intercept)."""
    problem = load(name)
    units = feature_bounds((problem.low, np.ones(problem.size - 1)), problem.size - 1, constant=True)
    X = units(problem.X)
    if problem.loss == "logistic":
        X *= problem.y[:, None]
    t = target_bounds((-1, 1))(problem.y) if problem.loss == "squared" else np.zeros(problem.n)
    loss = Squared() if problem.loss == "squared" else Logistic()
    found, penalty = units.range(), ElasticNet.of(problem.size, l2=problem.alpha)
    task = Task(loss, penalty, Facts(problem.n, found.low, found.high))
    updates = CoordinateDescent().updates(task, Budget(EPSILON, 1 / problem.n**2))
    rng, ones = np.random.default_rng(0), np.ones(problem.size)
    order = rng.integers(problem.size, size=updates)
    rules = (order, rng.normal(size=updates), ones, ones / problem.n, 0 * ones, 0 * ones, -9 * ones, 9 * ones)

    def kernel() -> None:
        coordinate.sweep_dense(X, -t, np.zeros(problem.size), *rules, LOSSES[problem.loss], 1.0, np.zeros(problem.size))

    both = []
    for call in (lambda: fitted(problem, "coordinate", EPSILON, 0), kernel) * 3:  # turn by turn: the load varies
        both.append(spent(call, 10))
    fit, bare = (np.median(both[k::2], axis=0) for k in (0, 1))
    beyond = seconds(tuple(float(value) for value in fit - bare))
    more = {"fit": float(fit[0]), "kernel": float(bare[0]), "updates": updates, "target": TARGETS["overhead"]}
    yield {"cell": f"{name}: overhead of fit over the kernel", **beyond, **more}


def new_process(loss: str, solver: str) -> Iterator[Cell]:
    """Import and fit beyond ``import sklearn.linear_model``: with nothing compiled, and from the cache."""
    estimator, more = ESTIMATORS[loss]
    script = NEW_PROCESS.format(estimator=estimator, more=more, solver=solver)
    cold, warm = [], []
    for _ in range(COLD):
        with tempfile.TemporaryDirectory() as cache:
            env = {**os.environ, "NUMBA_CACHE_DIR": cache}
            runs = []
            for _ in range(3):
                command = [sys.executable, "-c", script]
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                runs.append([float(value) for value in done.stdout.split()])
            cold.append(runs[0])
            warm += runs[1:]
    for name, target, found in (("first fit", "first", cold), ("later fits", "later", warm)):
        wall, cpu, imports = (float(value) for value in np.median(found, axis=0))
        least = {"least": min(run[0] for run in found), "least cpu": min(run[1] for run in found)}
        times = {"seconds": wall, "cpu": cpu, **least, "import": imports, "target": TARGETS[target]}
        yield {"cell": f"new process, {solver}, {loss}: {name}", **times, "repeats": len(found)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(arguments)
    groups: dict[str, Callable[[], Iterator[Cell]]] = {}
    for loss, solver in (("logistic", "auto"), ("logistic", "coordinate"), ("squared", "auto")):
        groups[f"new process, {solver}, {loss}"] = lambda loss=loss, solver=solver: new_process(loss, solver)
    if folder() is None:
        print("timing: fits skipped, set TACIT_DATA_DIR to the folder that holds small/*.npz", file=sys.stderr)
    else:
        groups |= {f"overhead, {name}": lambda name=name: overhead(name) for name in DATA[:2]}
        groups |= {name: lambda name=name: compared(name) for name in DATA}
    stamp = version()
    done = [] if options.again else [cell for cell in recorded("timing") if cell["version"] == stamp]
    for group, make in groups.items():
        if any(cell["group"] == group for cell in done):
            continue
        for cell in make():
            line = {**cell, "group": group, "version": stamp}
            record("timing", [line])
            print(json.dumps(line), flush=True)
            done.append(line)
    hidden = {"group", "version", "date", "cores"}
    table("timing", [{name: value for name, value in cell.items() if name not in hidden} for cell in done])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
