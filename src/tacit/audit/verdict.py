"""Does an observation contradict a certificate? Exact for any certificate that can state δ(ε)."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tacit.audit._inputs import Array
from tacit.errors import InvalidInput

__all__ = ["Certificate", "Verdict", "certified_delta", "certified_epsilon", "judge_epsilon", "judge_rates"]

_MAX_EPSILON = 30.0
_GRID = 301
_FINE_GRID = 41


class Certificate(Protocol):
    """A claim about a mechanism: it is (ε, δ(ε))-DP for every ε ≥ 0, in both directions of a pair."""

    def delta(self, epsilon: float) -> float:
        """The certified δ at ε."""
        ...

    def epsilon(self, delta: float) -> float:
        """The certified ε at δ."""
        ...


@dataclass(frozen=True)
class Verdict:
    """Whether an audit contradicts a certificate.

    Formal guarantee: if the certificate is true for the audited pair, P[violated] ≤ 1 − confidence. A
    verdict "consistent" proves nothing: a stronger attack may still win.

    Attributes:
        violated: the observation is impossible under the certificate, at this confidence.
        message: one line to read.
        confidence: of the statement.
        epsilon: where observation and claim are furthest apart (or least, if consistent).
        observed_delta: with this confidence the mechanism's δ at that ε is at least this.
        certified_delta: what the certificate says there.
    """

    violated: bool
    message: str
    confidence: float
    epsilon: float
    observed_delta: float
    certified_delta: float

    def __str__(self) -> str:
        return self.message


def judge_rates(
    alpha_up: float,
    beta_up: float,
    certificate: Certificate,
    *,
    confidence: float,
    claim: tuple[str, float, float] | None,
) -> Verdict:
    """Judge upper bounds on both error rates of one test.

    (ε, δ)-DP bounds the power of every test: P[E | D2] ≤ e^ε P[E | D] + δ, and the same with D and D2
    exchanged. For the event E = "the test says D2" and its complement, the rates contradict δ(·) iff

        1 − β_up > e^ε α_up + δ(ε)    or    1 − α_up > e^ε β_up + δ(ε)    for some ε ≥ 0.

    No multiplicity correction is due: all inequalities follow from the same two bounds.

    Args:
        alpha_up: upper bound on the false positive rate.
        beta_up: upper bound on the false negative rate.
        certificate: the claim.
        confidence: with which both bounds hold together.
        claim: (symbol, observed lower bound, certified value) to quote, or None.

    Returns:
        The verdict.
    """
    # Beyond log((1 − β)/α) an inequality cannot hold, whatever the certificate says.
    reach = max(math.log(max(1 - b, 1e-300) / a) for a, b in ((alpha_up, beta_up), (beta_up, alpha_up)))
    high = min(_MAX_EPSILON, max(reach, 0.0))
    coarse = np.linspace(0.0, high, _GRID)
    top, _, _ = _widest_gap(alpha_up, beta_up, certificate, coarse)
    step = high / (_GRID - 1)
    fine = np.linspace(max(top - step, 0.0), min(top + step, high), _FINE_GRID)
    epsilon, observed, claimed = _widest_gap(alpha_up, beta_up, certificate, fine)
    violated = observed > claimed
    if claim is None or violated != (claim[1] > claim[2]):
        # The certificate is not fully described by that one number: quote the δ that decided instead.
        claim = (f"δ({epsilon:.3g})", max(observed, 0.0), claimed)
    return Verdict(
        violated=violated,
        message=_message(violated, claim, confidence),
        confidence=confidence,
        epsilon=epsilon,
        observed_delta=max(observed, 0.0),
        certified_delta=claimed,
    )


def _widest_gap(
    alpha_up: float, beta_up: float, certificate: Certificate, epsilon: Array
) -> tuple[float, float, float]:
    # (ε, observed δ, certified δ) where the observation exceeds the claim most.
    claimed = certified_delta(certificate, epsilon)
    growth = np.exp(epsilon)
    observed = np.maximum(1 - beta_up - growth * alpha_up, 1 - alpha_up - growth * beta_up)
    worst = int(np.argmax(observed - claimed))
    return float(epsilon[worst]), float(observed[worst]), float(claimed[worst])


def judge_epsilon(epsilon_lower: float, delta: float, certificate: Certificate, *, confidence: float) -> Verdict:
    """Judge a lower bound on ε at one δ: it contradicts a smaller certified ε.

    Args:
        epsilon_lower: the bound.
        delta: the δ it holds at.
        certificate: the claim.
        confidence: of the bound.

    Returns:
        The verdict.
    """
    claimed = certified_epsilon(certificate, delta)
    violated = epsilon_lower > claimed
    return Verdict(
        violated=violated,
        message=_message(violated, (f"ε({delta:.3g})", epsilon_lower, claimed), confidence),
        confidence=confidence,
        epsilon=epsilon_lower,
        observed_delta=delta,
        certified_delta=float(certified_delta(certificate, np.array([epsilon_lower]))[0]),
    )


def certified_delta(certificate: Certificate, epsilon: Array) -> Array:
    """δ(ε) of a certificate on a grid, refused unless each value is a probability.

    Args:
        certificate: the claim.
        epsilon: the grid.

    Returns:
        The certified values.

    Raises:
        InvalidInput: if there is no ``delta`` or it returns anything else (a NaN compares as no violation).
    """
    method = getattr(certificate, "delta", None)
    if not callable(method):
        raise InvalidInput("certificate must have a method delta(epsilon) that returns the certified δ")
    answers = [method(float(e)) for e in epsilon]
    values = np.array([float(a) if isinstance(a, numbers.Real) else math.nan for a in answers])
    if not ((values >= 0) & (values <= 1)).all():
        raise InvalidInput("certificate.delta(epsilon) must return a number in [0, 1] for every epsilon ≥ 0")
    return values


def certified_epsilon(certificate: Certificate, delta: float) -> float:
    """ε(δ) of a certificate, refused unless it is a number ≥ 0 (infinity allowed).

    Args:
        certificate: the claim.
        delta: the δ to ask for.

    Returns:
        The certified ε.

    Raises:
        InvalidInput: if there is no ``epsilon`` or it returns anything else.
    """
    method = getattr(certificate, "epsilon", None)
    if not callable(method):
        raise InvalidInput("certificate must have a method epsilon(delta) that returns the certified ε")
    answer = method(delta)
    value = float(answer) if isinstance(answer, numbers.Real) else math.nan
    if not value >= 0:
        raise InvalidInput("certificate.epsilon(delta) must return a number ≥ 0")
    return value


def _message(violated: bool, claim: tuple[str, float, float], confidence: float) -> str:
    symbol, observed, certified = claim
    return (
        f"{'VIOLATED' if violated else 'consistent'}: {symbol} ≥ {observed:.3g} with "
        f"{100 * confidence:.4g} % confidence, certificate says {certified:.3g}"
    )
