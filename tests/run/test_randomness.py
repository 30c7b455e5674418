"""Streams: named, independent, secret, fork-safe; and the channel's noise has the certified scale."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle

import numpy as np
import pytest
from scipy import stats

from tacit.accounting import certify
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import CorrelatedNoise, Mechanism, Plan, Schedule
from tacit.run import SEEDED, Channel, Streams, VectorSum


def draw(streams: Streams, purpose: str = "noise", step: int = 0) -> np.ndarray:
    return streams.at(purpose, step).standard_normal(8)


def test_same_name_same_numbers_other_name_other_numbers():
    s = Streams()
    assert np.array_equal(draw(s), draw(s))
    seen = {draw(s, p, k).tobytes() for p in ("noise", "batch", "public") for k in range(50)}
    assert len(seen) == 150


def test_private_streams_differ_and_seeded_ones_repeat():
    assert not np.array_equal(draw(Streams()), draw(Streams()))
    assert np.array_equal(draw(Streams(7)), draw(Streams(7)))
    assert not np.array_equal(draw(Streams(7)), draw(Streams(8)))
    assert Streams(7).seeded
    assert not Streams().seeded


def test_the_default_generator_is_aes_counter():
    assert type(Streams().at("noise").bit_generator).__name__ == "AESCounter"


def test_streams_are_never_pickled_or_copied():
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            attempt(Streams())


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True, [1]])
def test_bad_seeds(seed):
    with pytest.raises(InvalidInput):
        Streams(seed)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_fresh_noise():
    s = Streams()
    parent = draw(s)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - child
        os.write(write, draw(s).tobytes())
        os._exit(0)
    os.waitpid(pid, 0)
    child = np.frombuffer(os.read(read, 64))
    os.close(read)
    os.close(write)
    assert child.size == 8
    assert not np.array_equal(child, parent)
    assert np.array_equal(draw(s), parent)


def raw_noise(channel: Channel, sigmas: list[float], shape: tuple[int, int]) -> np.ndarray:
    """The standard normal numbers that hide a sum of zero at the last of these releases, after other sums of zero."""
    name = b""
    for sigma in sigmas:
        scale = repr((sigma, shape, "<f8")).encode()
        name = hashlib.sha256(name + scale + np.zeros(shape).tobytes()).digest()
    return channel._streams.at("noise", len(sigmas) - 1, name).standard_normal(shape)


# -- the noise of a channel ---------------------------------------------------------------------------------


def noise_sample(ratio: float, adjacency: str, *, replicas: int = 4000, steps: int = 3) -> np.ndarray:
    m = Mechanism(adjacency=adjacency, ratio=ratio, steps=steps)
    zero = VectorSum(np.zeros((2, 1)), 1.0)
    channel = Channel(certify(m), 2, replicas=replicas)
    return np.concatenate([channel.release(zero, np.zeros((replicas, 1)))[:, 0] for _ in range(steps)])


@pytest.mark.parametrize(("adjacency", "sigma"), [("replace-one", 4.0), ("zero-out", 2.0), ("add-remove", 2.0)])
def test_noise_has_the_certified_scale_and_a_wrong_scale_is_rejected(adjacency, sigma):
    z = noise_sample(0.5, adjacency)
    assert stats.kstest(z, "norm", args=(0, sigma)).pvalue > 1e-4
    for wrong in (0.7, 1.3):
        assert stats.kstest(z, "norm", args=(0, sigma * wrong)).pvalue < 1e-6


def test_noise_of_different_steps_is_independent():
    z = noise_sample(1.0, "zero-out", replicas=5000, steps=2).reshape(2, -1)
    assert abs(np.corrcoef(z)[0, 1]) < 0.06


def test_correlated_noise_is_the_rows_of_C_inverse_Z():
    bands = np.array([[1.0, 0.5, 0.2]] * 3 + [[2.0, 0.1, 0.3]] * 3)
    noise = CorrelatedNoise.dense(_dense(bands))
    m = Mechanism(adjacency="zero-out", ratio=0.25, steps=6, noise=noise)
    channel = Channel(certify(m), 2)
    zero = VectorSum(np.zeros((2, 4)), 1.0)
    got = np.stack([channel.release(zero, np.zeros((1, 4)))[0] for _ in range(6)])
    Z = np.stack([4.0 * raw_noise(channel, [4.0] * (t + 1), (1, 4))[0] for t in range(6)])
    np.testing.assert_allclose(got, np.linalg.solve(_dense(bands), Z), rtol=1e-12)


def _dense(bands: np.ndarray) -> np.ndarray:
    T = len(bands)
    C = np.zeros((T, T))
    for j, column in enumerate(bands):
        rows = min(len(column), T - j)
        C[j : j + rows, j] = column[:rows]
    return C


def test_a_schedule_of_ratios_gives_a_schedule_of_noise():
    m = Mechanism(adjacency="zero-out", ratio=Schedule([0.5, 2.0]), steps=2)
    channel = Channel(certify(m), 1)
    zero = VectorSum(np.zeros((1, 2)), 1.0)
    for sigmas in ([2.0], [2.0, 0.5]):
        noisy = channel.release(zero, np.zeros((1, 2)))
        np.testing.assert_allclose(noisy, sigmas[-1] * raw_noise(channel, sigmas, (1, 2)))


def test_two_channels_share_neither_noise_nor_batches():
    """Breaker's A4: two parts of a plan, served from one family of streams."""
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=1)
    streams = Streams(1)
    both = certify(Plan.of(m, m))
    zero = VectorSum(np.zeros((2, 3)), 1.0)
    seen = [Channel(both, 2, streams=streams, part=part).release(zero, np.zeros((1, 3))) for part in (0, 1, 1)]
    assert len({row.tobytes() for row in seen}) == 3


