"""Hidden chains: only what was certified runs, only the last iterate leaves, and it attains its bound."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import Cyclic, Evidence, Mechanism, Partition, Schedule
from tacit.problem import Block, GradientStep, Squared
from tacit.records import Rows
from tacit.release import BlockChain, GradientChain, contraction
from tacit.release.queries import LossGradient, VectorSum

LEAST_SQUARES = LossGradient(Squared(), 1.0, 1.0)


def chain(steps=20, k=2, n=5, eta=0.5, l2=0.1, **change) -> GradientChain:
    return GradientChain(Schedule.constant(eta, steps), l2, k, n, **change)


@pytest.fixture
def run(opened):
    """The last iterate of a chain over five random records."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(5, 2)), rng.normal(size=5)

    def go(one, query, mechanism, start=(0.0, 0.0)):
        session = opened(certify(mechanism), X, y)
        return session.run_chain(one, query, np.array(start)), session

    return go


def test_the_mechanism_is_derived_from_public_numbers_only():
    m = chain().mechanism(LEAST_SQUARES, 3.0)
    assert m.view.evidence is Evidence.CHECKED
    assert m.view.lipschitz.max == pytest.approx(0.95)  # |1 − ηλ|
    assert m.sampling.weights.to_array().tolist() == [0.6, 0.4]
    s = m.view.noise_std.to_array()[:2]
    np.testing.assert_allclose(s, [0.5 * 3 / 3, 0.5 * 3 / 2])


def test_contraction_beyond_two_over_beta_expands():
    assert contraction(0.5, 1.0, 0.1) == pytest.approx(0.95)
    assert contraction(2.5, 1.0, 0.1) == pytest.approx(1.75)


def test_contraction_bounds_the_real_map():
    """The gradient step of the clipped least-squares loss never expands distances by more than c."""
    rng = np.random.default_rng(3)
    rows = Rows(rng.normal(size=(8, 2)), rng.normal(size=8))
    for eta, l2 in ((0.3, 0.0), (1.0, 0.2), (1.9, 0.05), (3.0, 0.1)):
        c = contraction(eta, LEAST_SQUARES.smoothness, l2)
        u, v = rng.normal(size=(2, 4000, 2)) * rng.choice([0.1, 1, 10], size=(2, 4000, 1))
        everyone = np.ones((4000, 8), bool)
        step = lambda w: w - eta * (LEAST_SQUARES.total(rows, w, everyone) / 8 + l2 * w)  # noqa: B023, E731
        ratio = np.linalg.norm(step(u) - step(v), axis=1) / np.linalg.norm(u - v, axis=1)
        assert ratio.max() <= c + 1e-9


def test_running_returns_only_the_last_iterate(run):
    theta, session = run(chain(), LEAST_SQUARES, chain().mechanism(LEAST_SQUARES, 3.0))
    assert theta.shape == (2,)
    assert session.certificate.view == "the final model"
    assert session.steps_left() == 0


def test_without_noise_the_chain_converges_to_the_ridge_solution(opened):
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(40, 3)) * 0.3, rng.normal(size=40) * 0.1
    query = LossGradient(Squared(), 50.0, 3.0)
    c = GradientChain(Schedule.constant(0.1, 4000), 0.05, 1, 40)
    session = opened(certify(c.mechanism(query, 1e-9)), X, y, random_state=0)
    theta = session.run_chain(c, query, np.zeros(3))
    exact = np.linalg.solve(X.T @ X / 40 + 0.05 * np.eye(3), X.T @ y / 40)
    np.testing.assert_allclose(theta, exact, atol=1e-6)


def _other(m: Mechanism, **change) -> Mechanism:
    return dataclasses.replace(m, **change)


def test_every_mismatch_is_refused(run):
    c = chain()
    m = c.mechanism(LEAST_SQUARES, 3.0)
    view = m.view
    wrong = [
        _other(m, view=dataclasses.replace(view, lipschitz=view.lipschitz.scaled(0.9))),
        _other(m, view=dataclasses.replace(view, noise_std=view.noise_std.scaled(2.0))),
        _other(m, view=dataclasses.replace(view, diameter=1.0)),
        _other(m, ratio=m.ratio.scaled(0.5)),
        _other(m, sampling=Cyclic(4)),
    ]
    for mechanism in wrong:
        with pytest.raises(MechanismMismatch):
            run(c, LEAST_SQUARES, mechanism)
    with pytest.raises(MechanismMismatch):
        run(chain(steps=10), LEAST_SQUARES, m)
    with pytest.raises(MechanismMismatch, match="all iterates"):
        run(c, LEAST_SQUARES, Mechanism(adjacency="zero-out", ratio=1.0, steps=20))
    with pytest.raises(MechanismMismatch, match="of 5 records"):
        run(chain(n=6), LEAST_SQUARES, m)


