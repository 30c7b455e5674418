"""Mistakes that exact arithmetic must not contain, planted one by one: the attacker finds each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attacking import ANSWERS, CHANGED, FAMILIES, X, fits, session_releases
from leaking import surface

from tacit.audit import audit_bits, audit_gdp, multiples
from tacit.errors import MechanismMismatch
from tacit.estimators import private_mean
from tacit.kernels._jit import jit, jit_exact_sums
from tacit.noise.rounded import rounded_normal
from tacit.noise.streams import Streams
from tacit.release import Session
from tacit.release import query as query_module
from tacit.release.channel import Channel

THIRDS = ANSWERS / 3
"""Contributions that no grid holds: D and D′ have other low bits."""
CHANGED_THIRDS = np.concatenate([[[0.1]], THIRDS[1:]])


def releases(X: np.ndarray, seed: int = 1) -> Any:
    return lambda k: session_releases(X, 1.0, "exact", k, seed)[0]


def test_the_session_itself_passes():
    for here, there in ((ANSWERS, CHANGED), (THIRDS, CHANGED_THIRDS)):
        audit = audit_bits(releases(here), releases(there), 2000)
        assert audit.impossible == 0


# -- float noise ------------------------------------------------------------------------------------------------------


def test_float_noise_in_an_exact_session(monkeypatch):
    rng = np.random.default_rng(0)

    def mutant(self: Channel, clean: Any, query: Any, sigma: float, grid: Any, *rest: Any) -> Any:
        return clean * grid.unit + sigma * rng.normal(size=clean.shape)

    monkeypatch.setattr(Channel, "_on_grid", mutant)
    assert audit_bits(releases(ANSWERS), releases(CHANGED), 2000).impossible > 100
    watch, _, _ = fits(FAMILIES["moments"], 1.0, "exact", 5, 1)
    assert watch.impossible["exact"] == 5


# -- contributions that are not rounded -------------------------------------------------------------------------------

C = 1.5 * 2.0**52


@jit
def rounded(values: np.ndarray) -> np.ndarray:
    out = np.empty_like(values)
    for i in range(values.size):
        out[i] = np.rint(values[i])
    return out


@jit_exact_sums
def rounded_by_adding(values: np.ndarray) -> np.ndarray:
    out = np.empty_like(values)
    for i in range(values.size):
        out[i] = values[i] + C - C
    return out


def test_adding_a_constant_rounds_nothing_where_sums_may_be_reordered():
    values = np.random.default_rng(0).normal(size=1000) * 1e3
    assert (rounded(values) == np.rint(values)).all()
    assert (rounded_by_adding(values) != np.rint(values)).sum() > 990


@pytest.mark.parametrize("rounding", [lambda v: v, rounded_by_adding], ids=["none", "x + c - c"])
def test_unrounded_contributions(rounding, monkeypatch):
    """Noise on the grid does not help: the sum's remainder stays in every release."""

    def sums(contributions: Any, members: Any, bound: float, unit: float) -> Any:
        values = np.array([rounding(np.ascontiguousarray(row)) for row in contributions[0] / unit])
        return np.repeat(values.sum(axis=0)[None], len(contributions), axis=0)

    def mutant(self: Channel, clean: Any, query: Any, sigma: float, grid: Any, *rest: Any) -> Any:
        rng = Streams(int(abs(clean[0, 0]) * 1e6)).at("noise", self._step)
        return (clean + rounded_normal(rng, sigma / grid.unit, clean.shape)) * grid.unit

    monkeypatch.setattr(query_module, "lattice_total", sums)
    with pytest.raises(MechanismMismatch, match="no integer sums"):
        releases(THIRDS)(500)
    monkeypatch.setattr(Channel, "_on_grid", mutant)
    audit = audit_bits(releases(THIRDS), releases(CHANGED_THIRDS), 2000)
    assert audit.impossible > 700, str(audit)


# -- queries that fail ------------------------------------------------------------------------------------------------


def test_a_query_that_raises(monkeypatch, tmp_path):
    total = Session._total

    def touchy(self: Session, query: Any, *arguments: Any) -> Any:
        for rows in self._records.parts():
            if np.abs(np.asarray(rows.X)).max() >= 1:
                raise ValueError("a record is out of range")
        return total(self, query, *arguments)

    monkeypatch.setattr(Session, "_total", touchy)
    wild = X.copy()
    wild[0] = 5.0

    def told(table: Any) -> Any:
        return surface(lambda: private_mean(table, epsilon=1.0, delta=1e-5, bounds=(-2, 2)), tmp_path)

    assert "error" not in told(X)
    assert told(wild)["error"][:2] == ("ValueError", "a record is out of range")


# -- exact sums inside a hidden chain ---------------------------------------------------------------------------------

FACTOR, UNIT, SCALE = 0.1234567, 2.0**-10, 1000.0
"""1 − ηλ, the lattice (η/b)·g, and σ/g of a chain of two steps; the record is read in the first."""


def chain(q: int, n: int, seed: int, *, on_state: bool) -> np.ndarray:
    """The last of two states, x₁ = −u(q + R₁) and then either of

    x₂ = c·x₁ − u·R₂             (the sum is released exactly: the mutant),
    x₂ = u(⌊c·x₁/u⌉ − R₂)        (the state is rounded, then gets its noise).
    """
    rng = Streams(seed).at("noise")
    R = rounded_normal(rng, SCALE, (n, 2))
    first = -UNIT * (q + R[:, 0])
    moved = UNIT * np.rint(FACTOR * first / UNIT) if on_state else FACTOR * first
    return moved - UNIT * R[:, 1]


def recovered(last: np.ndarray) -> np.ndarray:
    """The first state in units of u, by the remainder of the last one: one candidate in 20,000 fits."""
    k = np.arange(-10_000, 10_001)
    wanted = FACTOR * k - np.rint(FACTOR * k)
    order = np.argsort(wanted)
    rest = last / UNIT - np.rint(last / UNIT)
    place = np.clip(np.searchsorted(wanted[order], rest), 1, len(k) - 1)
    nearer = np.abs(wanted[order][place - 1] - rest) < np.abs(wanted[order][place] - rest)
    return k[order][place - nearer]


def test_exact_sums_in_a_hidden_chain_show_the_hidden_state():
    """2,000 of 2,000 first states come back, and with them the ε that the chain was to save."""
    n = 2000
    R = rounded_normal(Streams(1).at("noise"), SCALE, (n, 2))
    assert (recovered(chain(0, n, 1, on_state=False)) == -R[:, 0]).sum() == n
    assert (recovered(chain(0, n, 1, on_state=True)) == -R[:, 0]).sum() < 20


@pytest.mark.parametrize("on_state", [False, True], ids=["noise on the sum", "noise on the state"])
def test_audit_of_both_chains(on_state):
    """The theorem pays for μ = c·Δ/(σ√(1 + c²)) = 0.12 and not for the first state, whose μ is 1."""
    certified = FACTOR / np.sqrt(1 + FACTOR**2)
    audit = audit_gdp(
        lambda k: chain(0, k, 1, on_state=on_state),
        lambda k: chain(1000, k, 2, on_state=on_state),
        20_000,
        statistic=lambda x: recovered(np.asarray(x)).astype(float),
    )
    assert bool(audit.mu_lower > 5 * certified) is not on_state
    if on_state:
        assert audit.mu_lower <= certified
        assert multiples(chain(0, 100, 1, on_state=True), UNIT).all()
