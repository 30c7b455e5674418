"""Attack on hidden chains whose noise comes from a lattice: what the last state tells modulo that lattice.

If x = factor·x′ − unit·m with an integer m, then x shows factor·x′ modulo ``unit``, however strongly the map contracts
and however large m's noise is. A chain that goes through exact releases of its sums has unit = η·g/b, g their grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["recovered"]

Array = NDArray[np.float64]


def recovered(last: Array, factor: float, unit: float) -> Array:
    """The hidden state x′ before the last one, if |factor·x′| < unit/2; unrelated numbers without such a lattice.

    Args:
        last: x, what was published.
        factor: what the last step multiplies x′ by, public.
        unit: of the lattice that the last step's noise lies on, public.

    Returns:
        x′, of the shape of ``last``.
    """
    residue = last - unit * np.rint(last / unit)
    return np.asarray(residue / factor)
