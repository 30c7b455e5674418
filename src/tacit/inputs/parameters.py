"""Parameters of estimators, checked once: the same name means the same everywhere, and has one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency
from tacit.problem import LOSSES, ElasticNet, Loss, Penalty

__all__ = [
    "CHECKS",
    "MAX_EPSILON",
    "MAX_MAGNITUDE",
    "check_magnitude",
    "check_parameters",
    "elastic_net",
    "loss_named",
    "penalty_named",
    "public_seed",
    "unused_penalty_options",
]

MAX_EPSILON = 1e12
"""Up to here accounting is precise; it is for tests of code, not for people."""
MAX_MAGNITUDE = 1e100
"""Of anything with a size: larger numbers, or the inverses of smaller ones, would overflow when squared."""
MAX_PASSES = 1e5
"""A run that reads the data more often would end neither today nor with a useful model."""
PENALTIES = ("none", "l1", "l2", "elasticnet", "box", "nonnegative")
DEFAULT_ALPHA, DEFAULT_L1_RATIO = 1e-3, 0.5


# -- checks by name ---------------------------------------------------------------------------------------------


def _epsilon(name: str, value: object) -> None:
    if value is None:
        raise InvalidInput("epsilon is missing: choose the privacy budget before the data is read")
    if _validate.positive(epsilon=value) > MAX_EPSILON:
        raise InvalidInput(f"epsilon must be at most {MAX_EPSILON:g}, got {value!r}: it promises nothing by then")


def _delta(name: str, value: object) -> None:
    _validate.delta(value)


def _adjacency(name: str, value: object) -> None:
    Adjacency.parse(value)


def _ledger(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Ledger):
        raise InvalidInput(f"ledger must be a tacit.Ledger or None, got {type(value).__name__}")


def _random_state(name: str, value: object) -> None:
    if value is not None:
        public_seed(name, value)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{name} must be True or False, got {value!r}")


def _progress(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"progress must be True, False or None (on a terminal only), got {value!r}")


def _passes(name: str, value: object) -> None:
    if value is not None and _validate.positive(max_passes=value) > MAX_PASSES:
        raise InvalidInput(f"max_passes must be at most {MAX_PASSES:g}, got {value!r}: noise grows with it")


def _view(name: str, value: object) -> None:
    _validate.one_of(("all_iterates", "final_model"), view=value)


CHECKS: dict[str, Callable[[str, object], None]] = {
    "epsilon": _epsilon,
    "delta": _delta,
    "adjacency": _adjacency,
    "view": _view,
    "ledger": _ledger,
    "random_state": _random_state,
    "progress": _progress,
    "fit_intercept": _flag,
    "max_passes": _passes,
}
"""What every estimator checks of a parameter of this name, before it looks at its data."""


def check_parameters(estimator: Any, n: int | None = None) -> None:
    """Check every parameter whose meaning all estimators share.

    Args:
        estimator: with ``get_params``.
        n: the number of records, for a suggestion of δ where it is public.

    Raises:
        InvalidInput: if one is missing or out of range.
    """
    values = estimator.get_params(deep=False)
    if values.get("delta", 0) is None and n is not None:
        raise InvalidInput(
            f"delta is missing: choose it before the data is read; 1/n² = {1 / max(n, 2) ** 2:.2g} is a common choice"
        )
    for name, check in CHECKS.items():
        if name in values:
            check(name, values[name])


def public_seed(name: str, value: object) -> int:
    """A seed, checked."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        private = "None, for private noise, or " if name == "random_state" else ""
        raise InvalidInput(f"{name} must be {private}a non-negative integer, got {value!r}")
    return int(value)


def check_magnitude(**named: object) -> float:
    """A positive number whose square, and that of its inverse, are numbers too."""
    ((name, value),) = named.items()
    out = _validate.positive(**named)
    if not 1 / MAX_MAGNITUDE <= out <= MAX_MAGNITUDE:
        raise InvalidInput(
            f"{name} must lie between {1 / MAX_MAGNITUDE:g} and {MAX_MAGNITUDE:g}, got {value!r}: choose other units"
        )
    return out


# -- losses and penalties ---------------------------------------------------------------------------------------


def elastic_net(size: int, alpha: object, l1_ratio: float) -> ElasticNet:
    """α·ratio·‖w‖₁ + α(1 − ratio)/2·‖w‖²."""
    a = _weight(alpha)
    ratio = _validate.probability(open_left=False, l1_ratio=l1_ratio)
    return ElasticNet.of(size, l1=a * ratio, l2=a * (1 - ratio))


def _weight(alpha: object) -> float:
    a = _validate.nonnegative(alpha=alpha)
    if a > MAX_MAGNITUDE:
        raise InvalidInput(f"alpha must be at most {MAX_MAGNITUDE:g}, got {alpha!r}: choose other units")
    return a


def unused_penalty_options(penalty: object) -> tuple[str, ...]:
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
    weight = DEFAULT_ALPHA if alpha is None else alpha
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
