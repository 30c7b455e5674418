"""Noisy choices: the closed form against brute force over laws, and over adaptive compositions of two-point laws."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri

from tacit.accounting import bounded_range_mu, bounded_range_of_mu, certify, gdp_delta, gdp_mu, theorem_named
from tacit.accounting import choices as choices_module
from tacit.accounting import noisy_max as module
from tacit.accounting.choices import choices_delta
from tacit.accounting.curve import Chosen, Gaussian, compose
from tacit.mechanism import Adjacency, Mechanism, NoisyMax, Plan, Schedule

ETAS = (1e-6, 0.01, 0.3, 1.0, 2.5, 4.0, 7.0, 30.0)


def two_point(eta: float, t):
    """(p, q): the chance of the likelier outcome under P and under Q, log-ratio t; the other has t − η."""
    p = (math.exp(eta) - np.exp(t)) / math.expm1(eta)
    return p, p * np.exp(-t)


@pytest.mark.parametrize("eta", ETAS)
def test_mu_is_that_of_fifty_digits(eta):
    with mpmath.workdps(50):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(eta) / 2))
        exact = 2 * mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)
    assert 0 <= bounded_range_mu(eta) / float(exact) - 1 < 3e-13
    assert bounded_range_mu(eta) < 0.6267 * eta
    assert bounded_range_of_mu(bounded_range_mu(eta)) == pytest.approx(eta, rel=1e-11)
    assert bounded_range_mu(bounded_range_of_mu(0.37 * eta)) <= 0.37 * eta


def test_the_ends():
    assert bounded_range_mu(0.0) == bounded_range_of_mu(0.0) == 0.0
    assert bounded_range_mu(599.9) < bounded_range_mu(600.1) < 35 * 2
    assert np.isfinite(bounded_range_mu(1e5))


@pytest.mark.parametrize("eta", [0.05, 0.5, 1.0, 3.0, 8.0])
def test_no_two_point_law_is_worse_and_one_is_as_bad(eta):
    t = np.linspace(0, eta, 20001)[1:-1]
    p, q = two_point(eta, t)
    worst = (ndtri(p) - ndtri(q)).max()
    assert worst <= bounded_range_mu(eta)
    assert worst == pytest.approx(bounded_range_mu(eta), rel=1e-6)


@pytest.mark.parametrize("eta", [0.3, 1.5, 4.0])
def test_the_envelope_of_the_corners_is_a_logistic_shift(eta):
    p, q = two_point(eta, np.linspace(0, eta, 101))
    np.testing.assert_allclose(1 - p, (1 - q) / (1 + math.expm1(eta) * q), atol=1e-12)


def test_the_lemma_h_is_concave():
    """The two signs that the proof in docs/theorems.md rests on, far into the tail."""
    z = np.linspace(0, 8, 4001)
    phi = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    k = (2 * ndtr(z) - 1) * phi - z * ndtr(z) * ndtr(-z)
    assert (k >= -1e-17).all()
    turning = np.sign(2 * phi**2 - ndtr(z) * ndtr(-z))
    assert (np.diff(turning) != 0).sum() == 1
    x = np.linspace(0, 12, 2001)
    assert (np.diff(ndtri(expit(x)), 2) <= 1e-12).all()


def divergence(P, Q, epsilon: float) -> float:
    return float(np.maximum(P - math.exp(epsilon) * Q, 0.0).sum())


@pytest.mark.parametrize("eta", [0.2, 1.0, 2.5])
def test_random_exponential_mechanisms_stay_within(eta):
    """Laws of many candidates, whose scores neighbours move by up to Δ; the curve of μ holds for each of them."""
    rng, mu = np.random.default_rng(0), bounded_range_mu(eta)
    closest = 0.0
    for _ in range(3000):
        k = int(rng.integers(2, 8))
        s, move = rng.normal(size=k) * 3, rng.choice([-1.0, 1.0], k) if rng.random() < 0.7 else rng.uniform(-1, 1, k)
        P, Q = np.exp(s * eta / 2), np.exp((s + move) * eta / 2)  # Δ = 1, β = 2/η
        P, Q = P / P.sum(), Q / Q.sum()
        for epsilon in (-0.5 * eta, 0.0, 0.1 * eta, 0.4 * eta):
            bound = float(gdp_delta(mu, epsilon))
            assert divergence(P, Q, epsilon) <= bound * (1 + 1e-9)
            closest = max(closest, divergence(P, Q, epsilon) / bound)
    assert closest > 0.97


def optimal_delta(eta: float, steps: int, epsilon: float, points: int) -> float:
    """δ of the worst adaptive composition of two-point laws, by brute force over t for every history.

    V_k(x) = max_t p_t V_{k−1}(x + t) + (1 − p_t) V_{k−1}(x + t − η), V_0(x) = (1 − e^{ε−x})₊.
    """
    ts = np.linspace(0, eta, points)
    p = two_point(eta, ts)[0]

    def value(x, k):
        if k == 0:
            return np.maximum(-np.expm1(np.minimum(epsilon - x, 0.0)), 0.0)
        up = value(np.add.outer(x, ts).ravel(), k - 1).reshape(x.size, -1)
        down = value(np.add.outer(x, ts - eta).ravel(), k - 1).reshape(x.size, -1)
        return (p * up + (1 - p) * down).max(axis=1)

    return float(value(np.zeros(1), steps)[0])


@pytest.mark.parametrize(("eta", "steps"), [*itertools.product([0.2, 1.0, 2.0], [1, 2, 3])])
def test_the_certificate_covers_the_worst_adaptive_composition(eta, steps):
    points = {1: 4001, 2: 401, 3: 61}[steps]
    certificate = certify(NoisyMax(adjacency="zero-out", bounded_range=eta, steps=steps))
    for epsilon in (0.0, 0.3 * eta, 0.8 * eta, 0.9 * steps * eta):
        truth, promised = optimal_delta(eta, steps, epsilon, points), certificate.delta(epsilon)
        assert truth <= promised * (1 + 1e-9)
        if epsilon == 0:
            assert truth >= promised * 0.85  # a fair promise, too


def test_it_composes_with_gaussian_releases():
    """Brute force in two dimensions: a two-point choice, then a Gaussian whose direction it decides."""
    eta, mu = 1.2, 0.7
    part = NoisyMax(adjacency="replace-one", bounded_range=eta, steps=1)
    both = certify(Plan.of(part, Mechanism(adjacency="replace-one", ratio=mu, steps=1)))
    assert both.mu == pytest.approx(math.hypot(bounded_range_mu(eta), mu), rel=1e-12)
    for epsilon in (0.0, 0.5, 1.5):
        found = max(
            p * float(gdp_delta(mu, epsilon - t)) + (1 - p) * float(gdp_delta(mu, epsilon - t + eta))
            for t in np.linspace(1e-6, eta - 1e-6, 301)
            for p in [two_point(eta, t)[0]]
        )
        assert found <= both.delta(epsilon) * (1 + 1e-9)
        assert found > 0.6 * both.delta(epsilon)


def test_steps_of_several_ranges_add_their_squares():
    part = NoisyMax(adjacency=Adjacency.ZERO_OUT, bounded_range=Schedule([0.2, 0.7], [3, 2]), steps=5)
    expected = math.sqrt(3 * bounded_range_mu(0.2) ** 2 + 2 * bounded_range_mu(0.7) ** 2)
    assert certify(part).mu == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("wrong", [lambda eta: bounded_range_mu(eta / 2), lambda eta: 0.5 * eta])
def test_the_oracle_notices_a_mu_that_is_too_small(wrong, monkeypatch):
    """Mutants: η taken for 2η (noise too small by 2), and pure differential privacy's Gaussian folklore of η/2."""
    part = NoisyMax(adjacency="zero-out", bounded_range=1.0, steps=2)
    monkeypatch.setattr(module, "bounded_range_mu", wrong)
    curve = theorem_named("noisy-max-gdp").curve(part)
    assert optimal_delta(1.0, 2, 0.0, 401) > curve.delta(0.0) * 1.01


