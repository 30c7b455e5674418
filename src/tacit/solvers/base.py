"""What every solver offers: a plan from public numbers, and a solution from what a session releases.

    plan = solver.plan(problem, budget)                    # public: steps, clips, noise; no record is read
    certificate = certify(plan)                            # reserved by ``open_session``
    solution = solver.solve(problem, budget, session)      # post-processing of what the session releases

A solver has a session and no record in its scope, so it cannot leak one: post-processing by type, not by discipline.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._registry import claim
from tacit.accounting import bounded_range_of_mu, calibrate, gdp_epsilon, gdp_mu
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Arithmetic, Mechanism, NoisyMax, Plan, Schedule
from tacit.problem import ElasticNet, Loss, Problem
from tacit.release import Session

__all__ = [
    "LARGEST_GRAM",
    "SOLVERS",
    "VIEWS",
    "Budget",
    "Solution",
    "Solver",
    "choose",
    "solver_factory",
]

Array = NDArray[np.float64]
VIEWS = ("all_iterates", "final_model")


@lru_cache
def _mu(epsilon: float, delta: float) -> float:
    with np.errstate(all="ignore"):  # a search underflows on its way; the caller's "raise" is not meant for it
        return float(gdp_mu(epsilon, delta))  # worth keeping over refits


@dataclass(frozen=True)
class Budget:
    """What a fit may spend, and on which promise.

    Attributes:
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        view: what may be shown.
        unit: whose data a record is.
        copies: how many such fits share (ε, δ), e.g. the heads of a one-vs-rest classifier.
        arithmetic: in which numbers.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    view: str = "all_iterates"
    unit: str = "record"
    copies: int = 1
    arithmetic: Arithmetic = Arithmetic.FLOAT

    def __post_init__(self) -> None:
        if self.view not in VIEWS:  # ε and δ are checked by accounting, which every plan asks
            raise InvalidInput(f"view must be one of {', '.join(map(repr, VIEWS))}, got {self.view!r}")

    @property
    def whole_mu(self) -> float:
        """The largest μ such that μ-GDP implies (ε, δ)-DP."""
        return _mu(self.epsilon, self.delta)

    @property
    def mu(self) -> float:
        """μ/√copies, reduced by 1e-12 so that rounding cannot push the composition above μ."""
        return self.whole_mu * (1 - 1e-12) / math.sqrt(self.copies)

    def part(self, share: float) -> Budget:
        """A share of μ², as a budget of its own."""
        mu = self.whole_mu * (1 - 1e-9) * math.sqrt(share)
        return replace(self, epsilon=float(gdp_epsilon(mu, self.delta)))

    def calibrated(self, make: Callable[[float], Mechanism]) -> Plan:
        """The plan of the least noise at which all copies together satisfy (ε, δ)-DP."""
        found = calibrate(lambda noise: Plan.of(*[make(noise)] * self.copies), epsilon=self.epsilon, delta=self.delta)
        return Plan.of(make(found.value))

    def mechanism(self, ratio: float | Array, steps: int, label: str) -> Mechanism:
        """Full-batch releases of ratio Δ/σ, constant or one per step, all of which may be shown."""
        return Mechanism(
            adjacency=self.adjacency,
            ratio=Schedule.of(ratio, steps),
            steps=steps,
            unit=self.unit,
            label=label,
            arithmetic=self.arithmetic,
        )

    def choices(self, share: float, steps: int, label: str) -> NoisyMax:
        """Noisy choices that take a share of μ², spread evenly over their steps."""
        return NoisyMax(
            adjacency=self.adjacency,
            bounded_range=Schedule.constant(bounded_range_of_mu(self.mu * math.sqrt(share / steps)), steps),
            steps=steps,
            unit=self.unit,
            label=label,
            arithmetic=self.arithmetic,
        )

    def shares(self, parts: dict[str, tuple[float, int | Array]]) -> Plan:
        """A plan that splits μ²: each part gets its share, spread evenly over its steps or by their weights.

        Args:
            parts: label → (share of μ², steps or the weight of each step); shares add up to at most 1.

        Returns:
            The plan; its composition is exactly √(Σ shares)·μ-GDP.

        Raises:
            InvalidInput: if the shares exceed the whole.
        """
        if sum(share for share, _ in parts.values()) > 1 + 1e-9:
            raise InvalidInput("shares of a budget must not add up to more than 1")
        mu, mechanisms = self.mu, []
        for label, (share, steps) in parts.items():
            if isinstance(steps, int):
                mechanisms.append(self.mechanism(mu * math.sqrt(share / steps), steps, label))
            else:
                mechanisms.append(self.mechanism(mu * np.sqrt(share * steps / steps.sum()), len(steps), label))
        return Plan.of(*mechanisms)


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns, in mapped units.

    Attributes:
        v: coefficients, the intercept first if there is one.
        standard_errors: of the coefficients, from the privacy noise alone; None where the solver knows none.
        notes: what a user should know ("constant model: …").
        within: (low, high) of each column, released: v is for rows clipped to that; None for the public bounds.
    """

    v: Array
    standard_errors: Array | None = None
    notes: tuple[str, ...] = field(default=())
    within: tuple[Array, Array] | None = None


SOLVERS: dict[str, type[Solver]] = {}
"""Every solver that was defined, by name."""


class Solver(ABC):
    """A way to fit a linear model; a frozen record of settings.

    Attributes:
        name: as a parameter of estimators, and in files.
        needs: attributes of the loss that must be true.
        final_model_only: whether its guarantee is about the final model alone.
        one_pass: whether it reads the data once, so that a number of passes has no effect on it.
        in_memory: whether all rows must be in the memory of this process.
        sums_only: whether it asks for nothing but sums over records, which owners of a federation can give.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    final_model_only: ClassVar[bool] = False
    one_pass: ClassVar[bool] = False
    in_memory: ClassVar[bool] = False
    sums_only: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "name") and not cls.__name__.startswith("_"):
            raise InvalidInput(f"the solver {cls.__name__} states no name: write e.g. name = 'momentum'")
        for attribute in cls.needs:
            if not isinstance(getattr(Loss, attribute, None), bool):
                raise InvalidInput(f"the solver {cls.__name__} needs {attribute!r}, which is no property of losses")
        if "name" in vars(cls):
            claim(SOLVERS, cls.name, cls, "a solver")

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> Self:
        """From an estimator's ``max_passes`` and ``clip``; None for the solver's rule."""
        return cls()

    def check(self, problem: Problem, budget: Budget) -> None:
        """Refuse a problem or a promise that this solver does not fit, naming both.

        Args:
            problem: what to minimise.
            budget: what to spend.

        Raises:
            InvalidInput: if the solver shows its final model only, and more is asked for.
            NotCovered: if the loss lacks what the solver needs.
        """
        if self.final_model_only and budget.view != "final_model":
            raise InvalidInput(
                f"solver={self.name!r} shows its final model only: set view='final_model', or use another solver"
            )
        for attribute in self.needs:
            if not getattr(problem.loss, attribute):
                kind = type(problem.loss).__name__
                raise NotCovered(
                    f"loss: solver={self.name!r} requires a loss that is {attribute}, and {kind} does not declare "
                    f"{attribute}=True; use another solver or loss",
                    axis="loss",
                )

    def checked(self, problem: Problem, budget: Budget) -> Self:
        """Itself, if it fits (``check``)."""
        self.check(problem, budget)
        return self

    def declared(self, problem: Problem) -> tuple[str, ...]:
        """What the certificate must say that the user vouches for."""
        return ()

    @abstractmethod
    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Make every public choice; refuse what no theorem covers."""

    @abstractmethod
    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Run the plan."""


