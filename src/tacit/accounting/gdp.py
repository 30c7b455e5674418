"""μ-GDP ↔ (ε, δ): the exact conversion, stable from μ = 1e-6 to 1e3 and δ down to 1e-300.

A mechanism is μ-GDP if telling its outputs on neighbours apart is at least as hard as telling N(0, 1)
from N(μ, 1). It then satisfies (ε, δ)-DP for every ε with (Dong, Roth, Su 2022, Corollary 2.13)

    δ(ε) = Φ(−a) − e^ε Φ(−a − μ),      a = ε/μ − μ/2.

Both terms nearly cancel for small μ. With Mills' ratio M(x) = Φ(−x)/φ(x) and e^ε φ(a+μ) = φ(a),

    δ(ε) = φ(a) · (M(a) − M(a+μ)) = φ(a) · ∫_a^{a+μ} (1 − x M(x)) dx,

where nothing overflows and, in the second form, nothing cancels.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtr

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["gdp_delta", "gdp_epsilon", "gdp_mu"]

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_SQRT_HALF_PI = np.sqrt(np.pi / 2)
_SQRT_TWO_PI = np.sqrt(2 * np.pi)
# Below this μ the difference of Mills' ratios loses digits and the integral form is used.
_SMALL_MU = 1.0
_BISECTIONS = 200
_PARTS = 64


def _mills(x: Array) -> Array:
    return np.asarray(_SQRT_HALF_PI * erfcx(x / np.sqrt(2)))


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * x * x) / _SQRT_TWO_PI)


def _delta_small(mu: Array, a: Array) -> Array:
    """δ by Gauss–Legendre on the integral form (0 < μ ≤ 1, so a ≥ −1/2)."""
    x = a[:, None] + mu[:, None] * (_NODES + 1) / 2
    decay = np.maximum(1 - x * _mills(x), 0.0)
    return np.asarray(_density(a) * (decay @ _WEIGHTS) * mu / 2)


def _delta_large(mu: Array, a: Array) -> Array:
    """δ by the difference of Mills' ratios (μ > 1)."""
    far = _density(a) * _mills(a + mu)  # e^ε Φ(−a−μ); a + μ = ε/μ + μ/2 > 0, so M is small
    near = np.where(a > 0, _density(a) * _mills(np.maximum(a, 0.0)), ndtr(-a))
    return np.asarray(np.maximum(near - far, 0.0))


def _delta_positive(mu: Array, epsilon: Array) -> Array:
    """δ(ε) for finite μ > 0 and finite ε ≥ 0 (one-dimensional arrays)."""
    # (ε − μ²/2)/μ rather than ε/μ − μ/2: one rounding less where the two nearly cancel. Beyond |a| = 60
    # the density is zero in double precision, and clipping keeps the arithmetic finite.
    with np.errstate(over="ignore"):
        a = np.clip((epsilon - 0.5 * mu * mu) / mu, -60.0, 60.0)
    mu = np.broadcast_to(mu, a.shape)
    out = np.empty_like(a)
    small = mu <= _SMALL_MU
    out[small] = _delta_small(mu[small], a[small])
    out[~small] = _delta_large(mu[~small], a[~small])
    return out


def _check(name: str, values: Array, low: float, high: float) -> None:
    if np.isnan(values).any():
        raise InvalidInput(f"{name} is NaN: pass a number")
    bad = (values < low) | (values > high)
    if bad.any():
        close = ")" if np.isinf(high) else "]"
        shown = f"[{low:g}, {high:g}{close}"
        raise InvalidInput(f"{name} must lie in {shown}, got {values[bad].flat[0]!r}")


def _broadcast(x: Array, y: Array) -> tuple[Array, Array, tuple[int, ...]]:
    try:
        bx, by = np.broadcast_arrays(x, y)
    except ValueError:
        raise InvalidInput(
            f"shapes {x.shape} and {y.shape} do not broadcast: pass scalars or arrays of one shape"
        ) from None
    return bx.ravel().copy(), by.ravel().copy(), bx.shape


