"""Public settings of a training, and the noise and certificate that follow from them. Nothing here reads records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting import Certificate, calibrate, certify, choose_bands
from tacit.accounting.banded import banded_rate
from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.mechanism import (
    Adjacency,
    Arithmetic,
    CorrelatedNoise,
    CyclicPoisson,
    FrozenArray,
    Groups,
    Independent,
    Mechanism,
    Poisson,
    Schedule,
)
from tacit.noise import Optimum, Strategy, Workload, noisecurve_workload, optimise, sgd_workload
from tacit.release import SEEDED
from tacit.torch.curvature import Spectrum

__all__ = ["STRATEGIES", "LearningRate", "NoisePlan", "TrainingSettings"]

Array = NDArray[np.float64]
STRATEGIES = ("dpsgd", "bandmf", "noisecurve")
LearningRate = float | Sequence[float] | Callable[[int], float]


@dataclass(frozen=True, eq=False)
class NoisePlan:
    """The noise of a training and its certificate.

    Attributes:
        strategy: C, or None for independent noise.
        optimum: how close C is to the best strategy, where it was optimised.
        noise_multiplier: σ/C, C being the norm that one record's gradient is clipped to.
        certificate: the certificate of the whole training.
    """

    strategy: Strategy | None
    optimum: Optimum | None
    noise_multiplier: float
    certificate: Certificate

    @property
    def bands(self) -> int:
        """b: 1 for independent noise."""
        return 1 if self.strategy is None else self.strategy.n_bands


class TrainingSettings:
    """The public settings of a private training, validated, with the noise and the certificate that they imply.

    The arguments are documented at ``TrainingPlan``, which runs the training. Settings cannot be changed afterwards,
    because the certificate describes exactly these.
    """

    def __init__(
        self,
        n_records: int,
        *,
        epsilon: float | None = None,
        delta: float,
        batch_size: int,
        epochs: float | None = None,
        steps: int | None = None,
        clip_norm: float = 1.0,
        learning_rate: LearningRate = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        strategy: str | Strategy | Optimum = "bandmf",
        bands: int | None = None,
        spectrum: ArrayLike | Spectrum | None = None,
        noise_multiplier: float | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        unit: str = "record",
        chunk_size: int | None = None,
        vectorised: bool = True,
        ledger: Ledger | None = None,
        note: str = "",
        random_state: int | None = None,
        arithmetic: Arithmetic | str = Arithmetic.FLOAT,
    ) -> None:
        self.arithmetic = Arithmetic.parse(arithmetic)
        self.n_records, self.batch_size = _sizes(n_records, batch_size)
        self.n_steps = _count_steps(self.n_records, self.batch_size, epochs, steps)
        self.adjacency = Adjacency.parse(adjacency)
        self.unit = unit
        self.clip_norm = _validate.positive(clip_norm=clip_norm)
        self.learning_rates = _rates(learning_rate, self.n_steps)
        self.momentum = _validate.nonnegative(momentum=momentum)
        self.weight_decay = _validate.nonnegative(weight_decay=weight_decay)
        if self.momentum >= 1:
            raise InvalidInput(f"momentum must be below 1, got {momentum}: the steps would never settle")
        self.chunk_size = None if chunk_size is None else _validate.positive_int(chunk_size=chunk_size)
        self.vectorised, self.ledger, self.note = vectorised, ledger, note
        self.random_state = _checked_seed(random_state)
        if (epsilon is None) == (noise_multiplier is None):
            raise InvalidInput("give either epsilon or noise_multiplier: one follows from the other")
        self.noise = self._plan_noise(
            strategy,
            None if epsilon is None else _validate.positive(epsilon=epsilon),
            noise_multiplier,
            _validate.delta(delta),
            None if bands is None else _validate.positive_int(bands=bands),
            spectrum.eigenvalues if isinstance(spectrum, Spectrum) else spectrum,
        )
        self._sealed = True

    def __setattr__(self, name: str, value: object) -> None:
        if getattr(self, "_sealed", False) and not name.startswith("_"):
            raise AttributeError(f"a plan cannot be changed ({name}): its certificate belongs to it; make another one")
        super().__setattr__(name, value)

    @property
    def certificate(self) -> Certificate:
        """The certificate of the whole training; it also holds if the training is stopped early."""
        certificate = self.noise.certificate
        return certificate if self.random_state is None else certificate.marked(SEEDED)

    @property
    def noise_multiplier(self) -> float:
        """σ/C."""
        return self.noise.noise_multiplier

    @property
    def bands(self) -> int:
        """b: 1 for independent noise."""
        return self.noise.bands

    @property
    def digest(self) -> str:
        """Digest of the settings and of everything else that the last bits of a sum depend on."""
        words = (self.noise.certificate.digest, self.n_records, self.batch_size, self.clip_norm, self.momentum)
        seeded = self.random_state is not None
        bits = ("in place", self.chunk_size, self.vectorised, torch.get_num_threads(), torch.__version__, seeded)
        text = f"{words}{bits}{self.weight_decay}{self.learning_rates.tobytes().hex()}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(n_steps={self.n_steps}, batch_size={self.batch_size}, bands={self.bands}, "
            f"noise_multiplier={self.noise_multiplier:.4g}, adjacency={self.adjacency.value})"
        )

    # -- from settings to noise -------------------------------------------------------------------------------

    def _plan_noise(
        self,
        kind: str | Strategy | Optimum,
        epsilon: float | None,
        noise_multiplier: float | None,
        delta: float,
        bands: int | None,
        eigenvalues: ArrayLike | None,
    ) -> NoisePlan:
        """The strategy with the least noise multiplier for (ε, δ), or the certificate of a given multiplier."""
        _check_bands(kind, bands)
        optimum: Optimum | None = None
        strategy: Strategy | None = None
        if isinstance(kind, Strategy | Optimum):
            optimum = kind if isinstance(kind, Optimum) else None
            strategy = kind.strategy if isinstance(kind, Optimum) else kind
            if strategy.steps != self.n_steps:
                raise InvalidInput(
                    f"the strategy has {strategy.steps} columns for {self.n_steps} steps: make one of {self.n_steps}"
                )
        elif _validate.one_of(STRATEGIES, strategy=kind) != "dpsgd":
            optimum = self._optimised(self._workload(kind, eigenvalues), epsilon, delta, bands)
            strategy = optimum.strategy if optimum.strategy.n_bands > 1 else None
        if strategy is not None and self.arithmetic is Arithmetic.EXACT:
            strategy = strategy.rounded()  # what runs is what is certified
        if noise_multiplier is not None:
            sigma = _validate.positive(noise_multiplier=noise_multiplier)
            return NoisePlan(strategy, optimum, sigma, certify(self._mechanism(sigma, strategy), delta=delta))
        assert epsilon is not None
        found = calibrate(lambda sigma: self._mechanism(sigma, strategy), epsilon=epsilon, delta=delta)
        return NoisePlan(strategy, optimum, found.value, found.certificate)

    def _optimised(self, workload: Workload, epsilon: float | None, delta: float, bands: int | None) -> Optimum:
        """The best strategy for the workload, with the given number of bands or the best number for (ε, δ)."""
        if bands is not None:
            banded_rate(self.n_records, self.batch_size, bands)  # refuses more groups than records can fill, first
            return optimise(workload, bands=min(bands, self.n_steps), tolerance=1e-4)
        if epsilon is None:
            raise InvalidInput("bands are chosen for an epsilon: give bands, or epsilon instead of the multiplier")
        return choose_bands(
            epsilon,
            delta,
            n=self.n_records,
            batch_size=self.batch_size,
            steps=self.n_steps,
            adjacency=self.adjacency,
            workload=workload,
        ).optimum

    def _mechanism(self, noise_multiplier: float, strategy: Strategy | None) -> Mechanism:
        """Clipped sums over (cyclic) Poisson batches with noise C⁻¹Z, every iterate visible."""
        b = 1 if strategy is None else strategy.n_bands
        rate = banded_rate(self.n_records, self.batch_size, b)
        groups = Groups.INDEPENDENT if self.adjacency is Adjacency.ADD_REMOVE else Groups.FIXED
        return Mechanism(
            adjacency=self.adjacency,
            ratio=Schedule.constant(self.adjacency.sum_factor / noise_multiplier, self.n_steps),
            steps=self.n_steps,
            sampling=Poisson(rate) if strategy is None else CyclicPoisson(b, rate, groups),
            noise=Independent() if strategy is None else CorrelatedNoise(FrozenArray(strategy.bands, name="bands")),
            unit=self.unit,
            label="descent",
            arithmetic=self.arithmetic,
        )

    def _workload(self, kind: str, eigenvalues: ArrayLike | None) -> Workload:
        rates = self.learning_rates
        if kind == "bandmf":
            constant = self.weight_decay == 0 and np.ptp(rates) == 0  # the optimum does not depend on their scale
            return sgd_workload(
                self.n_steps,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                learning_rates=None if constant else rates,
            )
        if eigenvalues is None:
            raise InvalidInput("noisecurve needs spectrum=, e.g. hessian_spectrum(model, loss_fn, public_data)")
        return noisecurve_workload(eigenvalues, _effective_step(rates, self.momentum, eigenvalues), self.n_steps)


def _sizes(n_records: int, batch_size: int) -> tuple[int, int]:
    n, B = _validate.positive_int(n_records=n_records), _validate.positive_int(batch_size=batch_size)
    if n < B:
        raise InvalidInput(f"batch_size {B} exceeds the {n} records: lower it")
    return n, B


def _count_steps(n: int, batch_size: int, epochs: float | None, steps: int | None) -> int:
    if (epochs is None) == (steps is None):
        raise InvalidInput("give either epochs or steps")
    if steps is not None:
        return _validate.positive_int(steps=steps)
    return max(1, int(np.ceil(round(_validate.positive(epochs=epochs) * n / batch_size, 9))))


def _rates(rate: LearningRate, steps: int) -> Array:
    """η_t of every step, read-only, from a number, a sequence or a function of the step."""
    values = [rate(t) for t in range(steps)] if callable(rate) else rate
    eta = _validate.nonnegative_array("learning_rate", values)
    eta = np.full(steps, float(eta)) if eta.ndim == 0 else eta
    if eta.shape != (steps,) or (eta == 0).any():
        raise InvalidInput(f"learning_rate must be positive: one number, or one for each of the {steps} steps")
    eta.flags.writeable = False
    return eta


def _checked_seed(random_state: int | None) -> int | None:
    """The seed, refused here because later the ledger would already be charged."""
    number = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if random_state is not None and (not number or random_state < 0):
        raise InvalidInput(f"random_state must be None or a non-negative integer, got {random_state!r}")
    return random_state


def _check_bands(kind: str | Strategy | Optimum, bands: int | None) -> None:
    fixed = 1 if kind == "dpsgd" else None
    if isinstance(kind, Strategy | Optimum):
        fixed = (kind.strategy if isinstance(kind, Optimum) else kind).n_bands
    if fixed is not None and bands not in (None, fixed):
        raise InvalidInput(f"bands={bands} does not fit the strategy, which has {fixed}: leave bands out")


def _effective_step(rates: Array, momentum: float, eigenvalues: ArrayLike) -> float:
    """The single step size η that NoiseCurve's theorem takes: a public guess that affects accuracy, never privacy.

    It is the mean rate, times 1/(1 − β) because momentum β moves that much farther. Clipping shortens gradients by a
    factor that depends on the records; a run that does not diverge stays below 2/(largest eigenvalue), so at most half
    of that is assumed.

    Returns:
        η.
    """
    mu = _validate.nonnegative_array("eigenvalues", eigenvalues)
    step = float(rates.mean()) / (1 - momentum)
    return min(step, 1.0 / float(mu.max())) if mu.size and mu.max() > 0 else step
