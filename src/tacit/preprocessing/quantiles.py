"""Private quantiles from one noisy histogram, and a scaler made of them: for features with heavy tails."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency
from tacit.preprocessing._affine import AffineScaler, Box
from tacit.preprocessing._grid import grids_of, quantiles_of
from tacit.preprocessing._release import Ticket, buy
from tacit.preprocessing._table import checked, columns, shape_of, table, width
from tacit.run.sums.histogram import HistogramSum

__all__ = ["DPQuantileScaler", "private_quantiles"]

Array = NDArray[np.float64]


def _levels(q: object, name: str) -> Array:
    levels = _validate.real_array(name, q)
    if levels.size == 0 or levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
        raise InvalidInput(
            f"{name} must lie strictly between 0 and 1: the extremes of private data are those of its public bounds"
        )
    return levels


def _release(ticket: Ticket, X: Array, grids: list[Array], q: Array) -> Array:
    """Quantiles (len(q), p) of all features from one joint histogram."""
    live = [j for j, edges in enumerate(grids) if len(edges) > 1]
    out = np.array([np.full(len(q), edges[0]) for edges in grids]).T
    if not live:
        return out
    total = HistogramSum(X[:, live], [grids[j] for j in live])
    noisy, _ = ticket.release(total)
    counts = np.split(noisy, np.cumsum(total.bins)[:-1])
    n = float(len(X))
    if ticket.adjacency is Adjacency.ADD_REMOVE:  # n is secret; every feature's counts add up to it
        n = max(float(noisy.sum()) / len(live), 1.0)
    for j, c in zip(live, counts, strict=True):
        out[:, j] = quantiles_of(c, grids[j], n, q)
    return out


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
    budget: Any = None,
    random_state: int | None = None,
) -> tuple[Any, Certificate]:
    """Quantiles of one column, or of each column of a table, from one joint noisy histogram.

    One Gaussian release of all features' counts on public grids (Δ = √(2p) under replace-one, √p otherwise), made
    monotone by isotonic regression of its cumulative sums. With K bins the rank of the result is off by about
    σ√K/2 at worst (σ = Δ/μ), and its value by the bin it falls into.

    Formal guarantee: all quantiles together are (ε, δ)-DP for the stated relation, however many are asked for.

    Assumptions: bounds and grids are public; x is finite and holds at least one record.

    Args:
        x: (n,) or (n, p).
        q: levels strictly between 0 and 1.
        bounds: public (low, high), not needed where ``grid`` gives edges; values outside count in the end bins.
        epsilon: ε.
        delta: δ.
        bins: K.
        grid: "uniform"; "geometric" (signed logarithmic) for heavy tails; or a list with one entry per column, each of
            these or increasing edges.
        resolution: where a geometric grid turns linear around 0; by default 1e-4 × the largest bound.
        adjacency: the relation.
        budget: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        Values shaped as by ``np.quantile(x, q, axis=0)``, and the certificate.

    >>> import numpy as np
    >>> x = np.arange(10_000) % 100
    >>> (low, high), _ = private_quantiles(x, [0.25, 0.75], (0, 128), epsilon=1.0, delta=1e-6, random_state=0)
    >>> bool(abs(low - 25) < 3), bool(abs(high - 75) < 3)
    (True, True)
    """
    levels = _levels(q, "q")
    grids = grids_of(grid, bounds, columns(x), bins, resolution)
    ticket = buy(
        "private quantiles", epsilon=epsilon, delta=delta, adjacency=adjacency, budget=budget, random_state=random_state
    )
    values = _release(ticket, table(x), grids, np.atleast_1d(levels))
    values = values[0] if levels.ndim == 0 else values
    one = len(shape_of(x)) == 1
    if one and levels.ndim == 0:
        return float(values[0]), ticket.certificate
    return (values[..., 0] if one else values), ticket.certificate


class DPQuantileScaler(AffineScaler):
    """Scale features so that a private quantile interval becomes [−1, 1], and clip the rest: for heavy tails.

    z = clip((x − (b+a)/2) / ((b−a)/2), ±clip_to), a and b the two private quantiles of a feature; an interval narrower
    than the bin in its middle is widened to that bin.

    *Formal guarantee.* The fitted scaler is (ε, δ)-DP for the stated relation: one joint Gaussian release of all
    histograms, of sensitivity √(2p) under replace-one and √p otherwise. ``certificate_`` holds it.

    *Assumptions.* Bounds, grids and (ε, δ) were chosen without looking at the data; X is a finite table with at least
    one record. A fit with ``random_state`` is repeatable and marked "not private: seeded".

    Args:
        epsilon: ε of the fit.
        delta: δ of the fit.
        feature_bounds: public (low, high), numbers or one per feature; not needed where ``grid`` gives edges.
        quantiles: the two levels, strictly between 0 and 1.
        bins: bins per feature: more of them resolve better, but their noise adds up.
        grid: "uniform"; "geometric" (signed logarithmic); or one entry per feature, each of these or increasing edges.
        resolution: where a geometric grid turns linear around 0; by default 1e-4 × the largest bound.
        adjacency: "replace-one", "zero-out" or "add-remove".
        clip_to: the largest |z|.
        budget: a Ledger; the fit is reserved there before any record is read.
        random_state: None, or a seed.

    Attributes:
        quantiles_: (2, p), the private quantiles.
        center_: the middle of each interval.
        scale_: half its width.
        certificate_: the guarantee.
        n_features_in_: p.
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        feature_bounds: Any = None,
        *,
        quantiles: tuple[float, float] = (0.05, 0.95),
        bins: int = 64,
        grid: Any = "uniform",
        resolution: Any = None,
        adjacency: str = "replace-one",
        clip_to: float = 1.0,
        budget: Any = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.quantiles = quantiles
        self.bins = bins
        self.grid = grid
        self.resolution = resolution
        self.adjacency = adjacency
        self.clip_to = clip_to
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: Any, y: object = None) -> Self:
        """Spend (ε, δ) on two quantiles of every feature.

        Args:
            X: (n, p).
            y: ignored.

        Returns:
            Itself.

        Raises:
            InvalidInput: if the quantiles are not two increasing levels.
        """
        levels = _levels(self.quantiles, "quantiles")
        if levels.shape != (2,) or levels[0] >= levels[1]:
            raise InvalidInput("quantiles must be two increasing levels such as (0.05, 0.95)")
        grids = grids_of(self.grid, self.feature_bounds, width(self, X), self.bins, self.resolution)
        reach = _validate.positive(clip_to=self.clip_to)
        ticket = buy(
            "private quantiles",
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            budget=self.budget,
            random_state=self.random_state,
        )
        self.quantiles_ = _release(ticket, checked(self, X, reset=True), grids, levels)
        self.center_ = self.quantiles_.mean(axis=0)
        widths = np.array([_bin_width(edges, c) for edges, c in zip(grids, self.center_, strict=True)])
        self.scale_ = np.maximum(np.diff(self.quantiles_, axis=0)[0], widths) / 2
        self.certificate_ = ticket.certificate
        self._box = Box(np.array([edges[0] for edges in grids]), np.array([edges[-1] for edges in grids]))
        self._centre, self._scale, self._reach = self.center_, self.scale_, reach
        return self


def _bin_width(edges: Array, x: float) -> float:
    """The width of the bin that holds x; 2 for a feature without a choice, so that its scale is 1."""
    if len(edges) < 2:
        return 2.0
    k = min(int(np.searchsorted(edges, x, side="right")), len(edges) - 1)
    return float(edges[k] - edges[k - 1])