def _result(values: Array, shape: tuple[int, ...]) -> float | Array:
    return float(values[0]) if shape == () else values.reshape(shape)


@overload
def gdp_delta(mu: float, epsilon: float) -> float: ...
@overload
def gdp_delta(mu: ArrayLike, epsilon: ArrayLike) -> float | Array: ...
def gdp_delta(mu: ArrayLike, epsilon: ArrayLike) -> float | Array:
    """δ(ε) of a μ-GDP mechanism, relative accuracy 1e-10 (ε may be negative or infinite).

    Args:
        mu: the GDP parameter, in [0, ∞].
        epsilon: any real number or ±∞.

    Returns:
        The smallest δ such that μ-GDP implies (ε, δ)-DP; a float for scalars, else an array.

    Raises:
        InvalidInput: if an argument is NaN, not a number, or μ is negative.

    >>> round(gdp_delta(1.0, 1.0), 9)
    0.126936738
    """
    m, e, shape = _broadcast(_validate.real_array("mu", mu), _validate.real_array("epsilon", epsilon))
    _check("mu", m, 0.0, np.inf)
    _check("epsilon", e, -np.inf, np.inf)
    out = np.empty_like(m)
    size = np.abs(e)
    trivial = (m == 0) | np.isinf(m) | np.isinf(e)
    # No noise loses everything, at every finite ε; no signal loses nothing.
    out[trivial] = np.where(np.isinf(m[trivial]) & (e[trivial] < np.inf), 1.0, 0.0)
    out[~trivial] = _delta_positive(m[~trivial], size[~trivial])
    # Symmetry of the Gaussian pair: δ(−ε) = 1 − e^{−ε} + e^{−ε} δ(ε).
    negative = (e < 0) & ~np.isinf(m)
    with np.errstate(under="ignore"):
        out[negative] = -np.expm1(-size[negative]) + np.exp(-size[negative]) * out[negative]
    return _result(np.clip(out, 0.0, 1.0), shape)


def _solve(objective_low: Array, objective_high: Array, feasible: object) -> Array:
    """Bisection down to neighbouring floats; ``feasible(x)`` holds at ``high`` and above."""
    low, high = objective_low.copy(), objective_high.copy()
    if low.size == 1:
        return _solve_one(float(low[0]), float(high[0]), feasible)
    for _ in range(_BISECTIONS):
        middle = low + (high - low) / 2
        if ((middle <= low) | (middle >= high)).all():
            break
        ok = feasible(middle)  # type: ignore[operator]
        high = np.where(ok, middle, high)
        low = np.where(ok, low, middle)
    return high


def _solve_one(low: float, high: float, feasible: object) -> Array:
    """The same for one number, _PARTS points at a time: a call costs much the same for many points as for one."""
    fractions = np.arange(1, _PARTS) / _PARTS
    for _ in range(_BISECTIONS):
        points = low + (high - low) * fractions
        points = points[(points > low) & (points < high)]
        if points.size == 0:
            break
        ok = np.flatnonzero(feasible(points))  # type: ignore[operator]
        first = int(ok[0]) if ok.size else points.size
        low, high = (low if first == 0 else float(points[first - 1])), (float(points[first]) if ok.size else high)
    # One point alone may round differently from the same point among others, by many spacings where the curve is flat.
    for ulps in (0, *(4**k for k in range(26))):
        found = np.array([high + min(ulps * float(np.spacing(high)), 1.7e308 - high)])
        if feasible(found).all():  # type: ignore[operator]
            break
    return found


