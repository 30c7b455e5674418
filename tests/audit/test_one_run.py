"""One-run auditing: the p-value against linear programs over all mechanisms, the paper, and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq, linprog
from scipy.stats import binom

from tacit.audit import audit_one_run
from tacit.audit.one_run import one_run_p_value


def _every_mechanism(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """max P[V ≥ v] over all (ε, δ)-DP maps from m bits to guesses on r of them: a linear program."""
    inputs = list(itertools.product((-1, 1), repeat=m))
    guesses = [t for t in itertools.product((-1, 0, 1), repeat=m) if sum(map(abs, t)) == r]
    n = len(inputs) * len(guesses)
    flips = [(s, (*s[:i], -s[i], *s[i + 1 :])) for s in inputs for i in range(m)]
    index = {(s, t): k for k, (s, t) in enumerate(itertools.product(inputs, guesses))}
    size = n + len(flips) * len(guesses)
    rows, right = [], []
    for f, (s, other) in enumerate(flips):
        total = np.zeros(size)
        for g, t in enumerate(guesses):
            slack = n + f * len(guesses) + g  # ≥ (M(t | s) − e^ε M(t | other))₊
            row = np.zeros(size)
            row[index[s, t]], row[index[other, t]], row[slack] = 1, -math.exp(epsilon), -1
            total[slack] = 1
            rows.append(row)
            right.append(0.0)
        rows.append(total)
        right.append(delta)
    sums = np.zeros((len(inputs), size))
    gain = np.zeros(size)
    for k, s in enumerate(inputs):
        for t in guesses:
            sums[k, index[s, t]] = 1
            gain[index[s, t]] = -(sum(a == b for a, b in zip(s, t, strict=True)) >= v) / len(inputs)
    solved = linprog(gain, A_ub=np.array(rows), b_ub=right, A_eq=sums, b_eq=np.ones(len(inputs)), method="highs")
    assert solved.status == 0
    return -solved.fun


@pytest.mark.parametrize(("m", "r"), [(1, 1), (2, 2), (2, 1), (3, 3), (3, 2)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.01), (0.5, 0.001), (1.0, 0.01), (3.0, 0.005)])
def test_p_value_is_the_worst_case_over_all_mechanisms(m: int, r: int, epsilon: float, delta: float) -> None:
    for v in range(1, r + 1):
        worst = _every_mechanism(m, r, v, epsilon, delta)
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(worst, abs=1e-7)


def _steinke(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 of Steinke, Nasr, Jagielski (2023), from its statement."""
    q = 1 / (1 + math.exp(-epsilon))
    i = np.arange(1, v + 1)
    window = binom.cdf(v - 1, r, q) - binom.cdf(v - 1 - i, r, q)
    return float(min(1.0, binom.sf(v - 1, r, q) + 2 * m * delta * np.max(window / i, initial=0.0)))


def _root(p_value, m: int, r: int, v: int, delta: float) -> float:
    return float(brentq(lambda e: p_value(m, r, v, e, delta) - 0.05, 0, 10))


@pytest.mark.parametrize(("inputs", "printed"), [((1000, 100, 75, 1e-4), 0.673), ((100_000, 1510, 1439, 1e-5), 2.675)])
def test_sharper_than_the_printed_examples(inputs: tuple, printed: float) -> None:
    # The two numbers printed in the paper (appendix D and section 7) anchor our reading of its theorem.
    assert _root(_steinke, *inputs) == pytest.approx(printed, abs=1e-3)
    ours = _root(one_run_p_value, *inputs)
    print(f"{inputs}: ε ≥ {ours:.3f}, paper {printed}")
    assert printed < ours < 1.1 * printed


def test_pure_case_is_the_binomial_tail() -> None:
    for r, v, epsilon in ((10, 7, 0.0), (100, 80, 1.0), (5000, 4500, 2.0)):
        expected = binom.sf(v - 1, r, 1 / (1 + math.exp(-epsilon)))
        assert one_run_p_value(r, r, v, epsilon, 0.0) == pytest.approx(expected, rel=1e-9)


def test_below_the_published_bound_where_it_matters_and_above_where_it_fails() -> None:
    for r, epsilon, delta in ((50, 0.5, 1e-4), (200, 2.0, 1e-5), (1000, 1.0, 1e-6)):
        for v in range(1, r + 1):
            if 1e-6 < binom.sf(v - 1, r, 1 / (1 + math.exp(-epsilon))) < 0.5:
                assert one_run_p_value(r, r, v, epsilon, delta) <= _steinke(r, r, v, epsilon, delta) + 1e-12
    assert one_run_p_value(2, 2, 1, 1.0, 0.01) > _steinke(2, 2, 1, 1.0, 0.01) + 4e-4


def test_p_value_far_out_is_finite() -> None:
    # q^r underflows nowhere and the ratio β/w has no 0/0: with every guess right it is 1.
    assert one_run_p_value(10**5, 2000, 2000, 0.0, 1e-6) == pytest.approx(1e5 * 1e-6 / 2000, rel=1e-9)
    assert one_run_p_value(10**5, 10**5, 60_000, 0.0, 0.0) < 1e-300
    assert one_run_p_value(100, 100, 0, 1.0, 0.1) == 1.0
    assert 0.99 < one_run_p_value(10**5, 10**5, 10**4, 5.0, 1e-6) <= 1.0


