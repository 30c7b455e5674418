"""What an audit accepts, checked once at the boundary; messages speak of shapes and finiteness only."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = [
    "Array",
    "Sampler",
    "Statistic",
    "as_floats",
    "delta_or_zero",
    "open_unit",
    "outputs",
    "split_runs",
]

Array = NDArray[np.float64]
Sampler = Callable[[int], ArrayLike]
Statistic = Callable[[Array], ArrayLike]

# Fewer pilot runs than this cannot place a threshold (nor, for vectors, a direction and a threshold).
MIN_PILOT = 20


def open_unit(**named: object) -> float:
    """A real number strictly between zero and one.

    Args:
        **named: the one value, under the name that the message calls it by.

    Returns:
        The number.

    Raises:
        InvalidInput: if it is anything else.
    """
    ((name, value),) = named.items()
    out = _validate.finite(**named)
    if not 0 < out < 1:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return out


def delta_or_zero(delta: object) -> float:
    """A δ in [0, 1): zero audits pure differential privacy.

    Args:
        delta: the value.

    Returns:
        The number.
    """
    if isinstance(delta, int | float) and not isinstance(delta, bool) and delta == 0:
        return 0.0
    return _validate.delta(delta)


def split_runs(n_runs: object, pilot: object, confidence: float) -> tuple[int, int]:
    """The numbers of pilot and of fresh runs on each side.

    With no error at all among n fresh runs, the Clopper–Pearson bound is 1 − γ^{1/n} at level
    γ = (1 − confidence)/2; below n = log₂(1/γ) it exceeds 1/2 and no bound could ever be positive.

    Args:
        n_runs: the runs a side.
        pilot: the share of them that chooses the test, in (0, 1/2].
        confidence: in (0, 1), validated already.

    Returns:
        (pilot, fresh) with pilot + fresh = n_runs.

    Raises:
        InvalidInput: if the share is out of range or the runs are too few.
    """
    n = _validate.positive_int(n_runs=n_runs)
    share = _validate.finite(pilot=pilot)
    if not 0 < share <= 0.5:
        raise InvalidInput(f"pilot must lie in (0, 0.5], got {pilot!r}: it is a share of the runs")
    min_fresh = math.floor(math.log2(2 / (1 - confidence))) + 1
    needed = max(math.ceil(MIN_PILOT / share), math.ceil(min_fresh / (1 - share)))
    if n < needed:
        raise InvalidInput(
            f"n_runs = {n} is too few: pilot = {share:g} and confidence = {confidence:g} need at least "
            f"{needed} runs a side"
        )
    # The guard against 0.1 · 200 = 20.000000000000004 and its cousins just below an integer.
    n_pilot = max(MIN_PILOT, math.floor(share * n + 1e-9))
    return n_pilot, n - n_pilot


def as_floats(name: str, value: ArrayLike, shapes: str, ndims: tuple[int, ...], length: int) -> Array:
    """A finite float array of the given length along its first axis.

    Args:
        name: what to call it in a message.
        value: the array.
        shapes: the admissible shapes, in words.
        ndims: the admissible numbers of dimensions.
        length: the length of the first axis.

    Returns:
        The array as float64.

    Raises:
        InvalidInput: if it is not numeric, of another shape, or not finite.
    """
    try:
        raw = np.asarray(value)
    except ValueError:  # ragged nested lists
        raise InvalidInput(f"{name} must have shape {shapes}, got rows of different lengths") from None
    if raw.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} must be real numbers of shape {shapes}, got dtype {raw.dtype}")
    if raw.ndim not in ndims or raw.shape[0] != length or raw.size == 0:
        raise InvalidInput(f"{name} must have shape {shapes}, got {raw.shape}")
    out = raw.astype(np.float64)
    if not np.isfinite(out).all():
        raise InvalidInput(f"{name} must be finite, got NaN or infinity: map failed runs to a finite value")
    return out


def outputs(name: str, sampler: Sampler, n: int) -> Array:
    """Draw n outputs in one call: shape (n,) for scalars, (n, p) for vectors.

    One call, not one for the pilot and one for the rest: a sampler that seeds itself afresh on every call
    would hand the pilot's runs back as fresh ones.

    Args:
        name: the sampler's name, for messages.
        sampler: returns k outputs of k independent runs.
        n: how many to draw.

    Returns:
        The outputs; a single column becomes a scalar output.

    Raises:
        InvalidInput: if the sampler is not callable or its outputs are not n finite vectors.
    """
    if not callable(sampler):
        raise InvalidInput(f"{name} must be callable: {name}(k) returns the outputs of k independent runs")
    out = as_floats(f"{name}({n})", sampler(n), f"({n},) or ({n}, p)", (1, 2), n)
    return out[:, 0] if out.ndim == 2 and out.shape[1] == 1 else out
