"""Which charges fit: privacy filters that stay valid when budgets are chosen adaptively.

Every reservation may depend on all earlier outputs, so the rule that admits it must be a *filter*: a
stopping rule under which the total guarantee holds for every adaptive analyst.

**Gaussian filter.** Let B be the largest μ such that μ-GDP implies (ε_G, δ_G)-DP. Admitting μᵢ-GDP runs
while Σ μᵢ² ≤ B² is B-GDP, hence (ε_G, δ_G)-DP, even if μᵢ is chosen in view of the outputs before it
(Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).

**Basic filter.** Admitting (εᵢ, δᵢ)-DP runs while Σ εᵢ ≤ ε_b and Σ δᵢ ≤ δ_b is (ε_b, δ_b)-DP (Rogers,
Roth, Ullman and Vadhan 2016). The pair (εᵢ, δᵢ) is fixed at reservation, before the output.

**Both, interleaved.** With a split fixed in advance the total is (ε_G + ε_b, δ_G + δ_b)-DP. Proof. Let
H(x) be the hockey-stick divergence at level e^x, and h_b(x) that between N(b, 1) and N(0, 1). By backward
induction, an analyst with (b, e, d) left satisfies H(x + e) ≤ h_b(x) + d for all real x:

* A basic run (ε₁, δ₁) with output laws p, q. Put m = min(p, e^{ε₁} q), which loses at most δ₁ of p's
  mass. Where p is replaced by m, q ≥ e^{−ε₁} m, so what follows is needed at level x + e − ε₁, and the
  induction gives H(x + e) ≤ δ₁ + (h_b(x) + d − δ₁): ε shifts by ε₁ and δ₁ is added, whatever happens.
* A Gaussian run μ₁ with loss ℓ = log p/q. Averaging over it, H(x + e) ≤ E_p[h_{b'}(x − ℓ)] + d with
  b'² = b² − μ₁². The mean is the divergence of the product (p, q) ⊗ (N(b', 1), N(0, 1)), and dominated
  pairs stay dominated under products: it is at most h_b(x).

A split chosen in hindsight is *not* covered: an analyst who sees a loss and then picks the more favourable
of two readings of it gets the maximum, not the mean. Hence the split is part of the ledger's limits, or
decided by the kind of the very first reservation, which no output has influenced.

Sums are exact (rational arithmetic on the stored floats). A sum may exceed its limit by the relative slack
1e-12, so that ten charges of 0.1 fit a limit of 1; the guarantee is that of limits larger by this much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from tacit.errors import BudgetExhausted, InvalidInput, LedgerError
from tacit.ledger.certificate import Claim

__all__ = [
    "BASIC",
    "GAUSSIAN",
    "Charge",
    "Limits",
    "Room",
    "Tally",
    "admits",
    "basic_charge",
    "gaussian_charge",
    "room",
]

GAUSSIAN = "gaussian"
BASIC = "basic"
_SLACK = 1 + Fraction(1, 10**12)


@dataclass(frozen=True, slots=True)
class Charge:
    """What one reservation costs: μ (Gaussian), or a pair (ε, δ) (basic)."""

    kind: str
    mu: float | None = None
    epsilon: float | None = None
    delta: float | None = None

    def __str__(self) -> str:
        if self.kind == GAUSSIAN:
            return f"μ = {self.mu:.9g}"
        return f"(ε, δ) = ({self.epsilon:.9g}, {self.delta:.9g})"


@dataclass(frozen=True, slots=True)
class Tally:
    """Exact sums over the charges so far, and the kind of the first."""

    squares: Fraction = Fraction(0)
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    first: str | None = None

    def add(self, charge: Charge) -> Tally:
        """Return the tally after one more charge."""
        first = self.first or charge.kind
        if charge.kind == GAUSSIAN:
            return replace(self, squares=self.squares + Fraction(charge.mu or 0.0) ** 2, first=first)
        return replace(
            self,
            epsilon=self.epsilon + Fraction(charge.epsilon or 0.0),
            delta=self.delta + Fraction(charge.delta or 0.0),
            first=first,
        )

    @property
    def mu(self) -> float:
        """√Σμᵢ²: the guarantee of the Gaussian part so far."""
        return math.sqrt(self.squares)


@dataclass(frozen=True, slots=True)
class Limits:
    """A ledger's budget (ε, δ) and its split; ``gaussian_mu`` is B, kept so that opening needs no search.

    Attributes:
        epsilon: the total ε.
        delta: the total δ.
        basic_share: the share s of the basic part, or None: all for the kind that comes first.
        gaussian_mu: the largest μ that implies (ε_G, δ_G)-DP, 0 if there is no Gaussian part.
    """

    epsilon: float
    delta: float
    basic_share: float | None
    gaussian_mu: float

    @classmethod
    def build(cls, epsilon: float, delta: float, basic_share: float | None = None) -> Limits:
        """Compute B for limits that are valid one by one.

        Args:
            epsilon: positive and finite.
            delta: in (0, 1).
            basic_share: in [0, 1], or None.

        Returns:
            The limits.

        Raises:
            InvalidInput: if a part of the split would be empty.
        """
        share = basic_share or 0.0
        if share == 1:
            return cls(epsilon, delta, share, 0.0)
        rest = _rest(epsilon, share * epsilon), _rest(delta, share * delta)
        if min(rest) <= 0 or (share and min(share * epsilon, share * delta) <= 0):
            raise InvalidInput(f"basic_share={share!r} leaves one part empty: choose it further from 0 and 1")
        from tacit.accounting import gdp_mu  # heavy, and needed only at creation

        mu = float(gdp_mu(*rest))
        if not 0 < mu < math.inf:
            raise InvalidInput(f"epsilon={epsilon!r} and delta={delta!r} allow no Gaussian run: raise them")
        return cls(epsilon, delta, basic_share, mu)

    @property
    def gaussian_delta(self) -> float:
        """δ_G, the δ of the Gaussian part."""
        return _rest(self.delta, (self.basic_share or 0.0) * self.delta)

    def parts(self, first: str | None) -> tuple[float, float, float]:
        """Return (B, ε_b, δ_b), given the kind of the first charge; before it, either kind may take all."""
        share = self.basic_share
        if share is None:
            share = 1.0 if first != GAUSSIAN else 0.0
        mu = 0.0 if self.basic_share is None and first == BASIC else self.gaussian_mu
        return mu, share * self.epsilon, share * self.delta


@dataclass(frozen=True, slots=True)
class Room:
    """What still fits, each on its own: μ in the Gaussian part, (ε, δ) in the basic part."""

    mu: float
    epsilon: float
    delta: float


def _rest(total: float, part: float) -> float:
    """Return the largest float whose exact sum with ``part`` stays within ``total``."""
    rest = total - part
    return math.nextafter(rest, -math.inf) if Fraction(rest) + Fraction(part) > Fraction(total) else rest


def room(limits: Limits, tally: Tally) -> Room:
    """Return what still fits after ``tally``, never negative."""
    mu, epsilon, delta = (Fraction(limit) for limit in limits.parts(tally.first))
    return Room(
        mu=math.sqrt(max(mu**2 - tally.squares, Fraction(0))),
        epsilon=max(float(epsilon - tally.epsilon), 0.0),
        delta=max(float(delta - tally.delta), 0.0),
    )


def admits(limits: Limits, tally: Tally, charge: Charge) -> bool:
    """Whether the filter lets this charge pass after ``tally``.

    Args:
        limits: the ledger's limits.
        tally: the sums so far.
        charge: finite numbers.

    Returns:
        True if the sums with this charge stay within the limits, up to the slack.
    """
    mu, epsilon, delta = (Fraction(limit) for limit in limits.parts(tally.first))
    if (mu if charge.kind == GAUSSIAN else epsilon) == 0:
        return False  # the ledger has no such part, and even a free charge would have to be one of it
    after = tally.add(charge)
    return after.squares <= mu**2 * _SLACK and after.epsilon <= epsilon * _SLACK and after.delta <= delta * _SLACK


def gaussian_charge(limits: Limits, tally: Tally, claim: Claim) -> Charge | None:
    """The charge μ, if the certificate is μ-GDP and the ledger has a Gaussian part.

    Args:
        limits: the ledger's limits.
        tally: the sums so far.
        claim: the certificate's content.

    Returns:
        A charge that fits, or None: this certificate is for the basic part.

    Raises:
        BudgetExhausted: if μ does not fit.
        LedgerError: if the certificate is not μ-GDP and there is no basic part.
    """
    mu_limit, epsilon_limit, _ = limits.parts(tally.first)
    if claim.mu is not None and mu_limit > 0:
        charge = Charge(GAUSSIAN, mu=claim.mu)
        if math.isinf(claim.mu) or not admits(limits, tally, charge):
            left = room(limits, tally).mu
            raise BudgetExhausted(
                f"the reservation asks for {charge} and μ = {left:.9g} of {mu_limit:.9g} remains (squares add"
                f" up): ask for μ ≤ {left:.9g} by more noise or fewer steps, or end the project here"
            )
        return charge
    if epsilon_limit == 0:
        raise LedgerError(
            "this ledger is Gaussian only and the certificate is not μ-GDP (mu is None): use another ledger,"
            " created with basic_share=… for runs of this kind"
        )
    return None


def basic_charge(limits: Limits, tally: Tally, claim: Claim, delta: float | None) -> Charge:
    """The charge (ε(δᵢ), δᵢ).

    Args:
        limits: the ledger's limits.
        tally: the sums so far.
        claim: the certificate's content; its ε(δ) is evaluated.
        delta: δᵢ; None for half of the remaining δ, or all of it if only that fits.

    Returns:
        A charge that fits.

    Raises:
        BudgetExhausted: if none does.
    """
    left = room(limits, tally)
    if delta is None and left.delta == 0:
        raise BudgetExhausted(
            "the reservation needs a δ and none remains in the basic part: pass delta=0.0 if the run is pure"
            " ε-DP, or end the project here"
        )
    for candidate in (delta,) if delta is not None else (left.delta / 2, left.delta):
        epsilon = claim.epsilon(candidate)
        charge = Charge(BASIC, epsilon=epsilon, delta=candidate)
        if math.isfinite(epsilon) and admits(limits, tally, charge):
            return charge
    raise BudgetExhausted(
        f"the reservation asks for {charge} and (ε, δ) = ({left.epsilon:.9g}, {left.delta:.9g}) remains in"
        " the basic part: ask for less by more noise, fewer steps or another delta=…, or end the project here"
    )
