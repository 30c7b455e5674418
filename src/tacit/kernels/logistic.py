"""The logistic function in our own arithmetic: the same bits in any place of an array, and on every machine.

A math library may compute exp differently in the vectorised part of a loop and at its end, and differs between
machines; a record's slope must not depend on either.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import bits_of, float_of, jit

__all__ = ["logistic", "logistic_of"]

_SATURATION: Final = 690.0
_ROUND: Final = 6755399441055744.0 + 1023.0  # 1.5·2⁵² + bias: k added to it is rounded, its low bits are 2ᵏ's exponent
_LOG2: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.6931471803691238  # 32 bits, so that products with k are exact
_LN2_LOW: Final = 1.9082149292705877e-10


@jit
def logistic_of(z: float) -> float:
    """One number, in compiled code; see ``logistic``."""
    v = -z
    v = _SATURATION if v > _SATURATION else v
    v = -_SATURATION if v < -_SATURATION else v
    t = v * _LOG2 + _ROUND
    k = t - _ROUND
    r = (v - k * _LN2_HIGH) - k * _LN2_LOW
    s = r * r
    even = (30.0 * s + 3360.0) * s + 30240.0
    odd = ((s + 420.0) * s + 15120.0) * r
    power = float_of(bits_of(t) << 52)
    below = even - odd
    return below / (below + (even + odd) * power)


@jit
def _logistic(z: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for i in range(z.size):
        out[i] = logistic_of(z[i])


def logistic(z: Any) -> NDArray[np.float64]:
    """1/(1 + e^{−z}), with a relative error below 1e-14 for |z| ≤ 690, where it saturates; NaN gives NaN or an end.

    e^v = 2ᵏ(a + b)/(a − b) with |v − k log 2| ≤ ½ log 2 and Padé's a = 30240 + 3360r² + 30r⁴, b = 15120r + 420r³ + r⁵,
    whose relative error is below 1e-15. Nothing is fused or reordered, so every entry is the same function of its z.

    Args:
        z: of any shape.

    Returns:
        float64, of the same shape.
    """
    given = np.ascontiguousarray(z, np.float64)
    out = np.empty(given.shape)
    _logistic(given.reshape(-1), out.reshape(-1))
    return out
