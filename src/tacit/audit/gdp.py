"""A lower bound on μ of Gaussian differential privacy, from many runs on two neighbours."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from tacit import _validate
from tacit.audit._attack import ThresholdAudit, attack
from tacit.audit._inputs import Array, Sampler, Statistic
from tacit.audit.verdict import Certificate

__all__ = ["GdpAudit", "audit_gdp"]


def _mu_bound(alpha_up: Array, beta_up: Array) -> Array:
    # Φ⁻¹(1 − α_up) − Φ⁻¹(β_up), before the floor at zero.
    return np.asarray(-ndtri(alpha_up) - ndtri(beta_up))


@dataclass(frozen=True, eq=False, kw_only=True)
class GdpAudit(ThresholdAudit):
    """The result of ``audit_gdp``; ``mu_lower`` is the bound and ``verdict`` compares it with a claim."""

    @property
    def mu_lower(self) -> float:
        """With this confidence the pair is not μ-GDP for any μ below; zero if nothing was shown."""
        bound = _mu_bound(np.asarray(self.false_positive_upper), np.asarray(self.false_negative_upper))
        return max(0.0, float(bound))

    def epsilon_lower(self, delta: float) -> float:
        """The ε(δ) of a ``mu_lower``-GDP mechanism.

        Args:
            delta: in (0, 1).

        Returns:
            The ε that a μ-GDP claim contradicted here would at least have to admit. It is a bound on the ε
            of *Gaussian* claims; for any other mechanism use ``audit_epsilon``.
        """
        from tacit.accounting import gdp_epsilon

        return float(gdp_epsilon(self.mu_lower, _validate.delta(delta)))

    @property
    def headline(self) -> str:
        """The lower bound in a few words."""
        return f"GDP audit: μ ≥ {self.mu_lower:.4g}"

    def _claim(self, certificate: Certificate) -> tuple[str, float, float] | None:
        mu = getattr(certificate, "mu", None)
        if isinstance(mu, bool) or not isinstance(mu, numbers.Real) or math.isnan(mu):
            return None
        return "μ", self.mu_lower, float(mu)


def audit_gdp(
    sample_on_D: Sampler,
    sample_on_D2: Sampler,
    n_runs: int,
    *,
    confidence: float = 0.95,
    pilot: float = 0.1,
    statistic: Statistic | None = None,
) -> GdpAudit:
    """Bound μ from below by attacking the mechanism on two neighbouring datasets.

    A mechanism is μ-GDP iff every test between D and D2 with error rates α, β satisfies
    Φ⁻¹(1 − α) − Φ⁻¹(β) ≤ μ (Dong, Roth, Su 2022, Definition 2.6). One test is chosen on
    the pilot runs, its errors are counted on the others, and

        μ_lower = max(0, Φ⁻¹(1 − α_up) − Φ⁻¹(β_up))

    with Clopper–Pearson upper bounds at level (1 − confidence)/2 each (Nasr et al. 2023, "Tight Auditing of
    Differentially Private Machine Learning").

    Formal guarantee: if the mechanism is μ-GDP on this pair, P[mu_lower > μ] ≤ 1 − confidence, whatever
    the statistic and whatever the distribution of the outputs. With n fresh runs a Gaussian pair loses
    about 2.5 · z/√n for μ ≤ 1, where z is the normal quantile of the level, e.g. 0.05 at n = 9000 and 95 %.

    Assumptions: the runs of one side are independent and identically distributed; the two sides may be
    dependent (common random numbers are fine). ``statistic`` scores each row by itself and was fixed before
    these runs; a statistic tuned on them voids the guarantee.

    Args:
        sample_on_D: ``sample_on_D(k)`` returns the outputs of k independent runs on D, shape (k,) or (k, p).
            It is called once, with ``n_runs``.
        sample_on_D2: the same on the neighbour D2.
        n_runs: runs a side.
        confidence: in (0, 1).
        pilot: the share of the runs that chooses the test, in (0, 0.5].
        statistic: maps outputs to one score a row. None takes scalars as they are and vectors through a
            regularised linear discriminant fitted to two thirds of the pilot.

    Returns:
        The audit.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> audit = audit_gdp(lambda k: rng.normal(size=k), lambda k: rng.normal(size=k) + 1, 10_000)
    >>> 0.9 < audit.mu_lower < 1
    True
    """
    observed = attack(
        sample_on_D,
        sample_on_D2,
        n_runs,
        confidence=confidence,
        pilot=pilot,
        statistic=statistic,
        bound=_mu_bound,
    )
    return GdpAudit(**observed)
