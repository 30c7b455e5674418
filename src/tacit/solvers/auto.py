"""Which solver, by name or by a rule in public quantities."""

from __future__ import annotations

from collections.abc import Callable

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import Task
from tacit.solvers.base import Budget, LinearSolver
from tacit.solvers.coordinate import CoordinateDescent
from tacit.solvers.cyclic import NoisyCyclicDescent
from tacit.solvers.gradient import NoisyGradientDescent, ProximalSGD
from tacit.solvers.metric import MetricDescent
from tacit.solvers.statistics import NoisyStatistics

__all__ = ["LARGEST_GRAM", "SOLVERS", "choose", "named"]

LARGEST_GRAM = 2000
"""Coordinates up to which a noisy second-moment matrix is formed."""


def choose(task: Task, budget: Budget) -> LinearSolver:
    """The rule of ``solver="auto"``, fixed before it was benchmarked; it reads nothing but these two.

    1. ``view="final_model"``: noisy gradient descent with the last-iterate certificate.
    2. Up to 2000 coordinates: metric descent, which degrades to a constant model by itself when x = nμ/p is small.
    3. More: coordinate descent with private smoothness.

    Args:
        task: public constants of the problem.
        budget: what may be spent.

    Returns:
        A solver with default settings.
    """
    if budget.view == "final_model":
        return NoisyCyclicDescent()
    if task.size <= LARGEST_GRAM:
        return MetricDescent()
    return CoordinateDescent()


def _count(passes: float | None) -> int | None:
    return None if passes is None else max(round(passes), 1)


SOLVERS: dict[str, Callable[[float | None, float | None], LinearSolver]] = {
    "metric": lambda passes, clip: MetricDescent(steps=_count(passes), clip=clip),
    "coordinate": lambda passes, clip: CoordinateDescent(passes=passes, clip=clip),
    "gradient": lambda passes, clip: NoisyGradientDescent(steps=_count(passes), clip=clip),
    "sgd": lambda passes, clip: ProximalSGD(clip=clip) if passes is None else ProximalSGD(passes=passes, clip=clip),
    "cyclic": lambda passes, clip: NoisyCyclicDescent(epochs=_count(passes), clip=clip),
    "statistics": lambda passes, clip: NoisyStatistics(clip=clip),
}
"""Solvers by name; each takes how often the data may be read and a clip, None for its own rule."""
ONE_PASS = ("statistics",)
"""Solvers that read the data once: a number of passes has no effect on them."""


def named(name: str, passes: float | None, clip: float | None) -> Callable[[Task, Budget], LinearSolver]:
    """From the parameters of an estimator to a choice of solver.

    Args:
        name: "auto" or one of SOLVERS.
        passes: how often the data may be read, None for the solver's rule.
        clip: the solver's clip, None for its rule.

    Returns:
        A function of the task and the budget.

    Raises:
        InvalidInput: if a setting is out of range, or has no effect on the solver.
    """
    _validate.one_of(("auto", *SOLVERS), solver=name)
    for what, value in (("max_passes", passes), ("clip", clip)):
        if value is not None:
            _validate.positive(**{what: value})
    if name in ONE_PASS and passes is not None:
        raise InvalidInput(f"max_passes has no effect with solver={name!r}, which makes one release: leave it out")
    if name == "auto" and passes is None and clip is None:
        return choose
    if name == "auto":
        return lambda task, budget: SOLVERS[choose(task, budget).name](passes, clip)
    return lambda task, budget: SOLVERS[name](passes, clip)
