"""Which solver, by name or by a rule in public quantities."""

from __future__ import annotations

from collections.abc import Callable

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import Problem
from tacit.solvers.base import SOLVERS, Budget, Solver
from tacit.solvers.coordinate import CoordinateDescent
from tacit.solvers.cyclic import NoisyCyclicDescent
from tacit.solvers.metric import MetricDescent

__all__ = ["LARGEST_GRAM", "choose", "solver_factory"]

LARGEST_GRAM = 2000
"""Coordinates up to which a noisy second-moment matrix is formed."""


def choose(problem: Problem, budget: Budget) -> type[Solver]:
    """The rule of ``solver="auto"``, fixed before it was benchmarked; it reads nothing but these two.

    1. ``view="final_model"``: noisy gradient descent with the last-iterate certificate.
    2. Up to 2000 coordinates: metric descent, which degrades to a constant model by itself when x = nμ/p is small.
    3. More: coordinate descent with private smoothness.

    Args:
        problem: what to minimise.
        budget: what may be spent.

    Returns:
        The class of the solver.
    """
    if budget.view == "final_model":
        return NoisyCyclicDescent
    return MetricDescent if problem.facts.size <= LARGEST_GRAM else CoordinateDescent


def solver_factory(solver: object, passes: float | None, clip: float | None) -> Callable[[Problem, Budget], Solver]:
    """From the parameters of an estimator to a choice of solver.

    Args:
        solver: "auto", a name of SOLVERS, or a solver object.
        passes: how often the data may be read, None for the solver's rule.
        clip: the solver's clip, None for its rule.

    Returns:
        A function of the problem and the budget.

    Raises:
        InvalidInput: if a setting is out of range, or has no effect on the solver.
    """
    for name, value in (("max_passes", passes), ("clip", clip)):
        if value is None:
            continue
        if isinstance(solver, Solver):
            kind = type(solver).__name__
            raise InvalidInput(f"{name} has no effect with a solver object: leave it out, and set up the {kind}")
        _validate.positive(**{name: value})
    if isinstance(solver, Solver):
        return lambda problem, budget: solver
    name = _validate.one_of(("auto", *sorted(SOLVERS)), solver=solver)
    if name == "auto":
        return lambda problem, budget: choose(problem, budget).of(passes, clip)
    if SOLVERS[name].one_pass and passes is not None:
        raise InvalidInput(f"max_passes has no effect with solver={name!r}, which makes one release: leave it out")
    return lambda problem, budget: SOLVERS[name].of(passes, clip)
