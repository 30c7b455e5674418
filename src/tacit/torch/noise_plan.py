"""Which noise: from public numbers to a strategy, a noise multiplier and a certificate. Nothing here reads records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting import Certificate, calibrate, certify, choose_bands
from tacit.accounting.banded import banded_rate
from tacit.errors import InvalidInput
from tacit.factorisation import Optimum, Strategy, Workload, noisecurve_workload, optimise, sgd_workload
from tacit.mechanism import (
    Adjacency,
    CorrelatedNoise,
    CyclicPoisson,
    FrozenArray,
    Groups,
    Independent,
    Mechanism,
    Poisson,
    Schedule,
)

__all__ = ["STRATEGIES", "NoisePlan", "learning_rates", "make_mechanism", "plan_noise"]

Array = NDArray[np.float64]
STRATEGIES = ("dpsgd", "bandmf", "noisecurve")
LearningRate = float | Sequence[float] | Callable[[int], float]


@dataclass(frozen=True, eq=False)
class NoisePlan:
    """What the accountant needs and what it says.

    Attributes:
        strategy: C, or None for independent noise.
        optimum: how near C is to the best one, where it was optimised.
        noise_multiplier: σ/C, C one record's clip.
        certificate: of the whole training.
    """

    strategy: Strategy | None
    optimum: Optimum | None
    noise_multiplier: float
    certificate: Certificate

    @property
    def bands(self) -> int:
        """b: 1 for independent noise."""
        return 1 if self.strategy is None else self.strategy.n_bands


def learning_rates(rate: LearningRate, steps: int) -> Array:
    """η_t for every step, from a number, a sequence or a function of the step.

    Args:
        rate: public.
        steps: T.

    Returns:
        (T,).

    Raises:
        InvalidInput: if they are not T positive numbers.
    """
    values = [rate(t) for t in range(steps)] if callable(rate) else rate
    eta = _validate.nonnegative_array("learning_rate", values)
    eta = np.full(steps, float(eta)) if eta.ndim == 0 else eta
    if eta.shape != (steps,) or (eta == 0).any():
        raise InvalidInput(f"learning_rate must be positive: one number, or one for each of the {steps} steps")
    return eta


def make_mechanism(
    noise_multiplier: float,
    strategy: Strategy | None,
    *,
    n: int,
    batch_size: int,
    steps: int,
    adjacency: Adjacency,
    unit: str = "record",
) -> Mechanism:
    """Clipped sums over (cyclic) Poisson batches with noise C⁻¹Z, every iterate visible.

    Args:
        noise_multiplier: σ/C.
        strategy: C with as many columns as steps, or None.
        n: records, nominal under add/remove.
        batch_size: expected.
        steps: T.
        adjacency: the relation.
        unit: whose data a record is.

    Returns:
        The mechanism to certify.
    """
    b = 1 if strategy is None else strategy.n_bands
    rate = banded_rate(n, batch_size, b)
    groups = Groups.INDEPENDENT if adjacency is Adjacency.ADD_REMOVE else Groups.FIXED
    plain = strategy is None
    return Mechanism(
        adjacency=adjacency,
        ratio=Schedule.constant(adjacency.sum_factor / noise_multiplier, steps),
        steps=steps,
        sampling=Poisson(rate) if plain else CyclicPoisson(b, rate, groups),
        noise=Independent() if strategy is None else CorrelatedNoise(FrozenArray(strategy.bands, name="bands")),
        unit=unit,
        label="descent",
    )


def plan_noise(
    kind: str | Strategy | Optimum,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    n: int,
    batch_size: int,
    steps: int,
    adjacency: Adjacency,
    unit: str,
    bands: int | None,
    rates: Array,
    momentum: float,
    weight_decay: float,
    eigenvalues: ArrayLike | None,
) -> NoisePlan:
    """The strategy and the least noise for (ε, δ), or the ε of a given noise.

    Args:
        kind: "dpsgd", "bandmf", "noisecurve", or a strategy of one's own.
        epsilon: the target, or None with ``noise_multiplier``.
        noise_multiplier: σ/C, or None with ``epsilon``.
        delta: δ.
        n: records.
        batch_size: expected.
        steps: T.
        adjacency: the relation.
        unit: whose data a record is.
        bands: b, or None to choose it.
        rates: η_t.
        momentum: β.
        weight_decay: λ, decoupled.
        eigenvalues: of a public Hessian, for "noisecurve".

    Returns:
        The plan.

    Raises:
        InvalidInput: if the arguments do not fit together.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("give either epsilon or noise_multiplier: one follows from the other")
    _check_bands(kind, bands)
    if isinstance(kind, Strategy | Optimum):
        optimum = kind if isinstance(kind, Optimum) else None
        strategy: Strategy | None = kind.strategy if isinstance(kind, Optimum) else kind
        if strategy is not None and strategy.steps != steps:
            raise InvalidInput(f"the strategy has {strategy.steps} columns for {steps} steps: make one of {steps}")
    elif _validate.one_of(STRATEGIES, strategy=kind) == "dpsgd":
        optimum, strategy = None, None
    else:
        workload = _workload(kind, steps, rates, momentum, weight_decay, eigenvalues)
        if bands is None:
            if epsilon is None:
                raise InvalidInput("bands are chosen for an epsilon: give bands, or epsilon instead of the multiplier")
            chosen = choose_bands(
                epsilon, delta, n=n, batch_size=batch_size, steps=steps, adjacency=adjacency, workload=workload
            )
            optimum = chosen.optimum
        else:
            banded_rate(n, batch_size, bands)  # refuses more groups than the data can fill, before any work
            optimum = optimise(workload, bands=min(bands, steps), tolerance=1e-4)
        strategy = optimum.strategy if optimum.strategy.n_bands > 1 else None

    def make(sigma: float) -> Mechanism:
        return make_mechanism(sigma, strategy, n=n, batch_size=batch_size, steps=steps, adjacency=adjacency, unit=unit)

    if noise_multiplier is not None:
        sigma = _validate.positive(noise_multiplier=noise_multiplier)
        return NoisePlan(strategy, optimum, sigma, certify(make(sigma), delta=delta))
    assert epsilon is not None
    found = calibrate(make, epsilon=epsilon, delta=delta)
    return NoisePlan(strategy, optimum, found.value, found.certificate)


