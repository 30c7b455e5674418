"""Streams: named, independent, secret, fork-safe; and the channel's noise has the certified scale."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np
import pytest
from scipy import stats

from tacit.accounting import certify
from tacit.errors import InvalidInput
from tacit.mechanism import Factorised, Mechanism, Schedule
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
    noise = Factorised.dense(_dense(bands))
    m = Mechanism(adjacency="zero-out", ratio=0.25, steps=6, noise=noise)
    streams = Streams(3)
    channel = Channel(certify(m), 2, streams=streams)
    zero = VectorSum(np.zeros((2, 4)), 1.0)
    got = np.stack([channel.release(zero, np.zeros((1, 4)))[0] for _ in range(6)])
    Z = np.stack([4.0 * streams.at("noise", t).standard_normal((1, 4))[0] for t in range(6)])
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
    streams = Streams(1)
    channel = Channel(certify(m), 1, streams=streams)
    zero = VectorSum(np.zeros((1, 2)), 1.0)
    for t, sigma in enumerate((2.0, 0.5)):
        np.testing.assert_allclose(
            channel.release(zero, np.zeros((1, 2))), sigma * streams.at("noise", t).standard_normal((1, 2))
        )


def test_the_seed_mark_is_the_documented_one():
    assert SEEDED == "not private: seeded"
