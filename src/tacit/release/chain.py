"""Noisy (cyclic) gradient descent as a hidden chain: the map, and the mechanism that describes it.

    θ ← prox( θ − η_k ( (Σ_{i∈B} g_i(θ) + σ_k z)/b + λθ ) ),     b the public size of the batch.

For convex β-smooth record losses the map is c-Lipschitz with c = max(|1−ηλ|, |1−η(β+λ)|). The prox of a convex penalty
and the projection of the state onto a public ball are 1-Lipschitz and belong to the next map. Neighbours shift it by
ηΔ/b, and its noise has s = ησ/b.

In exact arithmetic noise is added to the *state*, on a lattice: X ← g(⌊φ̂(X)/g⌉ + ⌊sZ/g⌉), φ̂ this map in float64. Never
through an exact release of the sum: x = (1 − ηλ)x′ − (η/b)r shows x′ modulo the lattice of r, which no theorem about
the last state pays for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import (
    Adjacency,
    Arithmetic,
    Cyclic,
    Evidence,
    FullBatch,
    LastIterate,
    Mechanism,
    Partition,
    Rounding,
    Schedule,
    batch_sizes,
)
from tacit.problem import ElasticNet, Penalty
from tacit.release.channel import noise_std
from tacit.release.query import MAX_SCALE, UNIT_ROUNDOFF, Query, exponent

__all__ = ["Chain", "GradientChain", "contraction", "in_ball"]

Array = NDArray[np.float64]
MAX_NORM = 1e9
"""The radius of the public ball of chains in floating point: no run comes near."""
STATE_BITS = 60
"""log₂ of the largest state, in units of its lattice."""
STATE_PRICE = 2.0**-11
"""The share of the record's own shifts that rounding of the state may add; see ``GradientChain.mechanism``."""


def contraction(step_size: ArrayLike, smoothness: float, l2: float) -> Array:
    """The Lipschitz constant max(|1−ηλ|, |1−η(β+λ)|) of a step on a λ-strongly convex, (β+λ)-smooth function."""
    eta = np.asarray(step_size, float)
    return np.maximum(np.abs(1 - eta * l2), np.abs(1 - eta * (smoothness + l2)))


def in_ball(x: Array, radius: float) -> Array:
    """The nearest point of the ball around 0, for each row; the same numbers where a row is inside."""
    inside = np.clip(np.nan_to_num(x, nan=0.0), -radius, radius)  # so that no square overflows
    norms = np.sqrt(np.einsum("...i,...i->...", inside, inside))[..., None]
    return (
        inside if (norms <= radius).all() else np.asarray(inside * np.minimum(1.0, radius / np.maximum(norms, radius)))
    )


Asked = TypeVar("Asked", contravariant=True)
"""What a chain asks: one query, or a tuple of them, one for each release of a step."""


class Chain(Protocol[Asked]):
    """One map of a hidden chain: a pure function of the state and one noisy sum. Trusted code."""

    def check(self, mechanism: Mechanism, query: Asked, n: int) -> None:
        """Raise MechanismMismatch unless the certified mechanism describes this very chain over n records."""

    def query_state(self, theta: Array, k: int, release: int) -> Array:
        """Where the step starts: the state, projected. At k = steps, what is published."""

    def advance(self, x: Array, noisy: Array, k: int, release: int) -> Array:
        """The next state, from where the step started and its sum; it may depend on nothing else."""


class SmoothQuery(Protocol):
    """The public constants of a query, which may exist before the query does."""

    @property
    def bound(self) -> float:
        """C."""

    @property
    def smoothness(self) -> float | None:
        """β, if contributions are gradients of convex functions."""


