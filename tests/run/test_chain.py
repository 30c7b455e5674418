"""Hidden chains: only what was certified runs, only the last iterate leaves, and it attains its bound."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import Cyclic, Evidence, Mechanism, Partition, Schedule
from tacit.run import SEEDED, GradientChain, LeastSquaresGradient, VectorSum, contraction, run_chain


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


def chain(steps=20, k=2, n=5, eta=0.5, l2=0.1, **change) -> GradientChain:
    return GradientChain(Schedule.constant(eta, steps), l2, k, n, **change)


def least_squares(n=5, seed=0) -> LeastSquaresGradient:
    rng = np.random.default_rng(seed)
    return LeastSquaresGradient(rng.normal(size=(n, 2)), rng.normal(size=n), 1.0, row_norm=1.0)


def test_the_mechanism_is_derived_from_public_numbers_only():
    a, b = chain().mechanism(least_squares(seed=1), 3.0), chain().mechanism(least_squares(seed=2), 3.0)
    assert a == b
    assert a.view.evidence is Evidence.CHECKED
    assert a.view.lipschitz.max == pytest.approx(0.95)  # |1 − ηλ|
    assert a.sampling.weights.to_array().tolist() == [0.6, 0.4]
    s = a.view.noise_std.to_array()[:2]
    np.testing.assert_allclose(s, [0.5 * 3 / 3, 0.5 * 3 / 2])


def test_contraction_beyond_two_over_beta_expands():
    assert contraction(0.5, 1.0, 0.1) == pytest.approx(0.95)
    assert contraction(2.5, 1.0, 0.1) == pytest.approx(1.75)


def test_contraction_bounds_the_real_map():
    """The gradient step of the clipped least-squares loss never expands distances by more than c."""
    rng, total = np.random.default_rng(3), least_squares(8)
    for eta, l2 in ((0.3, 0.0), (1.0, 0.2), (1.9, 0.05), (3.0, 0.1)):
        c = contraction(eta, total.smoothness, l2)
        u, v = rng.normal(size=(2, 4000, 2)) * rng.choice([0.1, 1, 10], size=(2, 4000, 1))
        everyone = np.ones((4000, 8), bool)
        step = lambda w: w - eta * (total.total(w, everyone) / 8 + l2 * w)  # noqa: B023, E731
        ratio = np.linalg.norm(step(u) - step(v), axis=1) / np.linalg.norm(u - v, axis=1)
        assert ratio.max() <= c + 1e-9


def test_running_returns_only_the_last_iterate():
    total, ticks = least_squares(), []
    certified = certify(chain().mechanism(total, 3.0))
    theta, certificate = run_chain(chain(), total, certified, np.zeros(2), progress=lambda k, n: ticks.append((k, n)))
    assert theta.shape == (2,)
    assert certificate.view == "the final model"
    assert certificate.marks == ()
    assert ticks == [(k + 1, 20) for k in range(20)]


def test_a_seed_repeats_and_marks():
    total = least_squares()
    certified = certify(chain().mechanism(total, 3.0))
    (a, first), (b, _) = (run_chain(chain(), total, certified, np.zeros(2), seed=1) for _ in range(2))
    assert np.array_equal(a, b)
    assert first.marks == (SEEDED,)
    assert SEEDED in str(first)
    assert first.from_json(first.to_json()).marks == (SEEDED,)


def test_the_budget_is_reserved_before_any_record_is_read(tmp_path, monkeypatch):
    total = least_squares()
    certified = certify(chain().mechanism(total, 3.0))
    spent = certified.epsilon(1e-6)
    with Ledger(tmp_path / "l.db", epsilon=1.2 * spent, delta=1e-6) as ledger:
        run_chain(chain(), total, certified, np.zeros(2), budget=ledger, note="first")
        monkeypatch.setattr(LeastSquaresGradient, "total", lambda *a: pytest.fail("a record was read"))
        with pytest.raises(BudgetExhausted):
            run_chain(chain(), total, certified, np.zeros(2), budget=ledger, note="second")
        assert [entry.note for entry in ledger.entries()] == ["first"]


def test_without_noise_the_chain_converges_to_the_ridge_solution():
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(40, 3)) * 0.3, rng.normal(size=40) * 0.1
    total = LeastSquaresGradient(X, y, 50.0, row_norm=3.0)
    c = GradientChain(Schedule.constant(0.1, 4000), 0.05, 1, 40)
    theta, _ = run_chain(c, total, certify(c.mechanism(total, 1e-9)), np.zeros(3), seed=0)
    exact = np.linalg.solve(X.T @ X / 40 + 0.05 * np.eye(3), X.T @ y / 40)
    np.testing.assert_allclose(theta, exact, atol=1e-6)


def _other(m: Mechanism, **change) -> Mechanism:
    return dataclasses.replace(m, **change)


def test_every_mismatch_is_refused():
    total, c = least_squares(), chain()
    m = c.mechanism(total, 3.0)
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
            run_chain(c, total, certify(mechanism), np.zeros(2))
    with pytest.raises(MechanismMismatch):
        run_chain(chain(steps=10), total, certify(m), np.zeros(2))
    with pytest.raises(MechanismMismatch, match="all iterates"):
        run_chain(c, total, certify(Mechanism(adjacency="zero-out", ratio=1.0, steps=20)), np.zeros(2))


def test_shares_that_are_not_the_chain_s_are_refused():
    """Breaker's A9: uneven batches with other shares would average δ wrongly."""
    total, c = least_squares(), chain()
    m = c.mechanism(total, 3.0, partition=Partition.SECRET)
    for weights in (Schedule([1.0, 0.0]), None):
        wrong = _other(m, sampling=Cyclic(2, Partition.SECRET, weights))
        with pytest.raises(MechanismMismatch, match="shares"):
            run_chain(c, total, certify(wrong), np.zeros(2))