# -- the optimal composition ----------------------------------------------------------------------------------


def words_of(eta: float, mu: float, steps: int, epsilon: float, points: int, order: str) -> float:
    """δ of the worst strategy by brute force: choices (c) over a grid of t, Gaussian releases (g) by quadrature."""
    ts = np.linspace(0, eta, points)
    p = two_point(eta, ts)[0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    weights = weights / weights.sum()

    def value(x, rest):
        if not rest:
            return np.maximum(-np.expm1(np.minimum(epsilon - x, 0.0)), 0.0)
        if rest[0] == "g":
            z = mu * mu / 2 + mu * nodes
            return value(np.add.outer(x, z).ravel(), rest[1:]).reshape(x.size, -1) @ weights
        up = value(np.add.outer(x, ts).ravel(), rest[1:]).reshape(x.size, -1)
        down = value(np.add.outer(x, ts - eta).ravel(), rest[1:]).reshape(x.size, -1)
        return (p * up + (1 - p) * down).max(axis=1)

    return float(value(np.zeros(1), order)[0])


@pytest.mark.parametrize(("eta", "steps"), [*itertools.product([0.2, 1.0, 2.0], [1, 2, 3])])
def test_the_programme_covers_brute_force_and_comes_near(eta, steps):
    points = {1: 4001, 2: 401, 3: 61}[steps]
    for epsilon in (0.0, 0.3 * eta, 0.8 * eta, 0.5 * steps * eta):
        truth, found = optimal_delta(eta, steps, epsilon, points), choices_delta(eta, steps, 0.0, epsilon)
        assert truth <= found <= 1.15 * truth + 0.01 * eta


@pytest.mark.parametrize("eta", [0.1, 1.0, 3.0, 9.0])
def test_one_choice_in_closed_form(eta):
    """Within one cell of the grid: no worse than a choice of range η(1 + 1/64)."""

    def exact(eta: float, epsilon: float) -> float:
        return (math.exp(eta / 2) - math.exp(epsilon / 2)) ** 2 / math.expm1(eta)

    for epsilon in np.linspace(0, eta, 7)[:-1]:
        found = choices_delta(eta, 1, 0.0, float(epsilon))
        assert exact(eta, epsilon) <= found <= exact(eta * (1 + 1 / 64), epsilon) * 1.01
    assert choices_delta(eta, 1, 0.0, eta * 1.04) < 1e-12  # pure: nothing beyond η, and a cell of the grid


@pytest.mark.parametrize("order", ["cg", "gc", "cgc", "gcg", "cggc"])
def test_no_order_of_choices_and_releases_is_worse_than_stated(order):
    eta, mu = 1.1, 0.6
    total = mu * math.sqrt(order.count("g"))
    for epsilon in (0.0, 0.7, 1.8):
        truth = words_of(eta, mu, 1, epsilon, 41, order)
        first = words_of(eta, mu, 1, epsilon, 41, "g" * order.count("g") + "c" * order.count("c"))
        found = choices_delta(eta, order.count("c"), total, epsilon)
        assert truth <= first * (1 + 1e-6)  # noise first is the worst order
        assert first <= found * (1 + 1e-3)  # quadrature errs, too
        assert found <= first * 1.1 + 1e-3


@pytest.mark.parametrize("mu", [0.05, 0.6, 3.0])
def test_without_choices_worth_mentioning_it_is_the_gaussian_profile(mu):
    for epsilon in (0.0, 0.5 * mu, 3 * mu):
        exact = float(gdp_delta(mu, epsilon))
        assert exact <= choices_delta(1e-3 * mu, 1, mu, epsilon) <= exact * 1.02


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps"), [(1.0, 1e-6, 4), (1.0, 1e-6, 50), (10.0, 1e-6, 11), (1.0, 1e-12, 11)]
)
def test_it_allows_a_fifth_more_than_gaussian_composition(epsilon, delta, steps):
    """Half of μ² for choices; finer grids change little and never cross the other theorem's value."""
    mu = float(gdp_mu(epsilon, delta))
    eta = bounded_range_of_mu(mu * math.sqrt(0.5 / steps))
    assert choices_delta(eta, steps, mu * math.sqrt(0.5), epsilon) < delta
    assert choices_delta(1.2 * eta, steps, mu * math.sqrt(0.5), epsilon) <= delta
    assert choices_delta(1.5 * eta, steps, mu * math.sqrt(0.5), epsilon) > delta


