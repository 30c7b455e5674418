"""Penalties ψ(w): what regularises a model. An open protocol, and the separable family that comes with Tacit.

A penalty says its value, its prox, and what becomes of it when coefficients are measured in other units. Penalties are
public and never meet a record, so a penalty of the user's own needs no declaration. ``docs/linear_models.md`` has a
group lasso on one page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit._registry import enlist
from tacit.errors import InvalidInput

__all__ = ["PENALTIES", "ElasticNet", "Penalty"]

Array = NDArray[np.float64]
PENALTIES: dict[str, type[Penalty]] = {}
"""Every penalty that was defined, by the name of its class; the contract suite comes to each."""


class Penalty(ABC):
    """A convex penalty of ``size`` coefficients.

    Attributes:
        size: how many coefficients it is about.
    """

    size: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        enlist(PENALTIES, cls, "a penalty")

    @abstractmethod
    def value(self, w: Array) -> float:
        """ψ(w), for tests and benchmarks."""

    @abstractmethod
    def prox(self, v: Array, step: ArrayLike) -> Array:
        """argmin_w ½‖w − v‖² + step·ψ(w)."""

    @abstractmethod
    def rescaled(self, scale: ArrayLike, weight: float = 1.0) -> Penalty:
        """V ↦ weight·ψ(scale·v), scale > 0 per coordinate: the penalty of coefficients measured in other units."""

    def with_free_intercept(self) -> Penalty:
        """The penalty with one more coordinate, in front, that nothing restricts."""
        return _FreeFirst(self)

    def on(self, members: NDArray[np.int64]) -> Penalty:
        """The penalty of some coordinates alone; only separable penalties have one.

        Args:
            members: numbers of coordinates.

        Raises:
            InvalidInput: always, unless a subclass overrides it.
        """
        raise InvalidInput(
            f"{type(self).__name__} is not separable, and this solver updates single coordinates: use solver='metric' "
            "or solver='gradient', or write on(members)"
        )

    @classmethod
    def examples(cls) -> tuple[Penalty, ...]:
        """Penalties for the contract tests: every field away from its default once.

        Raises:
            NotImplementedError: always, unless a subclass overrides it; only penalties of Tacit's own need it.
        """
        raise NotImplementedError(
            f"{cls.__name__} gives no examples to the contract tests: write a classmethod examples(cls) that returns "
            "a tuple of penalties, e.g. (cls(0.3, size=4),)"
        )


class _FreeFirst(Penalty):
    """Another penalty behind a coordinate that nothing restricts."""

    def __init__(self, inner: Penalty) -> None:
        self._inner, self.size = inner, inner.size + 1

    def value(self, w: Array) -> float:
        """That of the rest."""
        return self._inner.value(w[..., 1:])

    def prox(self, v: Array, step: ArrayLike) -> Array:
        """The first coordinate stays, the rest moves."""
        step = np.asarray(step, np.float64)
        rest = self._inner.prox(v[..., 1:], step[1:] if step.ndim else step)
        return np.concatenate([v[..., :1], rest], axis=-1)

    def rescaled(self, scale: ArrayLike, weight: float = 1.0) -> Penalty:
        """That of the rest, rescaled."""
        s = np.broadcast_to(np.asarray(scale, np.float64), (self.size,))
        return _FreeFirst(self._inner.rescaled(s[1:], weight))


@described("ElasticNet")
@dataclass(frozen=True, eq=False)
class ElasticNet(Penalty):
    """ψ(w) = Σ_j λ₁ⱼ|w_j| + λ₂ⱼ/2·w_j² on the box low_j ≤ w_j ≤ high_j, ∞ outside; each entry may differ.

    In one dimension the prox of a convex function restricted to an interval is the unrestricted prox, projected onto
    the interval; so one formula serves ridge, lasso, elastic net, boxes and non-negativity, in numpy and in kernels.

    Attributes:
        l1: λ₁.
        l2: λ₂.
        low: the lower end of the box.
        high: the upper end.
    """

    l1: Array
    l2: Array
    low: Array
    high: Array

    @classmethod
    def of(
        cls,
        size: int,
        *,
        l1: ArrayLike = 0.0,
        l2: ArrayLike = 0.0,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
    ) -> ElasticNet:
        """From numbers or arrays.

        Args:
            size: how many coordinates.
            l1: λ₁, not negative.
            l2: λ₂, not negative.
            low: the lower end of the box (−∞ for none).
            high: the upper end (∞ for none).

        Returns:
            The penalty, with one entry per coordinate.

        Raises:
            InvalidInput: if a weight is negative or infinite, or the box is empty.
        """
        parts = {
            "l1": _validate.nonnegative_array("l1", l1),
            "l2": _validate.nonnegative_array("l2", l2),
            "low": _validate.real_array("low", low),
            "high": _validate.real_array("high", high),
        }
        try:
            full = {name: np.broadcast_to(part, (size,)).astype(np.float64) for name, part in parts.items()}
        except ValueError:
            raise InvalidInput(f"a penalty needs one number, or one per coordinate ({size})") from None
        if not (full["low"] <= full["high"]).all():
            raise InvalidInput("the box of the penalty is empty: low must be a number that does not exceed high")
        return cls(**full)

    @property
    def size(self) -> int:  # type: ignore[override]
        """How many coordinates."""
        return len(self.l1)

    @property
    def smooth(self) -> bool:
        """Whether it is differentiable: no ℓ1 part and no box."""
        return not (self.l1.any() or np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def value(self, w: Array) -> float:
        """ψ(w) of a point in the box."""
        return float(self.l1 @ np.abs(w) + 0.5 * self.l2 @ (w * w))

    def prox(self, v: Array, step: ArrayLike) -> Array:
        """Soft threshold, shrink, project: coordinate by coordinate."""
        s = np.asarray(step, np.float64)
        soft = np.sign(v) * np.maximum(np.abs(v) - s * self.l1, 0.0)
        return np.clip(soft / (1 + s * self.l2), self.low, self.high)

    def rescaled(self, scale: ArrayLike, weight: float = 1.0) -> ElasticNet:
        """With every weight and end in the other units."""
        s = np.broadcast_to(np.asarray(scale, np.float64), self.l1.shape)
        return replace(self, l1=weight * self.l1 * s, l2=weight * self.l2 * s * s, low=self.low / s, high=self.high / s)

    def with_free_intercept(self) -> ElasticNet:
        """One coordinate more, in front, that nothing restricts."""
        free = {"l1": 0.0, "l2": 0.0, "low": -np.inf, "high": np.inf}
        return replace(self, **{name: np.concatenate([[first], getattr(self, name)]) for name, first in free.items()})

    @classmethod
    def examples(cls) -> tuple[ElasticNet, ...]:
        """Ridge, lasso, elastic net and box."""
        box = cls.of(4, l2=0.1, low=-0.5, high=[0.1, 0.2, 0.3, np.inf])
        return cls.of(4, l2=0.7), cls.of(4, l1=[0.0, 0.3, 0.3, 1.0]), cls.of(4, l1=0.2, l2=0.5), box

    def on(self, members: NDArray[np.int64]) -> ElasticNet:
        """The entries of some coordinates."""
        return replace(self, **{name: getattr(self, name)[members] for name in ("l1", "l2", "low", "high")})
