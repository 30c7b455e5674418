"""Batch size, epochs, learning rate and clip where the user gives none: a rule in public numbers.

*How much is read.* 20 epochs in 400 steps: B = n/20. Above 50,000 records fewer epochs, 20·√(50,000/n).

*How far a step goes.* Gradients are clipped to a quarter of their median norm G at the start (``pilot``), so that
nearly all of them count as directions. A step then moves by ρ times the mean direction plus noise of norm ρ·N, where
N = σ·√(F(C)/F(I))·√d/B: d trainable parameters, F the error of running sums, which correlated noise makes smaller. The
best ρ of four data sets (``benchmarks/defaults_torch.py``) is

    ρ = min(30, 12/N·√(400/T)) / G:

without noise a step is limited by the curvature, which grows with G², and with much noise by how far T noisy steps of
length ρN stray. The rate is η = ρ/clip.
"""

from __future__ import annotations

import math

from tacit.noise import identity, prefix_sum
from tacit.torch.planning import NoisePlan

__all__ = ["CLIP_SHARE", "EPOCHS", "STEPS", "default_batch_size", "default_epochs", "step_length"]

EPOCHS, STEPS = 20.0, 400
_LARGE = 50_000
_LONGEST, _NOISE = 30.0, 12.0
CLIP_SHARE = 0.25
"""The clip over the median norm of gradients at the start."""


def default_epochs(n: int) -> float:
    """How often each record is read: 20 times, less often beyond 50,000 records."""
    return EPOCHS * min(1.0, math.sqrt(_LARGE / n))


def default_batch_size(n: int, *, epochs: float | None = None, steps: int | None = None) -> int:
    """The expected batch that makes 400 steps of the epochs, or the usual epochs of the steps.

    Args:
        n: number of records.
        epochs: as the user gave them.
        steps: as the user gave them.

    Returns:
        B, from 1 to n.
    """
    read = n * (default_epochs(n) if epochs is None else epochs)
    return max(1, min(n, round(read / (STEPS if steps is None else steps))))


def step_length(noise: NoisePlan, steps: int, batch_size: int, parameters: int) -> float:
    """ρ·G: how far a step of mean directions goes, times the typical norm of a gradient.

    Args:
        noise: multiplier and strategy.
        steps: T.
        batch_size: B.
        parameters: d, the number of trainable parameters.

    Returns:
        min(30, 12/N·√(400/T)).
    """
    A = prefix_sum(steps)
    share = 1.0 if noise.strategy is None else A.value(noise.strategy.bands) / A.value(identity(steps))
    length = noise.noise_multiplier * math.sqrt(share * parameters) / batch_size
    return min(_LONGEST, _NOISE / length * math.sqrt(STEPS / steps))
