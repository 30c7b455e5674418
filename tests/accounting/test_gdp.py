"""μ-GDP ↔ (ε, δ) against arbitrary precision, and the promises of the inverse functions."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.accounting import gdp_delta, gdp_epsilon, gdp_mu
from tacit.errors import InvalidInput

SETTINGS = settings(deadline=None, derandomize=True, max_examples=150)
MUS = st.floats(1e-6, 1e3)
DELTAS = st.floats(1e-300, 1 - 1e-9)


def exact_delta(mu, epsilon):
    """Φ(−ε/μ+μ/2) − e^ε Φ(−ε/μ−μ/2) with digits to spare for the cancellation."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = mpmath.erfc((e / m - m / 2) / mpmath.sqrt(2)) / 2
        lower = mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2
        return upper - mpmath.exp(e) * lower


def random_cases(count, seed):
    """(μ, ε) with μ log-uniform and ε = μ·a + μ²/2 such that log δ spreads from −690 to nearly 0."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        mu = 10 ** rng.uniform(-6, 3)
        a = rng.uniform(-3, 36) if rng.random() < 0.8 else rng.uniform(-1, 1)
        yield float(mu), max(0.0, float(mu * a + mu * mu / 2))


@pytest.mark.parametrize(("mu", "epsilon"), list(random_cases(150, 0)))
def test_delta_has_ten_digits(mu, epsilon):
    truth = exact_delta(mu, epsilon)
    if truth < mpmath.mpf("1e-300"):
        assert gdp_delta(mu, epsilon) <= 1.1e-300
    else:
        assert abs(gdp_delta(mu, epsilon) / truth - 1) < 1e-10


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.999, 1.0, 1.001, 10.0, 30.0, 1e3])
@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-6, 1e-2, 1.0, 50.0])
def test_delta_has_ten_digits_on_a_grid(mu, epsilon):
    truth = exact_delta(mu, epsilon)
    if truth > mpmath.mpf("1e-300"):
        assert abs(gdp_delta(mu, epsilon) / truth - 1) < 1e-10


def test_both_forms_agree_where_they_meet():
    below, above = 1.0, math.nextafter(1.0, 2.0)
    for epsilon in (0.0, 0.5, 5.0, 30.0):
        assert gdp_delta(above, epsilon) == pytest.approx(gdp_delta(below, epsilon), rel=1e-12)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 0.3), (2.0, 4.0), (1e-3, 1e-3), (20.0, 100.0)])
def test_negative_epsilon_matches_the_formula_and_its_symmetry(mu, epsilon):
    found = gdp_delta(mu, -epsilon)
    assert abs(found / exact_delta(mu, -epsilon) - 1) < 1e-10
    assert found == pytest.approx(1 - math.exp(-epsilon) + math.exp(-epsilon) * gdp_delta(mu, epsilon), rel=1e-12)


@SETTINGS
@given(mu=MUS, delta=DELTAS)
def test_epsilon_keeps_its_promise_in_floats(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    assert epsilon >= 0
    assert gdp_delta(mu, epsilon) <= delta
    if epsilon > 1e-12:  # and is the smallest, up to rounding
        assert gdp_delta(mu, epsilon * (1 - 1e-9)) >= delta * (1 - 1e-10)


@SETTINGS
@given(epsilon=st.floats(0, 1e3), delta=st.floats(1e-250, 0.999))
def test_mu_keeps_its_promise_in_floats(epsilon, delta):
    mu = gdp_mu(epsilon, delta)
    assert mu > 0
    assert gdp_delta(mu, epsilon) <= delta
    assert gdp_delta(mu * (1 + 1e-9), epsilon) >= delta * (1 - 1e-10)


@SETTINGS
@given(mu=st.floats(1e-3, 50), delta=st.floats(1e-100, 0.1))
def test_mu_inverts_epsilon(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    if epsilon > 1e-6:
        assert gdp_mu(epsilon, delta) == pytest.approx(mu, rel=1e-7)


@SETTINGS
@given(mu=MUS, factor=st.floats(1.0, 3.0), epsilon=st.floats(-5, 500))
def test_delta_grows_with_mu(mu, factor, epsilon):
    assert gdp_delta(mu * factor, epsilon) >= gdp_delta(mu, epsilon) * (1 - 1e-10)


@SETTINGS
@given(mu=MUS, epsilon=st.floats(-5, 500), more=st.floats(0, 100))
def test_delta_falls_with_epsilon(mu, epsilon, more):
    assert gdp_delta(mu, epsilon + more) <= gdp_delta(mu, epsilon) * (1 + 1e-10) + 1e-300


@SETTINGS
@given(mu=MUS, delta=DELTAS, factor=st.floats(1.0, 3.0))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, delta, factor):
    epsilon = gdp_epsilon(mu, delta)
    assert gdp_epsilon(mu * factor, delta) >= epsilon * (1 - 1e-9)
    assert gdp_epsilon(mu, min(delta * factor, 1.0)) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mu", "epsilon", "expected"),
    [
        (0.0, 0.0, 0.0),
        (0.0, 3.0, 0.0),
        (0.0, -1.0, 1 - math.exp(-1)),
        (math.inf, 0.0, 1.0),
        (math.inf, 1e300, 1.0),
        (1.0, math.inf, 0.0),
        (1.0, -math.inf, 1.0),
        (math.inf, math.inf, 0.0),
        (1e3, 0.0, 1.0),
        (1.0, 1e308, 0.0),
        (1e-300, 1.0, 0.0),
    ],
)
def test_delta_at_the_edges(mu, epsilon, expected):
    assert gdp_delta(mu, epsilon) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("mu", "delta", "expected"),
    [(0.0, 0.0, 0.0), (0.0, 1e-5, 0.0), (1.0, 0.0, math.inf), (1.0, 1.0, 0.0), (math.inf, 0.5, math.inf)],
)
def test_epsilon_at_the_edges(mu, delta, expected):
    assert gdp_epsilon(mu, delta) == expected


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [(1.0, 0.0, 0.0), (1.0, 1.0, math.inf), (math.inf, 1e-5, math.inf), (0.0, 0.0, 0.0)],
)
def test_mu_at_the_edges(epsilon, delta, expected):
    assert gdp_mu(epsilon, delta) == expected


@pytest.mark.parametrize("mu", [1e-300, 1e-160, 1e-20, 1e160, 1e300])
def test_extreme_mu_stays_in_range(mu):
    assert 0 <= gdp_delta(mu, 1.0) <= 1
    assert gdp_delta(mu, gdp_epsilon(mu, 1e-5)) <= 1e-5


def test_mu_at_epsilon_zero_is_the_total_variation():
    # δ(0) = 2Φ(μ/2) − 1
    for mu in (1e-6, 0.1, 1.0, 3.0):
        assert gdp_mu(0.0, gdp_delta(mu, 0.0)) == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize("function", [gdp_delta, gdp_epsilon, gdp_mu])
def test_scalars_give_floats_and_arrays_broadcast(function):
    assert type(function(0.5, 0.5)) is float
    assert type(function(np.float64(0.5), np.array(0.5))) is float
    grid = function(np.array([[0.5], [1.0]]), np.array([0.1, 0.2, 0.3]))
    assert grid.shape == (2, 3)
    assert grid[1, 2] == pytest.approx(function(1.0, 0.3), rel=1e-14)
    assert function(np.empty(0), 0.5).shape == (0,)
    assert function([1, 2], 0.5).shape == (2,)


@pytest.mark.parametrize("function", [gdp_delta, gdp_epsilon, gdp_mu])
@pytest.mark.parametrize("bad", [math.nan, "1", None, True, 1j, [1.0, math.nan], object(), [[1.0], [1.0, 2.0]]])
def test_bad_values_are_refused(function, bad):
    with pytest.raises(InvalidInput):
        function(bad, 0.5)
    with pytest.raises(InvalidInput):
        function(0.5, bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gdp_delta(-1.0, 1.0),
        lambda: gdp_epsilon(-1.0, 1e-5),
        lambda: gdp_epsilon(1.0, -1e-5),
        lambda: gdp_epsilon(1.0, 1.5),
        lambda: gdp_mu(-1.0, 1e-5),
        lambda: gdp_mu(1.0, math.inf),
        lambda: gdp_delta(np.ones(2), np.ones(3)),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(InvalidInput):
        call()


def test_one_number_and_many_agree_where_the_curve_is_flat():
    """δ(ε) hardly moves at tiny ε: a single number is solved many points at a time, and rounds as carefully."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        mu, delta = 10 ** rng.uniform(-3, 1), 10 ** rng.uniform(-9, -0.3)
        pair = gdp_epsilon(np.array([mu, mu]), delta)
        one = gdp_epsilon(mu, delta)
        assert gdp_delta(mu, one) <= delta
        assert one == pytest.approx(pair[0], rel=1e-9, abs=1e-12)
    mu = gdp_mu(6.25e-7, 0.15625)
    assert gdp_epsilon(mu, 0.15625) == pytest.approx(6.25e-7, rel=1e-6)
