"""Noisy (cyclic) gradient descent as a hidden chain: the map, and the mechanism that describes it.

    θ ← prox( θ − η_k ( (Σ_{i∈B} g_i(θ) + σ_k z)/b + λθ ) ),     b the public size of the batch.

For convex β-smooth record losses the map is c-Lipschitz with c = max(|1−ηλ|, |1−η(β+λ)|); a prox of a convex penalty
and a projection are 1-Lipschitz and belong to the next map. Neighbours shift it by ηΔ/b, and its noise has s = ησ/b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import (
    Adjacency,
    Cyclic,
    Evidence,
    FullBatch,
    LastIterate,
    Mechanism,
    Partition,
    Schedule,
    batch_sizes,
)
from tacit.problem import Penalty
from tacit.release.channel import noise_std
from tacit.release.query import Query

__all__ = ["Chain", "GradientChain", "contraction"]

Array = NDArray[np.float64]


def contraction(step_size: ArrayLike, smoothness: float, l2: float) -> Array:
    """The Lipschitz constant max(|1−ηλ|, |1−η(β+λ)|) of a step on a λ-strongly convex, (β+λ)-smooth function."""
    eta = np.asarray(step_size, float)
    return np.maximum(np.abs(1 - eta * l2), np.abs(1 - eta * (smoothness + l2)))


Asked = TypeVar("Asked", contravariant=True)
"""What a chain asks: one query, or a tuple of them, one for each release of a step."""


class Chain(Protocol[Asked]):
    """One map of a hidden chain: a pure function of the state and one noisy sum. Trusted code."""

    def check(self, mechanism: Mechanism, query: Asked, n: int) -> None:
        """Raise MechanismMismatch unless the certified mechanism describes this very chain over n records."""

    def query_state(self, theta: Array, k: int, release: int) -> Array:
        """Where to evaluate the query."""

    def advance(self, theta: Array, noisy: Array, k: int, release: int) -> Array:
        """The next state; it may depend on nothing else."""


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
    """

    step_size: Schedule
    l2: float
    n_batches: int
    records: int
    prox: Callable[[Array], Array] | None = None
    penalty: Penalty | None = None
    noise: Schedule | None = None

    def __post_init__(self) -> None:
        _validate.nonnegative(l2=self.l2)
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
    ) -> Mechanism:
        """What this chain is to a proof; every constant is derived from public quantities.

        Args:
            query: what it will ask: its bound and smoothness count.
            noise_multiplier: σ/C, on the batch sum.
            adjacency: the relation.
            partition: whether the batches are random, secret and fresh.

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
        return Mechanism(
            adjacency=relation,
            ratio=Schedule(np.broadcast_to(relation.sum_factor / (nm * relative), eta.shape)),
            steps=len(eta),
            sampling=FullBatch() if k == 1 else Cyclic(k, partition, weights),
            view=LastIterate(
                lipschitz=Schedule(contraction(eta, query.smoothness, self.l2)),
                noise_std=Schedule(eta * nm * relative * query.bound / sizes),
                evidence=Evidence.CHECKED if self.prox is None else Evidence.DECLARED,
            ),
        )

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
        needed = contraction(eta, query.smoothness, self.l2)
        if (view.lipschitz.to_array() < needed * (1 - 1e-12)).any():
            raise MechanismMismatch(
                "the certified Lipschitz constants are smaller than this chain's: its step is less contractive"
            )
        sigma = np.array([noise_std(mechanism, query, k) for k in range(len(eta))])
        if not np.allclose(view.noise_std.to_array(), eta * sigma / self._sizes(), rtol=1e-9, atol=0):
            raise MechanismMismatch("the certified noise of the state is not step size × noise of the sum / batch size")

    def query_state(self, theta: Array, k: int, release: int) -> Array:
        """Gradients are taken at the current iterate."""
        return theta

    def advance(self, theta: Array, noisy: Array, k: int, release: int) -> Array:
        """One noisy gradient step."""
        eta = self.step_size[k]
        size = batch_sizes(self.records, self.n_batches)[k % self.n_batches]
        new = theta * (1 - eta * self.l2)
        new -= (eta / size) * noisy
        if self.penalty is not None:
            new = self.penalty.prox(new, eta)
        return new if self.prox is None else self.prox(new)
