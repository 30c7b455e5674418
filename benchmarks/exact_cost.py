"""What exact arithmetic costs: CPU time of a fit on a grid over that of the same fit in floating point.

Both run turn by turn in one process, with fresh noise each time; times are medians, and the goal is a ratio of 1.3. Run
with OMP_NUM_THREADS=1. To add an estimator, add a line to ``CASES``: a function that makes the records and returns a
function from the arithmetic to a fit. The exit status is 1 if a case misses the goal.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from data import folder
from run import parser
from scipy import sparse

from tacit.accounting import certify
from tacit.mechanism import Arithmetic, Plan
from tacit.problem import ElasticNet, Facts, Logistic, Loss, Problem, Squared
from tacit.records import InMemory
from tacit.release import open_session
from tacit.solvers import Budget, CoordinateDescent, Solver

GOAL, ROUNDS = 1.3, 9
Fit = Callable[[Arithmetic], None]


def solved(solver: Solver, task: Problem, records: InMemory) -> Fit:
    """Fits of a solver under its own plan, in either arithmetic."""
    budget = Budget(1.0, 1e-6)

    @functools.cache
    def certificate(arithmetic: Arithmetic) -> object:
        parts = [replace(part, arithmetic=arithmetic) for part in solver.plan(task, budget)]
        return certify(Plan.of(*parts), delta=budget.delta)

    def fit(arithmetic: Arithmetic) -> None:
        with open_session(certificate(arithmetic), records) as session:
            solver.solve(task, budget, session)

    return fit


def dense(loss: Loss, sampling: str = "shuffled", block_size: int = 1, smoothness: str = "private") -> Fit:
    """10⁵ records of 100 features; with public smoothness the sweep is all there is."""
    rng, n, p = np.random.default_rng(0), 100_000, 100
    X = np.asfortranarray(rng.uniform(-1, 1, (n, p)))
    score = X @ rng.normal(size=p) + rng.logistic(size=n)
    y = np.where(score > 0, 1.0, -1.0) if loss.labels else np.clip(score / 10, -1, 1)
    task = Problem(loss, ElasticNet.of(p, l2=1e-4), Facts(n, np.full(p, -1.0), np.ones(p)), intercept=False)
    solver = CoordinateDescent(sampling, block_size, passes=5, smoothness=smoothness)
    return solved(solver, task, InMemory(X, y))


def a9a() -> Fit:
    """32,561 sparse records of 123 features, 14 of them ones."""
    place = folder()
    if place is None:
        raise FileNotFoundError("set TACIT_DATA_DIR to the folder that holds small/a9a.npz")
    with np.load(place / "small" / "a9a.npz", allow_pickle=False) as z:
        indices, starts, p, y = z["indices_train"], z["indptr_train"], int(z["n_features"]), z["y_train"]
    X = sparse.csr_array((np.ones(len(indices)), indices, starts), (len(y), p)).tocsc()
    facts = Facts(len(y), np.zeros(p), np.ones(p), row_nonzeros=14)
    task = Problem(Logistic(), ElasticNet.of(p, l2=1e-3), facts, intercept=False)
    return solved(CoordinateDescent("shuffled", passes=20), task, InMemory(X, np.where(y > 0, 1.0, -1.0)))


CASES: dict[str, Callable[[], Fit]] = {
    "coordinate descent, squared, 1e5 x 100": lambda: dense(Squared()),
    "coordinate descent, logistic, 1e5 x 100": lambda: dense(Logistic()),
    "coordinate descent, squared, public smoothness": lambda: dense(Squared(), smoothness="public"),
    "coordinate descent, logistic, public smoothness": lambda: dense(Logistic(), smoothness="public"),
    "blocks of 10, squared, 1e5 x 100": lambda: dense(Squared(), "nice", 10),
    "blocks of 10, logistic, 1e5 x 100": lambda: dense(Logistic(), "nice", 10),
    "coordinate descent, logistic, a9a sparse": a9a,
}


def measured(name: str) -> dict[str, object]:
    """Median CPU seconds of both, and their ratio."""
    fit = CASES[name]()
    times: dict[Arithmetic, list[float]] = {arithmetic: [] for arithmetic in Arithmetic}
    for turn in range(1 + ROUNDS):  # the first one compiles
        for arithmetic, seconds in times.items():
            start = time.process_time()
            fit(arithmetic)
            if turn:
                seconds.append(time.process_time() - start)
    plain, exact = (float(np.median(times[arithmetic])) for arithmetic in (Arithmetic.FLOAT, Arithmetic.EXACT))
    return {"cell": name, "float_seconds": plain, "exact_seconds": exact, "ratio": exact / plain, "goal": GOAL}


def main() -> int:
    known = parser(__doc__)
    known.add_argument("names", nargs="*", metavar="case", help="cases that contain one of these words; all if missing")
    words = known.parse_args().names
    cells = []
    for name in CASES:
        if not words or any(word in name for word in words):
            cells.append(measured(name))
            print(json.dumps(cells[-1]), flush=True)
    return int(any(cell["ratio"] > GOAL for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