@dataclass(frozen=True)
class GradientChain:
    """Noisy gradient descent on disjoint batches, or on all records.

    Attributes:
        step_size: η per step (on the batch mean), as a schedule over all steps.
        l2: λ of the ridge λ/2‖θ‖², in every coordinate.
        n_batches: k; 1 means full batches.
        records: n, public.
        prox: a 1-Lipschitz, data-free map applied after each step (projection, soft threshold), or None. That it is one
            is not checked, so the certificate then lists the Lipschitz constant as declared.
        penalty: a convex separable penalty; its prox (with the step's own η) is 1-Lipschitz, so nothing is declared.
        noise: σ of each step relative to the noise multiplier, e.g. ∝ η_t^{−1/2}; None for one σ.
        radius: of the public ball around 0 that states are projected onto; the certificate of an exact chain has its
            own.
        rows_per_record: how many rows a record may have (a person: ``tacit.records.MAX_ROWS``), which all are rounded.
    """

    step_size: Schedule
    l2: float
    n_batches: int
    records: int
    prox: Callable[[Array], Array] | None = None
    penalty: Penalty | None = None
    noise: Schedule | None = None
    radius: float = MAX_NORM
    rows_per_record: int = 1

    def __post_init__(self) -> None:
        _validate.nonnegative(l2=self.l2)
        if not _validate.positive(radius=self.radius) <= MAX_NORM:
            raise InvalidInput(f"radius must not exceed {MAX_NORM:g}, where gradients are cut off: got {self.radius!r}")
        if not 1 <= self.n_batches <= self.records:
            raise InvalidInput(f"n_batches must lie between 1 and the {self.records} records, got {self.n_batches}")
        if self.noise is not None and (len(self.noise) != len(self.step_size) or self.noise.min <= 0):
            raise InvalidInput(f"noise must hold {len(self.step_size)} positive numbers, one for each step")

    def _sizes(self) -> Array:
        """The public batch size of every step."""
        sizes = batch_sizes(self.records, self.n_batches).astype(float)
        return np.tile(sizes, -(-len(self.step_size) // len(sizes)))[: len(self.step_size)]

    def mechanism(
        self,
        query: SmoothQuery,
        noise_multiplier: float,
        *,
        adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
        partition: Partition = Partition.FIXED,
        arithmetic: Arithmetic | str = Arithmetic.FLOAT,
        size: int | None = None,
    ) -> Mechanism:
        """What this chain is to a proof; every constant is derived from public quantities.

        In exact arithmetic, ρ_k = ρ_k(0) + B·ρ′_k for states within B. B is the largest power of two up to 10⁹ with
        2B·Σ_k ρ′_k ≤ 2⁻¹¹ of the shifts Σ_k ηΔ/b of one record's visits: μ grows by less than 10⁻³, and coefficients
        stay far inside (20,000 standardised features, 400,000 records: B·R = 424, where predictions of 10 are large). g
        is the finest lattice on which noise and states have integers: s/g ≤ 2³⁶, B/g < 2⁶⁰.

        Args:
            query: what it will ask: its bound and smoothness count, and its rounding in exact arithmetic.
            noise_multiplier: σ/C, on the batch sum.
            adjacency: the relation.
            partition: whether the batches are random, secret and fresh.
            arithmetic: "float" or "exact".
            size: how many coordinates the state has; exact arithmetic needs it.

        Returns:
            A mechanism with the last-iterate view.

        Raises:
            InvalidInput: if the sum is not the gradient of a convex smooth function, or the relation hides n.
        """
        if query.smoothness is None:
            raise InvalidInput(f"{type(query).__name__} states no smoothness: no hidden-state theorem covers it")
        relation = Adjacency.parse(adjacency)
        if relation is Adjacency.ADD_REMOVE:
            raise InvalidInput(
                "under add/remove the number of records is secret, but this chain divides by it: use replace-one or "
                "zero-out"
            )
        nm = _validate.positive(noise_multiplier=noise_multiplier)
        eta, sizes = self.step_size.to_array(), self._sizes()
        k, relative = self.n_batches, np.ones(1) if self.noise is None else self.noise.to_array()
        weights = Schedule(batch_sizes(self.records, k) / self.records)
        s = eta * nm * relative * query.bound / sizes
        exact = Arithmetic.parse(arithmetic) is Arithmetic.EXACT
        return Mechanism(
            adjacency=relation,
            ratio=Schedule(np.broadcast_to(relation.sum_factor / (nm * relative), eta.shape)),
            steps=len(eta),
            sampling=FullBatch() if k == 1 else Cyclic(k, partition, weights),
            view=LastIterate(
                lipschitz=Schedule(contraction(eta, query.smoothness, self.l2)),
                noise_std=Schedule(s),
                evidence=Evidence.CHECKED if self.prox is None else Evidence.DECLARED,
                rounding=self._rounding(query, size, float(s.max()), relation.sum_factor) if exact else None,
            ),
            arithmetic=Arithmetic.parse(arithmetic),
        )

    def rounding_errors(self, query: Query, size: int, radius: float) -> Array | None:
        """ρ_k ≥ sup‖φ̂_k − φ_k‖ over states on the lattice, per step; None where the query has no proven error.

        φ̂(X) = x(1 − ηλ) − (η/b)·Ŝ(x), x = prox(P(X)), in float64, u = 2⁻⁵³, B the radius, d coordinates:

        - X as floats, P and prox: √d·u·B (integers beyond 2⁵³ are rounded), (d + 8)u·B (the norm, and a quotient), 8u·B
          (a threshold, a difference, a quotient): φ passes on c times these.
        - Ŝ: the query's own error, times η/b.
        - Products and difference: at most 4u(1 + ηλ)B + 3u·ηC.
        - c and d as floats in the certificate: 4u(1 + ηλ + ηβ) of a distance 2B, 16u of a shift 2ηC/b.

        A factor of 1.01 stands for all products of such errors, as long as d and b are below 10¹².

        Args:
            query: what is asked.
            size: d.
            radius: B.

        Returns:
            (steps,).
        """
        eta, sizes = self.step_size.to_array(), self._sizes()
        beta = query.smoothness
        more = () if self.rows_per_record == 1 else (self.rows_per_record,)
        sums = {
            b: query.rounding_error(int(b), size, 1.01 * radius, *(int(b) * rows for rows in more))
            for b in np.unique(sizes)
        }
        if beta is None or any(error is None for error in sums.values()):
            return None
        of_sum = eta / sizes * np.array([sums[b] for b in sizes])
        c, stretch = contraction(eta, beta, self.l2), 1 + eta * (self.l2 + beta)
        of_state = UNIT_ROUNDOFF * radius * (c * (2 * size + 32) + 16 * stretch)
        return np.asarray(1.01 * (of_sum + of_state + 64 * UNIT_ROUNDOFF * eta * query.bound))

    def _reach(self, bound: float, radius: float) -> float:
        """No state without its noise is longer."""
        eta = self.step_size.max
        return (2 + eta * self.l2) * radius + eta * bound

    def _rounding(self, query: SmoothQuery, size: int | None, s: float, sum_factor: float) -> Rounding:
        d = _validate.positive_int(size=size)
        free, far = (self.rounding_errors(query, d, B) if isinstance(query, Query) else None for B in (0.0, MAX_NORM))
        if free is None or far is None or not isinstance(query, Query):
            kind = getattr(query, "loss", query)
            raise InvalidInput(
                f"{type(query).__name__} has no proven rounding error (with {type(kind).__name__}), which an exact "
                "hidden chain needs: use arithmetic='float'"
            )
        shifts = float((self.step_size.to_array() * sum_factor * query.bound / self._sizes()).sum()) / self.n_batches
        most = STATE_PRICE * shifts / (2 * float((far - free).sum()) / MAX_NORM)
        B = 2.0 ** (exponent(min(most, MAX_NORM)) - 1)
        unit = 2.0 ** max(exponent(s) - MAX_SCALE, exponent(self._reach(query.bound, B)) - STATE_BITS)
        errors = self.rounding_errors(query, d, B)
        assert errors is not None
        return Rounding(unit=unit, sizes=(d,), radius=B, error=Schedule(errors))

    def check(self, mechanism: Mechanism, query: Query, n: int) -> None:
        """The certificate must describe this chain: same steps, batches, noise, and Lipschitz constants no smaller.

        Args:
            mechanism: what was certified.
            query: what will be asked.
            n: how many records there are.

        Raises:
            MechanismMismatch: naming what differs.
        """
        view, eta = mechanism.view, self.step_size.to_array()
        if mechanism.adjacency is Adjacency.ADD_REMOVE:
            raise MechanismMismatch("certified under add/remove, where n is secret, but this chain divides by n")
        if not isinstance(view, LastIterate) or mechanism.steps != len(eta):
            raise MechanismMismatch("the certificate describes another chain: certify chain.mechanism(...)")
        batches = mechanism.sampling.n_batches if isinstance(mechanism.sampling, Cyclic) else 1
        if batches != self.n_batches or n != self.records or not isinstance(mechanism.sampling, FullBatch | Cyclic):
            raise MechanismMismatch(
                f"certified for {batches} batches, but the chain has {self.n_batches} of {n} records"
            )
        shares = batch_sizes(self.records, batches) / self.records
        stated = getattr(mechanism.sampling, "weights", None)
        if not np.allclose(shares, 1 / batches if stated is None else stated.to_array(), rtol=1e-9, atol=0):
            raise MechanismMismatch("the certified shares of the batches are not those of this chain")
        if view.evidence is Evidence.CHECKED and self.prox is not None:
            raise MechanismMismatch(
                "the certificate says that the map was checked, but a prox is the caller's word: certify it as declared"
            )
        if view.diameter is not None:
            raise MechanismMismatch("certified for a bounded domain, but this chain does not promise a projection")
        if query.smoothness is None:
            raise MechanismMismatch(f"{type(query).__name__} states no smoothness: its step may expand")
        needed, exact = contraction(eta, query.smoothness, self.l2), view.rounding is not None
        if (view.lipschitz.to_array() < needed * (1 if exact else 1 - 1e-12)).any():
            raise MechanismMismatch(
                "the certified Lipschitz constants are smaller than this chain's: its step is less contractive"
            )
        sigma = np.array([noise_std(mechanism, query, k) for k in range(len(eta))])
        if not np.allclose(
            view.noise_std.to_array(), eta * sigma / self._sizes(), rtol=2**-49 if exact else 1e-9, atol=0
        ):
            raise MechanismMismatch("the certified noise of the state is not step size × noise of the sum / batch size")
        if view.rounding is not None:
            self._check_rounding(view.rounding, query, view.noise_std.max)

    def _check_rounding(self, rounding: Rounding, query: Query, s: float) -> None:
        """The lattice must have room for noise and states, and the certified error hold for this map."""
        penalty = self.penalty
        ours = penalty is None or (type(penalty) is ElasticNet and not penalty.prox(np.zeros(penalty.size), 0.0).any())
        if self.prox is not None or not ours:
            raise MechanismMismatch(
                "the rounding of this prox is not known: an exact hidden chain takes an ElasticNet whose box holds 0; "
                "use arithmetic='float' for others"
            )
        needed = self.rounding_errors(query, rounding.sizes[0], rounding.radius)
        if needed is None or (rounding.error.to_array() < needed * (1 - 1e-9)).any():
            raise MechanismMismatch(
                "the certified rounding error of the map is smaller than what is proven of this chain"
            )
        if max(s / 2.0**MAX_SCALE, self._reach(query.bound, rounding.radius) / 2.0**STATE_BITS) > rounding.unit:
            raise MechanismMismatch(
                "the certified lattice is too fine: noise or states would leave the range of integers"
            )

    def within(self, radius: float) -> GradientChain:
        """The same chain, projected onto another ball."""
        return replace(self, radius=radius)

    def query_state(self, theta: Array, k: int, release: int) -> Array:
        """The state inside the ball, behind the prox of the step before: where gradients are taken."""
        x = in_ball(theta, self.radius)
        if k > 0 and self.penalty is not None:
            x = self.penalty.prox(x, self.step_size[k - 1])
        return x if k == 0 or self.prox is None else self.prox(x)

    def advance(self, x: Array, noisy: Array, k: int, release: int) -> Array:
        """One gradient step."""
        eta = self.step_size[k]
        size = batch_sizes(self.records, self.n_batches)[k % self.n_batches]
        new = x * (1 - eta * self.l2)
        new -= (eta / size) * noisy
        return new
