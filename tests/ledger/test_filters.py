from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_helpers import Stub
from scipy.integrate import quad
from scipy.stats import norm

from tacit.accounting import gdp_delta, gdp_epsilon, gdp_mu
from tacit.errors import BudgetExhausted, InvalidInput, LedgerError
from tacit.ledger import Ledger
from tacit.ledger.certificate import read_claim
from tacit.ledger.filters import BASIC, GAUSSIAN, Charge, Limits, Tally, admits, basic_charge, room

shares = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.9, 1.0]))
sizes = st.one_of(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), st.floats(0, 1.2))
charges = st.lists(st.tuples(st.booleans(), sizes, sizes), max_size=30)


def reference_parts(epsilon, delta, share, first):
    """The definition, written a second time: (ε_G, δ_G), (ε_b, δ_b)."""
    if share is None:
        share = {GAUSSIAN: 0.0, BASIC: 1.0}[first]
    return ((1 - share) * epsilon, (1 - share) * delta), (share * epsilon, share * delta)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.floats(0.01, 20), st.floats(1e-12, 0.1), shares, charges)
def test_whatever_is_admitted_stays_within_the_limits(epsilon, delta, share, wanted):
    limits, tally, taken = Limits.build(epsilon, delta, share), Tally(), []
    for gaussian, size, other in wanted:
        mu, eps, dlt = limits.parts(tally.first)
        charge = (
            Charge(GAUSSIAN, mu=size * limits.gaussian_mu)
            if gaussian
            else Charge(BASIC, epsilon=size * eps / 2, delta=other * dlt / 2)
        )
        before = room(limits, tally)
        if admits(limits, tally, charge):
            tally = tally.add(charge)
            taken.append(charge)
        elif gaussian and mu:
            assert charge.mu > before.mu * (1 - 1e-9)  # no refusal without need
        elif not gaussian and eps:
            assert charge.epsilon > before.epsilon * (1 - 1e-9) or charge.delta > before.delta * (1 - 1e-9)
    if not taken:
        return
    (eps_g, dlt_g), (eps_b, dlt_b) = reference_parts(epsilon, delta, share, taken[0].kind)
    squares = math.fsum(c.mu**2 for c in taken if c.kind == GAUSSIAN)
    assert squares == 0 or gdp_epsilon(math.sqrt(squares), dlt_g) <= eps_g * (1 + 1e-9)
    assert math.fsum(c.epsilon for c in taken if c.kind == BASIC) <= eps_b * (1 + 1e-11)
    assert math.fsum(c.delta for c in taken if c.kind == BASIC) <= dlt_b * (1 + 1e-11)


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-6, 50), st.floats(1e-15, 0.5), st.floats(1e-9, 1 - 1e-9))
def test_the_parts_of_a_split_never_exceed_the_whole(epsilon, delta, share):
    limits = Limits.build(epsilon, delta, share)
    _, eps_b, dlt_b = limits.parts(None)
    assert Fraction(dlt_b) + Fraction(limits.gaussian_delta) <= Fraction(delta)
    spent_by_gaussian = gdp_epsilon(limits.gaussian_mu, limits.gaussian_delta)
    assert eps_b + spent_by_gaussian <= epsilon * (1 + 1e-9)
    assert limits.gaussian_mu == pytest.approx(gdp_mu((1 - share) * epsilon, (1 - share) * delta), rel=1e-5)


@pytest.mark.parametrize("count", [1, 3, 7, 10, 49, 1000])
def test_equal_charges_fill_the_budget_to_the_last(count):
    limits = Limits.build(0.3, 1e-5)
    kinds = (
        Charge(GAUSSIAN, mu=limits.gaussian_mu / math.sqrt(count)),
        Charge(BASIC, epsilon=0.3 / count, delta=1e-5 / count),
    )
    for charge in kinds:
        tally = Tally()
        for _ in range(count):
            assert admits(limits, tally, charge)
            tally = tally.add(charge)
        assert not admits(limits, tally, charge)


