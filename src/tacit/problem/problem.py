"""What is minimised: a loss, a penalty ψ(w), and what is public about the records.

Penalties are an open protocol, and one separable family comes with Tacit. A penalty says its value, its prox, and what
becomes of it when coefficients are measured in other units. Penalties are public and never meet a record, so a penalty
of the user's own needs no declaration. ``docs/linear_models.md`` has a group lasso on one page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit._registry import enlist
from tacit.errors import InvalidInput
from tacit.problem.losses import LOSSES, Loss

__all__ = ["PENALTIES", "ElasticNet", "Facts", "Penalty", "Problem", "elastic_net", "loss_named", "penalty_named"]

Array = NDArray[np.float64]
MAX_WEIGHT = 1e100
"""Of a penalty: squares of larger numbers would overflow."""
PENALTY_NAMES = ("none", "l1", "l2", "elasticnet", "box", "nonnegative")
DEFAULT_L1_RATIO = 0.5

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
        size: how many coordinates.
        smooth: whether it is differentiable: no ℓ1 part and no box.
    """

    l1: Array
    l2: Array
    low: Array
    high: Array
    size: int = field(init=False, repr=False)
    smooth: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        box = np.isfinite(self.low).any() or np.isfinite(self.high).any()
        object.__setattr__(self, "size", len(self.l1))
        object.__setattr__(self, "smooth", not (box or self.l1.any()))

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
        l1, l2 = np.append(0.0, self.l1), np.append(0.0, self.l2)
        return replace(self, l1=l1, l2=l2, low=np.append(-np.inf, self.low), high=np.append(np.inf, self.high))

    @classmethod
    def examples(cls) -> tuple[ElasticNet, ...]:
        """Ridge, lasso, elastic net and box."""
        box = cls.of(4, l2=0.1, low=-0.5, high=[0.1, 0.2, 0.3, np.inf])
        return cls.of(4, l2=0.7), cls.of(4, l1=[0.0, 0.3, 0.3, 1.0]), cls.of(4, l1=0.2, l2=0.5), box

    def on(self, members: NDArray[np.int64]) -> ElasticNet:
        """The entries of some coordinates."""
        l1, l2, low, high = (part[members] for part in (self.l1, self.l2, self.low, self.high))
        return replace(self, l1=l1, l2=l2, low=low, high=high)


@dataclass(frozen=True, eq=False)
class Facts:
    """What is public about mapped records.

    Attributes:
        n: how many there are (nominal, or released with noise, where that is secret).
        low: the smallest value of each column; the maps in front enforce it.
        high: the largest value of each column.
        target: the largest |target|; 1 for labels.
        row_nonzeros: the largest number of non-zero entries of a row, if one is enforced.
        size: the number of columns, a constant one included.
    """

    n: int
    low: Array
    high: Array
    target: float = 1.0
    row_nonzeros: int | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(self.low))

    @property
    def reach(self) -> Array:
        """The largest absolute value of each column."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def row_norm(self) -> float:
        """The largest ℓ2 norm of a row."""
        squares = np.sort(np.square(self.reach))[::-1]
        return float(np.sqrt(squares[: self.row_nonzeros].sum()))


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise (1/n)·Σ φ(u_iᵀv, t_i) + ψ(v) over mapped records (u_i, t_i); public throughout.

    Attributes:
        loss: φ.
        penalty: ψ, of one coefficient per column.
        facts: about the records.
        intercept: whether column 0 is a constant 1.
    """

    loss: Loss
    penalty: Penalty
    facts: Facts
    intercept: bool = True

    def in_units(self, target: float, features: Array) -> Problem:
        """The problem of targets in units of s and features in units of r: φ(s·f, s·y)/s² and ψ(s/r·v)/s².

        Args:
            target: s; 1 for losses that have units of their own.
            features: r, one number per column.

        Returns:
            The problem; facts stay those of the records as they are mapped.
        """
        return replace(
            self, loss=self.loss.rescaled(target), penalty=self.penalty.rescaled(target / features, 1 / target**2)
        )


# -- by name ------------------------------------------------------------------------------------------------


def elastic_net(size: int, alpha: object, l1_ratio: object) -> ElasticNet:
    """α·ratio·‖w‖₁ + α(1 − ratio)/2·‖w‖²."""
    a = _weight(alpha)
    ratio = _validate.probability(open_left=False, l1_ratio=l1_ratio)
    return ElasticNet(*(np.full(size, value) for value in (a * ratio, a * (1 - ratio), -np.inf, np.inf)))


def _weight(alpha: object) -> float:
    a = _validate.nonnegative(alpha=alpha)
    if a > MAX_WEIGHT:
        raise InvalidInput(f"alpha must be at most {MAX_WEIGHT:g}, got {alpha!r}: choose other units")
    return a


def unused_penalty_options(penalty: object) -> tuple[str, ...]:
    """The options that say nothing about this penalty."""
    if isinstance(penalty, Penalty) or penalty == "none":
        return "alpha", "l1_ratio", "box"
    return tuple(name for name, owner in (("l1_ratio", "elasticnet"), ("box", "box")) if penalty != owner)


def penalty_named(
    penalty: object, size: int, alpha: object, l1_ratio: float | None, box: object, *, default: float = 1e-3
) -> Penalty:
    """From a name, or the penalty itself.

    Args:
        penalty: a name of PENALTY_NAMES, or a Penalty.
        size: the number of features.
        alpha: α; ``default`` if None.
        l1_ratio: the ℓ1 share of an elastic net; a half if None.
        box: (low, high) for "box", else None.
        default: the α of a penalty whose user states none.

    Returns:
        The penalty on the user's coefficients.

    Raises:
        InvalidInput: for an unknown name, a box without limits, or options that would have no effect.
    """
    if not isinstance(penalty, Penalty):
        _validate.one_of(PENALTY_NAMES, penalty=penalty)
    options = {"alpha": alpha, "l1_ratio": l1_ratio, "box": box}
    for option in unused_penalty_options(penalty):
        if options[option] is not None:
            stated = "a Penalty object" if isinstance(penalty, Penalty) else f"penalty={penalty!r}"
            raise InvalidInput(f"{option} has no effect with {stated}: leave it out, or choose another penalty")
    if isinstance(penalty, Penalty):
        if penalty.size != size:
            raise InvalidInput(f"the penalty has {penalty.size} coordinates, the data {size} features")
        return penalty
    if penalty == "none":
        return ElasticNet.of(size)
    weight = default if alpha is None else alpha
    ratio = DEFAULT_L1_RATIO if l1_ratio is None else l1_ratio
    if penalty in {"box", "nonnegative"}:
        ends = (0.0, np.inf) if penalty == "nonnegative" else box
        if not isinstance(ends, tuple | list) or len(ends) != 2:
            raise InvalidInput("penalty='box' needs box=(low, high), the limits of the coefficients")
        return ElasticNet.of(size, l2=_weight(weight), low=ends[0], high=ends[1])
    return elastic_net(size, weight, {"l1": 1.0, "l2": 0.0}.get(str(penalty), ratio))


def loss_named(loss: object) -> Loss | type[Loss]:
    """The class of a loss from its name, or the loss itself.

    Args:
        loss: a name of LOSSES or a Loss.

    Returns:
        The loss.

    Raises:
        InvalidInput: for anything else.
    """
    if isinstance(loss, Loss):
        return loss
    return LOSSES[_validate.one_of(tuple(LOSSES), loss=loss)]