def _respond(coins: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    truthful = rng.random(coins.size) < 1 / (1 + math.exp(-epsilon))
    return np.where(truthful, coins, ~coins).astype(float)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_randomised_response_is_found(epsilon: float) -> None:
    rng = np.random.default_rng(51)
    found = []
    for _ in range(20):
        coins = rng.random(10_000) < 0.5
        found.append(audit_one_run(_respond(coins, epsilon, rng), coins, delta=1e-6, rng=rng).epsilon_lower)
    print(f"randomised response, ε = {epsilon}: {np.mean(found):.3f}")
    assert 0.8 * epsilon < np.mean(found) < epsilon


@pytest.mark.parametrize("n_guesses", [300, 60, (40, 0), None])
def test_coverage(n_guesses: object, too_many) -> None:
    rng = np.random.default_rng(52)
    repetitions, above, careless = 1000, 0, 0
    for _ in range(repetitions):
        coins = rng.random(300) < 0.5
        told = _respond(coins, 1.0, rng)
        # δ = 0: randomised response is exactly ε-DP, so any slack here would be the audit's own.
        above += audit_one_run(told, coins, delta=0.0, n_guesses=n_guesses, rng=rng).epsilon_lower > 1
        careless += (told == coins).mean() > 1 / (1 + math.exp(-1))
    print(f"n_guesses = {n_guesses}: {above} of {repetitions}")
    assert not too_many(above, repetitions, 0.05)
    assert too_many(careless, repetitions, 0.05)
    if n_guesses == 300:
        assert above > 0.01 * repetitions  # the confidence is used, not hoarded


def test_coverage_of_the_worst_mechanism(too_many) -> None:
    # The mechanism that attains the bound: ρ steps up at v (module docstring), m = r = 60, δ > 0.
    rng = np.random.default_rng(53)
    m, epsilon, delta = 60, 1.0, 1e-3
    k = np.arange(m + 1)
    w = binom.pmf(k, m, 1 / (1 + math.exp(-epsilon)))
    critical = next(v for v in range(m + 1) if one_run_p_value(m, m, v, epsilon, delta) <= 0.05)
    step = m * delta / (critical * w[critical])
    rho = 1 - step * w[critical:].sum() + step * (k >= critical)
    assert (rho >= 0).all()
    p = w * rho
    assert p.sum() == pytest.approx(1)
    assert p[critical:].sum() == pytest.approx(one_run_p_value(m, m, critical, epsilon, delta), rel=1e-9)
    above = 0
    for correct in rng.choice(m + 1, size=1500, p=p / p.sum()):
        # Guessing "in" throughout: a guess is right where its canary is included.
        audit = audit_one_run(np.zeros(m), np.arange(m) < correct, delta=delta, n_guesses=(m, 0))
        assert audit.n_correct == correct
        above += audit.epsilon_lower > epsilon
    print(f"worst mechanism: {above} of 1500 above")
    assert not too_many(above, 1500, 0.05)


def test_gaussian_mechanism_stays_below_its_epsilon(gaussian_claim) -> None:
    rng = np.random.default_rng(54)
    for mu in (0.5, 1.0, 3.0):
        truth = gaussian_claim(mu).epsilon(1e-5)
        found = []
        for _ in range(20):
            coins = rng.random(5000) < 0.5
            found.append(audit_one_run(mu * coins + rng.normal(size=5000), coins, delta=1e-5).epsilon_lower)
        print(f"Gaussian, μ = {mu}: {np.mean(found):.3f} of {truth:.3f}")
        assert 0.2 * truth < np.mean(found)
        assert max(found) < truth


def test_ties_never_help() -> None:
    # Equal scores, canaries sorted by inclusion: an order-dependent tie break would read the secret.
    coins = np.arange(1000) < 500
    for order in (coins, ~coins):
        assert audit_one_run(np.zeros(1000), order, delta=1e-5).epsilon_lower == 0.0
        for n_guesses in (1000, 200, (100, 0), (0, 100)):
            audit = audit_one_run(np.zeros(1000), order, delta=1e-5, n_guesses=n_guesses)
            assert (audit.n_correct, audit.epsilon_lower) == (0, 0.0)
    fair = audit_one_run(np.zeros(1000), coins, delta=1e-5, n_guesses=200, rng=np.random.default_rng(55))
    assert 70 < fair.n_correct < 130


def test_guesses_are_counted_at_both_ends() -> None:
    scores = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    coins = np.array([1, 0, 1, 1, 0, 0])
    for n_guesses, correct, split in ((2, 2, (1, 1)), (4, 3, (2, 2)), (3, 2, (2, 1)), ((3, 1), 3, (3, 1))):
        audit = audit_one_run(scores, coins, delta=0.0, n_guesses=n_guesses)
        assert (audit.n_correct, (audit.guessed_in, audit.guessed_out)) == (correct, split)


def test_grid_is_paid_for() -> None:
    rng = np.random.default_rng(56)
    coins = rng.random(2000) < 0.5
    scores = coins + 0.5 * rng.normal(size=2000)
    free = audit_one_run(scores, coins, delta=1e-5)
    fixed = audit_one_run(scores, coins, delta=1e-5, n_guesses=(free.guessed_in, free.guessed_out))
    assert free.n_tried == 5
    assert fixed.n_tried == 1
    assert free.n_correct == fixed.n_correct
    assert 0 < free.epsilon_lower < fixed.epsilon_lower
    paid = audit_one_run(scores, coins, delta=1e-5, confidence=0.99, n_guesses=(free.guessed_in, free.guessed_out))
    assert paid.epsilon_lower == pytest.approx(free.epsilon_lower, abs=1e-9)
    assert "of 2000 canaries" not in str(free)
    assert str(free).startswith(f"one-run audit: ε ≥ {free.epsilon_lower:.4g} at δ = 1e-05 with 95 % confidence\n")
