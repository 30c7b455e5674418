"""What a ledger answers when asked how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from tacit._digits import format_down, format_up
from tacit.ledger.chain import Tip
from tacit.ledger.filters import room

__all__ = ["Remaining", "Spent", "remaining", "spent"]


@dataclass(frozen=True, slots=True)
class Spent:
    """The guarantee of everything reserved so far.

    Attributes:
        epsilon: ε_G(√Σμᵢ², δ_G) + Σεᵢ, valid at ``delta``.
        delta: the ledger's δ.
        mu: √Σμᵢ² of the Gaussian part.
        basic_epsilon: Σεᵢ of the basic part.
        basic_delta: Σδᵢ of the basic part.
        entries: how many reservations there are.
    """

    epsilon: float
    delta: float
    mu: float
    basic_epsilon: float
    basic_delta: float
    entries: int

    def __str__(self) -> str:
        many = "1 entry" if self.entries == 1 else f"{self.entries} entries"
        return f"spent: ε = {format_up(self.epsilon, 6)} at δ = {self.delta:.6g} (μ = {format_up(self.mu, 6)}), {many}"


@dataclass(frozen=True, slots=True)
class Remaining:
    """What may still be reserved; while no entry decides the kind, all of μ *or* all of (ε, δ).

    Attributes:
        epsilon: the limit ε minus the ε spent (ε does not add up over Gaussian runs: use ``mu`` to plan).
        delta: the ledger's δ.
        mu: √(B² − Σμᵢ²), the largest μ that still fits the Gaussian part.
        basic_epsilon: the ε left in the basic part.
        basic_delta: the δ left in the basic part.
    """

    epsilon: float
    delta: float
    mu: float
    basic_epsilon: float
    basic_delta: float

    def __str__(self) -> str:
        return (
            f"remaining: ε = {format_down(self.epsilon, 6)} at δ = {self.delta:.6g}; Gaussian part: "
            f"μ = {format_down(self.mu, 6)}; basic part: "
            f"(ε, δ) = ({format_down(self.basic_epsilon, 6)}, {format_down(self.basic_delta, 6)})"
        )


def spent(tip: Tip) -> Spent:
    """Return the guarantee of the entries up to ``tip``."""
    tally, limits = tip.tally, tip.genesis.limits
    gaussian = 0.0
    if tally.squares:
        from tacit.accounting import gdp_epsilon  # heavy: opening and reserving do without

        gaussian = float(gdp_epsilon(tally.mu, limits.gaussian_delta))
    basic = float(tally.epsilon)
    return Spent(gaussian + basic, limits.delta, tally.mu, basic, float(tally.delta), tip.count)


def remaining(tip: Tip) -> Remaining:
    """Return what still fits after ``tip``."""
    limits = tip.genesis.limits
    left = room(limits, tip.tally)
    epsilon = max(limits.epsilon - spent(tip).epsilon, 0.0)
    return Remaining(epsilon, limits.delta, left.mu, left.epsilon, left.delta)
