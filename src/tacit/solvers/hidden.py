"""Noisy cyclic gradient descent on several outputs: plans whose step, noise and ridge belong together, and their run.

    θ ← θ − η_t((Σ_{i∈B_t} g_i(θ) + σ_t z)/b + λθ)

Batches are disjoint and take turns, so no sampling is needed, and only the last θ is shown. Steps decay and the noise
grows with them, σ_t ∝ η_t^{−1/2}: the sums S of the theorem are then nearly linear in its variances W, the greatest
convex minorant is nearly a chord, and small batches cost little more than full ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._digits import up
from tacit.accounting import Certificate, calibrate, certify
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Mechanism, Partition, Poisson, Schedule, batch_count
from tacit.run import Channel, ClippedSum, GradientChain, drive_chain
from tacit.solvers.base import VIEWS
from tacit.solvers.schedules import decaying

__all__ = ["CyclicPlan", "plan_cyclic", "run_plan"]

Array = NDArray[np.float64]
LONGEST = 2.0
"""Steps beyond 2/(β + λ) expand."""


@dataclass(frozen=True, eq=False)
class CyclicPlan:
    """Consistent numbers for a run, with their certificate. All of it is public.

    Attributes:
        n: records.
        n_batches: disjoint batches.
        epochs: how often each record is read.
        bound: C, the longest contribution of a record.
        smoothness: β of one record's (clipped) loss.
        l2: λ, a ridge in every coordinate.
        step_sizes: η_t, on the batch mean.
        noise_multiplier: σ/C at the first step.
        noise: σ_t/σ_0.
        certificate: of the run.
        view: what may be shown.
    """

    n: int
    n_batches: int
    epochs: int
    bound: float
    smoothness: float
    l2: float
    step_sizes: Array
    noise_multiplier: float
    noise: Array
    certificate: Certificate
    view: str

    @property
    def step_size(self) -> float:
        """η of the first step."""
        return float(self.step_sizes[0])

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on a batch's sum, at the first step."""
        return self.noise_multiplier * self.bound

    @property
    def contraction(self) -> float:
        """Lipschitz constant of the first step: max(|1 − ηλ|, |1 − η(β + λ)|)."""
        eta = self.step_size
        return max(abs(1 - eta * self.l2), abs(1 - eta * (self.smoothness + self.l2)))

    def chain(self) -> GradientChain:
        """The map of the hidden chain."""
        return _chain(self.n, self.n_batches, self.l2, self.step_sizes, self.noise)

    def describe(self, delta: float) -> str:
        """One line for people."""
        return (
            f"ε = {up(self.certificate.epsilon(delta))} at δ = {delta:g} ({self.certificate.view}): {self.n_batches} "
            f"batches, {self.epochs} epochs, η = {self.step_size:.4g}, λ = {self.l2:.4g}, η·λ = "
            f"{self.step_size * self.l2:.3g}, c = {self.contraction:.6g}, β = {self.smoothness:.4g}, "
            f"C = {self.bound:.4g}, σ = {self.sigma:.4g}"
        )


def _chain(n: int, k: int, l2: float, eta: Array, noise: Array) -> GradientChain:
    return GradientChain(Schedule(eta), l2, k, n, noise=Schedule(noise))


@dataclass(frozen=True)
class _Constants:
    bound: float
    smoothness: float | None


