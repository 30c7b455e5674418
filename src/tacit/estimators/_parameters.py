"""Penalties and losses from the parameters of estimators."""

from __future__ import annotations

import numpy as np

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import LOSSES, Loss, Penalty

__all__ = ["MOST", "elastic_net", "loss_named", "penalty_named", "sized"]

PENALTIES = ("none", "l1", "l2", "elasticnet", "box", "nonnegative")
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


def penalty_named(penalty: object, size: int, alpha: object, l1_ratio: float, box: object) -> Penalty:
    """From a name, or the penalty itself.

    Args:
        penalty: a name of PENALTIES, or a Penalty.
        size: the number of features.
        alpha: α.
        l1_ratio: the ℓ1 share of an elastic net.
        box: (low, high) for "box".

    Returns:
        The penalty on the user's coefficients.

    Raises:
        InvalidInput: for an unknown name or a box without limits.
    """
    if isinstance(penalty, Penalty):
        if penalty.size != size:
            raise InvalidInput(f"the penalty has {penalty.size} coordinates, the data {size} features")
        return penalty
    name = _validate.one_of(PENALTIES, penalty=penalty)
    if name == "none":
        return Penalty.of(size)
    if name in {"box", "nonnegative"}:
        ends = (0.0, np.inf) if name == "nonnegative" else box
        if not isinstance(ends, tuple | list) or len(ends) != 2:
            raise InvalidInput("penalty='box' needs box=(low, high), the limits of the coefficients")
        return Penalty.of(size, l2=_weight(alpha), low=ends[0], high=ends[1])
    return elastic_net(size, alpha, {"l1": 1.0, "l2": 0.0}.get(name, l1_ratio))


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
