"""The greatest convex minorant behind the last-iterate bound, in a form without a scale.

Step k contributes the increment (ΔW, ΔS) = (C_k² s_k², C_k d_k) with C_k = Π_{i>k} c_i. The minorant of (0,0),
(W_1,S_1), … pools neighbouring increments until their slopes grow (pool adjacent violators), and its energy is Σ
(ΔS)²/ΔW over the pools. C and s span hundreds of thousands of orders of magnitude, so an increment is kept as (w, v,
l) with ΔW = w·e^{2l}, ΔS = v·e^{l}: a noisy step is w = 1, v = d/s, l = log(C s), a step without noise w = 0, v = 1,
l = log(C d). The energy v²/w needs no scale, and neither does the comparison of slopes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["bounded_starts", "cyclic_energies", "increments", "log_products", "pool", "rounded_energies"]

Array = NDArray[np.float64]


@jit
def log_products(c: Array) -> Array:
    """Log C_k = Σ_{i>k} log c_i, compensated; −∞ before a step with c = 0."""
    t = c.size
    out = np.empty(t)
    total, lost = 0.0, 0.0
    for k in range(t - 1, -1, -1):
        out[k] = total
        if c[k] == 0.0:
            out[:k] = -np.inf
            break
        term = np.log(c[k]) - lost
        new = total + term
        lost = (new - total) - term
        total = new
    return out


@jit
def increments(d: Array, s: Array, log_c: Array) -> tuple[Array, Array, Array]:
    """(w, v, l) of every step; w = v = 0 where a step neither shifts nor noises, or is forgotten (C = 0)."""
    t = d.size
    w, v, l = np.zeros(t), np.zeros(t), np.zeros(t)
    for k in range(t):
        if log_c[k] == -np.inf:
            continue
        if s[k] > 0.0:
            w[k], v[k], l[k] = 1.0, d[k] / s[k], log_c[k] + np.log(s[k])
        elif d[k] > 0.0:
            v[k], l[k] = 1.0, log_c[k] + np.log(d[k])
    return w, v, l


@jit
def _push(w_: Array, v_: Array, l_: Array, top: int, w: float, v: float, l: float) -> int:
    """Add one increment on top of the stack of pools and restore growing slopes; returns the new top."""
    while top > 0:
        a = top - 1
        # slope of the pool below ≥ slope of the new one, i.e. v_a/(w_a e^{l_a}) ≥ v/(w e^{l}), cross-multiplied
        if v > 0.0 and v_[a] * w < v * w_[a] * np.exp(min(l_[a] - l, 700.0)):
            break
        m = max(l_[a], l)
        ea, eb = np.exp(l_[a] - m), np.exp(l - m)
        w, v, l = w_[a] * ea * ea + w * eb * eb, v_[a] * ea + v * eb, m
        top = a
    w_[top], v_[top], l_[top] = w, v, l
    return top + 1


@jit
def _energy(v_: Array, w_: Array, top: int) -> float:
    total = 0.0
    for i in range(top):
        if v_[i] > 0.0:
            total += v_[i] * v_[i] / w_[i] if w_[i] > 0.0 else np.inf
    return total


@jit
def pool(w: Array, v: Array, l: Array) -> tuple[float, Array, Array, Array]:
    """Energy Σ v²/w of the minorant, and its pools: last step, slope's mantissa v/w, and scale l."""
    t = w.size
    w_, v_, l_, end = np.empty(t + 1), np.empty(t + 1), np.empty(t + 1), np.empty(t + 1)
    top = 0
    for k in range(t):
        if w[k] == 0.0 and v[k] == 0.0:
            continue
        top = _push(w_, v_, l_, top, w[k], v[k], l[k])
        end[top - 1] = k
    return _energy(v_, w_, top), end[:top].copy(), v_[:top] / np.maximum(w_[:top], 1e-300), l_[:top].copy()


@jit
def _joined(w1: float, l1: float, w2: float, l2: float) -> tuple[float, float]:
    """w1·e^{2 l1} + w2·e^{2 l2} as (w, l) at the larger scale."""
    if w1 == 0.0:
        return w2, l2
    if w2 == 0.0:
        return w1, l1
    m = max(l1, l2)
    e1, e2 = np.exp(l1 - m), np.exp(l2 - m)
    return w1 * e1 * e1 + w2 * e2 * e2, m


