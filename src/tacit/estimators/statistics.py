"""Private means, variances and quantiles of bounded columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.accounting import Certificate
from tacit.estimators.base import Table
from tacit.estimators.one_release import OneRelease, PlannedMeans, PlannedMoments, PlannedQuantiles, levels_of
from tacit.inputs.parameters import bounds_of, grids_of
from tacit.inputs.tables import shape_of
from tacit.ledger import Ledger
from tacit.maps import FeatureBounds
from tacit.records import Records
from tacit.solvers.base import Budget

__all__ = ["private_mean", "private_quantiles", "private_variance"]

Array = NDArray[np.float64]


class _Statistic(OneRelease):
    """A number, or a few, for each column.

    Attributes:
        value_: for each column.
    """

    column = True
    value_: Array

    def __init__(
        self,
        epsilon: float,
        delta: float | None,
        bounds: Any,
        adjacency: str,
        arithmetic: str,
        weighting: str,
        max_rows: int | None,
        max_sample_weight: float | None,
        ledger: Ledger | None,
        random_state: int | None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.adjacency = adjacency
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.random_state = random_state

    def _box(self, table: Table) -> FeatureBounds:
        return FeatureBounds.centred(*bounds_of("bounds", self.bounds, table.p))

    def _fitted(self, planned: Any, solution: Any, table: Table) -> dict[str, Any]:
        return {"value_": solution}

    def answer(self, x: Any, groups: Any, sample_weight: Any) -> tuple[Any, Certificate]:
        """Fit; a number for one column, an array for a table."""
        self.fit(x, groups=groups, sample_weight=sample_weight)
        column = not isinstance(x, Records) and len(shape_of(x)) == 1
        value = self.value_[..., 0] if column else self.value_
        return (float(value) if value.ndim == 0 else value), self.certificate_


class _Mean(_Statistic):
    purpose = "private mean"

    def _planned(self, table: Table, budget: Budget) -> PlannedMeans:
        return PlannedMeans(*self._release(table, budget), self._box(table))


class _Variance(_Statistic):
    purpose = "private variance"

    def _planned(self, table: Table, budget: Budget) -> PlannedMoments:
        return PlannedMoments(*self._release(table, budget), self._box(table))

    def _fitted(self, planned: Any, solution: Any, table: Table) -> dict[str, Any]:
        return {"value_": solution.variance * planned.box.scale**2}


class _Quantiles(_Statistic):
    purpose = "private quantiles"

    def __init__(
        self,
        levels: Any,
        bins: int,
        grid: Any,
        resolution: Any,
        epsilon: float,
        delta: float | None,
        bounds: Any,
        adjacency: str,
        arithmetic: str,
        weighting: str,
        max_rows: int | None,
        max_sample_weight: float | None,
        ledger: Ledger | None,
        random_state: int | None,
    ) -> None:
        super().__init__(
            epsilon,
            delta,
            bounds,
            adjacency,
            arithmetic,
            weighting,
            max_rows,
            max_sample_weight,
            ledger,
            random_state,
        )
        self.levels = levels
        self.bins = bins
        self.grid = grid
        self.resolution = resolution

    def _planned(self, table: Table, budget: Budget) -> PlannedQuantiles:
        grids = grids_of(self.grid, self.bounds, table.p, self.bins, self.resolution, name="bounds")
        return PlannedQuantiles(*self._release(table, budget), grids, np.atleast_1d(levels_of("q", self.levels)))

    def _fitted(self, planned: Any, solution: Any, table: Table) -> dict[str, Any]:
        return {"value_": solution[0] if np.ndim(self.levels) == 0 else solution}


def private_mean(
    x: Any,
    bounds: Any,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "replace-one",
    arithmetic: str = "exact",
    groups: Any = None,
    sample_weight: Any = None,
    weighting: str = "person",
    max_rows: int | None = None,
    max_sample_weight: float | None = None,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> tuple[Any, Certificate]:
    """The mean of one column, or of each column of a table, from one noisy sum.

    With u = x mapped to [−1, 1]^p by the bounds, S = Σu + N(0, σ²I), σ = Δ/μ: Δ = 2√p under replace-one, √p under
    zero-out. Under add/remove the records are counted in the same release (Δ = √(p+1)).

    Formal guarantee: the result is (ε, δ)-DP for the stated relation, as the certificate says.

    Assumptions: the bounds are public; x is finite and holds at least one record.

    Args:
        x: (n,) or (n, p); or open records (``tacit.open_records``).
        bounds: public (low, high); values outside are clipped silently.
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        groups: whose each row is; the certificate is then about persons (docs/persons.md).
        sample_weight: what each row counts, in units of ``max_sample_weight``; or None.
        weighting: "person": everybody counts once, or "rows": each row counts 1/``max_rows``.
        max_rows: rows that a person is taken to have at least, for "rows"; public.
        max_sample_weight: the weight that counts 1, and that larger ones are clipped to; public.
        ledger: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        A number, or (p,), within the bounds; and the certificate.

    >>> mean, certificate = private_mean([2.0, 4.0] * 500, (0, 10), epsilon=1.0, delta=1e-6, random_state=0)
    >>> abs(mean - 3.0) < 0.3, round(certificate.epsilon(1e-6), 6)
    (True, 1.0)
    """
    model = _Mean(
        epsilon, delta, bounds, adjacency, arithmetic, weighting, max_rows, max_sample_weight, ledger, random_state
    )
    return model.answer(x, groups, sample_weight)


def private_variance(
    x: Any,
    bounds: Any,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "replace-one",
    arithmetic: str = "exact",
    groups: Any = None,
    sample_weight: Any = None,
    weighting: str = "person",
    max_rows: int | None = None,
    max_sample_weight: float | None = None,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> tuple[Any, Certificate]:
    """The variance (divided by n) of one column, or of each column of a table, from one noisy sum of x and x².

    Formal guarantee: the result is (ε, δ)-DP for the stated relation, as the certificate says.

    Assumptions: the bounds are public; x is finite and holds at least one record.

    Args:
        x: (n,) or (n, p); or open records (``tacit.open_records``).
        bounds: public (low, high); values outside are clipped silently.
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        groups: whose each row is; the certificate is then about persons (docs/persons.md).
        sample_weight: what each row counts, in units of ``max_sample_weight``; or None.
        weighting: "person": everybody counts once, or "rows": each row counts 1/``max_rows``.
        max_rows: rows that a person is taken to have at least, for "rows"; public.
        max_sample_weight: the weight that counts 1, and that larger ones are clipped to; public.
        ledger: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        A number, or (p,), between 0 and a quarter of the squared width; and the certificate. It is 0 where noise hides
        the variance: it is unbiased up to this clamping and the noise in the mean.
    """
    model = _Variance(
        epsilon, delta, bounds, adjacency, arithmetic, weighting, max_rows, max_sample_weight, ledger, random_state
    )
    return model.answer(x, groups, sample_weight)


def private_quantiles(
    x: Any,
    q: ArrayLike,
    bounds: Any = None,
    *,
    epsilon: float,
    delta: float,
    bins: int = 64,
    grid: Any = "uniform",
    resolution: Any = None,
    adjacency: str = "replace-one",
    arithmetic: str = "exact",
    groups: Any = None,
    sample_weight: Any = None,
    weighting: str = "person",
    max_rows: int | None = None,
    max_sample_weight: float | None = None,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> tuple[Any, Certificate]:
    """Quantiles of one column, or of each column of a table, from one joint noisy histogram.

    One Gaussian release of all features' counts on public grids (Δ = √(2p) under replace-one, √p otherwise), made
    monotone by isotonic regression of its cumulative sums. With K bins the rank of the result is off by about
    σ√K/2 at worst (σ = Δ/μ), and its value by the bin it falls into.

    Formal guarantee: all quantiles together are (ε, δ)-DP for the stated relation, however many are asked for.

    Assumptions: bounds and grids are public; x is finite and holds at least one record.

    Args:
        x: (n,) or (n, p); or open records (``tacit.open_records``).
        q: levels strictly between 0 and 1.
        bounds: public (low, high), not needed where ``grid`` gives edges; values outside count in the end bins.
        epsilon: ε.
        delta: δ.
        bins: K.
        grid: "uniform"; "geometric" (signed logarithmic) for heavy tails; or a list with one entry per column, each of
            these or increasing edges.
        resolution: where a geometric grid turns linear around 0; by default 1e-4 × the largest bound.
        adjacency: the relation.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        groups: whose each row is; the certificate is then about persons (docs/persons.md).
        sample_weight: what each row counts, in units of ``max_sample_weight``; or None.
        weighting: "person": everybody counts once, or "rows": each row counts 1/``max_rows``.
        max_rows: rows that a person is taken to have at least, for "rows"; public.
        max_sample_weight: the weight that counts 1, and that larger ones are clipped to; public.
        ledger: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        Values shaped as by ``np.quantile(x, q, axis=0)``, and the certificate.

    >>> import numpy as np
    >>> x = np.arange(10_000) % 100
    >>> (low, high), _ = private_quantiles(x, [0.25, 0.75], (0, 128), epsilon=1.0, delta=1e-6, random_state=0)
    >>> bool(abs(low - 25) < 3), bool(abs(high - 75) < 3)
    (True, True)
    """
    return _Quantiles(
        q,
        bins,
        grid,
        resolution,
        epsilon,
        delta,
        bounds,
        adjacency,
        arithmetic,
        weighting,
        max_rows,
        max_sample_weight,
        ledger,
        random_state,
    ).answer(x, groups, sample_weight)
