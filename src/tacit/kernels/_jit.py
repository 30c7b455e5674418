"""The one place that calls numba: cached on disk, uncached where nothing is writable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["jit", "jit_exact_sums"]

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile on first call; numba raises at decoration if it finds no writable cache folder."""
    return _compiled(function)


def jit_exact_sums(function: F) -> F:
    """As ``jit``, for sums of integers that are exact in any order: additions may be reordered and fused."""
    return _compiled(function, fastmath={"contract", "reassoc", "nsz"})


def _compiled(function: F, **options: Any) -> F:
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast(F, numba.njit(**options)(function))