@overload
def gdp_epsilon(mu: float, delta: float) -> float: ...
@overload
def gdp_epsilon(mu: ArrayLike, delta: ArrayLike) -> float | Array: ...
def gdp_epsilon(mu: ArrayLike, delta: ArrayLike) -> float | Array:
    """The smallest ε ≥ 0 such that μ-GDP implies (ε, δ)-DP, rounded up.

    Args:
        mu: the GDP parameter, in [0, ∞].
        delta: in [0, 1]; δ = 0 gives ∞ unless μ = 0.

    Returns:
        ε such that ``gdp_delta(mu, ε) <= delta`` in floating point, too.

    Raises:
        InvalidInput: if an argument is NaN, not a number, or out of range.

    >>> round(gdp_epsilon(1.0, 1e-5), 6)
    4.377178
    """
    m, d, shape = _broadcast(_validate.real_array("mu", mu), _validate.real_array("delta", delta))
    _check("mu", m, 0.0, np.inf)
    _check("delta", d, 0.0, 1.0)
    out = np.full_like(m, np.inf)
    out[(m == 0) | (d >= 1)] = 0.0
    todo = (m > 0) & np.isfinite(m) & (d > 0) & (d < 1)
    if todo.any():
        mt, dt = m[todo], d[todo]
        # δ(ε) ≤ Φ(−a) ≤ e^{−a²/2}/2 for a ≥ 0 gives the upper end; the factor absorbs rounding.
        with np.errstate(over="ignore"):
            high = np.minimum((0.5 * mt * mt + mt * np.sqrt(2 * -np.log(dt))) * (1 + 1e-12) + 1e-300, 1.7e308)
        solved = _solve(np.zeros_like(mt), high, lambda e: _delta_positive(mt, e) <= dt)
        solved = np.where(_delta_positive(mt, solved) <= dt, solved, np.inf)  # past the largest float
        out[todo] = np.where(_delta_positive(mt, np.zeros_like(mt)) <= dt, 0.0, solved)
    return _result(out, shape)


@overload
def gdp_mu(epsilon: float, delta: float) -> float: ...
@overload
def gdp_mu(epsilon: ArrayLike, delta: ArrayLike) -> float | Array: ...
def gdp_mu(epsilon: ArrayLike, delta: ArrayLike) -> float | Array:
    """The largest μ such that μ-GDP implies (ε, δ)-DP, rounded down.

    Args:
        epsilon: in [0, ∞].
        delta: in [0, 1].

    Returns:
        μ; 0 for δ = 0 and finite ε, ∞ for ε = ∞ or δ = 1.

    Raises:
        InvalidInput: if an argument is NaN, not a number, or out of range.

    >>> round(gdp_mu(4.377178095681137, 1e-5), 9)
    1.0
    """
    e, d, shape = _broadcast(_validate.real_array("epsilon", epsilon), _validate.real_array("delta", delta))
    _check("epsilon", e, 0.0, np.inf)
    _check("delta", d, 0.0, 1.0)
    out = np.where(np.isinf(e) | (d >= 1), np.inf, 0.0)
    todo = np.isfinite(e) & (d > 0) & (d < 1)
    if todo.any():
        et, dt = e[todo], d[todo]
        # Work with −log μ, in which feasibility grows: the bracket spans all that a float can hold.
        steps = _solve(np.full_like(et, -709.0), np.full_like(et, 745.0), lambda x: _mu_fits(-x, et, dt))
        out[todo] = _round_down(np.exp(-steps), et, dt)
    return _result(out, shape)


def _mu_fits(log_mu: Array, epsilon: Array, delta: Array) -> NDArray[np.bool_]:
    mu = np.exp(np.clip(log_mu, -745.0, 709.0))
    return np.asarray(_delta_positive(np.maximum(mu, 5e-324), epsilon) <= delta)


def _round_down(mu: Array, epsilon: Array, delta: Array) -> Array:
    """Step below the solution of the logarithmic search until the promise holds in floats."""
    for ulps in (0, 4, 64, 1024, 2**15):
        lower = mu * (1 - ulps * np.finfo(float).eps)
        if (_delta_positive(np.maximum(lower, 5e-324), epsilon) <= delta).all():
            return lower
    return lower