def test_finer_grids_only_tighten(monkeypatch):
    found = []
    for cells in (8, 16, 32, 64, 128):
        monkeypatch.setattr(choices_module, "MAX_CELLS", cells)
        choices_module._table.cache_clear()
        found.append(choices_delta(0.5, 6, 0.7, 1.5))
    choices_module._table.cache_clear()
    assert (np.diff(found) < 0).all()
    assert found[3] / found[4] < 1.02


def test_certificates_take_the_smaller_bound_and_compose_with_gaussian_parts():
    part = NoisyMax(adjacency="replace-one", bounded_range=0.3, steps=10)
    release = Mechanism(adjacency="replace-one", ratio=0.1, steps=20)
    certificate = certify(Plan.of(release, part), delta=1e-6)
    by_mu = Gaussian(certificate.mu).epsilon(1e-6)
    assert certificate.epsilon(1e-6) == Chosen(0.3, 10, 0.1 * math.sqrt(20)).epsilon(1e-6) < 0.95 * by_mu
    assert "optimal composition" in certificate.theorem
    two = compose([Chosen(0.3, 10), Gaussian(0.2), Chosen(0.1, 5, 0.1)])
    assert (two.bounded_range, two.steps) == (0.3, 15)
    assert two.mu == pytest.approx(math.hypot(0.2, 0.1))
    assert (
        certify(NoisyMax(adjacency="zero-out", bounded_range=1e-4, steps=10**5)).mu > 0
    )  # no table: the other theorem
    assert choices_delta(1e-4, 10**5, 0.0, 1.0) == 1.0


