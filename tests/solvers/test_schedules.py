"""Noise schedules: what they say, and that the optimised one is optimal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from tacit.errors import InvalidInput
from tacit.problem import ElasticNet, Facts, Logistic, Problem
from tacit.solvers import Budget, NoisyCyclicDescent
from tacit.solvers.schedules import Optimised, balanced_shares, decaying, noise_variances, optimal_variances


def cost(variances, weights):
    """Σ w σ² after scaling to Σ 1/σ² = 1."""
    return float((weights * variances).sum() * (1 / variances).sum())


@pytest.mark.parametrize("seed", range(3))
def test_no_other_spread_of_the_noise_does_better(seed):
    weights = np.random.default_rng(seed).uniform(0.01, 1.0, 6)
    found = optimize.minimize(lambda t: np.log(cost(np.exp(t), weights)), np.zeros(6), method="BFGS")
    ours = optimal_variances(weights)
    assert (1 / ours).sum() == pytest.approx(1.0)
    assert np.log(cost(ours, weights)) <= found.fun + 1e-9
    np.testing.assert_allclose(ours, np.exp(found.x) * (1 / np.exp(found.x)).sum(), rtol=1e-3)


@pytest.mark.parametrize("n_batches", [1, 3])
def test_the_optimised_schedule_is_optimal_for_every_batch(n_batches):
    schedule = Optimised(half_life=1.5)
    o = noise_variances(schedule, 5, n_batches)
    weights = 2.0 ** -((4 - np.arange(5)) / 1.5)
    for j in range(n_batches):
        flat = optimize.minimize(lambda t: np.log(cost(np.exp(t), weights)), np.zeros(5)).fun
        assert np.log(cost(o[:, j], weights)) <= flat + 1e-9
    assert cost(o[:, 0], weights) < 0.95 * cost(np.ones(5), weights)
    assert cost(o[:, 0], weights) < cost(noise_variances("linear", 5, 1)[:, 0], weights)


def test_a_contraction_gives_the_half_life_of_its_noise():
    """A quadratic whose steps contract by c keeps c^{2 age} of a step's variance."""
    c, n_batches = 0.9, 4
    h = Optimised.from_contraction(c, n_batches).half_life
    assert c ** (2 * n_batches * h) == pytest.approx(0.5)
    with pytest.raises(InvalidInput, match="constant"):
        Optimised.from_contraction(1.0)


def test_names():
    np.testing.assert_array_equal(noise_variances("constant", 3, 2), np.ones((3, 2)))
    np.testing.assert_allclose(noise_variances("linear", 3, 1)[:, 0], [1, 0.55, 0.1])
    np.testing.assert_array_equal(noise_variances("step", 4, 1)[:, 0], [1, 1, 0.25, 0.25])
    np.testing.assert_array_equal(noise_variances(lambda k, j: 1 + k + 10 * j, 2, 2), [[1, 11], [2, 12]])
    assert (np.diff(noise_variances("optimised", 9, 1)[:, 0]) < 0).all()
    assert noise_variances("linear", 1, 1).shape == (1, 1)


@pytest.mark.parametrize("bad", ["quadratic", None, lambda k, j: 0.0, lambda k, j: float("nan"), lambda k, j: "x"])
def test_bad_schedules_are_refused_in_one_line(bad):
    with pytest.raises(InvalidInput) as caught:
        noise_variances(bad, 2, 2)
    assert "\n" not in str(caught.value)


def test_shares_balance_the_displacement():
    scales = {"a": 3.0, "b": 1.0}
    shares = balanced_shares(scales)
    assert shares == {"a": 0.75, "b": 0.25}
    found = optimize.minimize_scalar(lambda p: 9 / p + 1 / (1 - p), bounds=(0.01, 0.99), method="bounded")
    assert found.x == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize(("epochs", "batches"), [(1, 1), (2, 1), (3, 4)])
def test_steps_of_the_cyclic_solver_are_those_of_every_hidden_chain(epochs, batches):
    """The first step is full, also if it is the only one."""
    task = Problem(Logistic(), ElasticNet.of(2), Facts(400, -np.ones(2), np.ones(2)), intercept=False)
    solver = NoisyCyclicDescent(epochs=epochs, batches=batches)
    chain = solver._chain(task, Budget(1.0, 1e-5, view="final_model"), solver._query(task), None)
    eta = chain.step_size.to_array()
    full = 1.5 / (0.25 * (1.5 * np.sqrt(2)) ** 2)  # in units of 1/β, β = φ″R², R = 1.5√p
    np.testing.assert_allclose(eta, full * decaying(epochs * batches), rtol=1e-12)
    assert eta[0] == pytest.approx(full)
