"""Streams: named, independent, secret, fork-safe; and the noise of a session has the certified scale."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats

from tacit.accounting import certify
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import CorrelatedNoise, Mechanism, Plan, Schedule
from tacit.release import SEEDED, Session, Streams
from tacit.release.queries import VectorSum


def draw(streams: Streams, purpose: str = "noise", step: int = 0) -> np.ndarray:
    return streams.at(purpose, step).standard_normal(8)


def test_same_name_same_numbers_other_name_other_numbers():
    s = Streams()
    assert np.array_equal(draw(s), draw(s))
    seen = {draw(s, p, k).tobytes() for p in ("noise", "batch", "public") for k in range(50)}
    assert len(seen) == 150


def test_children_made_by_threads_share_no_key():
    """A counter that is read and then raised gave 47 equal keys in 72,000 calls."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            parent = Streams(1)
            with ThreadPoolExecutor(12) as pool:
                keys = list(pool.map(lambda _, parent=parent: parent.child("part").secret_key(), range(1200)))
            assert len(set(keys)) == 1200
    finally:
        sys.setswitchinterval(interval)


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


def test_the_seed_mark_is_the_documented_one():
    assert SEEDED == "not private: seeded"


# -- the noise of a session -------------------------------------------------------------------------------------


def raw_noise(session: Session, sigmas: list[float], shape: tuple[int, int]) -> np.ndarray:
    """The standard normal numbers that hide a sum of zero at the last of these releases, after other sums of zero."""
    name = b""
    for sigma in sigmas:
        scale = repr((sigma, shape, "<f8")).encode()
        name = hashlib.sha256(name + scale + np.zeros(shape).tobytes()).digest()
    return session._channel(0)._streams.at("noise", len(sigmas) - 1, name).standard_normal(shape)


def noise_sample(opened, ratio: float, adjacency: str, *, replicas: int = 4000, steps: int = 3) -> np.ndarray:
    m = Mechanism(adjacency=adjacency, ratio=ratio, steps=steps)
    session = opened(certify(m), np.zeros((2, 1)), replicas=replicas)
    return np.concatenate([session.release(VectorSum(1.0))[:, 0] for _ in range(steps)])


@pytest.mark.parametrize(("adjacency", "sigma"), [("replace-one", 4.0), ("zero-out", 2.0), ("add-remove", 2.0)])
def test_noise_has_the_certified_scale_and_a_wrong_scale_is_rejected(opened, adjacency, sigma):
    z = noise_sample(opened, 0.5, adjacency)
    assert stats.kstest(z, "norm", args=(0, sigma)).pvalue > 1e-4
    for wrong in (0.7, 1.3):
        assert stats.kstest(z, "norm", args=(0, sigma * wrong)).pvalue < 1e-6


def test_noise_of_different_steps_is_independent(opened):
    z = noise_sample(opened, 1.0, "zero-out", replicas=5000, steps=2).reshape(2, -1)
    assert abs(np.corrcoef(z)[0, 1]) < 0.06


def test_correlated_noise_is_the_rows_of_C_inverse_Z(opened):
    bands = np.array([[1.0, 0.5, 0.2]] * 3 + [[2.0, 0.1, 0.3]] * 3)
    noise = CorrelatedNoise.dense(_dense(bands))
    session = opened(certify(Mechanism(adjacency="zero-out", ratio=0.25, steps=6, noise=noise)), np.zeros((2, 4)))
    got = np.stack([session.release(VectorSum(1.0)) for _ in range(6)])
    Z = np.stack([4.0 * raw_noise(session, [4.0] * (t + 1), (1, 4))[0] for t in range(6)])
    np.testing.assert_allclose(got, np.linalg.solve(_dense(bands), Z), rtol=1e-12)


def _dense(bands: np.ndarray) -> np.ndarray:
    T = len(bands)
    C = np.zeros((T, T))
    for j, column in enumerate(bands):
        rows = min(len(column), T - j)
        C[j : j + rows, j] = column[:rows]
    return C


def test_a_schedule_of_ratios_gives_a_schedule_of_noise(opened):
    m = Mechanism(adjacency="zero-out", ratio=Schedule([0.5, 2.0]), steps=2)
    session = opened(certify(m), np.zeros((1, 2)))
    for sigmas in ([2.0], [2.0, 0.5]):
        assert session.noise_std(VectorSum(1.0)) == sigmas[-1]
        noisy = session.release(VectorSum(1.0))
        np.testing.assert_allclose(noisy, sigmas[-1] * raw_noise(session, sigmas, (1, 2))[0])


def test_two_parts_and_two_sessions_share_neither_noise_nor_batches(opened):
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=1)
    both, zero = certify(Plan.of(m, m)), np.zeros((2, 3))
    first, second = (opened(both, zero) for _ in range(2))
    seen = [session.release(VectorSum(1.0), part=part) for session in (first, second) for part in (0, 1)]
    assert len({row.tobytes() for row in seen}) == 4


def test_noise_never_hides_two_different_values(opened):
    """One checkpoint, resumed twice, asked for different sums."""
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=1)
    point = opened(certify(m), [[0.0, 0.0]]).checkpoint()
    tables = [[[v, 0.0]] for v in (0.0, 1.0, 1.0)]
    a, b, again = (opened(certify(m), table, resume=point).release(VectorSum(1.0)) for table in tables)
    assert abs(b[0] - a[0] - 1.0) > 1e-6
    assert np.array_equal(b, again)


def test_correlated_noise_hides_sums_of_one_bound_and_size(opened):
    """Rows of C⁻¹Z carry the scale of earlier rows."""
    certificate = certify(
        Mechanism(adjacency="zero-out", ratio=0.5, steps=3, noise=CorrelatedNoise.toeplitz([1.0, 0.9]))
    )
    session = opened(certificate, np.zeros((1, 2)))
    session.release(VectorSum(100.0))
    point = session.checkpoint()
    for which, query in (
        (session, VectorSum(1.0)),
        (opened(certificate, np.zeros((1, 2)), resume=point), VectorSum(1.0)),
        (opened(certificate, np.zeros((1, 5)), resume=point), VectorSum(100.0)),
    ):
        with pytest.raises(MechanismMismatch, match="one sensitivity and size"):
            which.release(query)