def test_a_prox_is_declared_not_checked():
    total = least_squares()
    c = chain(prox=lambda w: np.clip(w, -1, 1))
    m = c.mechanism(total, 3.0)
    assert m.view.evidence is Evidence.DECLARED
    run_chain(c, total, certify(m), np.zeros(2))
    with pytest.raises(MechanismMismatch, match="prox"):
        run_chain(c, total, certify(chain().mechanism(total, 3.0)), np.zeros(2))


def test_replicas_are_marked_and_not_paid_for(tmp_path):
    """Breaker's A3: a certificate is about one run."""
    total, c = least_squares(), chain()
    certificate = certify(c.mechanism(total, 3.0))
    _, marked = run_chain(c, total, certificate, np.zeros(2), replicas=5)
    assert any("5 replicas" in mark for mark in marked.marks)
    with Ledger(tmp_path / "l.db", epsilon=99.0, delta=1e-6) as ledger, pytest.raises(MechanismMismatch):
        run_chain(c, total, certificate, np.zeros(2), replicas=5, budget=ledger)


def test_a_sum_without_smoothness_has_no_hidden_state_theorem():
    class Unknown(VectorSum):
        smoothness = None

    total = Unknown(np.zeros((5, 2)), 1.0)
    with pytest.raises(InvalidInput, match="no hidden-state theorem"):
        chain().mechanism(total, 1.0)
    with pytest.raises(MechanismMismatch, match="smoothness"):
        run_chain(chain(), total, certify(chain().mechanism(VectorSum(np.zeros((5, 2)), 1.0), 1.0)), np.zeros(2))


def test_a_secret_partition_is_certified_no_worse_than_a_fixed_one():
    total, c = least_squares(), chain()
    fixed = certify(c.mechanism(total, 3.0)).epsilon(1e-5)
    secret = certify(c.mechanism(total, 3.0, partition=Partition.SECRET)).epsilon(1e-5)
    assert secret < fixed


def test_add_remove_is_refused_because_the_chain_divides_by_n():
    total = least_squares()
    with pytest.raises(InvalidInput, match="secret"):
        chain().mechanism(total, 3.0, adjacency="add-remove")
    m = dataclasses.replace(chain(k=1).mechanism(total, 3.0), adjacency="add-remove")
    with pytest.raises(MechanismMismatch, match="divides by n"):
        run_chain(chain(k=1), total, certify(m), np.zeros(2))