def test_the_slack_is_one_in_a_trillion_and_not_more():
    limits = Limits.build(1.0, 1e-5)
    for kind, full in (("mu", limits.gaussian_mu), ("epsilon", 1.0), ("delta", 1e-5)):

        def charge(value, kind=kind):
            if kind == "mu":
                return Charge(GAUSSIAN, mu=value)
            return Charge(BASIC, **{"epsilon": 0.0, "delta": 0.0, kind: value})

        assert admits(limits, Tally(), charge(full * (1 + 4e-13)))
        assert not admits(limits, Tally(), charge(full * (1 + 2e-12)))


def test_remaining_mu_can_be_spent_at_any_point():
    limits, tally = Limits.build(1.0, 1e-5), Tally()
    for _ in range(30):
        tally = tally.add(Charge(GAUSSIAN, mu=room(limits, tally).mu * 0.9))
        assert admits(limits, tally, Charge(GAUSSIAN, mu=room(limits, tally).mu))


def claim(**kwargs):
    return read_claim(Stub(**kwargs))


def test_default_delta_is_half_then_all():
    limits = Limits.build(1.0, 1e-5, 1.0)
    assert basic_charge(limits, Tally(), claim(epsilon=0.2), None) == Charge(BASIC, None, 0.2, 5e-6)
    needs_all = claim(epsilon=lambda delta: 0.9 if delta >= 1e-5 else 5.0)
    assert basic_charge(limits, Tally(), needs_all, None) == Charge(BASIC, None, 0.9, 1e-5)
    with pytest.raises(BudgetExhausted, match=r"\(5, 2e-06\)"):
        basic_charge(limits, Tally(), needs_all, 2e-6)


def test_spent_delta_leaves_room_for_pure_runs_only():
    limits = Limits.build(1.0, 1e-5, 1.0)
    tally = Tally().add(Charge(BASIC, epsilon=0.5, delta=1e-5))
    with pytest.raises(BudgetExhausted, match=r"pass delta=0\.0"):
        basic_charge(limits, tally, claim(epsilon=0.1), None)
    assert basic_charge(limits, tally, claim(epsilon=0.5), 0.0).epsilon == 0.5
    with pytest.raises(BudgetExhausted):
        basic_charge(limits, tally, claim(epsilon=0.5), 1e-10)


@pytest.mark.parametrize("share", [5e-324, 1e-322, 1 - 2**-53])
def test_a_split_without_two_parts_is_refused_or_has_two(share):
    try:
        limits = Limits.build(1.0, 1e-5, share)
    except InvalidInput:
        return
    assert min(limits.parts(None)) > 0


def test_a_split_is_numerically_the_sum_of_its_parts(tmp_path):
    with Ledger(tmp_path / "ledger", 2.0, 1e-5, basic_share=0.25) as ledger:
        left = ledger.remaining()
        assert left.mu == pytest.approx(gdp_mu(1.5, 0.75e-5), rel=1e-12)
        assert (left.basic_epsilon, left.basic_delta) == (0.5, 0.25e-5)
        ledger.reserve(Stub(left.mu / 2, epsilon=math.nan))  # goes to the Gaussian part: ε is never asked
        ledger.reserve(Stub(epsilon=0.3), delta=1e-6)
        spent, left_now = ledger.spent(), ledger.remaining()
        assert spent.epsilon == pytest.approx(gdp_epsilon(left.mu / 2, 0.75e-5) + 0.3, rel=1e-12)
        assert (spent.delta, spent.basic_epsilon, spent.basic_delta, spent.entries) == (1e-5, 0.3, 1e-6, 2)
        assert left_now.mu == pytest.approx(left.mu * math.sqrt(0.75), rel=1e-12)
        assert left_now.basic_epsilon == pytest.approx(0.2, rel=1e-12)
        assert left_now.basic_delta == pytest.approx(1.5e-6, rel=1e-12)
        assert left_now.epsilon == pytest.approx(2.0 - spent.epsilon, rel=1e-12)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(Stub(epsilon=0.21), delta=1e-6)
        with pytest.raises(BudgetExhausted):
            ledger.reserve(Stub(epsilon=0.1), delta=1.6e-6)
        ledger.reserve(Stub(left_now.mu))
        assert ledger.spent().epsilon <= 2.0