LARGEST_GRAM = 2000
"""Coordinates up to which a noisy second-moment matrix is formed."""
LEAST_GREEDY, GREEDY_SIGNAL = 100, 20.0
"""Coordinates from which, and x = nμ/p up to which, ℓ1 penalties are for greedy descent."""


def choose(problem: Problem, budget: Budget) -> type[Solver]:
    """The rule of ``solver="auto"``, fixed before it was benchmarked; it reads nothing but these two.

    1. ``view="final_model"``: noisy gradient descent with the last-iterate certificate.
    2. An ℓ1 penalty, at least 100 coordinates and x = nμ/p < 20: greedy coordinate descent, whose error grows with
       log p. Where solutions are sparse it is better by far (also at larger x); where they are dense its error is up to
       twice that of metric descent between x = 4 and 20 (a9a).
    3. Up to 2000 coordinates: metric descent, which degrades to a constant model by itself when x is small.
    4. More: coordinate descent with private smoothness.

    Args:
        problem: what to minimise.
        budget: what may be spent.

    Returns:
        The class of the solver.
    """
    if budget.view == "final_model":
        return SOLVERS["cyclic"]
    size, penalty = problem.facts.size, problem.penalty
    sparse = isinstance(penalty, ElasticNet) and bool(penalty.l1.any())
    if sparse and size >= LEAST_GREEDY and problem.facts.n * budget.mu < GREEDY_SIGNAL * size:
        return SOLVERS["greedy"]
    return SOLVERS["metric" if problem.facts.size <= LARGEST_GRAM else "coordinate"]


def solver_factory(solver: object, passes: float | None, clip: float | None) -> Callable[[Problem, Budget], Solver]:
    """From the parameters of an estimator to a choice of solver.

    Args:
        solver: "auto", a name of SOLVERS, or a solver object.
        passes: how often the data may be read, None for the solver's rule.
        clip: the solver's clip, None for its rule.

    Returns:
        A function of the problem and the budget; it refuses a pair that the solver does not fit (``Solver.check``).

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
        return lambda problem, budget: solver.checked(problem, budget)
    name = _validate.one_of(("auto", *sorted(SOLVERS)), solver=solver)
    if name == "auto":
        return lambda problem, budget: choose(problem, budget).of(passes, clip).checked(problem, budget)
    if SOLVERS[name].one_pass and passes is not None:
        raise InvalidInput(f"max_passes has no effect with solver={name!r}, which makes one release: leave it out")
    return lambda problem, budget: SOLVERS[name].of(passes, clip).checked(problem, budget)