def plan_cyclic(
    epsilon: float | None,
    delta: float,
    *,
    n: int,
    batch_size: int,
    epochs: int,
    bound: float = 2.0**0.5,
    smoothness: float = 0.5,
    l2: float = 0.0,
    step_size: float | None = None,
    decay: bool = True,
    view: str = "final_model",
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    partition: Partition | str = Partition.FIXED,
    noise_multiplier: float | None = None,
    unit: str = "record",
    label: str = "noisy cyclic gradient descent",
) -> CyclicPlan:
    """Noise, steps and ridge for (ε, δ), n, b and a number of epochs: everything that the theorem needs, consistent.

    Formal guarantee: a run of the plan (``run_plan``) satisfies ``plan.certificate``.

    Assumptions: each record's contribution is at most ``bound`` long and the gradient of a convex ``smoothness``-smooth
    function, whatever the record holds (the defaults are those of softmax with features of norm 1).

    Args:
        epsilon: ε, or None if the noise is given.
        delta: δ.
        n: records, public.
        batch_size: b; n/b batches, as equal as possible.
        epochs: E.
        bound: C.
        smoothness: β.
        l2: λ.
        step_size: η of the first step; 2/(β + 2λ) if missing: the longest that does not expand. Where every iterate is
            covered anyway ("all_iterates"), longer ones are allowed.
        decay: whether steps decay in the second half, with noise to match; else both are constant.
        view: "final_model", or "all_iterates" (Poisson batches of the same expected size).
        adjacency: replace-one or zero-out.
        partition: "fixed" or "secret": uniformly random, fresh and never shown, which averages over positions (of the
            final model only: Poisson batches have none).
        noise_multiplier: σ/C of the first step, instead of epsilon.
        unit: whose data a record is.
        label: for people.

    Returns:
        The plan.

    Raises:
        InvalidInput: if numbers are out of range, or the partition would have no effect.

    >>> plan = plan_cyclic(1.0, 1e-5, n=60_000, batch_size=1000, epochs=20)
    >>> round(plan.certificate.epsilon(1e-5), 6), plan.n_batches, plan.step_size, plan.contraction
    (1.0, 60, 4.0, 1.0)
    """
    records, b = _validate.positive_int(n=n), _validate.positive_int(batch_size=batch_size)
    passes, lam = _validate.positive_int(epochs=epochs), _validate.nonnegative(l2=l2)
    C, beta = _validate.positive(bound=bound), _validate.positive(smoothness=smoothness)
    _validate.one_of(VIEWS, view=view)
    if b > records:
        raise InvalidInput(f"batch_size {b} exceeds the {records} records: lower it")
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("give either epsilon or noise_multiplier: one follows from the other")
    k = batch_count(records, b)
    eta = LONGEST / (beta + 2 * lam) if step_size is None else _validate.positive(step_size=step_size)
    if view == "final_model" and eta * (beta + lam) > LONGEST * (1 + 1e-12):
        raise InvalidInput(
            f"step_size {eta:g} exceeds 2/(β + λ) = {LONGEST / (beta + lam):g}: such a step expands, and a final-model "
            "guarantee would be worth nothing; lower it"
        )
    shape = decaying(k * passes) if decay else np.ones(k * passes)
    noise = shape**-0.5 if view == "final_model" else np.ones(k * passes)
    make = _maker(view, records, k, lam, eta * shape, noise, _Constants(C, beta), adjacency, partition, unit, label)
    if noise_multiplier is not None:
        sigma = _validate.positive(noise_multiplier=noise_multiplier)
        certificate = certify(make(sigma), delta=_validate.delta(delta))
    else:
        assert epsilon is not None
        found = calibrate(make, epsilon=epsilon, delta=delta)
        sigma, certificate = found.value, found.certificate
    return CyclicPlan(records, k, passes, C, beta, lam, eta * shape, sigma, noise, certificate, view)


def _maker(
    view: str,
    n: int,
    k: int,
    l2: float,
    eta: Array,
    noise: Array,
    constants: _Constants,
    adjacency: Adjacency | str,
    partition: Partition | str,
    unit: str,
    label: str,
) -> Callable[[float], Mechanism]:
    relation = Adjacency.parse(adjacency)
    if relation is Adjacency.ADD_REMOVE:
        raise NotCovered(
            "adjacency: under add-remove the number of records is secret, but a step divides by it; use replace-one or "
            "zero-out",
            axis="adjacency",
        )
    secret = _partition(partition)
    if view == "final_model":
        chain = _chain(n, k, l2, eta, noise)

        def hidden(sigma: float) -> Mechanism:
            found = chain.mechanism(constants, sigma, adjacency=relation, partition=secret)
            return dataclasses.replace(found, unit=unit, label=label)

        return hidden
    if secret is Partition.SECRET:
        raise InvalidInput(
            "partition='secret' has no effect with view='all_iterates', which draws Poisson batches: leave it out, or "
            "choose view='final_model'"
        )
    steps = len(eta)

    def shown(sigma: float) -> Mechanism:
        ratio = Schedule.constant(relation.sum_factor / sigma, steps)
        return Mechanism(adjacency=relation, ratio=ratio, steps=steps, sampling=Poisson(1 / k), unit=unit, label=label)

    return shown


def _partition(value: Partition | str) -> Partition:
    if isinstance(value, Partition):
        return value
    return {"fixed": Partition.FIXED, "secret": Partition.SECRET}[
        _validate.one_of(("fixed", "secret"), partition=value)
    ]


def run_plan(
    plan: CyclicPlan,
    total: ClippedSum,
    channel: Channel,
    start: Array,
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """Run a plan on a registered sum.

    Args:
        plan: of the channel's certificate.
        total: the sum; its bound and smoothness must be those that were planned.
        channel: with all steps to take.
        start: a public point.
        progress: called with (steps done, steps).

    Returns:
        The last iterate.
    """
    theta = np.asarray(start, np.float64)[None].copy()
    if plan.view == "final_model":
        return np.asarray(drive_chain(plan.chain(), total, channel, theta, progress)[0])
    expected, steps = plan.n / plan.n_batches, len(plan.step_sizes)
    for t, eta in enumerate(plan.step_sizes):
        theta = theta - eta * (channel.release(total, theta) / expected + plan.l2 * theta)
        if progress is not None:
            progress(t + 1, steps)
    return np.asarray(theta[0])
