"""Record and replay: swap one record, freeze everything else, and see how far each release moves."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency, Mechanism
from tacit.run import REGISTRY, Channel, ClippedSum, LeastSquaresGradient, VectorSum, register
from tacit.run import clipped_sum as module
from tacit.run.channel import sensitivity
from tacit.run.sums import GramSum
from tacit.run.sweep import SWEEPS, Sweep
from tacit.torch import gradients as _registers  # noqa: F401

PAIRS = 200


@pytest.fixture(autouse=True)
def _frozen_noise(monkeypatch):
    """The same noise on both sides (in real runs, noise is named after what it hides)."""
    fixed = np.random.default_rng(1).normal(size=100)
    monkeypatch.setattr(Channel, "_noise", lambda self, sigma, index, clean, history: sigma * fixed[: clean.shape[1]])


def moves(cls: type[ClippedSum], adjacency: Adjacency, pairs: int = PAIRS) -> np.ndarray:
    """|release on D − release on D′| for random neighbours, over the declared sensitivity."""
    rng = np.random.default_rng(0)
    m = Mechanism(adjacency=adjacency, ratio=1.0, steps=1)
    out = []
    for _ in range(pairs):
        here, there, state = cls.example(rng, records=5)
        a, b = (Channel(certify(m), 5).release(side, state) for side in (here, there))
        if adjacency is not Adjacency.REPLACE_ONE:  # the record contributes nothing
            absent = np.array([[False, True, True, True, True]])
            b = a - here.total(state, ~absent)
            assert np.allclose(b - a, here.total(state, absent) - here.total(state, absent | True))
        out.append(np.linalg.norm(a - b) / sensitivity(m, here))
    return np.array(out)


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_no_registered_sum_moves_further_than_declared_and_each_gets_there(name, adjacency):
    ratio = moves(REGISTRY[name], adjacency)
    assert ratio.max() <= 1 + 1e-9
    assert ratio.max() >= 0.99


def test_the_harness_notices_a_sum_that_forgets_to_clip(monkeypatch):
    monkeypatch.setattr(module, "clipped_total", lambda G, batch, bound: (G * batch[:, :, None]).sum(axis=1))
    assert moves(VectorSum, Adjacency.REPLACE_ONE, 20).max() > 1.5


def test_registering_twice_is_refused():
    with pytest.raises(InvalidInput, match="registered already"):
        register("vectors")(VectorSum)


def test_non_finite_contributions_count_as_nothing():
    big = LeastSquaresGradient(np.array([[1.0], [1.0]]), np.array([0.0, 1e308]), 1.0, row_norm=1.0)
    total = big.total(np.array([[-1e308]]), np.ones((1, 2), bool))
    assert np.isfinite(total).all()
    assert abs(total[0, 0]) <= 2 + 1e-12


@pytest.mark.parametrize("scale", [1e-160, 1e160, 1e307])
def test_clipping_neither_over_nor_underflows(scale):
    s = VectorSum(np.array([[3.0, 4.0]]) * scale, 1.0)
    total = s.total(np.zeros((1, 2)), np.ones((1, 1), bool))
    expected = [0.6, 0.8] if scale > 1 else [3e-160, 4e-160]
    np.testing.assert_allclose(total[0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "bad", [np.array([[np.nan]]), np.array([[np.inf]]), np.zeros(3), np.zeros((2, 0)), "records", [["a"]]]
)
def test_schema_faults_are_refused_without_telling_values(bad):
    with pytest.raises(InvalidInput):
        VectorSum(bad, 1.0)


# -- sweeps ---------------------------------------------------------------------------------------------------------


def sweep_moves(cls: type[Sweep], adjacency: Adjacency, pairs: int = PAIRS) -> np.ndarray:
    """As ``moves``, for every release of a sweep, at the same state on either side."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(pairs):
        here, there, left, right = cls.example(rng, records=5)
        m = Mechanism(adjacency=adjacency, ratio=1.0, steps=len(here.sizes))
        for k in range(len(here.sizes)):
            a, b = here.clipped_sum(left, k), there.clipped_sum(right, k)
            if adjacency is not Adjacency.REPLACE_ONE:
                alone, empty = here.alone(0), left.rows([0])
                b = a - alone.clipped_sum(empty, k)
            out.append(np.linalg.norm(a - b) / sensitivity(m, here))
            noisy = a + 0.1 * rng.normal(size=a.shape)
            left, right = here.apply(left, noisy, k), there.apply(right, noisy, k)
            np.testing.assert_array_equal(left.w, right.w)  # what is released is all that moves the coefficients
    return np.array(out)


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_no_release_of_a_sweep_moves_further_than_declared_and_each_gets_there(name, adjacency):
    ratio = sweep_moves(SWEEPS[name], adjacency)
    assert ratio.max() <= 1 + 1e-9
    assert ratio.max() >= 0.99


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_a_sweep_is_its_two_parts(name):
    rng = np.random.default_rng(3)
    for _ in range(40):
        sweep, _, state, _ = SWEEPS[name].example(rng, records=7)
        noise = rng.normal(size=int(sweep.sizes.sum()))
        fused = sweep.run(state.copy(), noise)
        first = 0
        for k, size in enumerate(sweep.sizes):
            state = sweep.apply(state, sweep.clipped_sum(state, k) + noise[first : first + size], k)
            first += size
        np.testing.assert_allclose(fused.w, state.w, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(fused.z, state.z, rtol=1e-8, atol=1e-10)


def test_diameters_count_only_where_every_record_is_read():
    from tacit.mechanism import Poisson

    gram = GramSum(np.eye(3), 2.0)
    full = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
    sampled = Mechanism(adjacency="replace-one", ratio=1.0, steps=1, sampling=Poisson(0.5))
    assert sensitivity(full, gram) == pytest.approx(4 * np.sqrt(2))
    assert sensitivity(sampled, gram) == 8.0  # the theorem compares with a batch that holds neither record