def _check_bands(kind: str | Strategy | Optimum, bands: int | None) -> None:
    fixed = 1 if kind == "dpsgd" else None
    if isinstance(kind, Strategy | Optimum):
        fixed = (kind.strategy if isinstance(kind, Optimum) else kind).n_bands
    if fixed is not None and bands not in (None, fixed):
        raise InvalidInput(f"bands={bands} does not fit the strategy, which has {fixed}: leave bands out")


def _workload(
    kind: str, steps: int, rates: Array, momentum: float, weight_decay: float, eigenvalues: ArrayLike | None
) -> Workload:
    if kind == "bandmf":
        plain = weight_decay == 0 and np.ptp(rates) == 0  # the scale of the steps does not matter to the optimum
        return sgd_workload(
            steps, momentum=momentum, weight_decay=weight_decay, learning_rates=None if plain else rates
        )
    if eigenvalues is None:
        raise InvalidInput("noisecurve needs spectrum=, e.g. hessian_spectrum(model, loss_fn, public_data)")
    return noisecurve_workload(eigenvalues, _effective_step(rates, momentum, eigenvalues), steps)


def _effective_step(rates: Array, momentum: float, eigenvalues: ArrayLike) -> float:
    """The one step size that NoiseCurve's theorem knows: a public guess that changes accuracy, never privacy.

    The mean rate, and momentum β moves 1/(1 − β) as far. Clipping shortens gradients by a factor that only the records
    know; a run that does not diverge stays below 2/(largest eigenvalue), so no more than half of that is assumed.

    Returns:
        η.
    """
    mu = _validate.nonnegative_array("eigenvalues", eigenvalues)
    step = float(rates.mean()) / (1 - momentum)
    return min(step, 1.0 / float(mu.max())) if mu.size and mu.max() > 0 else step
