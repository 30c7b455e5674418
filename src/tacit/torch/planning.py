"""The noise of a training and its certificate, from public numbers alone: strategy, bands, multiplier, prediction."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tacit import _validate
from tacit._digits import format_up
from tacit.accounting import Certificate, calibrate, certify, pld
from tacit.accounting.banded import banded_rate
from tacit.accounting.bands import compare_bands
from tacit.errors import InvalidInput
from tacit.mechanism import (
    Adjacency,
    Arithmetic,
    CorrelatedNoise,
    CyclicPoisson,
    FrozenArray,
    Groups,
    Independent,
    Mechanism,
    Plan,
    Poisson,
    Schedule,
)
from tacit.noise import (
    Optimum,
    Strategy,
    Workload,
    identity,
    last_iterate,
    mean_path_loss,
    noisecurve_workload,
    optimise,
    prefix_sum,
    sgd_workload,
)
from tacit.torch.pilot import pilot_mechanism

__all__ = [
    "STRATEGIES",
    "NoisePlan",
    "NoiseRequest",
    "Prediction",
    "described",
    "plan_noise",
    "predictions",
    "spent_by",
]

Array = NDArray[np.float64]
STRATEGIES = ("dpsgd", "bandmf", "noisecurve")
GAP = 5e-3
"""Certified gap of a strategy's objective at which planning stops: a quarter of a percent of noise."""
_CACHED = 32


@dataclass(frozen=True, eq=False)
class NoisePlan:
    """The noise of a training and its certificate.

    Attributes:
        strategy: C, or None for independent noise.
        optimum: how close C is to the best strategy, where it was optimised.
        noise_multiplier: σ/C, C being the norm that one record's gradient is clipped to.
        certificate: the certificate of the whole training.
        tried: (bands, σ/C) of every number of bands that was compared; empty if bands were given.
    """

    strategy: Strategy | None
    optimum: Optimum | None
    noise_multiplier: float
    certificate: Certificate
    tried: tuple[tuple[int, float], ...] = ()

    @property
    def bands(self) -> int:
        """b: 1 for independent noise."""
        return 1 if self.strategy is None else self.strategy.n_bands


@dataclass(frozen=True)
class NoiseRequest:
    """All that the noise of a training follows from, validated and public. Arrays are bytes, so that it can be hashed.

    Attributes:
        kind: a name in ``STRATEGIES``, or a strategy.
        n: number of records.
        batch_size: B.
        steps: T.
        epsilon: target ε, or None if ``noise_multiplier`` is given.
        delta: δ.
        noise_multiplier: σ/C, or None.
        bands: b, or None to choose it.
        adjacency: the relation.
        unit: whose data one record is.
        arithmetic: of sums and noise.
        momentum: β.
        weight_decay: λ.
        rates: η of every step.
        spectrum: eigenvalues of a public Hessian; None if there are none.
        has_pilot: whether norms of gradients are released first; needs ``epsilon``.
    """

    kind: str | Strategy | Optimum
    n: int
    batch_size: int
    steps: int
    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    bands: int | None
    adjacency: Adjacency
    unit: str
    arithmetic: Arithmetic
    momentum: float
    weight_decay: float
    rates: bytes
    spectrum: bytes | None
    has_pilot: bool = False

    @property
    def learning_rates(self) -> Array:
        """η of every step."""
        return np.frombuffer(self.rates)

    @property
    def eigenvalues(self) -> Array | None:
        """Eigenvalues of a public Hessian."""
        return None if self.spectrum is None else np.frombuffer(self.spectrum)

    def mechanism(self, noise_multiplier: float, strategy: Strategy | None, *, groups: int | None = None) -> Mechanism:
        """Clipped sums over (cyclic) Poisson batches with noise C⁻¹Z, every iterate visible.

        Args:
            noise_multiplier: σ/C.
            strategy: C, or None for independent noise.
            groups: how many groups take turns; the number of bands if missing.

        Returns:
            The mechanism.
        """
        b = groups or (1 if strategy is None else strategy.n_bands)
        rate = banded_rate(self.n, self.batch_size, b)
        drawn = Groups.INDEPENDENT if self.adjacency is Adjacency.ADD_REMOVE else Groups.FIXED
        return Mechanism(
            adjacency=self.adjacency,
            ratio=Schedule.constant(self.adjacency.sum_factor / noise_multiplier, self.steps),
            steps=self.steps,
            sampling=Poisson(rate) if strategy is None else CyclicPoisson(b, rate, drawn),
            noise=Independent() if strategy is None else CorrelatedNoise(FrozenArray(strategy.bands, name="bands")),
            unit=self.unit,
            label="descent",
            arithmetic=self.arithmetic,
        )

    def plan(self, noise_multiplier: float, strategy: Strategy | None) -> Plan:
        """The whole training: the descent, then the pilot release, if there is one."""
        return self.with_pilot(self.mechanism(noise_multiplier, strategy))

    def with_pilot(self, descent: Mechanism) -> Plan:
        """A descent with the pilot release before it, if there is one."""
        if not self.has_pilot:
            return Plan.of(descent)
        assert self.epsilon is not None
        pilot = pilot_mechanism(self.epsilon, self.delta, self.adjacency, unit=self.unit, arithmetic=self.arithmetic)
        return Plan.of(descent, pilot)

    def iterates(self) -> Workload:
        """All iterates of SGD with the training's rates, momentum and decay."""
        rates = self.learning_rates
        constant = self.weight_decay == 0 and np.ptp(rates) == 0  # the optimum does not depend on their scale
        return sgd_workload(
            self.steps,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            learning_rates=None if constant else rates,
        )

    def step_size(self) -> float:
        """The single step size η that NoiseCurve's theorem takes: a guess that affects accuracy, never privacy.

        It is the mean rate, times 1/(1 − β) because momentum β moves that much farther. Clipping shortens gradients by
        a factor that depends on the records; a run that does not diverge stays below 2/(largest eigenvalue), so at most
        half of that is assumed.

        Returns:
            η.
        """
        mu, step = self.eigenvalues, float(self.learning_rates.mean()) / (1 - self.momentum)
        return min(step, 1.0 / float(mu.max())) if mu is not None and mu.size and mu.max() > 0 else step

    def workload(self) -> Workload:
        """What the noise of the named strategy is optimised for."""
        if self.kind != "noisecurve":
            return self.iterates()
        if self.eigenvalues is None:
            raise InvalidInput("noisecurve needs spectrum=, e.g. hessian_spectrum(model, loss_fn, public_data)")
        return noisecurve_workload(self.eigenvalues, self.step_size(), self.steps)


