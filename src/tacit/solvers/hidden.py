"""Noisy cyclic gradient descent on several outputs: step, noise and ridge that belong together, and their run.

    θ ← θ − η_t((Σ_{i∈B_t} g_i(θ) + σ_t z)/b + λθ)

Batches are disjoint and take turns, so no sampling is needed, and only the last θ is shown. Steps decay and the noise
grows with them, σ_t ∝ η_t^{−1/2}: the sums S of the theorem are then nearly linear in its variances W, the greatest
convex minorant is nearly a chord, and small batches cost little more than full ones.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit._digits import format_up
from tacit.accounting import Certificate, calibrate, certify
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Arithmetic, Mechanism, Partition, Plan, Poisson, Schedule, batch_count
from tacit.release import GradientChain, Query, Session
from tacit.release.chain import SmoothQuery
from tacit.solvers.base import VIEWS, Budget
from tacit.solvers.schedules import decaying

__all__ = ["CertifiedNumbers", "CyclicNumbers", "HiddenDescent", "OutputProblem", "plan_cyclic"]

Array = NDArray[np.float64]
MAX_STEP_FACTOR = 2.0
"""Steps beyond 2/(β + λ) expand."""
BATCHES, MIN_BATCH = 120, 50
"""By default a hundred and twenty batches, of at least fifty records."""
LABEL = "noisy cyclic gradient descent"
PARTITIONS = {"fixed": Partition.FIXED, "secret": Partition.SECRET}


@described("CyclicNumbers")
@dataclass(frozen=True, eq=False)
class CyclicNumbers:
    """The numbers of a run, consistent with each other. All of them are public.

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
        view: what may be shown.
        adjacency: the relation.
        partition: whether the batches are random, secret and fresh.
        unit: whose data a record is.
        arithmetic: in which numbers.
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
    view: str
    adjacency: Adjacency
    partition: Partition
    unit: str
    arithmetic: Arithmetic = field(default=Arithmetic.FLOAT, kw_only=True, metadata={"absent": Arithmetic.FLOAT})

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

    @property
    def plan(self) -> Plan:
        """What a run of these numbers releases."""
        return Plan.of(self.mechanism(self.noise_multiplier))

    def chain(self) -> GradientChain:
        """The map of the hidden chain."""
        return GradientChain(Schedule(self.step_sizes), self.l2, self.n_batches, self.n, noise=Schedule(self.noise))

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """What a run with this noise is to a proof."""
        if self.view == "final_model":
            found = self.chain().mechanism(self, noise_multiplier, adjacency=self.adjacency, partition=self.partition)
            return dataclasses.replace(found, unit=self.unit, label=LABEL)
        steps = len(self.step_sizes)
        return Mechanism(
            adjacency=self.adjacency,
            ratio=Schedule.constant(self.adjacency.sum_factor / noise_multiplier, steps),
            steps=steps,
            sampling=Poisson(1 / self.n_batches),
            unit=self.unit,
            label=LABEL,
            arithmetic=self.arithmetic,
        )

    def run(self, session: Session, query: Query, start: Array) -> Array:
        """Run them on a registered query.

        Args:
            session: of a certificate of these numbers.
            query: its bound and smoothness must be those that were planned.
            start: a public point.

        Returns:
            The last iterate.
        """
        if self.view == "final_model":
            return session.run_chain(self.chain(), query, start)
        theta, expected, steps = np.asarray(start, np.float64), self.n / self.n_batches, len(self.step_sizes)
        for t, eta in enumerate(self.step_sizes):
            theta = theta - eta * (session.release(query, theta) / expected + self.l2 * theta)
            session.tick(t + 1, steps)
        return theta

    def describe(self) -> str:
        """One line for people."""
        return (
            f"{self.n_batches} batches, {self.epochs} epochs, η = {self.step_size:.4g}, λ = {self.l2:.4g}, η·λ = "
            f"{self.step_size * self.l2:.3g}, c = {self.contraction:.6g}, β = {self.smoothness:.4g}, "
            f"C = {self.bound:.4g}, σ = {self.sigma:.4g}"
        )


