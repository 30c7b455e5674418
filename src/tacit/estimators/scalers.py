"""Scalers that pay for what they learn: means and variances, or quantiles, from one release."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators.base import Table
from tacit.estimators.fitted import CHANGED, agree, check_numbers
from tacit.estimators.one_release import Moments, OneRelease, PlannedMoments, PlannedQuantiles, levels_of
from tacit.inputs.parameters import bounds_of, grids_of
from tacit.ledger import Ledger
from tacit.maps import FeatureBounds
from tacit.maps.scaler import ScalerMixin, scaled_norm
from tacit.maps.steps import norm_of_rows
from tacit.solvers.base import Budget

__all__ = ["DPQuantileScaler", "DPStandardScaler"]

Array = NDArray[np.float64]
ROUNDING = 1e-14
"""What m₂ − m² may be wrong by in floating point, in units of the box."""


@norm_of_rows(scaled_norm)
class DPStandardScaler(ScalerMixin, OneRelease):
    """Standardise features by private means and variances: z = clip((x − m)/s, ±clip_to).

    With u = x mapped to [−1, 1] by public bounds, one Gaussian release of (Σu_j, Σu_j²) over all features gives

        m_j = S1_j/n,    s_j² = max(S2_j/n − m_j², 2τ),    τ = σ/n,  σ = Δ/μ,  Δ = 2√p under replace-one,

    where 2τ is the noise level of a variance: features that vary less than the noise are not blown up. Outputs lie
    within ±clip_to by construction, so a private estimator behind it may state feature_bounds=(−clip_to, clip_to).

    *Formal guarantee.* The fitted scaler is μ-GDP with the largest μ that implies (ε, δ)-DP, for the stated relation;
    ``certificate_`` holds it. Under add/remove n is secret: the release counts the records, too, and divides by that.

    *Assumptions.* Bounds, clip and (ε, δ) were chosen without looking at the data; X is a finite table with at least
    one record. A fit with ``random_state`` is repeatable and marked "not private: seeded".

    Args:
        epsilon: ε of the fit.
        delta: δ of the fit.
        feature_bounds: public (low, high), numbers or one per feature; values outside are clipped silently.
        adjacency: "replace-one", "zero-out" or "add-remove".
        clip_to: the largest |z|.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        ledger: a Ledger; the fit is reserved there before any record is read.
        random_state: None, or a seed.

    Attributes:
        mean_: private means.
        scale_: private standard deviations, floored at the noise level.
        certificate_: the guarantee.
        n_features_in_: p.
    """

    purpose = "private standardisation"

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        feature_bounds: Any = None,
        *,
        adjacency: str = "replace-one",
        clip_to: float = 5.0,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon  # type: ignore[assignment]
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.adjacency = adjacency
        self.clip_to = clip_to
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.random_state = random_state

    def _planned(self, table: Table, budget: Budget) -> PlannedMoments:
        box = FeatureBounds.centred(*bounds_of("feature_bounds", self.feature_bounds, table.p))
        _validate.positive(clip_to=self.clip_to)
        return PlannedMoments(*self._release(table, budget), box)

    def _fitted(self, planned: PlannedMoments, solution: Moments, table: Table) -> dict[str, Any]:
        box = planned.box
        variance = np.clip(solution.variance, 2 * solution.noise + ROUNDING, 1.0)
        mean = box.inverse(solution.mean)
        scale = box.safe_scale * np.where(box.fixed, 1.0, np.sqrt(variance))
        scaler = FeatureBounds(box.low, box.high, mean, scale, reach=float(self.clip_to))
        return {"mean_": mean, "scale_": scale, "_map": scaler}

    def _check_fitted(self) -> None:
        super()._check_fitted()
        low, high = bounds_of("feature_bounds", self.feature_bounds, self.n_features_in_)
        _check_map(self, ("mean_", "scale_"), low, high)


@norm_of_rows(scaled_norm)
class DPQuantileScaler(ScalerMixin, OneRelease):
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
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        ledger: a Ledger; the fit is reserved there before any record is read.
        random_state: None, or a seed.

    Attributes:
        quantiles_: (2, p), the private quantiles.
        center_: the middle of each interval.
        scale_: half its width.
        certificate_: the guarantee.
        n_features_in_: p.
    """

    purpose = "private quantiles"

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
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon  # type: ignore[assignment]
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.quantiles = quantiles
        self.bins = bins
        self.grid = grid
        self.resolution = resolution
        self.adjacency = adjacency
        self.clip_to = clip_to
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.random_state = random_state

    def _planned(self, table: Table, budget: Budget) -> PlannedQuantiles:
        levels = levels_of("quantiles", self.quantiles)
        if levels.shape != (2,) or levels[0] >= levels[1]:
            raise InvalidInput("quantiles must be two increasing levels such as (0.05, 0.95)")
        grids = grids_of(self.grid, self.feature_bounds, table.p, self.bins, self.resolution)
        _validate.positive(clip_to=self.clip_to)
        return PlannedQuantiles(*self._release(table, budget), grids, levels)

    def _fitted(self, planned: PlannedQuantiles, solution: Array, table: Table) -> dict[str, Any]:
        center = solution.mean(axis=0)
        widths = np.array([_bin_width(edges, c) for edges, c in zip(planned.grids, center, strict=True)])
        scale = np.maximum(np.diff(solution, axis=0)[0], widths) / 2
        low, high = (np.array([edges[end] for edges in planned.grids]) for end in (0, -1))
        scaler = FeatureBounds(low, high, center, scale, reach=float(self.clip_to))
        return {"quantiles_": solution, "center_": center, "scale_": scale, "_map": scaler}

    def _check_fitted(self) -> None:
        super()._check_fitted()
        check_numbers("quantiles_", getattr(self, "quantiles_", None), (2, self.n_features_in_))
        _check_map(self, ("center_", "scale_"), self._map.low, self._map.high)


def _check_map(scaler: Any, names: tuple[str, str], low: Array, high: Array) -> None:
    """What a scaler shows is what it applies."""
    p = scaler.n_features_in_
    for name in names:
        check_numbers(name, getattr(scaler, name, None), (p,), least=0.0 if name == "scale_" else -np.inf)
    centre, scale = (getattr(scaler, name) for name in names)
    for value in (low, high):
        check_numbers("feature_bounds", value, (p,))
    if not agree(FeatureBounds(low, high, centre, scale, reach=float(scaler.clip_to)), scaler._map):
        raise InvalidInput(f"its map is not that of {' and '.join(names)}, feature_bounds and clip_to: {CHANGED}")


def _bin_width(edges: Array, x: float) -> float:
    """The width of the bin that holds x; 2 for a feature without a choice, so that its scale is 1."""
    if len(edges) < 2:
        return 2.0
    k = min(int(np.searchsorted(edges, x, side="right")), len(edges) - 1)
    return float(edges[k] - edges[k - 1])
