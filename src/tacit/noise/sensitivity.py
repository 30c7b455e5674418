"""How far one record moves C·G, from the columns of C themselves: computed, never assumed.

A record with contributions of norm at most 1 at the steps π moves C·G by at most √(Σ_{k,l∈π} |CᵀC|_kl). One
participation: the largest of ``Strategy.column_norms``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["separated_sensitivity", "toeplitz_sensitivity"]

Array = NDArray[np.float64]


def separated_sensitivity(bands: Array, separation: int, participations: int | None = None) -> float:
    """Any pattern of at most k participations that lie ``separation`` or more steps apart.

    Formal guarantee: with at most ``separation`` bands the columns of one pattern do not overlap, and the value is the
    exact maximum of √(Σ_{j∈π} ‖C[:, j]‖²) over patterns (dynamic programming). With more bands it is an upper
    bound: each participation is charged with its own worst partners, Σ_{k∈π} max_{π∋k} Σ_{l∈π} |CᵀC|_kl.

    Assumptions: each record takes part at most k times, with the stated gaps.

    Args:
        bands: C by columns, (T, b).
        separation: the smallest gap between two participations.
        participations: k; as many as fit if missing.

    Returns:
        The sensitivity.
    """
    T, b = bands.shape
    gap = _validate.positive_int(separation=separation)
    fit = -(-T // gap)
    k = fit if participations is None else min(_validate.positive_int(participations=participations), fit)
    value = (bands * bands).sum(axis=1)
    if b > gap and k > 1:
        value = value + _partners(bands, gap, k - 1)
    return math.sqrt(_best(value, gap, k))


def _best(value: Array, gap: int, k: int) -> float:
    """The largest sum of ``value`` over at most k positions that lie ``gap`` or more apart."""
    best = np.zeros(len(value) + 1)  # over the first i positions
    if k * gap >= len(value):  # as many as fit
        for i, v in enumerate(value):
            best[i + 1] = max(best[i], v + best[max(0, i + 1 - gap)])
        return float(best[-1])
    for _ in range(k):
        previous = np.concatenate([np.zeros(gap - 1), best])[: len(value)]
        best = np.maximum.accumulate(np.concatenate([[0.0], value + previous]))
    return float(best[-1])


def _partners(bands: Array, gap: int, k: int) -> Array:
    """For each step, the most that overlapping columns on either side can add."""
    T, b = bands.shape
    gram = np.zeros((T, b))
    for i in range(b):
        gram[: T - i, i] = np.abs((bands[: T - i, i:] * bands[i:, : b - i]).sum(axis=1))
    out = np.zeros(T)
    for j in range(T):
        back = np.array([gram[j - i, i] for i in range(gap, min(b, j + 1))])
        out[j] = _best(gram[j, gap:], gap, k) + _best(back, gap, k)
    return out


def toeplitz_sensitivity(
    coefficients: Array, steps: int, separation: int | None = None, participations: int | None = None
) -> float:
    """A Toeplitz C with coefficients c_0 ≥ c_1 ≥ … ≥ 0, not normalised: exact for any separation.

    Formal guarantee: the worst pattern is 0, s, 2s, … (Kalinin & Lampert 2024, Theorem 2), so the sensitivity is
    ‖Σ_{i<k} C[:, i·s]‖.

    Assumptions: the coefficients fall and are not negative; this is checked.

    Args:
        coefficients: c; those after the last are zero.
        steps: T.
        separation: the smallest gap; missing for a single participation.
        participations: k; as many as fit if missing.

    Returns:
        The sensitivity.

    Raises:
        InvalidInput: if the coefficients increase somewhere or are negative.
    """
    T = _validate.positive_int(steps=steps)
    c = _validate.nonnegative_array("coefficients", coefficients)[:T]
    if (np.diff(c) > 0).any():
        raise InvalidInput("the coefficients must not increase: use separated_sensitivity with the bands")
    column = np.zeros(T)
    column[: len(c)] = c
    gap = T if separation is None else _validate.positive_int(separation=separation)
    fit = -(-T // gap)
    k = fit if participations is None else min(_validate.positive_int(participations=participations), fit)
    total = np.zeros(T)
    for i in range(k):
        total[i * gap :] += column[: T - i * gap]
    return float(np.linalg.norm(total))
