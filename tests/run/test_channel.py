"""The channel counts, draws the certified batches, and resumes without reusing noise."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.mechanism import (
    Cyclic,
    CyclicPoisson,
    Factorised,
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
)
from tacit.run import Batches, Channel, Streams, VectorSum, batch_sizes


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
    batches = Batches(sampling, n, replicas, Streams(seed))
    return np.stack([batches.mask(t) for t in range(steps)])


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
    with_one, without = (Batches(CyclicPoisson(3, 1.0, Groups.INDEPENDENT), n, 1, Streams(5)) for n in (9, 8))
    assert np.array_equal(with_one.mask(0)[:, :8], without.mask(0))


def test_described_only_sampling_cannot_be_drawn():
    with pytest.raises(MechanismMismatch):
        masks(Separated(2, 3))


def test_uneven_batches_have_public_sizes():
    assert batch_sizes(10, 3).tolist() == [4, 3, 3]
    assert masks(Cyclic(3), n=10)[:3, 0].sum(axis=1).tolist() == [4, 3, 3]


# -- resume -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [None, Factorised.toeplitz([1.0, 0.6, 0.3])])
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


# -- post-processing of releases ----------------------------------------------------------------------------


def descent(channel: Channel, total: VectorSum) -> np.ndarray:
    """Gradient descent towards the mean: whatever happens to a release, the certificate holds."""
    w = np.zeros((1, 2))
    while channel.steps_left:
        w = w - 0.5 * (w - channel.release(total, w) / 6)
    return w[0]


def test_a_seed_repeats_and_another_does_not():
    a, b, c, d = (descent(Channel(certify(mechanism()), 6, streams=Streams(s)), vectors()) for s in (1, 1, 2, None))
    assert a.shape == (2,)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert not np.array_equal(a, d)


def test_steps_are_counted_down_by_whole_steps():
    channel = Channel(certify(mechanism(releases=2)), 6)
    left = []
    for _ in range(8):
        channel.release(vectors(), np.zeros((1, 2)))
        left.append(channel.steps_left)
    assert left == [4, 3, 3, 2, 2, 1, 1, 0]
