"""The one place that calls numba: cached on disk, uncached where nothing is writable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

__all__ = ["bits_of", "float_of", "fma", "jit", "jit_exact_sums"]

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile on first call; numba raises at decoration if it finds no writable cache folder."""
    return _compiled(function, fastmath=False)  # said aloud: else a function inherits the flags of its compiled caller


def jit_exact_sums(function: F) -> F:
    """As ``jit``, for sums of integers that are exact in any order: additions may be reordered and fused."""
    return _compiled(function, fastmath={"contract", "reassoc", "nsz"})


def _compiled(function: F, **options: Any) -> F:
    options["error_model"] = "numpy"  # 1/0 is ∞: an exception would tell about a record, and its check costs a loop
    try:
        return cast(F, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast(F, numba.njit(**options)(function))


_FUSES = binding.get_host_cpu_features().get("fma", True)
"""Whether the processor has the instruction, as all of the last ten years do: else a function of libm would be called,
and two roundings are as good."""


@intrinsic
def _fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args) if _FUSES else builder.fadd(builder.fmul(*args[:2]), args[2])

    return types.float64(types.float64, types.float64, types.float64), build


fma = cast(Callable[[float, float, float], float], _fma)
"""a·b + c, rounded once, in compiled code.

The flag "contract" gives the same speed and leaves the choice to the compiler, which may fuse in the vectorised body of
a loop and not in its remainder: the result of a record would depend on where it stands.
"""


@intrinsic
def _bits_of(context: Any, a: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), build


@intrinsic
def _float_of(context: Any, a: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), build


bits_of = cast(Callable[[float], int], _bits_of)
"""The bits of a float64 as an int64, in compiled code: a loop with a ``view``, through memory, is not vectorised."""
float_of = cast(Callable[[int], float], _float_of)
"""The float64 of these bits."""
