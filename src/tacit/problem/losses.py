"""Losses of a linear model: φ(f, y) of a prediction f = xᵀw and a target y.

A loss carries its link: its bounds on slope and curvature belong to the pair, and ``predict`` turns f into a prediction
in the units of the target. To add one, subclass ``Loss``; the class registers itself under its name:

    class LogCosh(Loss):
        name, equivariant, curvature, slope = "log-cosh", False, 1.0, 1.0
        def value(self, f, y): return np.logaddexp(f - y, y - f) - np.log(2)
        def derivative(self, f, y): return np.tanh(f - y)

The derivative must act elementwise; certificates of a loss from outside of Tacit carry a mark that says so. Nothing
else is trusted for privacy: contributions are clipped whatever the derivative returns, and the bounds only choose
step sizes and natural clips. A guarantee about the final model also relies on ``convex`` and ``curvature``; the
certificate then lists both as declared. Compiled code is looked up by exact type, so a subclass always runs its own
derivative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit._registry import claim, drop_inherited
from tacit.errors import InvalidInput
from tacit.kernels.logistic import logistic

__all__ = ["LOSSES", "Gamma", "Huber", "Logistic", "Loss", "Poisson", "SmoothedHinge", "Squared"]

Array = NDArray[np.float64]

LOSSES: dict[str, type[Loss]] = {}
"""Every loss that was defined, by name."""


class Loss(ABC):
    """A loss φ(f, y) of one prediction and one target, elementwise.

    Attributes:
        name: in messages, files and as a parameter of estimators.
        labels: whether targets are classes, y = ±1.
        convex: whether f ↦ φ(f, y) is convex; hidden-state guarantees need it.
        equivariant: whether φ(s·f, s·y) = s²·φ_s(f, y) for a loss φ_s of the same kind (``rescaled``), so that targets
            may be measured in other units.
        positive: whether targets are positive and f is the logarithm of a prediction.
        strictly_positive: whether a target of 0 is excluded.
        curvature: sup ∂²φ/∂f².
        slope: sup |∂φ/∂f|, possibly ∞.
        target_range: the ends of mapped targets (``tacit.maps.target_bounds``).
        derivative_error: (r, a): in float64 ``derivative`` is within u·(r·|φ′| + a) of φ′ for every finite f and
            every target of the loss, u = 2⁻⁵³; None where that is not proven. Exact hidden chains need it.
    """

    name: ClassVar[str]
    labels: ClassVar[bool] = False
    convex: ClassVar[bool] = False
    equivariant: ClassVar[bool] = True
    positive: ClassVar[bool] = False
    strictly_positive: ClassVar[bool] = False
    curvature: float
    slope: float
    derivative_error: tuple[float, float] | None = None
    target_range: tuple[float, float] = (-1.0, 1.0)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        drop_inherited(cls, Loss, "derivative", ("convex", "derivative_error", "second", "rescaled"))
        if cls.__name__.startswith("_"):
            return
        _check_words(cls)
        if "name" in vars(cls):
            claim(LOSSES, cls.name, cls, "a loss")

    @abstractmethod
    def value(self, f: Array, y: Array) -> Array:
        """φ(f, y)."""

    @abstractmethod
    def derivative(self, f: Array, y: Array) -> Array:
        """∂φ/∂f."""

    def second(self, f: Array, y: Array) -> Array | None:
        """∂²φ/∂f², or None if the loss only knows its bound ``curvature``."""
        return None

    def predict(self, f: Array) -> Array:
        """The prediction in the units of the target: the inverse link."""
        return f

    def constant(self, mean: float) -> float:
        """The best constant f for targets of this mean."""
        return mean

    def expansion(self, mean: float) -> tuple[float, float]:
        """(h, g): near the best constant f₀, ∂φ/∂f ≈ h·(f − f₀) − g·(y − mean)."""
        return self.curvature, self.curvature

    def rescaled(self, scale: float) -> Loss:
        """φ(s·f, s·y)/s²: the same loss for targets and predictions measured in units of s."""
        return self if scale == 1 or not self.equivariant else _Rescaled(self, scale)

    @classmethod
    def for_targets(cls, low: float, high: float) -> Self:
        """The loss for targets within public bounds, in the user's units."""
        return cls()


def _check_words(cls: type[Loss]) -> None:
    """Refuse a loss without a name or bounds while it is defined, not in the middle of a fit."""
    wanted = {"name": "name = 'log-cosh'", "curvature": "curvature = 1.0, sup φ″", "slope": "slope = 1.0, sup |φ′|"}
    for word, example in wanted.items():
        annotated = any(word in vars(base).get("__annotations__", ()) for base in cls.__mro__ if base is not Loss)
        if not (hasattr(cls, word) or annotated or (word != "name" and "__init__" in vars(cls))):
            raise InvalidInput(f"the loss {cls.__name__} states no {word}: write e.g. {example}")


