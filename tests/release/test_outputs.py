"""Gates and sums of outputs: what a record contributes is its own affair, wherever it stands in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.features import ReluGates
from tacit.problem import Softmax
from tacit.run.sums import GatedOutputs, ShortRows, TableRows, open_gates


def on_the_edge(records: int, d: int, P: int) -> tuple[np.ndarray, np.ndarray]:
    """Records orthogonal to a gate, as far as float32 can say: the sign of uᵀx is a matter of rounding."""
    rng = np.random.default_rng(d)
    gates, X = rng.normal(size=(P, d)), rng.normal(size=(records, d))
    u = gates[rng.integers(P, size=records)]
    X -= (X * u).sum(axis=1, keepdims=True) * u / (u * u).sum(axis=1, keepdims=True)
    return gates, (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def most_turned(d: int, P: int, m: int) -> tuple[int, np.ndarray, np.ndarray]:
    """A record of which m copies turn the most gates if one of them goes, with ordinary products."""
    gates, X = on_the_edge(100, d, P)
    U = gates.T.astype(np.float32)
    turned = [((np.tile(x, (m, 1)) @ U)[1:] >= 0) != (np.tile(x, (m - 1, 1)) @ U >= 0) for x in X]
    counts = [int(flips.any(axis=1).sum()) for flips in turned]
    return max(counts), gates, X[int(np.argmax(counts))]


@pytest.mark.parametrize(("d", "P", "m"), [(784, 32, 512), (20, 8, 12)])
@pytest.mark.parametrize("kept", [False, True])
def test_a_record_that_is_absent_moves_the_sum_by_its_own_contribution(d, P, m, kept):
    """Poisson batches compare with one that lacks the record: nobody else's gates may turn (87 did, of 511)."""
    count, gates, x = most_turned(d, P, m)
    rows = TableRows(np.tile(x, (m, 1)))
    total = GatedOutputs(
        ShortRows(rows, np.sqrt(P / 2)) if kept else rows, np.zeros(m, int), Softmax(3), row_norm=1.0, gates=gates
    )
    theta = np.random.default_rng(0).normal(size=(1, total.size))
    everybody = np.ones((1, m), bool)
    others = everybody & (np.arange(m) > 0)
    moved = np.linalg.norm(total.total(theta, everybody) - total.total(theta, others))
    assert moved <= total.bound * (1 + 1e-3)
    if not count:
        pytest.skip("this library of matrix products rounds these rows alike in every place: nothing was shown")


@pytest.mark.parametrize("d", [20, 784])
def test_gates_are_the_same_in_any_company(d):
    gates, X = on_the_edge(601, d, 16)
    together = open_gates(X, gates, 1.0)[1]
    for size in (1, 2, 3, 5, 600):
        apart = [open_gates(X[i : i + size], gates, 1.0)[1] for i in range(0, 601, size)]
        assert np.array_equal(together, np.concatenate(apart))
    feature = ReluGates(16, gate_seed=1).fit(X[:1])
    _, X = on_the_edge(601, d, 16)
    active = feature.active(X)
    assert all(np.array_equal(active[i], feature.active(X[i : i + 1])[0]) for i in range(601))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_remembered_gates_are_those_that_are_asked_for_each_time(kind):
    rng = np.random.default_rng(1)
    X, y, gates = (3 * rng.normal(size=(50, 6))).astype(kind), rng.integers(3, size=50), rng.normal(size=(4, 6))
    each, once = (
        GatedOutputs(rows, y, Softmax(3), row_norm=1.0, gates=gates)
        for rows in (TableRows(X), ShortRows(TableRows(X), np.sqrt(2.0)))
    )
    theta, batch = rng.normal(size=(1, each.size)), rng.random((1, 50)) < 0.5
    assert np.allclose(each.total(theta, batch), once.total(theta, batch), rtol=1e-4, atol=1e-5)
    assert once._open.shape == (50, 4)
    assert each._open is None


def test_an_empty_batch_and_an_empty_table_are_zero():
    total = GatedOutputs(
        ShortRows(TableRows(np.ones((3, 2))), 1.0), np.zeros(3, int), Softmax(2), row_norm=1.0, gates=np.ones((2, 2))
    )
    assert not total.total(np.ones((1, total.size)), np.zeros((1, 3), bool)).any()
    none = GatedOutputs(
        ShortRows(TableRows(np.ones((0, 2))), 1.0), np.zeros(0, int), Softmax(2), row_norm=1.0, gates=np.ones((2, 2))
    )
    assert not none.total(np.ones((1, none.size)), np.zeros((1, 0), bool)).any()
