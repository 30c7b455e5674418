"""Estimators that make one release with their whole budget, and what such a release can be of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators.anywhere import header_of
from tacit.estimators.base import PrivateEstimator, Table
from tacit.inputs.tables import validate_shape, validate_table
from tacit.maps import Columns, FeatureBounds
from tacit.mechanism import Adjacency, Mechanism, Plan
from tacit.records import InMemory, Opened, Persons, Records
from tacit.release import Query, Session
from tacit.release.queries import CountedSum, HistogramSum, MomentSum, VectorSum
from tacit.solvers.base import Budget
from tacit.solvers.stages import histogram_quantiles

__all__ = ["Moments", "OneRelease", "PlannedMeans", "PlannedMoments", "PlannedQuantiles", "levels_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlannedRelease:
    """One full-batch Gaussian release with the whole budget.

    A sum of sensitivity Δ with noise σ = Δ/μ is μ-GDP, and μ is the largest that implies (ε, δ)-DP.

    Attributes:
        plan: that release.
        n: the number of records; None where it is secret, so that the release must count them.
    """

    plan: Plan
    n: int | None
    declared: ClassVar[tuple[str, ...]] = ()

    def _released(self, session: Session, query: Query) -> tuple[Array, float, float]:
        """The noisy sum, the number of records (noisy where it is secret, at least 1), and σ."""
        if self.n is not None:
            return session.release(query), float(self.n), session.noise_std(query, index=0)
        counted = CountedSum(query)
        noisy = session.release(counted)
        return noisy[:-1], max(float(noisy[-1]), 1.0), session.noise_std(counted, index=0)


@dataclass(frozen=True, eq=False)
class PlannedMeans(PlannedRelease):
    """Σu of features mapped to [−1, 1].

    Attributes:
        box: the map.
    """

    box: FeatureBounds

    def solve(self, session: Session) -> Array:
        """The means, in the user's units."""
        query = VectorSum(float(np.sqrt(len(self.box.low))))
        total, n, _ = self._released(session.through(self.box), query)
        return self.box.inverse(total / n)


@dataclass(frozen=True, eq=False)
class Moments:
    """Noisy moments of features mapped to [−1, 1].

    Attributes:
        mean: of u, clamped to [−1, 1].
        variance: of u; noise may make it negative or too large, so it is clamped to [0, 1].
        noise: the standard deviation of the noise in a mean, or a mean square (0 for features whose bounds coincide).
    """

    mean: Array
    variance: Array
    noise: Array


@dataclass(frozen=True, eq=False)
class PlannedMoments(PlannedRelease):
    """Σu and Σu² of features mapped to [−1, 1].

    Replacing a record moves (u, u²) of one feature by at most 2, all of them by 2√p. Under add/remove n is secret: the
    same release then counts the records, and a contribution has norm √(2p + 1).

    Attributes:
        box: the map.
    """

    box: FeatureBounds

    def solve(self, session: Session) -> Moments:
        """Divide by n, or by the noisy count."""
        total, n, sigma = self._released(session, MomentSum(self.box.low, self.box.high))
        first, square = np.split(total / n, 2)
        mean = np.where(self.box.fixed, 0.0, np.clip(first, -1.0, 1.0))
        variance = np.where(self.box.fixed, 0.0, np.clip(square - mean**2, 0.0, 1.0))
        return Moments(mean, variance, np.where(self.box.fixed, 0.0, sigma / n))


@dataclass(frozen=True, eq=False)
class PlannedQuantiles(PlannedRelease):
    """Histograms of all features on public grids.

    Attributes:
        grids: the edges of each feature's bins; a single one where its bounds coincide.
        levels: of the quantiles.
    """

    grids: list[Array]
    levels: Array

    def solve(self, session: Session) -> Array:
        """Quantiles, (levels, features)."""
        live = tuple(j for j, edges in enumerate(self.grids) if len(edges) > 1)
        out = np.array([np.full(len(self.levels), edges[0]) for edges in self.grids]).T
        if not live:  # the bounds say it all
            return out
        query = HistogramSum(tuple(self.grids[j] for j in live))
        noisy = session.through(Columns(live)).release(query)
        # The counts of every feature add up to the number of records: none is needed beside them.
        n = max(float(noisy.sum()) / len(live), 1.0) if self.n is None else float(self.n)
        for j, counts in zip(live, np.split(noisy, np.cumsum(query.bins)[:-1]), strict=True):
            out[:, j] = histogram_quantiles(counts, self.grids[j], n, self.levels)
        return out


# -- estimators of one release ------------------------------------------------------------------------------------


class OneRelease(PrivateEstimator):
    """An estimator that makes one release with its whole budget; values of X are read only after it is reserved.

    That X is a finite table is a precondition: a fault in its values is found after the reservation, and is charged.
    One in its shape, or in public arguments, is not.

    Attributes:
        purpose: what the release is for, in plans and ledgers.
        column: whether X may be a single column, (records,).
    """

    purpose: ClassVar[str]
    column: ClassVar[bool] = False
    secret_count = True
    uses_count = False  # where it is secret, the release itself counts

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        return Table(*validate_shape(self, X, column=self.column)), X, None

    def _see(self, records: Opened) -> tuple[Table, Records]:
        seen = records.without_target().in_type(np.float64)
        return Table(seen.n, header_of(records, target=False).width), seen

    def _records(self, table: Table, X: Any, y: Any, persons: Persons | None) -> InMemory:
        options = {"ensure_2d": False} if self.column else {}
        rows = table.n if persons is None or persons.codes is None else len(persons.codes)
        return InMemory.unread(
            rows, lambda: (validate_table(self, X, dtype=np.float64, **options).reshape(rows, -1), None), persons
        )

    def _shape(self, n_records: int, n_features: int) -> Table:
        return Table(n_records, n_features)

    def _check_fitted(self) -> None:
        super()._check_fitted()
        (first, *more) = self.certificate_.plan.parts
        if more or not isinstance(first, Mechanism) or (first.steps, first.label) != (1, self.purpose):
            raise InvalidInput(f"its plan is not one release for {self.purpose}: fit again")

    def _note(self) -> str:
        return self.purpose

    def _release(self, table: Table, budget: Budget) -> tuple[Plan, int | None]:
        """The plan, and how much all records count if that is public."""
        plan = Plan.of(budget.mechanism(budget.whole_mu, 1, self.purpose))
        secret = budget.adjacency is Adjacency.ADD_REMOVE or table.secret_weight
        return plan, None if secret else table.n


def levels_of(name: str, levels: object) -> Array:
    """Levels of quantiles, checked.

    Args:
        name: for the message.
        levels: one or several.

    Returns:
        The levels.

    Raises:
        InvalidInput: if one is not strictly between 0 and 1.
    """
    found = _validate.real_array(name, levels)
    if found.size == 0 or found.ndim > 1 or not ((found > 0) & (found < 1)).all():
        raise InvalidInput(
            f"{name} must lie strictly between 0 and 1: the extremes of private data are those of its public bounds"
        )
    return found
