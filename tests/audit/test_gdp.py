"""``audit_gdp``: coverage, tightness, and what must not change the answer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm

from tacit.audit import audit_gdp

# Means of 1000 audits at N = 10⁴ a side and 95 %: a choice of threshold that lost more would show.
REACHED = {0.5: 0.4457, 1.0: 0.9436, 1.43: 1.3718, 2.0: 1.9362, 4.0: 3.8865}


@pytest.mark.parametrize("mu", sorted(REACHED))
def test_tight_on_the_gaussian_pair(mu: float, gaussian_pair, gaussian_claim) -> None:
    rng = np.random.default_rng(11)
    found = np.array([audit_gdp(*gaussian_pair(mu, rng), 10_000).mu_lower for _ in range(80)])
    epsilon = gaussian_claim(found.mean()).epsilon(1e-5)
    print(
        f"μ = {mu}: mean bound {found.mean():.4f} ({100 * found.mean() / mu:.1f} %), "
        f"ε(1e-5) {epsilon:.2f} of {gaussian_claim(mu).epsilon(1e-5):.2f}"
    )
    assert found.mean() >= 0.85 * mu
    assert found.mean() >= REACHED[mu] - 4 * found.std() / np.sqrt(found.size)
    assert found.mean() < mu


def test_coverage_of_each_rate_and_of_mu(gaussian_pair, too_many) -> None:
    rng = np.random.default_rng(12)
    mu, repetitions = 1.0, 1000
    above, alpha_failed, beta_failed, careless = 0, 0, 0, 0
    for _ in range(repetitions):
        audit = audit_gdp(*gaussian_pair(mu, rng), 600)
        errors = norm.sf(audit.threshold), norm.cdf(audit.threshold - mu)
        alpha, beta = errors if audit.direction > 0 else (1 - errors[0], 1 - errors[1])
        above += audit.mu_lower > mu
        alpha_failed += audit.false_positive_upper < alpha
        beta_failed += audit.false_negative_upper < beta
        careless += audit.false_positives / audit.n_fresh < alpha
    print(f"of {repetitions}: μ {above}, α {alpha_failed}, β {beta_failed}, plain rate {careless}")
    assert not too_many(above, repetitions, 0.05)
    assert not too_many(alpha_failed, repetitions, 0.025)
    assert not too_many(beta_failed, repetitions, 0.025)
    # The level is used, not hoarded; and the same check rejects rates without their bounds.
    assert alpha_failed + beta_failed > 0.5 * 0.05 * repetitions
    assert too_many(careless, repetitions, 0.025)


@pytest.mark.parametrize("law", ["laplace", "cauchy", "coin"])
def test_coverage_without_gaussian_outputs(law: str, too_many) -> None:
    # Each pair is μ-GDP for the μ of its best threshold test; the audit may not exceed it.
    rng = np.random.default_rng(13)
    draw = {
        "laplace": lambda shift: lambda k: rng.laplace(size=k) + shift,
        "cauchy": lambda shift: lambda k: rng.standard_cauchy(size=k) + shift,
        "coin": lambda shift: lambda k: (rng.random(k) < 0.3 + 0.4 * shift).astype(float),
    }[law]
    if law == "coin":
        best = 2 * norm.ppf(0.7)
    else:
        t, cdf = np.linspace(-8, 9, 2001), getattr(stats, law).cdf
        best = np.max(norm.ppf(cdf(t)) - norm.ppf(cdf(t - 1)))
    above = sum(audit_gdp(draw(0), draw(1), 400).mu_lower > best for _ in range(200))
    assert not too_many(above, 200, 0.05)


def _frozen(X: np.ndarray):
    return lambda k: X[:k]


def test_direction_sign_and_scale_do_not_matter() -> None:
    rng = np.random.default_rng(14)
    X, Y = rng.normal(size=10_000), rng.normal(size=10_000) + 1.43
    plain = audit_gdp(_frozen(X), _frozen(Y), 10_000)
    assert plain.mu_lower > 1.25
    for other in (
        audit_gdp(_frozen(Y), _frozen(X), 10_000),
        audit_gdp(_frozen(-X), _frozen(-Y), 10_000),
        audit_gdp(_frozen(1e6 * X + 3), _frozen(1e6 * Y + 3), 10_000),
    ):
        assert other.mu_lower == pytest.approx(plain.mu_lower, abs=2e-3)
    assert audit_gdp(_frozen(-X), _frozen(-Y), 10_000).direction == -plain.direction


def test_nothing_to_see_gives_zero(gaussian_pair) -> None:
    rng = np.random.default_rng(15)
    assert [audit_gdp(*gaussian_pair(0.0, rng), 2000).mu_lower for _ in range(10)].count(0.0) >= 9
    constant = audit_gdp(lambda k: np.zeros(k), lambda k: np.zeros(k), 400)
    assert constant.mu_lower == 0.0
    assert constant.epsilon_lower(1e-5) == 0.0


def test_no_noise_at_all_reaches_what_the_runs_can_show() -> None:
    audit = audit_gdp(lambda k: np.zeros(k), lambda k: np.ones(k), 10_000)
    assert (audit.false_positives, audit.false_negatives) == (0, 0)
    assert audit.mu_lower == pytest.approx(-2 * norm.ppf(1 - 0.025 ** (1 / 9000)))


def test_pilot_runs_are_not_counted() -> None:
    # A pilot that separates perfectly, followed by runs that do not: only the latter are evidence.
    rng = np.random.default_rng(16)
    X, Y = rng.normal(size=2000), rng.normal(size=2000)
    Y[:200] += 50
    assert audit_gdp(_frozen(X), _frozen(Y), 2000).mu_lower == 0.0


@pytest.mark.parametrize("p", [2, 20, 300])
def test_vector_outputs(p: int) -> None:
    rng = np.random.default_rng(17)
    A = np.eye(p) + 0.5 * rng.normal(size=(p, p)) / np.sqrt(p)
    shift = A @ np.full(p, 2.0 / np.sqrt(p))  # μ = ‖A⁻¹ shift‖ = 2
    audit = audit_gdp(lambda k: rng.normal(size=(k, p)) @ A.T, lambda k: rng.normal(size=(k, p)) @ A.T + shift, 6000)
    print(f"p = {p}: μ ≥ {audit.mu_lower:.3f} of 2")
    assert {2: 1.85, 20: 1.8, 300: 1.3}[p] < audit.mu_lower < 2


def test_vector_with_more_coordinates_than_pilot_runs() -> None:
    rng = np.random.default_rng(18)
    shift = np.zeros(500)
    shift[7] = 6.0
    audit = audit_gdp(lambda k: rng.normal(size=(k, 500)), lambda k: rng.normal(size=(k, 500)) + shift, 1000)
    assert 1.5 < audit.mu_lower < 6


def test_coordinate_that_gives_the_secret_away() -> None:
    rng = np.random.default_rng(19)

    def sample(bit: float):
        return lambda k: np.column_stack([1e8 * rng.normal(size=(k, 3)), np.full(k, bit)])

    audit = audit_gdp(sample(0.0), sample(1.0), 2000)
    assert (audit.false_positives, audit.false_negatives) == (0, 0)


def test_statistic_of_the_caller() -> None:
    # D2 doubles the spread: a linear statistic sees that in one tail only, the squared norm entirely.
    rng = np.random.default_rng(20)
    pair = (lambda k: rng.normal(size=(k, 5)), lambda k: 2 * rng.normal(size=(k, 5)))
    linear = audit_gdp(*pair, 4000).mu_lower
    norm_squared = audit_gdp(*pair, 4000, statistic=lambda Z: (Z**2).sum(axis=1)).mu_lower
    print(f"linear {linear:.3f}, squared norm {norm_squared:.3f}")
    assert norm_squared > linear + 0.5


def test_column_is_a_scalar() -> None:
    rng = np.random.default_rng(21)
    X, Y = rng.normal(size=3000), rng.normal(size=3000) + 1
    flat = audit_gdp(_frozen(X), _frozen(Y), 3000)
    assert audit_gdp(_frozen(X[:, None]), _frozen(Y[:, None]), 3000).threshold == flat.threshold


def test_result_is_readable_and_deterministic() -> None:
    rng = np.random.default_rng(22)
    X, Y = rng.normal(size=1000), rng.normal(size=1000) + 1
    audit, again = (audit_gdp(_frozen(X), _frozen(Y), 1000, confidence=0.9) for _ in range(2))
    assert str(audit) == str(again)
    assert str(audit).startswith(f"GDP audit: μ ≥ {audit.mu_lower:.4g} with 90 % confidence\n  1000 runs a side")
    assert (audit.n_runs, audit.n_pilot, audit.n_fresh, audit.confidence) == (1000, 100, 900, 0.9)
    expected = -norm.ppf(audit.false_positive_upper) - norm.ppf(audit.false_negative_upper)
    assert audit.mu_lower == pytest.approx(expected, rel=1e-12)


def test_epsilon_lower_converts_mu_lower(gaussian_pair, gaussian_claim) -> None:
    audit = audit_gdp(*gaussian_pair(1.43, np.random.default_rng(23)), 4000)
    assert audit.epsilon_lower(1e-5) == pytest.approx(gaussian_claim(audit.mu_lower).epsilon(1e-5), rel=1e-6)


def test_diverged_runs_do_not_stop_the_audit() -> None:
    rng = np.random.default_rng(24)

    def diverging(shape: tuple[int, ...], shift: float):
        def sample(k: int) -> np.ndarray:
            out = rng.normal(size=(k, *shape)) + shift
            out[rng.random(k) < 0.01] = 1e250
            return out

        return sample

    for shape in ((), (4,)):
        assert 0 <= audit_gdp(diverging(shape, 0.0), diverging(shape, 3.0), 2000).mu_lower < 6
    assert audit_gdp(diverging((), 0.0), diverging((), 3.0), 2000).mu_lower > 1.5


def test_large_pilot_without_gaussian_outputs() -> None:
    rng = np.random.default_rng(25)
    audit = audit_gdp(lambda k: rng.laplace(size=k), lambda k: rng.laplace(size=k) + 1, 200_000)
    assert 0.97 < audit.mu_lower < 1.04
