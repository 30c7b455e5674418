"""How noise and steps are spread over a run: public, and fixed beforehand.

Noise: relative variances o(k, j) of epoch k and batch j. Steps of hidden chains: ``decaying``.

Under composition only Σ 1/σ_t² over the steps that read a record counts. If w_t of the noise of step t is left in the
end, then the least Σ w_t σ_t² at a given Σ 1/σ_t² has

    σ_t² ∝ w_t^{−1/2}                                                                (Cauchy–Schwarz),

so noise that will be forgotten may be large. With disjoint batches each of them has a budget of its own, and the rule
holds batch by batch. (DP-MBCD leaves the choice of o(k, j) to future work.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput

__all__ = ["NoiseSchedule", "Optimised", "balanced_shares", "decaying", "noise_variances", "optimal_variances"]

Array = NDArray[np.float64]
LINEAR_END = 0.1
"""The last variance of "linear", relative to the first."""
STEP_END = 0.25
"""The variance of the second half of "step", relative to the first half."""
HALF_LIFE = 1 / 3
"""Of the epochs, if nothing is known about the problem's memory."""
OLDEST = 20.0
"""Half-lives after which nothing more is forgotten: noise stays within 2⁵ of the last step's."""
CONSTANT_SHARE, LAST_STEP = 0.5, 0.01
"""The first half of decaying steps is full, then they fall linearly to a hundredth."""
NAMES = ("constant", "linear", "step", "optimised")


def decaying(steps: int) -> Array:
    """η_t/η_0: 1 for the first half (at least one step), then linear to 0.01.

    With noise that grows as η_t^{−1/2} the sums of the last-iterate theorem are nearly linear in its variances, and
    small batches cost little more than full ones.

    Args:
        steps: how many.

    Returns:
        (steps,).
    """
    k = np.arange(steps)
    flat = max(1, int(CONSTANT_SHARE * steps))
    return np.where(k < flat, 1.0, 1 - (1 - LAST_STEP) * (k - flat + 1) / max(steps - flat, 1))


@described("Optimised")
@dataclass(frozen=True)
class Optimised:
    """The least Σ w_t σ_t², where the weight w_t of a step's noise halves with every ``half_life`` epochs that follow.

    The proxy is stated, not derived: a quadratic whose every step contracts by c keeps c^{2(T−t)} of a step's noise
    variance (``from_contraction``); a method that starts afresh from each release forgets faster.

    Attributes:
        half_life: in epochs; a third of the epochs if missing.
    """

    half_life: float | None = None

    def __post_init__(self) -> None:
        if self.half_life is not None:
            _validate.positive(half_life=self.half_life)

    @classmethod
    def from_contraction(cls, contraction: float, n_batches: int = 1) -> Optimised:
        """For steps that contract by c < 1, n_batches of them in an epoch.

        Args:
            contraction: c, e.g. 1 − ηλ of a λ-strongly convex problem.
            n_batches: steps in an epoch.

        Returns:
            The schedule.

        Raises:
            InvalidInput: if c is not below 1: then no noise is ever forgotten, and "constant" is optimal.
        """
        c = _validate.positive(contraction=contraction)
        if c >= 1:
            raise InvalidInput(f"contraction must be below 1, got {c!r}: else noise_schedule='constant' is optimal")
        return cls(-math.log(2) / (2 * _validate.positive_int(n_batches=n_batches) * math.log(c)))

    def variances(self, epochs: int, n_batches: int) -> Array:
        """o(k, j), the same for every batch of an epoch."""
        half_life = max(HALF_LIFE * epochs, 1e-9) if self.half_life is None else self.half_life
        age = np.minimum((epochs - 1 - np.arange(epochs)) / half_life, OLDEST)
        return np.repeat(optimal_variances(2.0**-age)[:, None], n_batches, axis=1)


NoiseSchedule = str | Optimised | Callable[[int, int], float]


def optimal_variances(weights: ArrayLike) -> Array:
    """Argmin Σ w_t σ_t² subject to Σ 1/σ_t² = 1: σ_t² = Σ_s √w_s / √w_t.

    Args:
        weights: w_t > 0.

    Returns:
        σ_t².

    Raises:
        InvalidInput: if a weight is not positive: a step whose noise does not matter is best left out.
    """
    w = _validate.nonnegative_array("weights", weights)
    if (w <= 0).any():
        raise InvalidInput("weights must be positive: leave out steps whose noise does not matter")
    root = np.sqrt(w)
    return np.asarray(root.sum() / root)


def balanced_shares(noise_scales: Mapping[str, float]) -> dict[str, float]:
    """Shares of μ² that minimise Σ_i a_i²/share_i: share_i ∝ a_i.

    Args:
        noise_scales: for each block a_i, what noise of one unit of budget does to it; for gradient steps
            η_i·Δ_i·√(size_i)/b is the length of the displacement.

    Returns:
        Shares that add up to 1.
    """
    scales = {name: _validate.positive(**{name: value}) for name, value in noise_scales.items()}
    return {name: value / sum(scales.values()) for name, value in scales.items()}


def noise_variances(schedule: NoiseSchedule, epochs: int, n_batches: int) -> Array:
    """o(k, j) of a schedule.

    Args:
        schedule: "constant", "linear" (falls to a tenth), "step" (falls to a quarter half way), "optimised",
            ``Optimised(half_life)``, or a function (k, j) → relative variance.
        epochs: K.
        n_batches: batches in an epoch.

    Returns:
        (epochs, batches), positive; only proportions matter.

    Raises:
        InvalidInput: if the schedule is unknown, or a variance is not a positive number.
    """
    k = np.arange(epochs) / max(epochs - 1, 1)
    if isinstance(schedule, Optimised):
        out = schedule.variances(epochs, n_batches)
    elif callable(schedule):
        values = [[_variance(schedule, e, j) for j in range(n_batches)] for e in range(epochs)]
        out = np.array(values, np.float64)
    else:
        name = _validate.one_of(NAMES, noise_schedule=schedule)
        if name == "optimised":
            return Optimised().variances(epochs, n_batches)
        shapes = {
            "constant": np.ones(epochs),
            "linear": 1 - (1 - LINEAR_END) * k,
            "step": np.where(np.arange(epochs) < (epochs + 1) // 2, 1.0, STEP_END),
        }
        out = np.repeat(shapes[name][:, None], n_batches, axis=1)
    return out


def _variance(schedule: Callable[[int, int], float], epoch: int, batch: int) -> float:
    value = schedule(epoch, batch)
    try:
        out = float(value)
    except (TypeError, ValueError):
        out = math.nan
    if not 1e-100 < out < 1e100:
        raise InvalidInput(f"noise_schedule({epoch}, {batch}) must be a positive number, got {value!r}")
    return out