class _Rescaled(Loss):
    """A loss in other units; see ``Loss.rescaled``."""

    def __init__(self, loss: Loss, scale: float) -> None:
        self._loss, self._scale = loss, scale
        self.name, self.labels, self.convex = loss.name, loss.labels, loss.convex  # type: ignore[misc]
        self.curvature, self.slope = loss.curvature, loss.slope / scale

    def value(self, f: Array, y: Array) -> Array:
        """φ(s·f, s·y)/s²."""
        return self._loss.value(self._scale * f, self._scale * y) / self._scale**2

    def derivative(self, f: Array, y: Array) -> Array:
        """φ′(s·f, s·y)/s."""
        return self._loss.derivative(self._scale * f, self._scale * y) / self._scale


@described("SquaredLoss")
@dataclass(frozen=True)
class Squared(Loss):
    """½(f − y)²."""

    name: ClassVar[str] = "squared"
    convex: ClassVar[bool] = True
    derivative_error = (1.0, 0.0)  # one subtraction
    curvature = 1.0
    slope = np.inf

    def value(self, f: Array, y: Array) -> Array:
        """½(f − y)²."""
        return 0.5 * np.square(f - y)

    def derivative(self, f: Array, y: Array) -> Array:
        """The residual f − y."""
        return np.asarray(f - y)

    def rescaled(self, scale: float) -> Squared:
        """Itself: a square has no scale."""
        return self


@described("HuberLoss")
@dataclass(frozen=True)
class Huber(Loss):
    """½r² for |r| ≤ k, else k|r| − ½k², r = f − y: the residual, clipped.

    Attributes:
        parameter: k.
    """

    parameter: float = 1.0
    name: ClassVar[str] = "huber"
    convex: ClassVar[bool] = True
    derivative_error = (1.0, 0.0)  # one subtraction; a clip adds nothing
    curvature = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameter", _validate.positive(huber_delta=self.parameter))

    @property
    def slope(self) -> float:  # type: ignore[override]
        """The clip k."""
        return self.parameter

    def value(self, f: Array, y: Array) -> Array:
        """Quadratic near zero, linear beyond k."""
        r = f - y
        inner = np.clip(r, -self.parameter, self.parameter)
        return np.asarray(inner * (r - 0.5 * inner))

    def derivative(self, f: Array, y: Array) -> Array:
        """The residual clipped to [−k, k]."""
        return np.clip(f - y, -self.parameter, self.parameter)

    def rescaled(self, scale: float) -> Huber:
        """With its corner in the other units."""
        return replace(self, parameter=self.parameter / scale)


@described("LogisticLoss")
@dataclass(frozen=True)
class Logistic(Loss):
    """log(1 + e^{−yf}), y = ±1."""

    name: ClassVar[str] = "logistic"
    labels: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    derivative_error = (96.0, 1.0)  # ``kernels.logistic``: 1e-14 relative (tests), saturated at ±690
    curvature = 0.25
    slope = 1.0

    def value(self, f: Array, y: Array) -> Array:
        """log(1 + e^{−yf}), without overflow."""
        return np.logaddexp(0.0, -y * f)

    def derivative(self, f: Array, y: Array) -> Array:
        """−y/(1 + e^{yf})."""
        return np.asarray(-y * logistic(-y * f))

    def second(self, f: Array, y: Array) -> Array:
        """σ(f)(1 − σ(f))."""
        s = logistic(-np.asarray(y) * f)
        return np.asarray(s * (1 - s))

    def predict(self, f: Array) -> Array:
        """The probability of y = 1."""
        return logistic(f)

    def constant(self, mean: float) -> float:
        """The log-odds of the share (1 + mean)/2."""
        share = (1 + mean) / 2
        return float(np.log(share / (1 - share)))

    def expansion(self, mean: float) -> tuple[float, float]:
        """H = π(1 − π) and g = ½ for y = ±1, π the share of y = 1."""
        share = (1 + mean) / 2
        return share * (1 - share), 0.5


