"""Problems with their records, and solvers run on them under their own certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from contracts import made, told
from numpy.typing import NDArray

from tacit.accounting import Certificate, certify
from tacit.errors import NotCovered
from tacit.problem import ElasticNet, Facts, Loss, Problem, Squared
from tacit.records import InMemory
from tacit.release import open_session
from tacit.solvers import SOLVERS, Budget, Solver

Array = NDArray[np.float64]
SILENT = Budget(1e12, 1e-8)
PRIVATE = Budget(1.0, 1e-6)


def problem(
    X: Array,
    y: Array,
    loss: Loss | None = None,
    form: Callable[[Array], Any] = np.asarray,
    reach: Any = None,
    row_nonzeros: int | None = None,
    **penalty: Any,
) -> tuple[Problem, InMemory]:
    """A problem without an intercept, and its records; public bounds are twice what is there."""
    loss = loss or Squared()
    n, p = X.shape
    reach = np.maximum(2 * np.abs(X).max(axis=0), 1e-3) if reach is None else np.broadcast_to(reach, p)
    target = 1.0 if loss.labels else 2 * float(np.abs(y).max())
    facts = Facts(n, -reach, reach, target, row_nonzeros)
    return Problem(loss, ElasticNet.of(p, **penalty), facts, intercept=False), InMemory(form(X), y)


def solver_of(name: str) -> Solver:
    """A solver as an estimator makes it from max_passes and clip."""
    cls = SOLVERS[name]
    settings = (None if cls.one_pass else 2.0, 0.3)
    out = made(
        cls,
        lambda: cls.of(*settings),
        "give every field a default, and let of(passes, clip) make one from an estimator's max_passes and clip",
    )
    told(type(out) is cls, f"of(passes, clip) of {cls.__name__} makes a {type(out).__name__}: return cls(...)")
    return out


def compatible(solver: Solver, losses: tuple[Loss, ...], budget: Budget) -> tuple[Loss, ...]:
    """The losses that the solver takes."""
    facts = Facts(12, -np.ones(2), np.ones(2))
    out = []
    for loss in losses:
        try:
            solver.check(Problem(loss, ElasticNet.of(2), facts), budget)
            out.append(loss)
        except NotCovered:
            pass
    told(out, f"{type(solver).__name__} takes none of our losses: check its needs")
    return tuple(out)


def certified(solver: Solver, task: Problem, budget: Budget) -> Certificate:
    """The certificate of a solver's plan."""
    solver.check(task, budget)
    return certify(solver.plan(task, budget), delta=budget.delta)


def many(solver: Solver, task: Problem, records: InMemory, budget: Budget, seeds: Iterable[int]) -> Array:
    """Coefficients of one fit per seed."""
    certificate = certified(solver, task, budget)
    out = []
    for seed in seeds:
        with open_session(certificate, records, random_state=seed) as session:
            out.append(solver.solve(task, budget, session).v)
    return np.array(out)


def solve(solver: Solver, task: Problem, records: InMemory, budget: Budget = SILENT, seed: int = 0) -> Array:
    """Coefficients of one fit."""
    return many(solver, task, records, budget, [seed])[0]  # type: ignore[no-any-return]


def dense(records: InMemory) -> Array:
    """The features, as the queries see them."""
    (rows,) = records.parts()
    return rows.design.dense()


def objective(task: Problem, records: InMemory, v: Array) -> float:
    """The mean loss plus penalty at v: private, for tests only."""
    (rows,) = records.parts()
    return float(task.loss.value(rows.design.dot(v), rows.y).mean()) + task.penalty.value(v)


def curvature(task: Problem, records: InMemory) -> Array:
    """Coordinate-wise smoothness of the mean loss."""
    return np.asarray(task.loss.curvature * np.square(dense(records)).mean(axis=0))
