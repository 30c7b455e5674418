"""Parameters of estimators, public bounds and grids, checked once: one meaning and one message for every name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Arithmetic

__all__ = [
    "CHECKS",
    "FINEST",
    "MAX_BOUND",
    "MAX_EPSILON",
    "MAX_MAGNITUDE",
    "bounds_of",
    "check_magnitude",
    "check_parameters",
    "grids_of",
    "parse_memory",
    "public_seed",
]

Array = NDArray[np.float64]

MAX_EPSILON = 1e12
"""Up to here accounting is precise; it is for tests of code, not for people."""
MAX_MAGNITUDE = 1e100
"""Of anything with a size: larger numbers, or the inverses of smaller ones, would overflow when squared."""
MAX_PASSES = 1e5
"""A run that reads the data more often would end neither today nor with a useful model."""


# -- checks by name ---------------------------------------------------------------------------------------------


def _epsilon(name: str, value: object) -> None:
    if value is None:
        raise InvalidInput("epsilon is missing: choose the privacy budget before the data is read")
    if _validate.positive(epsilon=value) > MAX_EPSILON:
        raise InvalidInput(f"epsilon must be at most {MAX_EPSILON:g}, got {value!r}: it promises nothing by then")


def _delta(name: str, value: object) -> None:
    _validate.delta(value)


def _ledger(name: str, value: object) -> None:
    if value is not None and not isinstance(value, Ledger):
        raise InvalidInput(f"ledger must be a tacit.Ledger or None, got {type(value).__name__}")


def _arithmetic(name: str, value: object) -> None:
    if value is not None:
        Arithmetic.parse(value)


def _random_state(name: str, value: object) -> None:
    if value is not None:
        public_seed(name, value)


def _memory(name: str, value: object) -> None:
    parse_memory(value, name)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{name} must be True or False, got {value!r}")


def _progress(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"progress must be True, False or None (on a terminal only), got {value!r}")


def _passes(name: str, value: object) -> None:
    if value is not None and _validate.positive(max_passes=value) > MAX_PASSES:
        raise InvalidInput(f"max_passes must be at most {MAX_PASSES:g}, got {value!r}: noise grows with it")


CHECKS: dict[str, Callable[[str, object], None]] = {
    "epsilon": _epsilon,
    "delta": _delta,
    "arithmetic": _arithmetic,
    "ledger": _ledger,
    "random_state": _random_state,
    "memory": _memory,
    "progress": _progress,
    "fit_intercept": _flag,
    "max_passes": _passes,
}
"""What every estimator checks of a parameter of this name, before it looks at its data."""


def check_parameters(estimator: Any, n: int | None = None) -> Adjacency:
    """Check every parameter whose meaning all estimators share.

    Args:
        estimator: with ``get_params``.
        n: the number of records, for a suggestion of δ where it is public.

    Returns:
        The relation that they state; replace-one if they state none.

    Raises:
        InvalidInput: if one is missing or out of range.
    """
    values = estimator.get_params(deep=False)
    relation = Adjacency.parse(values.get("adjacency", Adjacency.REPLACE_ONE))
    if values.get("delta", 0) is None and n is not None and relation is not Adjacency.ADD_REMOVE:
        raise InvalidInput(
            f"delta is missing: choose it before the data is read; 1/n² = {1 / max(n, 2) ** 2:.2g} is a common choice"
        )
    for name, check in CHECKS.items():
        if name in values:
            check(name, values[name])
    return relation


def public_seed(name: str, value: object) -> int:
    """A seed, checked."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        private = "None, for private noise, or " if name == "random_state" else ""
        raise InvalidInput(f"{name} must be {private}a non-negative integer, got {value!r}")
    return int(value)


UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Of sizes in memory; binary ones (KiB) beside them."""
UNITS |= {f"{unit[0]}iB": 2 ** (10 * k) for k, unit in enumerate(UNITS) if k}
SIZE = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?i?B)\s*", re.IGNORECASE)


def parse_memory(value: object, name: str = "memory") -> int | None:
    """How many bytes may be held: a number of them, or words such as "500 MB" or "1.5 GiB".

    Args:
        value: what the user said.
        name: of the parameter, for messages.

    Returns:
        Bytes; None if nothing was said.

    Raises:
        InvalidInput: if it is neither.
    """
    if value is None:
        return None
    if isinstance(value, str):
        found = SIZE.fullmatch(value)
        units = {unit.upper(): size for unit, size in UNITS.items()}
        if found is not None and found[2].upper() in units:
            return int(float(found[1]) * units[found[2].upper()])
    elif _is_number(value) and 0 <= value < float("inf"):
        return int(value)
    raise InvalidInput(f"{name} must be a number of bytes, or words such as '500 MB' or '1.5 GB', got {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_magnitude(**named: object) -> float:
    """A positive number whose square, and that of its inverse, are numbers too."""
    ((name, value),) = named.items()
    out = _validate.positive(**named)
    if not 1 / MAX_MAGNITUDE <= out <= MAX_MAGNITUDE:
        raise InvalidInput(
            f"{name} must lie between {1 / MAX_MAGNITUDE:g} and {MAX_MAGNITUDE:g}, got {value!r}: choose other units"
        )
    return out


# -- public bounds and grids ------------------------------------------------------------------------------------


MAX_BOUND = 1e100
"""The largest size of a bound, and of its inverse: beyond it, squares and ratios of scales would overflow."""


def bounds_of(name: str, bounds: object, size: int | None = None) -> tuple[Array, Array]:
    """Lower and upper ends, checked.

    Args:
        name: of the parameter, for messages.
        bounds: (low, high), numbers or one per feature.
        size: the number of features; None for one pair of numbers.

    Returns:
        The ends, one per feature, or of no dimension.

    Raises:
        InvalidInput: if they are missing, malformed, infinite or too far from 1.
    """
    if bounds is None:
        raise InvalidInput(
            f"{name} is missing: state public limits (low, high) of the values; limits read off the data would leak it"
        )
    if size is not None and _looks_like_pairs(bounds, size):
        raise InvalidInput(
            f"{name} looks like one (low, high) pair per feature, but must be one pair of columns (lows, highs): pass "
            f"tuple(np.transpose({name}))"
        )
    held = list(bounds) if isinstance(bounds, tuple | list) or (isinstance(bounds, np.ndarray) and bounds.ndim) else []
    if len(held) != 2:
        raise InvalidInput(f"{name} must be a pair (low, high), got {_kind(bounds)}: {_forms(size)}")
    ends = [_end(f"{name}[{k}]", end) for k, end in enumerate(held)]
    shape = () if size is None else (size,)
    try:
        low, high = (np.broadcast_to(end, shape).astype(np.float64) for end in ends)
    except ValueError:
        shapes = f"shapes {ends[0].shape} and {ends[1].shape}"
        raise InvalidInput(f"{name} do not fit the data, got {shapes}: {_forms(size)}") from None
    _check_range(name, low, high)
    return low, high


def _end(name: str, end: object) -> Array:
    try:
        return _validate.real_array(name, end)
    except InvalidInput:
        kind = np.asarray(end, object).dtype if isinstance(end, list | tuple) else getattr(end, "dtype", None)
        got = f"entries of type {kind}" if kind is not None else repr(end)[:40]
        raise InvalidInput(f"{name} must be a number, or one per feature, got {got}: convert it to float") from None


def _check_range(name: str, low: Array, high: Array) -> None:
    """Finite, ordered, and of a size that leaves room for squares."""
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InvalidInput(f"{name} must be finite: state public limits of the values")
    if (low > high).any():
        raise InvalidInput(f"{name} must have low ≤ high: put the smaller number first")
    beyond = (np.maximum(-low, high) > MAX_BOUND).any() or (np.maximum(low, -high) > MAX_BOUND).any()
    if beyond or ((low < high) & (high - low < 1 / MAX_BOUND)).any():
        raise InvalidInput(
            f"{name} must lie within ±{MAX_BOUND:g}, and be equal or at least {1 / MAX_BOUND:g} apart: choose other "
            "units"
        )


def _looks_like_pairs(bounds: object, size: int) -> bool:
    """Whether the caller listed (low, high) per feature: the other way round than we read it."""
    try:
        table = np.asarray(bounds, np.float64)
    except (ValueError, TypeError):
        return False
    if table.shape != (size, 2) or not (table[:, 0] < table[:, 1]).all():
        return False
    if size != 2:
        return True
    # For two features both readings have one shape. Two arrays are what we ask for; a list of tuples is how pairs are
    # written; and if our reading fixed a feature or reversed its ends while the other did not, the other was meant.
    if isinstance(bounds, tuple) and all(isinstance(end, np.ndarray) for end in bounds):
        return False
    listed = isinstance(bounds, list) and all(isinstance(pair, tuple) for pair in bounds)
    return listed or not bool((table[0] < table[1]).all())


def _kind(value: object) -> str:
    return f"{len(value)} items" if isinstance(value, tuple | list) else f"an object of type {type(value).__name__}"


def _forms(size: int | None) -> str:
    if size is None:
        return "e.g. (0, 10)"
    return f"e.g. (0, 1), or (lows, highs) with one number per feature ({size}), in the order of the columns"


FINEST = 1e-4
"""Where a geometric grid turns linear, relative to the largest bound, unless the user says otherwise."""


def grids_of(
    grid: object, bounds: object, size: int, bins: object, resolution: object, *, name: str = "feature_bounds"
) -> list[Array]:
    """The edges of every feature's bins: strictly increasing, or a single number for a feature without a choice.

    A geometric grid is uniform in t = sign(x)·log(1 + |x|/r): linear within ±r around 0, then growing by a constant
    factor, so that it resolves small values under wide bounds.

    Args:
        grid: "uniform", "geometric", or one entry per feature, each of these words or increasing edges.
        bounds: (low, high), for features without edges of their own.
        size: p.
        bins: how many bins a feature has (where no edges are given).
        resolution: r, a number or one per feature; None for ``FINEST`` × the largest bound.
        name: of the bounds, for messages.

    Returns:
        One array per feature.

    Raises:
        InvalidInput: if an argument is malformed.
    """
    count = _validate.positive_int(bins=bins)
    if count > 1_000_000:
        raise InvalidInput(f"bins must not exceed a million, got {count}: noise grows with their number")
    entries = _entries(grid, size)
    if all(not isinstance(entry, str) for entry in entries):
        return [_given(j, entry) for j, entry in enumerate(entries)]
    low, high = bounds_of(name, bounds, size)
    r = _resolutions(resolution, np.maximum(np.abs(low), np.abs(high)))
    return [
        _spread(entry, low[j], high[j], count, r[j]) if isinstance(entry, str) else _given(j, entry)
        for j, entry in enumerate(entries)
    ]


def _entries(grid: object, size: int) -> list[object]:
    if isinstance(grid, str):
        return [_validate.one_of(("uniform", "geometric"), grid=grid)] * size
    if not isinstance(grid, Sequence | np.ndarray) or len(grid) != size:
        raise InvalidInput(f"grid must be 'uniform', 'geometric', or a list with one entry per feature ({size})")
    for entry in grid:
        if isinstance(entry, str):
            _validate.one_of(("uniform", "geometric"), grid=entry)
    return list(grid)


def _given(j: int, entry: object) -> Array:
    edges = _validate.real_array(f"grid[{j}]", entry)
    if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise InvalidInput(f"grid[{j}] must hold at least two finite edges, strictly increasing")
    return edges


def _resolutions(resolution: object, largest: Array) -> Array:
    p = len(largest)
    if resolution is None:
        return np.maximum(FINEST * largest, 1e-290)
    r = _validate.nonnegative_array("resolution", resolution)
    if r.shape not in ((), (p,)) or (r == 0).any():
        raise InvalidInput(f"resolution must be positive: one number, or one per feature ({p})")
    return np.broadcast_to(r, (p,))


def _spread(kind: str, low: float, high: float, bins: int, r: float) -> Array:
    if kind == "uniform":
        edges = np.linspace(low, high, bins + 1)
    else:
        with np.errstate(over="ignore"):
            first, last = (float(np.sign(x) * np.log1p(min(abs(x) / r, 1e300))) for x in (low, high))
        t = np.linspace(first, last, bins + 1)
        edges = np.clip(np.sign(t) * r * np.expm1(np.abs(t)), low, high)
        edges[0], edges[-1] = low, high
    return np.unique(edges)  # bounds so close that floats run out leave fewer bins
