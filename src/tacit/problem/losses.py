"""Losses of a linear model: φ(z), with z = xᵀw − y for regression and z = y·xᵀw for classification (y = ±1).

Labels are folded into the records, so that every loss is a function of one number. To add one, subclass ``Loss`` and
state its value, derivative and two bounds. The derivative must act elementwise: that one record's slope depends on that
record alone is your word, and certificates say so. Nothing else is trusted: contributions are clipped whatever the
derivative returns, and the bounds only choose step sizes and natural clips.

    class LogCosh(Loss):
        name, margin, curvature, slope = "log-cosh", False, 1.0, 1.0
        def value(self, z): return np.logaddexp(z, -z) - np.log(2)
        def derivative(self, z): return np.tanh(z)

Solvers that keep a certificate about the final model also rely on φ being convex; they take the losses below only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tacit import _validate

__all__ = ["LOSSES", "Huber", "Logistic", "Loss", "SmoothedHinge", "Squared"]

Array = NDArray[np.float64]


class Loss(ABC):
    """A convex loss φ of one number.

    Attributes:
        name: for messages.
        margin: whether z is a margin y·xᵀw (classification) or a residual xᵀw − y (regression).
        curvature: sup φ″.
        slope: sup |φ′|, possibly ∞.
        code: its number in the compiled kernels; None for losses of your own, which run in numpy.
        parameter: of the kernel.
    """

    name: ClassVar[str]
    margin: ClassVar[bool]
    code: ClassVar[int | None] = None
    curvature: float
    slope: float
    parameter: float = 0.0

    @abstractmethod
    def value(self, z: Array) -> Array:
        """φ(z), elementwise."""

    @abstractmethod
    def derivative(self, z: Array) -> Array:
        """φ′(z), elementwise."""

    def rescaled(self, scale: float) -> Loss:
        """Z ↦ φ(scale·z)/scale²: the same loss for residuals measured in units of ``scale``."""
        return self if scale == 1 else _Rescaled(self, scale)


class _Rescaled(Loss):
    """A loss in other units; see ``Loss.rescaled``."""

    def __init__(self, loss: Loss, scale: float) -> None:
        self._loss, self._scale = loss, scale
        self.name, self.margin = loss.name, loss.margin  # type: ignore[misc]
        self.curvature, self.slope = loss.curvature, loss.slope / scale

    def value(self, z: Array) -> Array:
        """φ(scale·z)/scale²."""
        return self._loss.value(self._scale * z) / self._scale**2

    def derivative(self, z: Array) -> Array:
        """φ′(scale·z)/scale."""
        return self._loss.derivative(self._scale * z) / self._scale


@dataclass(frozen=True)
class Squared(Loss):
    """φ(z) = ½z²."""

    name: ClassVar[str] = "squared"
    margin: ClassVar[bool] = False
    code: ClassVar[int | None] = 0
    curvature = 1.0
    slope = np.inf

    def value(self, z: Array) -> Array:
        """½z²."""
        return 0.5 * z * z

    def derivative(self, z: Array) -> Array:
        """The residual itself."""
        return z

    def rescaled(self, scale: float) -> Squared:
        """Itself: a square has no scale."""
        return self


@dataclass(frozen=True)
class Huber(Loss):
    """φ(z) = ½z² for |z| ≤ k, else k|z| − ½k²: the residual, clipped."""

    parameter: float = 1.0
    name: ClassVar[str] = "huber"
    margin: ClassVar[bool] = False
    code: ClassVar[int | None] = 1
    curvature = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameter", _validate.positive(epsilon_huber=self.parameter))

    @property
    def slope(self) -> float:  # type: ignore[override]
        """The clip k."""
        return self.parameter

    def value(self, z: Array) -> Array:
        """Quadratic near zero, linear beyond k."""
        inner = np.clip(z, -self.parameter, self.parameter)
        return inner * (z - 0.5 * inner)

    def derivative(self, z: Array) -> Array:
        """The residual clipped to [−k, k]."""
        return np.clip(z, -self.parameter, self.parameter)

    def rescaled(self, scale: float) -> Huber:
        """With its knee in the other units."""
        return Huber(self.parameter / scale)


@dataclass(frozen=True)
class Logistic(Loss):
    """φ(z) = log(1 + e^{−z}) of the margin."""

    name: ClassVar[str] = "logistic"
    margin: ClassVar[bool] = True
    code: ClassVar[int | None] = 2
    curvature = 0.25
    slope = 1.0

    def value(self, z: Array) -> Array:
        """log(1 + e^{−z}), without overflow."""
        return np.logaddexp(0.0, -z)

    def derivative(self, z: Array) -> Array:
        """−1/(1 + e^z)."""
        return -np.asarray(special.expit(-z))


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """The hinge max(0, 1 − z) with its corner replaced by a parabola of width g (a Moreau envelope)."""

    parameter: float = 0.5
    name: ClassVar[str] = "smoothed-hinge"
    margin: ClassVar[bool] = True
    code: ClassVar[int | None] = 3
    slope = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameter", _validate.positive(width=self.parameter))

    @property
    def curvature(self) -> float:  # type: ignore[override]
        """1/g."""
        return 1 / self.parameter

    def value(self, z: Array) -> Array:
        """0 beyond 1, a parabola on [1 − g, 1], a line below."""
        gap = np.clip(1 - z, 0.0, None)
        return np.where(gap < self.parameter, gap * gap / (2 * self.parameter), gap - self.parameter / 2)

    def derivative(self, z: Array) -> Array:
        """From −1 to 0."""
        return -np.clip((1 - z) / self.parameter, 0.0, 1.0)


LOSSES: dict[str, type[Loss]] = {cls.name: cls for cls in (Squared, Huber, Logistic, SmoothedHinge)}
"""The losses that come with Tacit, by name."""
