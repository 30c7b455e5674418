"""Objective perturbation: noise in the objective instead of in its gradients, and its minimiser released."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.mechanism.adjacency import Adjacency
from tacit.mechanism.view import Evidence, Start

__all__ = ["ObjectivePerturbation"]


@described("ObjectivePerturbation")
@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation:
    """One linear model, fitted to a randomly tilted objective.

    With b ~ N(0, σ² I), a point w whose gradient has norm at most τ is found for

        Σ_i φ_i(x_i·w) + Λ/2 ‖w‖² + r(w) + b·w,

    and w + N(0, s² I) is released; w, b, the gradient and the duration stay secret. Sums, not means: Λ and r are free
    of data, also of the number of records where that is secret.

    Attributes:
        adjacency: the neighbouring relation.
        slope_bound: of |φ_i′| (1 for the logistic loss).
        smoothness: β, a Lipschitz constant of φ_i′ (¼ for the logistic loss).
        feature_norm: R, a bound of ‖x_i‖, the intercept's 1 included.
        l2: Λ > 0, on every coordinate, the intercept included.
        noise_std: σ of the tilt b.
        tolerance: τ, on the norm of the exact gradient: it includes the rounding of the computed one.
        output_std: s of the noise that covers the solver's error.
        signed_slopes: whether each φ_i is monotone, so that its slope never changes its sign (logistic and hinge
            losses, whatever the label; not a Huber loss). It costs less.
        evidence: who vouches for the bounds of the loss, the features and the solver.
        unit: whose data one record is ("record", "person", ...); one unit holds one record.
        label: for people.
    """

    adjacency: Adjacency
    slope_bound: float
    smoothness: float
    feature_norm: float
    l2: float
    noise_std: float
    tolerance: float
    output_std: float
    signed_slopes: bool = False
    evidence: Evidence = Evidence.DECLARED
    unit: str = "record"
    label: str = "objective perturbation"
    axes: ClassVar[tuple[str, ...]] = ()
    start: ClassVar[Start] = Start.PUBLIC

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (
            cls(
                adjacency=Adjacency.ZERO_OUT,
                slope_bound=1.0,
                smoothness=0.25,
                feature_norm=1.0,
                l2=5.0,
                noise_std=20.0,
                tolerance=1e-6,
                output_std=1e-3,
            ),
        )

    def __post_init__(self) -> None:
        store = object.__setattr__
        store(self, "adjacency", Adjacency.parse(self.adjacency))
        for name in ("slope_bound", "smoothness", "feature_norm", "l2", "noise_std", "tolerance", "output_std"):
            store(self, name, _validate.positive(**{name: getattr(self, name)}))
        if not isinstance(self.signed_slopes, bool):
            raise InvalidInput(f"signed_slopes must be True or False, got {self.signed_slopes!r}")
        if not isinstance(self.evidence, Evidence):
            raise InvalidInput(f"evidence must be an Evidence, got {self.evidence!r}")
        for name in ("unit", "label"):
            if not (isinstance(getattr(self, name), str) and getattr(self, name)):
                raise InvalidInput(f"{name} must be a word such as 'record' or 'person'")
        for name in ("ratio", "curvature", "solver_ratio"):
            if not math.isfinite(getattr(self, name)):
                raise InvalidInput(f"{name} overflows: choose bounds, l2 and noise of comparable sizes")

    @property
    def ratio(self) -> float:
        """μ = R·slope_bound/σ: how far one record can move the objective's gradient, over the noise."""
        return self._quotient(self.slope_bound * self.feature_norm, self.noise_std)

    @property
    def curvature(self) -> float:
        """βR²/Λ: how much one record can add to the objective's curvature, relatively."""
        return self._quotient(self.smoothness * self.feature_norm**2, self.l2)

    @property
    def solver_ratio(self) -> float:
        """ν = 2τ/(Λs): how far apart two solvers' errors can be, over the output's noise."""
        return self._quotient(2 * self.tolerance, self.l2 * self.output_std)

    @staticmethod
    def _quotient(a: float, b: float) -> float:
        """a/b rounded up by more than the arithmetic can lose; ∞ where it overflows or b underflows."""
        if not (a >= 1e-290 and b >= 1e-290):  # products that underflowed lost their digits
            return math.inf
        return a / b * (1 + 1e-15) if a / b < 1e300 else math.inf
