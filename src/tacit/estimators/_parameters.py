"""Penalties and losses from the parameters of estimators."""

from __future__ import annotations

import numpy as np

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import LOSSES, Loss, Penalty

__all__ = ["MOST", "elastic_net", "idle_penalty_options", "loss_named", "penalty_named", "sized"]

PENALTIES = ("none", "l1", "l2", "elasticnet", "box", "nonnegative")
ALPHA, L1_RATIO = 1e-3, 0.5
"""If nothing is said."""
MOST = 1e100
"""Of anything with a size: larger numbers, or the inverses of smaller ones, would overflow when squared."""


def sized(**named: object) -> float:
    """A positive number whose square, and that of its inverse, are numbers too."""
    ((name, value),) = named.items()
    out = _validate.positive(**named)
    if not 1 / MOST <= out <= MOST:
        raise InvalidInput(f"{name} must lie between {1 / MOST:g} and {MOST:g}, got {value!r}: choose other units")
    return out


def elastic_net(size: int, alpha: object, l1_ratio: float) -> Penalty:
    """α·ratio·‖w‖₁ + α(1 − ratio)/2·‖w‖²."""
    a = _weight(alpha)
    ratio = _validate.probability(open_left=False, l1_ratio=l1_ratio)
    return Penalty.of(size, l1=a * ratio, l2=a * (1 - ratio))


def _weight(alpha: object) -> float:
    a = _validate.nonnegative(alpha=alpha)
    if a > MOST:
        raise InvalidInput(f"alpha must be at most {MOST:g}, got {alpha!r}: choose other units")
    return a


def idle_penalty_options(penalty: object) -> tuple[str, ...]:
    """The options that say nothing about this penalty."""
    if isinstance(penalty, Penalty) or penalty == "none":
        return "alpha", "l1_ratio", "box"
    return tuple(name for name, owner in (("l1_ratio", "elasticnet"), ("box", "box")) if penalty != owner)


def penalty_named(penalty: object, size: int, alpha: object, l1_ratio: float | None, box: object) -> Penalty:
    """From a name, or the penalty itself.

    Args:
        penalty: a name of PENALTIES, or a Penalty.
        size: the number of features.
        alpha: α; 1e-3 if None.
        l1_ratio: the ℓ1 share of an elastic net; a half if None.
        box: (low, high) for "box", else None.

    Returns:
        The penalty on the user's coefficients.

    Raises:
        InvalidInput: for an unknown name, a box without limits, or options that would have no effect.
    """
    if not isinstance(penalty, Penalty):
        _validate.one_of(PENALTIES, penalty=penalty)
    options = {"alpha": alpha, "l1_ratio": l1_ratio, "box": box}
    for option in idle_penalty_options(penalty):
        if options[option] is not None:
            stated = "a Penalty object" if isinstance(penalty, Penalty) else f"penalty={penalty!r}"
            raise InvalidInput(f"{option} has no effect with {stated}: leave it out, or choose another penalty")
    if isinstance(penalty, Penalty):
        if type(penalty) is not Penalty:
            raise InvalidInput(
                f"{type(penalty).__name__} is a subclass of Penalty, whose own prox would not be run: solvers know ℓ1, "
                "ℓ2 and boxes only; state it as Penalty.of(...)"
            )
        if penalty.size != size:
            raise InvalidInput(f"the penalty has {penalty.size} coordinates, the data {size} features")
        return penalty
    if penalty == "none":
        return Penalty.of(size)
    weight, ratio = ALPHA if alpha is None else alpha, L1_RATIO if l1_ratio is None else l1_ratio
    if penalty in {"box", "nonnegative"}:
        ends = (0.0, np.inf) if penalty == "nonnegative" else box
        if not isinstance(ends, tuple | list) or len(ends) != 2:
            raise InvalidInput("penalty='box' needs box=(low, high), the limits of the coefficients")
        return Penalty.of(size, l2=_weight(weight), low=ends[0], high=ends[1])
    return elastic_net(size, weight, {"l1": 1.0, "l2": 0.0}.get(str(penalty), ratio))


def loss_named(loss: object) -> Loss:
    """A loss from its name, or the loss itself.

    Args:
        loss: a name of LOSSES or a Loss.

    Returns:
        The loss.

    Raises:
        InvalidInput: for anything else.
    """
    if isinstance(loss, Loss):
        return loss
    return LOSSES[_validate.one_of(tuple(LOSSES), loss=loss)]()
