"""Public settings of a training, and the noise and certificate that follow from them. Nothing here reads records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Arithmetic
from tacit.noise import Optimum, Strategy
from tacit.release import SEEDED
from tacit.torch.curvature import Spectrum
from tacit.torch.defaults import CLIP_SHARE, default_batch_size, default_epochs, step_length
from tacit.torch.pilot import TYPICAL
from tacit.torch.planning import STRATEGIES, NoisePlan, NoiseRequest, Prediction, described, plan_noise, predictions

__all__ = ["LearningRate", "TrainingSettings", "wants_pilot"]

Array = NDArray[np.float64]
LearningRate = float | Sequence[float] | Callable[[int], float]


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
        batch_size: int | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        clip_norm: float | None = None,
        learning_rate: LearningRate | None = None,
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
        pilot: bool | None = None,
        ledger: Ledger | None = None,
        note: str = "",
        random_state: int | None = None,
        arithmetic: Arithmetic | str = Arithmetic.FLOAT,
    ) -> None:
        self.arithmetic = Arithmetic.parse(arithmetic)
        self.n_records, self.batch_size, self.n_steps = _sizes(n_records, batch_size, epochs, steps)
        self.adjacency = Adjacency.parse(adjacency)
        self.unit = unit
        self.has_pilot = _checked_pilot(pilot, epsilon, clip_norm, learning_rate)
        self.clip_norm = None if clip_norm is None else _validate.positive(clip_norm=clip_norm)
        self.finds_rate = learning_rate is None and epsilon is not None
        self.learning_rates = _rates(0.1 if learning_rate is None else learning_rate, self.n_steps)
        self.momentum = _validate.nonnegative(momentum=momentum)
        self.weight_decay = _validate.nonnegative(weight_decay=weight_decay)
        if self.momentum >= 1:
            raise InvalidInput(f"momentum must be below 1, got {momentum}: the steps would never settle")
        self.chunk_size = None if chunk_size is None else _validate.positive_int(chunk_size=chunk_size)
        self.vectorised, self.ledger, self.note = vectorised, ledger, note
        self.random_state = _checked_seed(random_state)
        if (epsilon is None) == (noise_multiplier is None):
            raise InvalidInput("give either epsilon or noise_multiplier: one follows from the other")
        self._request = NoiseRequest(
            kind=_kind(strategy, bands, self.n_steps),
            n=self.n_records,
            batch_size=self.batch_size,
            steps=self.n_steps,
            epsilon=None if epsilon is None else _validate.positive(epsilon=epsilon),
            delta=_validate.delta(delta),
            noise_multiplier=None if epsilon is not None else _validate.positive(noise_multiplier=noise_multiplier),
            bands=None if bands is None else _validate.positive_int(bands=bands),
            adjacency=self.adjacency,
            unit=unit,
            arithmetic=self.arithmetic,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            rates=self.learning_rates.tobytes(),
            spectrum=_eigenvalues(spectrum),
            has_pilot=self.has_pilot,
        )
        self.noise: NoisePlan = plan_noise(self._request)
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
        text = f"{words}{bits}{self.finds_rate}{self.weight_decay}{self.learning_rates.tobytes().hex()}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def clip_for(self, median_norm: float | None) -> float:
        """The clip of a run: the user's, or a quarter of the median norm of gradients at the start.

        Args:
            median_norm: what the pilot release found; None without one.

        Returns:
            C; 1 without a pilot release.
        """
        if self.clip_norm is not None:
            return self.clip_norm
        return 1.0 if median_norm is None else CLIP_SHARE * median_norm

    def rates_for(self, median_norm: float | None, parameters: int) -> Array:
        """The learning rates of a run: the user's, or those of the rule (``defaults``).

        Args:
            median_norm: what the pilot release found; None without one.
            parameters: number of trainable parameters.

        Returns:
            η of every step.
        """
        if not self.finds_rate:
            return self.learning_rates
        far = step_length(self.noise, self.n_steps, self.batch_size, parameters)
        norm = TYPICAL if median_norm is None else median_norm
        return np.full(self.n_steps, far * (1 - self.momentum) / (norm * self.clip_for(median_norm)))

    def predict(self) -> tuple[Prediction, ...]:
        """The predicted noise of this training and of the named strategies at the same (ε, δ).

        Planning the others takes some seconds the first time.

        Returns:
            One prediction for each strategy.
        """
        return predictions(self._request, self.clip_for(None))

    def describe(self) -> str:
        """What was chosen, what it costs, and the predicted noise of each strategy at the same (ε, δ), as text.

        Returns:
            Some lines; the strategy that runs is marked.
        """
        return described(self._request, self.clip_for(None))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(n_steps={self.n_steps}, batch_size={self.batch_size}, bands={self.bands}, "
            f"noise_multiplier={self.noise_multiplier:.4g}, adjacency={self.adjacency.value})"
        )


def _sizes(n_records: int, batch_size: int | None, epochs: float | None, steps: int | None) -> tuple[int, int, int]:
    """n, B and T; what is missing follows from the rule of ``defaults``."""
    n = _validate.positive_int(n_records=n_records)
    if epochs is not None and steps is not None:
        raise InvalidInput("give either epochs or steps")
    read = None if epochs is None else _validate.positive(epochs=epochs)
    T = None if steps is None else _validate.positive_int(steps=steps)
    if batch_size is None:
        B = default_batch_size(n, epochs=read, steps=T)
    else:
        B = _validate.positive_int(batch_size=batch_size)
    if n < B:
        raise InvalidInput(f"batch_size {B} exceeds the {n} records: lower it")
    if T is None:
        T = max(1, int(np.ceil(round((default_epochs(n) if read is None else read) * n / B, 9))))
    return n, B, T


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


def wants_pilot(
    pilot: bool | None, epsilon: float | None, clip_norm: float | None, learning_rate: LearningRate | None
) -> bool:
    """What a trainer does: a pilot release where something follows from it, unless the user decides."""
    return (epsilon is not None and (clip_norm is None or learning_rate is None)) if pilot is None else pilot


def _checked_pilot(
    pilot: bool | None, epsilon: float | None, clip_norm: float | None, learning_rate: LearningRate | None
) -> bool:
    """Whether norms are released first: only if something follows from them."""
    if pilot and epsilon is None:
        raise InvalidInput("a pilot release takes a share of epsilon: give epsilon instead of noise_multiplier")
    return bool(pilot) and (clip_norm is None or learning_rate is None)


def _kind(kind: str | Strategy | Optimum, bands: int | None, steps: int) -> str | Strategy | Optimum:
    """The strategy, refused if it fits neither the number of bands nor that of steps."""
    fixed = 1 if isinstance(kind, str) and kind == "dpsgd" else None
    if isinstance(kind, Strategy | Optimum):
        own = kind.strategy if isinstance(kind, Optimum) else kind
        fixed = own.n_bands
        if own.steps != steps:
            raise InvalidInput(f"the strategy has {own.steps} columns for {steps} steps: make one of {steps}")
    elif kind not in STRATEGIES:
        _validate.one_of(STRATEGIES, strategy=kind)
    if fixed is not None and bands not in (None, fixed):
        raise InvalidInput(f"bands={bands} does not fit the strategy, which has {fixed}: leave bands out")
    return kind


def _eigenvalues(spectrum: ArrayLike | Spectrum | None) -> bytes | None:
    """The eigenvalues as bytes, which a request can be compared by."""
    if spectrum is None:
        return None
    values = spectrum.eigenvalues if isinstance(spectrum, Spectrum) else spectrum
    return _validate.nonnegative_array("eigenvalues of spectrum", values).ravel().tobytes()
