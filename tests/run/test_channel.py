"""The channel counts, draws the certified batches, and resumes without reusing noise."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import (
    CorrelatedNoise,
    Cyclic,
    CyclicPoisson,
    FullBatch,
    Groups,
    Mechanism,
    Partition,
    Poisson,
    Selection,
    Separated,
    Shuffled,
    Trials,
    WithoutReplacement,
    batch_sizes,
)
from tacit.run import SEEDED, Channel, Streams, VectorSum, run


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


def mechanism(**change) -> Mechanism:
    return Mechanism(**{"adjacency": "zero-out", "ratio": 0.5, "steps": 4, **change})


def vectors(n: int = 6, p: int = 2) -> VectorSum:
    return VectorSum(np.random.default_rng(0).normal(size=(n, p)), 1.0)


def test_not_one_release_more_than_certified():
    channel = Channel(certify(mechanism(steps=2, releases=3)), 6)
    for _ in range(6):
        channel.release(vectors(), np.zeros((1, 2)))
    with pytest.raises(BudgetExhausted, match="certify a longer plan"):
        channel.release(vectors(), np.zeros((1, 2)))


def test_only_registered_sums_of_the_right_shape_are_served():
    """Breaker's A2: a state with more rows than replicas would get one row of noise for all of them."""

    class Foreign(VectorSum):
        pass

    channel = Channel(certify(mechanism()), 6)
    with pytest.raises(MechanismMismatch, match="not a registered sum"):
        channel.release(Foreign(np.zeros((6, 2)), 1.0), np.zeros((1, 2)))
    for state in (np.zeros((2, 2)), np.zeros((0, 2)), np.float64(0)):
        with pytest.raises(MechanismMismatch, match="one row per replica"):
            channel.release(vectors(), state)
    with pytest.raises(MechanismMismatch, match="records"):
        channel.release(vectors(n=7), np.zeros((1, 2)))
    assert channel.steps_left == 4


def test_a_selection_is_not_served():
    plan = Selection(base=(mechanism(),), trials=Trials(5))
    with pytest.raises(MechanismMismatch):
        Channel(certify(plan), 6)


# -- batches ------------------------------------------------------------------------------------------------


def masks(sampling, n=12, steps=8, replicas=3, seed=0) -> np.ndarray:
    draw = sampling.draw(n, replicas, Streams(seed))
    return np.stack([draw(t) for t in range(steps)])


def test_full_batches_read_everything():
    assert masks(FullBatch()).all()


def test_poisson_batches_vary_in_size_and_have_the_right_rate():
    m = masks(Poisson(0.3), n=2000, steps=400, replicas=1)
    sizes = m.sum(axis=2)
    assert abs(m.mean() - 0.3) < 0.005
    assert 300 < sizes.var() < 560  # binomial: 420; fixed sizes would have none


def test_cyclic_batches_are_disjoint_complete_and_the_same_in_every_epoch():
    for partition in Partition:
        m = masks(Cyclic(4, partition))
        assert (m[:4].sum(axis=0) == 1).all()
        assert np.array_equal(m[:4], m[4:])
        assert (m.sum(axis=2) == 3).all()
    assert np.array_equal(masks(Cyclic(4), seed=1), masks(Cyclic(4), seed=2))
    secret = Cyclic(4, Partition.SECRET)
    assert not np.array_equal(masks(secret, seed=1), masks(secret, seed=2))


def test_shuffled_batches_are_new_in_every_epoch():
    m = masks(Shuffled(4))
    assert (m[:4].sum(axis=0) == 1).all()
    assert (m[4:].sum(axis=0) == 1).all()
    assert not np.array_equal(m[:4], m[4:])


def test_fixed_size_batches_have_a_fixed_size():
    assert (masks(WithoutReplacement(0.25)).sum(axis=2) == 3).all()


def test_cyclic_poisson_takes_turns():
    for groups in Groups:
        m = masks(CyclicPoisson(2, 1.0, groups))
        assert (m[:2].sum(axis=0) == 1).all()
        assert np.array_equal(m[0], m[2])
    sizes = masks(CyclicPoisson(2, 1.0, Groups.FIXED), replicas=20)[0].sum(axis=1)
    assert (sizes == 6).all()
    free = masks(CyclicPoisson(2, 1.0, Groups.INDEPENDENT), replicas=50)[0].sum(axis=1)
    assert free.var() > 1