def test_a_chain_takes_all_its_steps_in_one_go(run):
    _, session = run(chain(), LEAST_SQUARES, chain().mechanism(LEAST_SQUARES, 3.0))
    with pytest.raises(MechanismMismatch, match="in one go"):
        session.run_chain(chain(), LEAST_SQUARES, np.zeros(2))


def test_shares_that_are_not_the_chain_s_are_refused(run):
    """Uneven batches with other shares would average δ wrongly."""
    c = chain()
    m = c.mechanism(LEAST_SQUARES, 3.0, partition=Partition.SECRET)
    for weights in (Schedule([1.0, 0.0]), None):
        wrong = _other(m, sampling=Cyclic(2, Partition.SECRET, weights))
        with pytest.raises(MechanismMismatch, match="shares"):
            run(c, LEAST_SQUARES, wrong)


def test_a_prox_is_declared_not_checked(run):
    c = chain(prox=lambda w: np.clip(w, -1, 1))
    m = c.mechanism(LEAST_SQUARES, 3.0)
    assert m.view.evidence is Evidence.DECLARED
    run(c, LEAST_SQUARES, m)
    with pytest.raises(MechanismMismatch, match="prox"):
        run(c, LEAST_SQUARES, chain().mechanism(LEAST_SQUARES, 3.0))


def test_a_query_without_smoothness_has_no_hidden_state_theorem(run):
    unknown = LossGradient(Squared(), 1.0)  # rows of any length
    assert unknown.smoothness is None
    with pytest.raises(InvalidInput, match="no hidden-state theorem"):
        chain().mechanism(unknown, 1.0)
    with pytest.raises(MechanismMismatch, match="smoothness"):
        run(chain(), unknown, chain().mechanism(VectorSum(1.0), 1.0))


def test_a_secret_partition_is_certified_no_worse_than_a_fixed_one():
    c = chain()
    fixed = certify(c.mechanism(LEAST_SQUARES, 3.0)).epsilon(1e-5)
    secret = certify(c.mechanism(LEAST_SQUARES, 3.0, partition=Partition.SECRET)).epsilon(1e-5)
    assert secret < fixed


def test_add_remove_is_refused_because_the_chain_divides_by_n(run):
    with pytest.raises(InvalidInput, match="secret"):
        chain().mechanism(LEAST_SQUARES, 3.0, adjacency="add-remove")
    m = dataclasses.replace(chain(k=1).mechanism(LEAST_SQUARES, 3.0), adjacency="add-remove")
    with pytest.raises(MechanismMismatch, match="divides by n"):
        run(chain(k=1), LEAST_SQUARES, m)


def test_a_step_beyond_the_public_ball_does_not_expand():
    """Gradients clip θ beyond 1e9: were that a part of the gradient alone, c = 1 would be √2 (errata T17)."""
    query = LossGradient(Squared(), 1e12, 2**0.5)  # β = 2
    rows, one = Rows(np.ones((1, 2)), np.zeros(1)), np.ones((1, 1), bool)
    c = GradientChain(Schedule.constant(1.0, 2), 0.0, 1, 1)
    assert c.mechanism(query, 1.0).view.lipschitz.max == pytest.approx(1.0)

    def step(theta):
        x = c.query_state(theta, 0, 0)
        return c.advance(x, query.total(rows, x, one), 0, 0)

    with pytest.raises(InvalidInput, match="radius must not exceed"):
        chain(radius=2e9)
    worst = 0.0
    for far in ([[1e9, -1e9]], [[2e9, -1e9]], [[3e9, 2e9]], [[-5e9, 1e9]]):
        for move in ([[1e3, 0.0]], [[0.0, 1e3]], [[1e3, -1e3]], [[1e8, 3e8]]):
            a, b = np.array(far), np.array(far) + move
            worst = max(worst, np.linalg.norm(step(a) - step(b)) / np.linalg.norm(a - b))
    assert worst <= 1 + 1e-6


def test_blocks_beyond_the_public_box_are_projected():
    """Sums take entries beyond 1e25 as 1e25; so does the step, or its coupling would not be what is stated."""
    block = Block("w", np.zeros(2), 1.0, GradientStep(0.5))
    c = BlockChain((block,), 10, 1)
    x = c.query_state(np.array([3e25, -2.0]), 0, 0)
    np.testing.assert_array_equal(x, [1e25, -2.0])
    np.testing.assert_array_equal(c.advance(x, np.zeros(2), 0, 0), [1e25, -2.0])
