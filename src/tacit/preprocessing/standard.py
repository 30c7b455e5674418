"""Private standardisation: means and variances from one noisy sum."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tacit import _validate
from tacit.preprocessing._affine import AffineScaler, Box
from tacit.preprocessing._moments import release_moments
from tacit.preprocessing._release import buy
from tacit.preprocessing._table import checked, width

__all__ = ["DPStandardScaler"]

ROUNDING = 1e-14
"""What m₂ − m² may be wrong by in floating point, in units of the box."""


class DPStandardScaler(AffineScaler):
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
        budget: a Ledger; the fit is reserved there before any record is read.
        random_state: None, or a seed.

    Attributes:
        mean_: private means.
        scale_: private standard deviations, floored at the noise level.
        certificate_: the guarantee.
        n_features_in_: p.
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        feature_bounds: Any = None,
        *,
        adjacency: str = "replace-one",
        clip_to: float = 5.0,
        budget: Any = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.adjacency = adjacency
        self.clip_to = clip_to
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: Any, y: object = None) -> Self:
        """Spend (ε, δ) on means and variances.

        Args:
            X: (n, p).
            y: ignored.

        Returns:
            Itself.
        """
        box = Box.of(self.feature_bounds, width(self, X))
        reach = _validate.positive(clip_to=self.clip_to)
        ticket = buy(
            "private standardisation",
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            budget=self.budget,
            random_state=self.random_state,
        )
        moments = release_moments(ticket, checked(self, X, reset=True), box)
        variance = np.minimum(np.maximum(moments.variance, 2 * moments.noise + ROUNDING), 1.0)
        spread = np.where(box.live, np.sqrt(variance), 1.0)
        self.mean_ = box.clip(box.centre + box.half * moments.mean)
        self.scale_ = box.half * spread
        self.certificate_ = ticket.certificate
        self._box, self._centre, self._scale, self._reach = box, self.mean_, self.scale_, reach
        return self