@jit
def _windows(w: Array, l: Array, k: int) -> tuple[Array, Array]:
    """Σ w·e^{2l} over the k steps from each step on (fewer at the end), as (w, l) with value w·e^{2l}.

    A window is the suffix of one epoch and the prefix of the next: both are accumulated without the
    cancellation that differences of a running sum would bring.

    Returns:
        (w, l), one window per step.
    """
    t = w.size
    out, scale = w.copy(), l.copy()
    pw, pl = w.copy(), l.copy()
    for i in range(t):
        if i % k:
            pw[i], pl[i] = _joined(pw[i - 1], pl[i - 1], pw[i], pl[i])
    for i in range(t - 2, -1, -1):
        if (i + 1) % k:
            out[i], scale[i] = _joined(out[i], scale[i], out[i + 1], scale[i + 1])
    for i in range(t):
        last = min(i + k, t) - 1
        if last >= (i // k + 1) * k:
            out[i], scale[i] = _joined(out[i], scale[i], pw[last], pl[last])
    return out, scale


@jit
def cyclic_energies(w: Array, v: Array, l: Array, k: int) -> Array:
    """Energies for a record in batch 0 … k−1, visited at steps j, j+k, j+2k, …; O(t) for all of them.

    The steps between two visits shift nothing, so they only add their noise to the visit before: each
    visit is one increment whose w is the window sum of the noise up to the next visit.

    Returns:
        One energy per batch.
    """
    t = w.size
    energies = np.empty(k)
    epochs = (t + k - 1) // k
    w_, v_, l_ = np.empty(epochs + 1), np.empty(epochs + 1), np.empty(epochs + 1)
    window, scale = _windows(w, l, k)
    for j in range(k):
        top = 0
        for i in range(j, t, k):
            if window[i] == 0.0 and v[i] == 0.0:
                continue
            m = scale[i] if v[i] == 0.0 else (l[i] if window[i] == 0.0 else max(l[i], scale[i]))
            e = np.exp(scale[i] - m) if window[i] > 0.0 else 0.0
            shift = v[i] * np.exp(l[i] - m) if v[i] > 0.0 else 0.0
            top = _push(w_, v_, l_, top, window[i] * e * e, shift, m)
        energies[j] = _energy(v_, w_, top)
    return energies


@jit
def rounded_energies(visit: Array, extra: Array, s: Array, log_c: Array, k: int) -> Array:
    """As ``cyclic_energies``, where every step shifts by ``extra`` besides; O(t) for each batch.

    Args:
        visit: the shift of each step that reads the record.
        extra: the shift of each step besides.
        s: noise; 0 only where ``visit`` is 0.
        log_c: logarithms of the products of later Lipschitz constants.
        k: batches.

    Returns:
        One energy per batch.
    """
    t = s.size
    w, often, l = increments(extra, s, log_c)
    seldom = increments(visit, s, log_c)[1]
    w_, v_, l_, energies = np.empty(t + 1), np.empty(t + 1), np.empty(t + 1), np.empty(k)
    for j in range(k):
        top = 0
        for i in range(t):
            v = often[i] + seldom[i] if i % k == j else often[i]
            if w[i] > 0.0 or v > 0.0:
                top = _push(w_, v_, l_, top, w[i], v, l[i])
        energies[j] = _energy(v_, w_, top)
    return energies


@jit
def bounded_starts(d: Array, s: Array, log_c: Array, diameter: float) -> Array:
    """Approximate energies for a chain restarted at distance ``diameter`` after step τ = 0 … t−1.

    Works in absolute coordinates, so steps far from the end may lose digits: the caller evaluates the best
    τ again with ``pool``, and any τ gives a valid bound. Right to left it keeps the lower hull of the points
    k > τ with the energy to its end; a binary search finds the tangent from the new start (W_τ, S_τ − C_τ D).

    Returns:
        One energy per τ (∞ at τ = 0).
    """
    t = d.size
    W, S = np.zeros(t + 1), np.zeros(t + 1)  # measured from the end, where digits matter
    for i in range(t - 1, -1, -1):
        C = np.exp(min(log_c[i], 300.0))
        W[i] = W[i + 1] - C * C * s[i] * s[i]
        S[i] = S[i + 1] - C * d[i]
    out = np.full(t, np.inf)
    hull = np.empty(t + 1, np.int64)  # hull[top−1] is the leftmost vertex
    tail = np.zeros(t + 1)  # energy from that vertex to the end
    top = 0
    for tau in range(t - 1, -1, -1):
        p = tau + 1  # the point that becomes visible
        while top >= 2:
            q, r = hull[top - 1], hull[top - 2]
            if (S[q] - S[p]) * (W[r] - W[q]) < (S[r] - S[q]) * (W[q] - W[p]):
                break
            top -= 1
        if top:
            q = hull[top - 1]
            dw, ds = W[q] - W[p], S[q] - S[p]
            rest = 0.0 if ds <= 0.0 else (ds * ds / dw if dw > 0.0 else np.inf)
            tail[top] = tail[top - 1] + rest
        hull[top] = p
        top += 1
        if tau == 0:
            continue  # both chains start at the same point: no restart is needed there
        C = np.exp(min(log_c[tau - 1], 300.0))
        w0, s0 = W[tau], S[tau] - C * diameter
        low, high = 0, top - 1  # the slope from (w0, s0) falls, then grows along the hull
        while low < high:
            mid = (low + high) // 2
            a, b = hull[mid], hull[mid + 1]
            # is the nearer vertex b at least as good as the farther one a?
            if (S[b] - s0) * (W[a] - w0) <= (S[a] - s0) * (W[b] - w0):
                low = mid + 1
            else:
                high = mid
        v = hull[low]
        dw, ds = W[v] - w0, S[v] - s0
        out[tau] = tail[low] + (ds * ds / dw if dw > 0.0 else np.inf)
    return out
