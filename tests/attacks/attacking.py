"""An attacker with full knowledge: both neighbours, every clean sum, every release with all its bits.

``watched`` taps the channels of a fit: of every release it keeps the sum on D, the sum on the neighbour D′ at the same
state, and what was released. A release is *impossible* on D′ if no noise value leads there from D′'s sum: no integer in
exact arithmetic, no float64 otherwise.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

import tacit
from tacit.accounting import certify, gdp_mu
from tacit.audit import multiples, reaches
from tacit.estimators.base import PrivateEstimator
from tacit.mechanism import CorrelatedNoise, Independent, Mechanism
from tacit.records import InMemory
from tacit.release import Session, open_session
from tacit.release.channel import Channel
from tacit.release.queries import VectorSum

DELTA = 1e-6
EPSILONS = (0.1, 1.0, 10.0)
ANSWERS = np.where(np.arange(1024) % 2 == 0, 1.0, -1.0)[:, None]
"""D: as many yes (1) as no (−1): the clean sum is 0."""
CHANGED = np.concatenate([[[-1.0]], ANSWERS[1:]])
"""D′: the first answer is replaced, the clean sum is −2."""


def session_releases(X: np.ndarray, epsilon: float, arithmetic: str, n: int, seed: int) -> tuple[np.ndarray, float]:
    """n releases of a sum of answers, each of which alone is (ε, 10⁻⁶)-DP, and σ; 500 replicas at a time."""
    replicas = min(500, n)
    m = Mechanism(adjacency="replace-one", ratio=gdp_mu(epsilon, DELTA), steps=n // replicas, arithmetic=arithmetic)
    with open_session(certify(m), InMemory(X), random_state=seed, replicas=replicas) as session:
        sigma = session.noise_std(VectorSum(1.0))
        out = [session.release(VectorSum(1.0), np.zeros((replicas, 1)))[:, 0] for _ in range(n // replicas)]
    return np.concatenate(out), sigma


def correlated_releases(X: np.ndarray, epsilon: float, arithmetic: str, n: int, seed: int) -> np.ndarray:
    """n runs of three releases of a sum, hidden by noise that one step takes back in part in the next."""
    noise, steps = CorrelatedNoise.toeplitz([1.0, 0.5]), 3
    m = Mechanism(
        adjacency="replace-one", ratio=gdp_mu(epsilon, DELTA) / 2, steps=steps, noise=noise, arithmetic=arithmetic
    )
    with open_session(certify(m), InMemory(X), random_state=seed, replicas=n) as session:
        return np.concatenate([session.release(VectorSum(1.0), np.zeros((n, 1))) for _ in range(steps)], axis=1)


@dataclass
class Watch:
    """What tapped channels released.

    Attributes:
        other: the neighbour's records, or None.
        releases: how many there were, by the arithmetic that was certified for them.
        impossible: how many of these cannot happen on D′.
    """

    other: Any = None
    releases: Counter[str] = field(default_factory=Counter)
    impossible: Counter[str] = field(default_factory=Counter)
    sums: list[Any] = field(default_factory=list)

    def look_at(self, model: Any, table: tuple[Any, Any]) -> None:
        """Compare with this table, as the model reads it. A search reads parts of it: lattices alone judge it."""
        draft = copy.copy(model)
        if not isinstance(draft, PrivateEstimator):
            return
        shape, X, y = draft._read(*table)
        self.other = draft._records(shape, X, y, None)

    def judge(self, channel: Channel, query: Any, grid: Any, clean: np.ndarray, noisy: np.ndarray) -> None:
        """Count one release."""
        mechanism, there = channel.mechanism, self.sums.pop() if self.sums else None
        if type(mechanism.noise) is not Independent:
            return  # a solution of this release and earlier ones
        way = mechanism.arithmetic.value
        if way == "exact":
            scales = query.scales(clean.shape[1])
            possible = multiples(noisy, grid.unit if scales is None else grid.unit * scales).all()
            possible &= there is None or there.dtype == np.int64
        elif there is not None:
            possible = reaches(noisy, there).all()
        else:
            return
        self.releases[way] += 1
        self.impossible[way] += not possible


@contextmanager
def watched() -> Iterator[Watch]:
    """Tap every channel."""
    watch = Watch()
    release, total = Channel.release, Session._total

    def tapped_release(self: Channel, query: Any, total: Any) -> Any:
        seen: list[Any] = []

        def tapped(members: Any, grid: Any) -> Any:
            seen[:] = grid, total(members, grid)
            return seen[1]

        noisy = release(self, query, tapped)
        watch.judge(self, query, *seen, noisy)
        return noisy

    def tapped_total(self: Session, query: Any, *arguments: Any) -> Any:
        if watch.other is not None and isinstance(self._records, InMemory):
            there = self._records.through()
            there._table = watch.other._table
            watch.sums[:] = [total(Session(self._run, there), query, *arguments)]
        return total(self, query, *arguments)

    Channel.release, Session._total = tapped_release, tapped_total
    try:
        yield watch
    finally:
        Channel.release, Session._total = release, total


# -- small fits of every family ---------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X = np.round(RNG.uniform(-1, 1, (40, 2)), 3)
Y = np.round(X @ [0.7, -0.4], 3)
LABELS = (Y > 0).astype(int)
COUNTS = RNG.gamma(1.0, size=(40, 3))
BOUNDS = {"feature_bounds": (-1, 1)}
TARGET = {**BOUNDS, "target_bounds": (-2, 2)}
MARGIN = {**BOUNDS, "classes": [0, 1]}
SHORT = {"feature_norm": 1.0, "epochs": 1, "classes": [0, 1]}
NETWORK = {**BOUNDS, "epochs": 1, "batch_size": 20, "sampling": "cyclic"}


@dataclass(frozen=True)
class Family:
    """A small fit: an estimator, its table, and how many fits ``make attack`` asks for at each ε."""

    model: Any
    y: Any
    fits: int
    X: Any = None

    def tables(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """D, and D′ in which the first record is another one."""
        here = X if self.X is None else self.X
        there, y2 = here.copy(), None if self.y is None else self.y.copy()
        there[0] = there[0][::-1] / 2
        if y2 is not None:
            y2[0] = 1 - y2[0] if y2.dtype.kind == "i" else -y2[0]
        return (here, self.y), (there, y2)

    def made(self, epsilon: float, arithmetic: str, seed: int | None = None) -> Any:
        return clone(self.model).set_params(epsilon=epsilon, delta=DELTA, arithmetic=arithmetic, random_state=seed)


FAMILIES = {
    "moments": Family(tacit.DPRidge(solver="statistics", **TARGET), Y, 10_000),
    "means and variances": Family(tacit.DPStandardScaler(**BOUNDS), None, 10_000),
    "quantiles": Family(tacit.estimators.DPQuantileScaler(**BOUNDS), None, 10_000),
    "metric descent": Family(tacit.DPLogisticRegression(**MARGIN), LABELS, 10_000),
    "coordinate descent": Family(tacit.DPLasso(0.01, solver="coordinate", **TARGET), Y, 10_000),
    "gradient descent": Family(tacit.DPHuberRegressor(solver="gradient", **TARGET), Y, 10_000),
    "random batches": Family(tacit.DPRidge(solver="sgd", max_passes=1, **TARGET), Y, 1_000),
    "hidden chain": Family(tacit.DPRidge(view="final_model", **TARGET), Y, 1_000),
    "softmax": Family(tacit.DPSoftmaxRegression(view="all_iterates", **SHORT), LABELS, 1_000),
    "gates": Family(tacit.DPConvexReLUClassifier(2, view="all_iterates", **SHORT), LABELS, 1_000),
    "block network": Family(tacit.DPBlockMLPClassifier((2,), classes=[0, 1], **NETWORK), LABELS, 1_000),
    "factors": Family(tacit.DPNMF(2, row_norm=2.0, epochs=1), None, 1_000, COUNTS),
    "selection": Family(
        tacit.DPSelection(tacit.DPRidge(solver="statistics", **TARGET), {"alpha": [0.01, 1.0]}, mean_trials=2.0),
        Y,
        1_000,
    ),
}
"""By how they release; ``fits`` at each ε."""


def published(model: Any) -> np.ndarray:
    """The released numbers of a fitted model, as one vector; NaN where a search found none."""
    if isinstance(model, tacit.DPSelection):
        best = model.best_estimator_
        return np.full(3, np.nan) if best is None else published(best)
    names = ("coef_", "intercept_", "components_", "mean_", "scale_", "quantiles_", "coefs_")
    found = [vars(model)[name] for name in names if name in vars(model)]
    flat = [np.ravel(part) for one in found for part in (one if isinstance(one, list | tuple) else [one])]
    return np.concatenate(flat).astype(np.float64)


def fits(family: Family, epsilon: float, arithmetic: str, n: int, seed: int) -> tuple[Watch, np.ndarray, np.ndarray]:
    """n fits on D, tapped and compared with D′, and n on D′: what was released, and both sides' models."""
    D, D2 = family.tables()
    with watched() as watch:
        watch.look_at(family.made(epsilon, arithmetic), D2)
        here = [published(family.made(epsilon, arithmetic, seed + i).fit(*D)) for i in range(n)]
    there = [published(family.made(epsilon, arithmetic, seed + i).fit(*D2)) for i in range(n)]
    return watch, np.array(here), np.array(there)