@dataclass(frozen=True, eq=False)
class CertifiedNumbers(CyclicNumbers):
    """The numbers of a run with the certificate of its plan.

    Attributes:
        certificate: of a run of these numbers.
    """

    certificate: Certificate

    def describe(self, delta: float | None = None) -> str:
        """One line for people, which starts with ε if δ is given."""
        if delta is None:
            return super().describe()
        promise = f"ε = {format_up(self.certificate.epsilon(delta))} at δ = {delta:g} ({self.certificate.view})"
        return f"{promise}: {super().describe()}"


@dataclass(frozen=True, eq=False)
class OutputProblem:
    """Minimise the mean of a query's convex function and λ/2·‖θ‖².

    Attributes:
        query: its contributions are gradients.
        n: records.
        size: the number of coordinates.
    """

    query: Query
    n: int
    size: int


@dataclass(frozen=True)
class HiddenDescent:
    """Noisy gradient descent on disjoint batches whose end alone is shown, or on Poisson batches, every iterate of it.

    Formal guarantee: the last iterate is μ-GDP by the greatest convex minorant (docs/theorems.md); with
    ``view="all_iterates"`` every iterate is covered, by composition over Poisson batches of the same expected size.

    Assumptions: each record's contribution is at most ``query.bound`` long and the gradient of a convex
    ``query.smoothness``-smooth function, whatever the record holds (enforced by the query).

    Attributes:
        batch_size: b; n/b batches, as equal as possible. By default n/120, at least 50.
        epochs: how often each record is read.
        step_size: η of the first step; 2/(β + 2λ) if None: the longest that does not expand. Where every iterate is
            covered anyway ("all_iterates"), longer ones are allowed.
        step_fraction: instead of ``step_size``, the share of 2/(β + 2λ).
        l2: λ.
        decay: whether steps decay in the second half, with noise to match; else both are constant.
        partition: "fixed" or "secret": uniformly random, fresh and never shown, which averages over positions (of the
            final model only: Poisson batches have none).
    """

    batch_size: int | None = None
    epochs: int = 30
    step_size: float | None = None
    step_fraction: float = 1.0
    l2: float = 0.0
    decay: bool = True
    partition: Partition | str = "fixed"

    def numbers(self, problem: OutputProblem, budget: Budget) -> CyclicNumbers:
        """The least noise at which a run satisfies the budget, and all other numbers."""
        found = self._of(problem, budget)
        noise = calibrate(found.mechanism, epsilon=budget.epsilon, delta=budget.delta).value
        return dataclasses.replace(found, noise_multiplier=noise)

    def plan(self, problem: OutputProblem, budget: Budget) -> Plan:
        """The plan of a run."""
        return self.numbers(problem, budget).plan

    def solve(self, problem: OutputProblem, budget: Budget, session: Session) -> Array:
        """The last iterate of a run; how much noise there is, the session's certificate says."""
        return self._of(problem, budget).run(session, problem.query, np.zeros(problem.size))

    def _of(self, problem: OutputProblem, budget: Budget) -> CyclicNumbers:
        said = (budget.view, budget.adjacency, budget.unit, budget.arithmetic)
        return self.with_noise(problem.query, problem.n, 1.0, *said)

    def with_noise(
        self,
        query: SmoothQuery,
        n: int,
        noise_multiplier: float,
        view: str = "final_model",
        adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
        unit: str = "record",
        arithmetic: Arithmetic | str = Arithmetic.FLOAT,
    ) -> CyclicNumbers:
        """All numbers of a run whose noise is given.

        Args:
            query: its bound and smoothness count.
            n: records.
            noise_multiplier: σ/C of the first step.
            view: "final_model" or "all_iterates".
            adjacency: replace-one or zero-out.
            unit: whose data a record is.
            arithmetic: "float", or "exact" where every iterate is covered.

        Returns:
            The numbers.

        Raises:
            InvalidInput: if one is out of range, or would have no effect.
            NotCovered: for a final model in exact arithmetic.
        """
        numbers = Arithmetic.parse(arithmetic)
        if numbers is Arithmetic.EXACT and view == "final_model":
            raise NotCovered(
                "arithmetic: final models of several outputs run in floating point; use arithmetic='float', or "
                "view='all_iterates'",
                axis="arithmetic",
            )
        passes, lam = _validate.positive_int(epochs=self.epochs), _validate.nonnegative(l2=self.l2)
        C, beta = _validate.positive(bound=query.bound), _validate.positive(smoothness=query.smoothness)
        _validate.one_of(VIEWS, view=view)
        k = batch_count(n, self._batch(n))
        eta = self._first_step(beta, view)
        shape = decaying(k * passes) if self.decay else np.ones(k * passes)
        noise = shape**-0.5 if view == "final_model" else np.ones(k * passes)
        return CyclicNumbers(
            n, k, passes, C, beta, lam, eta * shape, noise_multiplier, noise, view,
            _known_count(Adjacency.parse(adjacency)), self._batches(view), unit, arithmetic=numbers,
        )  # fmt: skip

    def _batch(self, n: int) -> int:
        if self.batch_size is None:
            return min(max(n // BATCHES, MIN_BATCH), n)
        b = _validate.positive_int(batch_size=self.batch_size)
        if b > n:
            raise InvalidInput(f"batch_size {b} exceeds the {n} records: lower it")
        return b

    def _first_step(self, beta: float, view: str) -> float:
        """η: given, a share of the longest, or the longest that does not expand."""
        share, lam = _validate.positive(step_fraction=self.step_fraction), self.l2
        if share > 1 and view == "final_model":
            raise InvalidInput(f"step_fraction must be at most 1, got {self.step_fraction!r}: longer steps expand")
        if share != 1 and self.step_size is not None:
            raise InvalidInput("give either step_size or step_fraction: the one is η, the other a share of the longest")
        longest = MAX_STEP_FACTOR / (beta + 2 * lam)
        eta = share * longest if self.step_size is None else _validate.positive(step_size=self.step_size)
        if view == "final_model" and eta * (beta + lam) > MAX_STEP_FACTOR * (1 + 1e-12):
            raise InvalidInput(
                f"step_size {eta:g} exceeds 2/(β + λ) = {MAX_STEP_FACTOR / (beta + lam):g}: such a step expands, and a "
                "final-model guarantee would be worth nothing; lower it"
            )
        return eta

    def _batches(self, view: str) -> Partition:
        found = self.partition
        if not isinstance(found, Partition):
            found = PARTITIONS[_validate.one_of(tuple(PARTITIONS), partition=found)]
        if view == "all_iterates" and found is Partition.SECRET:
            raise InvalidInput(
                "partition='secret' has no effect with view='all_iterates', which draws Poisson batches: leave it out, "
                "or choose view='final_model'"
            )
        return found


def _known_count(relation: Adjacency) -> Adjacency:
    if relation is Adjacency.ADD_REMOVE:
        raise NotCovered(
            "adjacency: under add-remove the number of records is secret, but a step divides by it; use replace-one or "
            "zero-out",
            axis="adjacency",
        )
    return relation


@dataclass(frozen=True)
class _Constants:
    """Those of a query that does not exist yet."""

    bound: float
    smoothness: float


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
) -> CertifiedNumbers:
    """Noise, steps and ridge for (ε, δ), n, b and a number of epochs: everything that the theorem needs, consistent.

    Formal guarantee: a run of the numbers (``numbers.run``) satisfies ``numbers.certificate``.

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

    Returns:
        The numbers, with their certificate.

    Raises:
        InvalidInput: if numbers are out of range, or the partition would have no effect.

    >>> numbers = plan_cyclic(1.0, 1e-5, n=60_000, batch_size=1000, epochs=20)
    >>> round(numbers.certificate.epsilon(1e-5), 5), numbers.n_batches, numbers.step_size, numbers.contraction
    (1.0, 60, 4.0, 1.0)
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("give either epsilon or noise_multiplier: one follows from the other")
    records, size = _validate.positive_int(n=n), _validate.positive_int(batch_size=batch_size)
    solver = HiddenDescent(size, epochs, step_size, l2=l2, decay=decay, partition=partition)
    sigma = 1.0 if noise_multiplier is None else _validate.positive(noise_multiplier=noise_multiplier)
    found = solver.with_noise(_Constants(bound, smoothness), records, sigma, view, adjacency, unit)
    if epsilon is None:
        certificate = certify(found.mechanism(sigma), delta=_validate.delta(delta))
    else:
        calibrated = calibrate(found.mechanism, epsilon=epsilon, delta=delta)
        sigma, certificate = calibrated.value, calibrated.certificate
    return CertifiedNumbers(**{**vars(found), "noise_multiplier": sigma}, certificate=certificate)