@functools.lru_cache(maxsize=_CACHED)
def plan_noise(request: NoiseRequest) -> NoisePlan:
    """The strategy with the least noise multiplier for (ε, δ), or the certificate of a given multiplier.

    Bands are compared by ``accounting.compare_bands``, their strategy optimised to a certified gap of 0.5 %, and σ
    calibrated once. Results are kept for the last 32 requests; a request holds public numbers only.

    Args:
        request: the public settings.

    Returns:
        Noise and certificate.
    """
    with threadpool_limits(1, user_api="blas"):  # small matrices: more threads cost four times the CPU time
        return _planned(request)


def _planned(request: NoiseRequest) -> NoisePlan:
    kind, start = request.kind, None
    tried: tuple[tuple[int, float], ...] = ()
    optimum: Optimum | None = None
    strategy: Strategy | None = None
    if isinstance(kind, Strategy | Optimum):
        optimum = kind if isinstance(kind, Optimum) else None
        strategy = kind.strategy if isinstance(kind, Optimum) else kind
    elif kind != "dpsgd":
        optimum, start, tried = _optimised(request)
        strategy = optimum.strategy if optimum.strategy.n_bands > 1 else None
    if strategy is not None and request.arithmetic is Arithmetic.EXACT:
        strategy = strategy.rounded()  # what runs is what is certified
    if request.noise_multiplier is not None:
        sigma = request.noise_multiplier
        return NoisePlan(strategy, optimum, sigma, certify(request.plan(sigma, strategy), delta=request.delta))
    found = calibrate(
        lambda sigma: request.plan(sigma, strategy), epsilon=_target(request), delta=request.delta, start=start
    )
    return NoisePlan(strategy, optimum, found.value, found.certificate, tried)


def _optimised(request: NoiseRequest) -> tuple[Optimum, float | None, tuple[tuple[int, float], ...]]:
    """The best strategy for the workload (bands given, or the best for (ε, δ)), a guess of σ, and what was tried."""
    A, b = request.workload(), request.bands
    if b is not None:
        banded_rate(request.n, request.batch_size, b)  # refuses more groups than records can fill, first
        b = min(b, request.steps)
        return optimise(A, b, tolerance=GAP, start=_start(A, b)), None, ()
    if request.epsilon is None:
        raise InvalidInput("bands are chosen for an epsilon: give bands, or epsilon instead of the multiplier")
    row, _, table, A = compare_bands(
        request.epsilon,
        request.delta,
        n=request.n,
        batch_size=request.batch_size,
        steps=request.steps,
        adjacency=request.adjacency,
        workload=A,
    )
    tried = tuple((other.bands, other.noise_multiplier) for other in table)
    return optimise(A, row.bands, tolerance=GAP, start=_start(A, row.bands)), row.noise_multiplier, tried


def _start(workload: Workload, bands: int) -> Strategy | None:
    """BandMF to the same gap, from which ``optimise`` starts on rank-deficient workloads."""
    return None if workload.full_rank else optimise(prefix_sum(workload.steps), bands, tolerance=GAP).strategy


def _target(request: NoiseRequest) -> float:
    assert request.epsilon is not None
    return request.epsilon


