"""Private looks at a table that help to choose bounds: counts in public bins, and how much public bounds cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators.base import Table
from tacit.estimators.one_release import PlannedRelease
from tacit.estimators.statistics import _Statistic
from tacit.inputs.parameters import bounds_of
from tacit.ledger import Ledger
from tacit.records import Records
from tacit.release import Session
from tacit.release.queries import HistogramSum
from tacit.solvers.base import Budget

__all__ = ["ClippingReport", "clipping_report", "private_histogram"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlannedHistogram(PlannedRelease):
    """Joint histograms of all columns, from one release.

    Attributes:
        edges: of each column's bins.
    """

    edges: tuple[Array, ...]

    def solve(self, session: Session) -> tuple[list[Array], float, float]:
        """The noisy counts of each column, how much all records count, and σ."""
        query = HistogramSum(self.edges)
        noisy, n, sigma = self._released(session, query)
        return list(np.split(noisy, np.cumsum(query.bins)[:-1])), n, sigma


class _Histogram(_Statistic):
    purpose = "private histograms"

    def __init__(self, edges: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.edges = edges

    def _planned(self, table: Table, budget: Budget) -> PlannedHistogram:
        given = self.edges if isinstance(self.edges, list | tuple) and np.ndim(self.edges[0]) == 1 else [self.edges]
        if len(given) != table.p:
            raise InvalidInput(f"edges must be one list of edges for each of the {table.p} columns, got {len(given)}")
        edges = tuple(_validate.real_array("edges", one) for one in given)
        return PlannedHistogram(*self._release(table, budget), edges)


def private_histogram(
    x: Any,
    edges: Any,
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
    """How many records lie in each public bin, for one column or all of a table, from one noisy sum.

    Formal guarantee: the counts are (ε, δ)-DP for the stated relation, as the certificate says.

    Assumptions: the edges are public; x is finite.

    Args:
        x: (n,) or (n, p); or open records (``tacit.open_records``).
        edges: public, increasing; values outside count in the first or last bin. A list of them for a table.
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
        Noisy counts (a list of them for a table), which may be negative; and the certificate.

    >>> counts, _ = private_histogram([1.0] * 700 + [6.0] * 300, [0, 5, 10], epsilon=1, delta=1e-6, random_state=0)
    >>> bool(abs(counts - [700, 300]).max() < 50)
    True
    """
    model = _Histogram(
        edges,
        epsilon=epsilon,
        delta=delta,
        bounds=None,
        adjacency=adjacency,
        arithmetic=arithmetic,
        weighting=weighting,
        max_rows=max_rows,
        max_sample_weight=max_sample_weight,
        ledger=ledger,
        random_state=random_state,
    )
    model.fit(x, groups=groups, sample_weight=sample_weight)
    counts = model.value_[0]
    column = not isinstance(x, Records) and np.ndim(x) == 1
    return (counts[0] if column else counts), model.certificate_


@dataclass(frozen=True, eq=False)
class ClippingReport:
    """How much of each column lies outside of its public bounds, with noise.

    Attributes:
        names: of the columns.
        below: the share of records below the lower bound, from 0 to 1.
        above: that above the upper bound.
        error: the standard error of either share.
        certificate: what the report cost.
    """

    names: tuple[str, ...]
    below: Array
    above: Array
    error: float
    certificate: Certificate

    def __str__(self) -> str:
        width = max(len("column"), *map(len, self.names))
        lines = [f"{'column':{width}}    below    above   (± {2 * self.error:.3f})"]
        rows = zip(self.names, self.below, self.above, strict=True)
        return "\n".join([*lines, *(f"{name:{width}}  {low:7.1%}  {high:7.1%}" for name, low, high in rows)])


def clipping_report(
    X: Any,
    feature_bounds: Any,
    *,
    epsilon: float,
    delta: float | None,
    adjacency: str = "replace-one",
    arithmetic: str = "exact",
    groups: Any = None,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> ClippingReport:
    """How many values of each column public bounds cut off: a charged look before (or after) a fit.

    One histogram of three bins for each column (below, within, above), released together.

    Formal guarantee: the report is (ε, δ)-DP for the stated relation, as its certificate says.

    Assumptions: the bounds are public; X is finite.

    Args:
        X: (n, p), a table or open records.
        feature_bounds: public (low, high).
        epsilon: ε of this report.
        delta: δ of this report.
        adjacency: the relation.
        arithmetic: "exact" or "float" (docs/exact.md).
        groups: whose each row is; then everybody counts once.
        ledger: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        The report; print it.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(20_000, 2))
    >>> report = clipping_report(X, (-1, 3), epsilon=1.0, delta=1e-6, random_state=0)
    >>> print(report)
    column    below    above   (± 0.001)
    x0        15.8%     0.2%
    x1        16.1%     0.1%
    """
    width = X.header.width if isinstance(X, Records) and X.header is not None else np.shape(X)[-1]
    low, high = (np.asarray(end, float) for end in bounds_of("feature_bounds", feature_bounds, int(width)))
    model = _Histogram(
        [_inside(a, b) for a, b in zip(low, high, strict=True)],
        epsilon=epsilon,
        delta=delta,
        bounds=None,
        adjacency=adjacency,
        arithmetic=arithmetic,
        weighting="person",
        max_rows=None,
        max_sample_weight=None,
        ledger=ledger,
        random_state=random_state,
    ).fit(X, groups=groups)
    counts, n, sigma = model.value_
    shares = np.clip(np.array(counts) / n, 0.0, 1.0)
    names = tuple(getattr(model, "feature_names_in_", [f"x{j}" for j in range(int(width))]))
    return ClippingReport(names, shares[:, 0], shares[:, 2], sigma / n, model.certificate_)


def _inside(low: float, high: float) -> Array:
    """Edges of three bins, of which the middle one is [low, high]."""
    margin = max(high - low, abs(high), 1.0)
    return np.array([low - margin, low, np.nextafter(high, np.inf), high + 2 * margin])