def test_independent_groups_do_not_depend_on_the_other_records():
    with_one, without = (CyclicPoisson(3, 1.0, Groups.INDEPENDENT).draw(n, 1, Streams(5)) for n in (9, 8))
    assert np.array_equal(with_one(0)[:, :8], without(0))


def test_described_only_sampling_cannot_be_drawn():
    with pytest.raises(MechanismMismatch):
        masks(Separated(2, 3))


def test_uneven_batches_have_public_sizes():
    assert batch_sizes(10, 3).tolist() == [4, 3, 3]
    assert masks(Cyclic(3), n=10)[:3, 0].sum(axis=1).tolist() == [4, 3, 3]


# -- resume -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [None, CorrelatedNoise.toeplitz([1.0, 0.6, 0.3])])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_resume_repeats_nothing_and_changes_nothing(noise, stop):
    m = mechanism() if noise is None else mechanism(noise=noise)
    sampled = certify(m)
    total, at = vectors(), np.zeros((1, 2))
    whole = Channel(sampled, 6)
    start = whole.checkpoint()
    expected = [whole.release(total, at) for _ in range(4)]

    first = Channel(sampled, 6, resume=start)
    got = [first.release(total, at) for _ in range(stop)]
    second = Channel(sampled, 6, resume=first.checkpoint())
    got += [second.release(total, at) for _ in range(4 - stop)]
    assert np.array_equal(np.stack(got), np.stack(expected))
    with pytest.raises(BudgetExhausted):
        second.release(total, at)
    rows = np.stack(expected)[:, 0, 0]
    assert len(set(rows.tolist())) == 4


def test_resume_refuses_another_certificate():
    point = Channel(certify(mechanism()), 6).checkpoint()
    with pytest.raises(MechanismMismatch, match="another certificate"):
        Channel(certify(mechanism(ratio=0.1)), 6, resume=point)


def test_a_checkpoint_does_not_print_its_key():
    point = Channel(certify(mechanism()), 6).checkpoint()
    assert point.key.hex() not in repr(point)
    assert str(point.key) not in repr(point)


# -- run ----------------------------------------------------------------------------------------------------


class Descent:
    """Gradient descent towards the mean, as post-processing."""

    def __init__(self, m: Mechanism, total: VectorSum, greedy: bool = False, lazy: bool = False) -> None:
        self.m, self.total, self.greedy, self.lazy = m, total, greedy, lazy

    def mechanism(self):
        return self.m

    def init(self, rng):
        return np.zeros((1, 2))

    def step(self, w, release):
        if self.lazy:
            return w
        if self.greedy:
            release(self.total, w)
        return w - 0.5 * (w - release(self.total, w) / 6)

    def solution(self, w):
        return w[0]


def test_run_returns_a_solution_and_a_certificate():
    m, ticks = mechanism(), []
    w, certificate = run(Descent(m, vectors()), vectors(), certify(m), progress=lambda k, n: ticks.append((k, n)))
    assert w.shape == (2,)
    assert certificate.marks == ()
    assert ticks == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_seed_repeats_and_marks():
    m = mechanism()
    (a, first), (b, _) = (run(Descent(m, vectors()), vectors(), certify(m), seed=1) for _ in range(2))
    assert np.array_equal(a, b)
    assert first.marks == (SEEDED,)
    assert SEEDED in str(first)
    assert first.from_json(first.to_json()).marks == (SEEDED,)


def test_run_refuses_another_certificate_and_a_miscounting_solver():
    m, total = mechanism(), vectors()
    with pytest.raises(MechanismMismatch, match="another mechanism"):
        run(Descent(m, total), total, certify(mechanism(ratio=0.1)))
    for kind in ("greedy", "lazy"):
        with pytest.raises(MechanismMismatch, match="release"):
            run(Descent(m, total, **{kind: True}), total, certify(m))


def test_the_budget_is_reserved_before_any_record_is_read(tmp_path, monkeypatch):
    m = mechanism()
    certificate = certify(m)
    spent = certificate.epsilon(1e-6)
    with Ledger(tmp_path / "l.db", epsilon=1.2 * spent, delta=1e-6) as ledger:
        run(Descent(m, vectors()), vectors(), certificate, budget=ledger, note="first")
        never = vectors()
        monkeypatch.setattr(VectorSum, "total", lambda *a: pytest.fail("a record was read"))
        with pytest.raises(BudgetExhausted):
            run(Descent(m, never), never, certificate, budget=ledger, note="second")
        assert len(ledger.entries()) == 1