@described("SmoothedHingeLoss")
@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """The hinge max(0, 1 − yf) with its corner replaced by a parabola of width g (a Moreau envelope), y = ±1.

    Attributes:
        parameter: g.
    """

    parameter: float = 0.5
    name: ClassVar[str] = "smoothed-hinge"
    labels: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    derivative_error = (4.0, 0.0)  # y·f is exact; a subtraction, a division, a clip
    slope = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameter", _validate.positive(width=self.parameter))

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """1/g."""
        return 1 / self.parameter

    def value(self, f: Array, y: Array) -> Array:
        """0 beyond a margin of 1, a parabola on [1 − g, 1], a line below."""
        gap = np.clip(1 - y * f, 0.0, None)
        return np.where(gap < self.parameter, gap * gap / (2 * self.parameter), gap - self.parameter / 2)

    def derivative(self, f: Array, y: Array) -> Array:
        """−y times a number from 0 to 1."""
        return np.asarray(-y * np.clip((1 - y * f) / self.parameter, 0.0, 1.0))

    def expansion(self, mean: float) -> tuple[float, float]:
        """A quarter of the curvature of a unit hinge, and half of its slope per label."""
        return 0.25, 0.25


@described("PoissonLoss")
@dataclass(frozen=True)
class Poisson(Loss):
    """e^f − y·f for counts y in [0, 1] (in units of their upper bound), continued linearly above f = 0.

    A prediction e^f above the upper bound of the targets is never useful, so the continuation leaves the optimum where
    it is; it makes the loss Lipschitz and smooth with constants of 1.
    """

    name: ClassVar[str] = "poisson"
    convex: ClassVar[bool] = True
    equivariant: ClassVar[bool] = False
    positive: ClassVar[bool] = True
    derivative_error = (2.0, 8.0)  # exp: at most four units in the last place (tests), of at most 1
    curvature = 1.0
    slope = 1.0
    target_range = (0.0, 1.0)  # in units of the upper bound

    def value(self, f: Array, y: Array) -> Array:
        """e^f − y·f below 0, a line above."""
        return np.asarray(np.exp(np.minimum(f, 0.0)) + np.maximum(f, 0.0) - y * f)

    def derivative(self, f: Array, y: Array) -> Array:
        """e^{min(f, 0)} − y."""
        return np.asarray(np.exp(np.minimum(f, 0.0)) - y)

    def second(self, f: Array, y: Array) -> Array:
        """e^f below 0, 0 above."""
        return np.where(f < 0, np.exp(np.minimum(f, 0.0)), 0.0)

    def predict(self, f: Array) -> Array:
        """e^f."""
        return np.exp(f)

    def constant(self, mean: float) -> float:
        """The logarithm of the mean."""
        return float(np.log(mean))

    def expansion(self, mean: float) -> tuple[float, float]:
        """H = mean, g = 1."""
        return mean, 1.0


@described("GammaLoss")
@dataclass(frozen=True)
class Gamma(Loss):
    """y·e^{−f} + f for positive y in [e^{−r}, e^r] (in units of their bounds' geometric mean), linear below f = −r.

    Attributes:
        reach: r, half of the logarithm of the ratio of the target's bounds.
    """

    reach: float = 1.0
    name: ClassVar[str] = "gamma"
    convex: ClassVar[bool] = True
    equivariant: ClassVar[bool] = False
    positive: ClassVar[bool] = True
    strictly_positive: ClassVar[bool] = True
    derivative_error = (12.0, 10.0)  # of y·e^{−f} = 1 − φ′, by exp and a product

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach", _validate.positive(reach=self.reach))

    @classmethod
    def for_targets(cls, low: float, high: float) -> Gamma:
        """With r = ½·log(high/low)."""
        return cls(max(float(np.log(high / low)) / 2, 1e-6))

    @property
    def target_range(self) -> tuple[float, float]:  # type: ignore[override]
        """In units of the geometric mean of the bounds."""
        return float(np.exp(-self.reach)), float(np.exp(self.reach))

    @property
    def slope(self) -> float:  # type: ignore[override]
        """At f = −r, or at f = ∞: max(e^{2r} − 1, 1)."""
        return float(max(np.expm1(2 * self.reach), 1.0))

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """At f = −r: e^{2r}."""
        return float(np.exp(2 * self.reach))

    def value(self, f: Array, y: Array) -> Array:
        """y·e^{−f} + f above −r, a line below."""
        inside = np.maximum(f, -self.reach)
        return np.asarray(y * np.exp(-inside) * (1 + (inside - f)) + f)

    def derivative(self, f: Array, y: Array) -> Array:
        """1 − y·e^{−max(f, −r)}."""
        return np.asarray(1 - y * np.exp(-np.maximum(f, -self.reach)))

    def second(self, f: Array, y: Array) -> Array:
        """y·e^{−f} above −r, 0 below."""
        return np.where(f > -self.reach, y * np.exp(-np.maximum(f, -self.reach)), 0.0)

    def predict(self, f: Array) -> Array:
        """e^f."""
        return np.exp(f)

    def constant(self, mean: float) -> float:
        """The logarithm of the mean."""
        return float(np.log(mean))

    def expansion(self, mean: float) -> tuple[float, float]:
        """H = 1, g = 1/mean."""
        return 1.0, 1 / mean