def test_noise_never_hides_two_different_values():
    """Breaker's A5: one checkpoint, resumed twice, asked for different sums."""
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=1)
    point = Channel(certify(m), 1).checkpoint()
    sums = [VectorSum(np.array([[v, 0.0]]), 1.0) for v in (0.0, 1.0, 1.0)]
    a, b, again = (Channel(certify(m), 1, resume=point).release(s, np.zeros((1, 2)))[0] for s in sums)
    assert abs(b[0] - a[0] - 1.0) > 1e-6
    assert np.array_equal(b, again)


def test_correlated_noise_hides_sums_of_one_bound_and_size():
    """Breaker's A6: rows of C⁻¹Z carry the scale of earlier rows."""
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=3, noise=CorrelatedNoise.toeplitz([1.0, 0.9]))
    channel = Channel(certify(m), 1)
    channel.release(VectorSum(np.zeros((1, 2)), 100.0), np.zeros((1, 2)))
    resumed = Channel(certify(m), 1, resume=channel.checkpoint())
    for which in (channel, resumed):
        for other in (VectorSum(np.zeros((1, 2)), 1.0), VectorSum(np.zeros((1, 5)), 100.0)):
            with pytest.raises(MechanismMismatch, match="one sensitivity and size"):
                which.release(other, np.zeros((1, 2)))


def test_a_seeded_channel_is_marked_also_when_resumed():
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=2)
    channel = Channel(certify(m), 1, streams=Streams(3))
    assert channel.certificate.marks == (SEEDED,)
    assert Channel(certify(m), 1, resume=channel.checkpoint()).certificate.marks == (SEEDED,)
    assert Channel(certify(m), 1).certificate.marks == ()


def test_channels_are_not_copied():
    channel = Channel(certify(Mechanism(adjacency="zero-out", ratio=0.5, steps=2)), 1)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="not copied"):
            attempt(channel)


def test_the_seed_mark_is_the_documented_one():
    assert SEEDED == "not private: seeded"