def test_the_oracle_notices_a_programme_that_looks_at_points_of_t_only(monkeypatch):
    """A mutant without the wider intervals: t on the grid alone is not the supremum."""
    right = choices_module.worst_choices

    def narrow(start, p, steps):
        m = len(p)
        out, ts = start.copy(), np.arange(1, m) / m * 1.0
        for _ in range(steps):
            padded = np.concatenate([np.full(m, out[0]), out, np.ones(m)])
            chance = two_point(1.0, ts)[0]
            parts = [
                q * padded[m + i : m + i + len(out)] + (1 - q) * padded[i : i + len(out)]
                for i, q in enumerate(chance, 1)
            ]
            out = np.max(parts, axis=0)
        return out

    truth = optimal_delta(1.0, 2, 0.31, 401)
    monkeypatch.setattr(choices_module, "MAX_CELLS", 8)
    choices_module._table.cache_clear()
    assert choices_delta(1.0, 2, 0.0, 0.31) >= truth
    monkeypatch.setattr(choices_module, "worst_choices", narrow)
    choices_module._table.cache_clear()
    mutant = min(choices_delta(1.0, 2, 0.0, e) / optimal_delta(1.0, 2, e, 401) for e in (0.19, 0.31, 0.44, 0.56))
    monkeypatch.setattr(choices_module, "worst_choices", right)
    choices_module._table.cache_clear()
    assert mutant < 1
