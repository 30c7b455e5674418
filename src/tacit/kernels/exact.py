"""Matrix products whose rows do not know where they stand.

A library may round a row of X·Wᵀ differently in another place, or among more rows. Where a last bit can turn a decision
(a ReLU that opens), a record would then contribute differently because another one is there. Here both factors are
rounded to so few bits that every sum is exact in float64: whatever the order of additions, the result is the same.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["exact_product", "rounded_rows"]

Array = NDArray[np.float64]
MANTISSA = 52


@jit
def rounded_rows(X: Array, bits: int) -> Array:
    """Each row rounded to multiples of 2^−bits of (a power of two above) its largest entry.

    x + c − c rounds to the last place of c. Rows that hold no finite largest entry become NaN.

    Args:
        X: (m, p).
        bits: kept.

    Returns:
        (m, p).
    """
    m, p = X.shape
    out = np.empty((m, p))
    for i in range(m):
        top = 0.0
        for j in range(p):
            top = max(top, abs(X[i, j]))
            if not np.isfinite(X[i, j]):
                top = np.inf
        if top == np.inf:
            out[i] = np.nan
            continue
        if top < 1e-290:  # so small that it means nothing, and its grid would be denormal
            out[i] = 0.0
            continue
        c = 1.5 * 2.0 ** (np.ceil(np.log2(top)) + 1 + (52 - bits))
        for j in range(p):
            out[i, j] = (X[i, j] + c) - c
    return out


def exact_product(X: Array, W: Array) -> Array:
    """X·Wᵀ, each row a function of that row of X and of W alone, to the bit.

    Entries keep about (52 − log₂ p)/2 bits of the largest one in their row of X, and in W: 20 for p = 785.

    Args:
        X: (m, p).
        W: (q, p), finite; the same for all rows.

    Returns:
        (m, q); NaN where a row of X is not finite.
    """
    p = X.shape[1]
    bits = (MANTISSA - math.ceil(math.log2(max(p, 2)))) // 2 - 1
    coarse = rounded_rows(np.ascontiguousarray(W, np.float64).reshape(1, -1), bits).reshape(W.shape)
    return np.asarray(rounded_rows(np.ascontiguousarray(X, np.float64), bits) @ coarse.T)
