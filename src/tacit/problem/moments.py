"""Statistics (α·xxᵀ, u·xᵀ) of records with ‖x‖ ≤ R and ‖u‖ ≤ U: how long one is, and how far apart two are.

For two records of full length put c = xᵀy/R² and t = uᵀv/U² (shorter ones are no worse: docs/theorems.md). Then

    ‖α(xxᵀ − yyᵀ)‖² + ‖uxᵀ − vyᵀ‖²  =  2α²R⁴(1 − c²) + 2R²U²(1 − c·t).

If any signs may occur, the worst is t = −1 and c = min(1, U²/(2α²R²)):

    Δ² = 2α²R⁴ + 2R²U² + U⁴/(2α²)   if U² ≤ 2α²R²,   else 4R²U².

If x and u are non-negative, c and t are too, and the worst is c = 0: Δ² = 2α²R⁴ + 2R²U², √2 times the longest
statistic. A record that vanishes moves the sum by its length, at most √(α²R⁴ + R²U²).
"""

from __future__ import annotations

import math

from tacit import _validate

__all__ = ["moments_bound", "moments_diameter", "moments_weight"]


def moments_bound(x_norm: float, u_norm: float, weight: float) -> float:
    """√(α²R⁴ + R²U²): the longest statistic of one record."""
    R, U = _validate.positive(x_norm=x_norm), _validate.positive(u_norm=u_norm)
    return R * math.hypot(_validate.positive(weight=weight) * R, U)


def moments_diameter(x_norm: float, u_norm: float, weight: float, *, nonnegative: bool = False) -> float:
    """The largest distance between the statistics of two records (module docstring).

    Args:
        x_norm: R.
        u_norm: U.
        weight: α.
        nonnegative: whether the entries of x and of u are never negative.

    Returns:
        Δ under replace-one.
    """
    R, U, a = _validate.positive(x_norm=x_norm), _validate.positive(u_norm=u_norm), _validate.positive(weight=weight)
    if nonnegative:
        return math.sqrt(2) * moments_bound(R, U, a)
    if 2 * a * a * R * R >= U * U:
        return math.sqrt(2 * a**2 * R**4 + 2 * R**2 * U**2 + U**4 / (2 * a**2))
    return 2 * R * U


def moments_weight(x_norm: float, u_norm: float, relative: float) -> float:
    """The α that minimises (α²R² + U²)·(1 + ρ/α²), i.e. α² = √ρ·U/R.

    σ of the noise grows with √(α²R² + U²); it is on uxᵀ as it stands and on xxᵀ divided by α. ρ states how much an
    entry of the noise on xxᵀ matters, compared with one on uxᵀ (as variances).

    Args:
        x_norm: R.
        u_norm: U.
        relative: ρ.

    Returns:
        α.
    """
    R, U = _validate.positive(x_norm=x_norm), _validate.positive(u_norm=u_norm)
    return math.sqrt(math.sqrt(_validate.positive(relative=relative)) * U / R)
