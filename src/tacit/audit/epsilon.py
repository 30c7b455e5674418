"""A lower bound on ε at one δ, from many runs on two neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.audit import _inputs
from tacit.audit._attack import ThresholdAudit, attack
from tacit.audit._inputs import Array, Sampler, Statistic
from tacit.audit.verdict import Certificate, certified_epsilon

__all__ = ["EpsilonAudit", "audit_epsilon"]


def _epsilon_bound(alpha_up: Array, beta_up: Array, delta: float) -> Array:
    # The larger of log((1 − δ − β_up)/α_up) and log((1 − δ − α_up)/β_up), before the floor at zero.
    tiny = np.finfo(float).tiny  # a test without power bounds nothing: log of tiny, floored later
    one_way = np.log(np.maximum(1 - delta - beta_up, tiny)) - np.log(alpha_up)
    other_way = np.log(np.maximum(1 - delta - alpha_up, tiny)) - np.log(beta_up)
    return np.asarray(np.maximum(one_way, other_way))


@dataclass(frozen=True, eq=False, kw_only=True)
class EpsilonAudit(ThresholdAudit):
    """The result of ``audit_epsilon``.

    Attributes:
        delta: the δ that ``epsilon_lower`` holds at.
    """

    delta: float

    @property
    def epsilon_lower(self) -> float:
        """With this confidence the pair is not (ε, δ)-DP for any ε below; zero if nothing was shown."""
        alpha_up, beta_up = np.asarray(self.false_positive_upper), np.asarray(self.false_negative_upper)
        return max(0.0, float(_epsilon_bound(alpha_up, beta_up, self.delta)))

    @property
    def headline(self) -> str:
        """The lower bound in a few words."""
        return f"(ε, δ) audit: ε ≥ {self.epsilon_lower:.4g} at δ = {self.delta:.3g}"

    def _claim(self, certificate: Certificate) -> tuple[str, float, float] | None:
        return f"ε({self.delta:.3g})", self.epsilon_lower, certified_epsilon(certificate, self.delta)


def audit_epsilon(
    sample_on_D: Sampler,
    sample_on_D2: Sampler,
    n_runs: int,
    delta: float,
    *,
    confidence: float = 0.95,
    pilot: float = 0.1,
    statistic: Statistic | None = None,
) -> EpsilonAudit:
    """Bound ε at one δ from below by attacking the mechanism on two neighbouring datasets.

    Every test between D and D2 of an (ε, δ)-DP mechanism has 1 − β ≤ e^ε α + δ and 1 − α ≤ e^ε β + δ
    (Kairouz, Oh, Viswanath 2015, Theorem 2.1), so with Clopper–Pearson upper bounds at level
    (1 − confidence)/2 each (Jagielski, Ullman, Oprea 2020; Nasr et al. 2021)

        ε_lower = max(0, log((1 − δ − β_up)/α_up), log((1 − δ − α_up)/β_up)).

    Formal guarantee: if the mechanism is (ε, δ)-DP on this pair, P[epsilon_lower > ε] ≤ 1 − confidence.

    Assumptions: as for ``audit_gdp``. The bound can never exceed about log(n/log(2/(1 − confidence))) for n
    fresh runs, since α_up cannot fall below that: for a Gaussian claim ``audit_gdp`` sees much further.

    Args:
        sample_on_D: ``sample_on_D(k)`` returns the outputs of k independent runs on D, shape (k,) or (k, p).
            It is called once, with ``n_runs``.
        sample_on_D2: the same on the neighbour D2.
        n_runs: runs a side.
        delta: the δ to audit at, in [0, 1).
        confidence: in (0, 1).
        pilot: the share of the runs that chooses the test, in (0, 0.5].
        statistic: maps outputs to one score a row; None chooses one as ``audit_gdp`` does.

    Returns:
        The audit.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> audit = audit_epsilon(lambda k: rng.laplace(size=k), lambda k: rng.laplace(size=k) + 1, 10_000, 1e-6)
    >>> 0.8 < audit.epsilon_lower < 1
    True
    """
    checked = _inputs.delta_or_zero(delta)
    observed = attack(
        sample_on_D,
        sample_on_D2,
        n_runs,
        confidence=confidence,
        pilot=pilot,
        statistic=statistic,
        bound=lambda alpha_up, beta_up: _epsilon_bound(alpha_up, beta_up, checked),
    )
    return EpsilonAudit(**observed, delta=checked)