def test_the_first_reservation_decides_the_kind(tmp_path):
    with Ledger(tmp_path / "gaussian", 1.0, 1e-5) as ledger:
        ledger.reserve(Stub(0.1))
        with pytest.raises(LedgerError, match=r"Gaussian only.*basic_share"):
            ledger.reserve(Stub(epsilon=0.01))
        assert ledger.verify() == 1
    with Ledger(tmp_path / "basic", 1.0, 1e-5) as ledger:
        ledger.reserve(Stub(epsilon=0.4), delta=1e-6)
        assert ledger.remaining().mu == 0
        gaussian = Stub(0.1, epsilon=lambda delta: gdp_epsilon(0.1, delta))
        ledger.reserve(gaussian, delta=2e-6)
        entry = ledger.entries()[-1]
        assert (entry.kind, entry.mu, entry.delta) == ("basic", None, 2e-6)
        assert entry.epsilon == gdp_epsilon(0.1, 2e-6)


def test_a_share_of_zero_or_one_decides_in_advance(tmp_path):
    with (
        Ledger(tmp_path / "zero", 1.0, 1e-5, basic_share=0.0) as ledger,
        pytest.raises(LedgerError, match="Gaussian only"),
    ):
        ledger.reserve(Stub(epsilon=0.1))
    with Ledger(tmp_path / "one", 1.0, 1e-5, basic_share=1.0) as ledger:
        ledger.reserve(Stub(0.1, epsilon=0.6), delta=1e-6)
        assert ledger.spent().epsilon == 0.6
        assert ledger.spent().mu == 0


# --- The theorem itself, on an analyst who chooses the second run after seeing the first one's loss. ---


def tail(level, mu):
    """H at level e^level between N(mu, 1) and N(0, 1), vectorised."""
    return np.asarray(gdp_delta(mu, level)) if mu > 0 else np.maximum(-np.expm1(level), 0)


def with_basic(level, mu, epsilon, delta):
    """The same after the worst (ε, δ)-DP run as well: randomised response that tells all with chance δ."""
    yes = math.exp(epsilon) / (1 + math.exp(epsilon))
    response = yes * tail(level - epsilon, mu) + (1 - yes) * tail(level + epsilon, mu)
    return delta + (1 - delta) * response


def after_first_run(mu, epsilon, options):
    """E over the loss of a μ-GDP run of the best option at the level that is left."""

    def integrand(z):  # the loss is μ z − μ²/2 with z ~ N(μ, 1)
        level = np.array([epsilon - (mu * z - mu * mu / 2)])
        return norm.pdf(z - mu) * max(float(option(level)[0]) for option in options)

    return quad(integrand, mu - 12, mu + 12, limit=500, points=[epsilon / mu + mu / 2])[0]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("first", [0.3, 0.7, 0.99])
def test_a_fixed_split_holds_against_an_adaptive_analyst(share, first):
    epsilon, delta = 1.0, 1e-2
    limits = Limits.build(epsilon, delta, share)
    b = limits.gaussian_mu
    left = b * math.sqrt(1 - first**2)
    _, eps_b, dlt_b = limits.parts(None)
    total = after_first_run(
        first * b,
        epsilon,
        [
            lambda level: tail(level, left),
            lambda level: with_basic(level, 0.0, eps_b, dlt_b),
            lambda level: with_basic(level, left, eps_b, dlt_b),
        ],
    )
    assert total <= delta * (1 + 1e-6)
    assert total > 0.2 * delta  # the analyst is not a straw man


def test_a_split_in_hindsight_does_not_hold():
    # The same analyst, who may also declare the rest of a Gaussian budget to be basic after seeing the
    # loss: each reading alone is within δ, the better of the two is not. Hence the refusal.
    epsilon, delta = 1.0, 1e-2
    b = gdp_mu(epsilon, delta)
    first = 0.5 * b
    left = b * math.sqrt(0.75)
    eps_b, dlt_b = epsilon - gdp_epsilon(first, delta / 2), delta / 2
    readings = [lambda level: tail(level, left), lambda level: with_basic(level, 0.0, eps_b, dlt_b)]
    assert after_first_run(first, epsilon, readings[:1]) == pytest.approx(delta, rel=1e-6)
    assert after_first_run(first, epsilon, readings[1:]) <= delta * (1 + 1e-6)
    assert after_first_run(first, epsilon, readings) > 1.05 * delta