def spent_by(request: NoiseRequest, plan: NoisePlan, step: int, delta: float | None = None) -> float:
    """ε of the first steps of a planned training, as if it had been planned to end there.

    The first t releases of a strategy are those of its leading t × t block, whose columns are not longer.

    Args:
        request: the training's.
        plan: its noise.
        step: t, at least 0; at most all steps count.
        delta: δ; the request's if missing.

    Returns:
        An upper bound on ε, from a coarse grid of losses.
    """
    target = request.delta if delta is None else _validate.delta(delta)
    t = min(step, request.steps)
    if t < 1:
        return 0.0
    strategy = plan.strategy
    rows = None if strategy is None else Strategy(strategy.bands[:t, : min(t, strategy.n_bands)])
    first = replace(request, steps=t).mechanism(plan.noise_multiplier, rows, groups=plan.bands)
    with pld.upper_only(10.0):
        spent = certify(request.with_pilot(first), delta=target).epsilon(target)
    return min(spent, plan.certificate.epsilon(target))


# -- what the noise does ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """What the noise of one strategy does to SGD with the training's rates, at the same (ε, δ).

    Without a spectrum: standard deviation of the noise in each parameter. With one: expected excess loss on the
    quadratic with these eigenvalues (``noisecurve_workload``).

    Attributes:
        strategy: its name; "own" for a strategy of the user's.
        bands: b.
        noise_multiplier: σ/C.
        final: of the last iterate.
        path: of the iterates on average along the run.
    """

    strategy: str
    bands: int
    noise_multiplier: float
    final: float
    path: float


def predictions(request: NoiseRequest, clip_norm: float) -> tuple[Prediction, ...]:
    """The predicted noise of the training's own strategy and of the named ones, at the training's (ε, δ).

    A strategy with little noise at the end may be noisy on the way: NoiseCurve's is optimised for the last iterate.
    Losses that are not quadratic turn noise on the way into drift, so look at both numbers.

    Args:
        request: the training's.
        clip_norm: C.

    Returns:
        One prediction for each; "noisecurve" only where there is a spectrum.
    """
    own = plan_noise(request)
    name = request.kind if isinstance(request.kind, str) else "own"
    epsilon = own.certificate.epsilon(request.delta) if request.epsilon is None else request.epsilon
    names = [other for other in STRATEGIES if other != "noisecurve" or request.spectrum is not None]
    found = {} if name in names else {name: own}
    for other in names:
        same = other == name
        asked = replace(request, kind=other, epsilon=epsilon, noise_multiplier=None, bands=None)
        found[other] = own if same else plan_noise(asked)
    return tuple(_predicted(request, clip_norm, name, plan) for name, plan in found.items())


def _predicted(request: NoiseRequest, clip_norm: float, name: str, plan: NoisePlan) -> Prediction:
    mu, eta = request.eigenvalues, request.step_size()
    C = identity(request.steps) if plan.strategy is None else plan.strategy.bands
    unit = plan.noise_multiplier * clip_norm / request.batch_size
    if mu is not None and mu.size and mu.max() > 0:
        scale = 0.5 * (eta * unit) ** 2
        final = scale * noisecurve_workload(mu, eta, request.steps).value(C)
        path = scale * mean_path_loss(mu, eta, request.steps).value(C)
    else:
        A = request.iterates()
        constant = request.weight_decay == 0 and np.ptp(request.learning_rates) == 0
        unit *= float(request.learning_rates[0]) if constant else 1.0
        final, path = (unit * float(np.sqrt(W.value(C))) for W in (last_iterate(A), A))
    return Prediction(name, plan.bands, plan.noise_multiplier, final, path)


def described(request: NoiseRequest, clip_norm: float) -> str:
    """A training's noise in words, beside that of the named strategies."""
    own = plan_noise(request)
    name = request.kind if isinstance(request.kind, str) else "own"
    epsilon = own.certificate.epsilon(request.delta)
    read = request.steps * request.batch_size / request.n
    measure = "excess loss on the quadratic" if request.spectrum is not None else "noise of a parameter"
    lines = [
        f"{request.steps} steps, batches of {request.batch_size} of {request.n} records ({read:.3g} epochs), "
        f"clipped to {clip_norm:g}",
        f"ε = {format_up(epsilon)} at δ = {request.delta:g} ({request.adjacency.value}, unit: {request.unit})",
        f"{'strategy':<12}{'bands':>6}{'noise/clip':>12}   {measure}: at the end, on the way",
    ]
    for row in predictions(request, clip_norm):
        mark = " <- runs" if row.strategy == name else ""
        lines.append(
            f"{row.strategy:<12}{row.bands:>6}{row.noise_multiplier:>12.4f}   {row.final:.3g}, {row.path:.3g}{mark}"
        )
    if own.tried:
        lines.append("bands compared: " + ", ".join(f"{b} (noise {sigma:.3g})" for b, sigma in own.tried))
    return "\n".join(lines)
