"""Gates and sums of outputs: what a record contributes is its own affair, wherever it stands in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.maps import ReluGates, Shorten
from tacit.problem import OneVsRest, Softmax, SquaredOutputs
from tacit.records import InMemory, Rows
from tacit.records import rows as rows_module
from tacit.release.queries import GatedOutputs, LinearOutputs, open_gates
from tacit.release.query import Members, Query


def kept(X: np.ndarray, y: np.ndarray, norm: float) -> Rows:
    """Rows as a run sees them: in a private table, within the norm."""
    (rows,) = InMemory(X, y).through(Shorten(norm, X.shape[1])).parts()
    return rows


def clipped_sum(query: Query, rows: Rows, state: np.ndarray, members: Members) -> np.ndarray:
    """The sum that every override of ``total`` must equal."""
    return Query.total(query, rows, state, members)


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
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_record_that_is_absent_moves_the_sum_by_its_own_contribution(d, P, m, in_memory):
    """Poisson batches compare with one that lacks the record: nobody else's gates may turn (87 did, of 511)."""
    count, gates, x = most_turned(d, P, m)
    X, y, query = np.tile(x, (m, 1)), np.zeros(m, int), GatedOutputs(Softmax(3), 1.0, gates)
    rows = kept(X, y, np.sqrt(P / 2)) if in_memory else Rows(X, y)
    theta = np.random.default_rng(0).normal(size=(1, 3 * P * d))
    everybody = np.ones((1, m), bool)
    others = everybody & (np.arange(m) > 0)
    moved = np.linalg.norm(query.total(rows, theta, everybody) - query.total(rows, theta, others))
    assert moved <= query.bound * (1 + 1e-3)
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
    query, each, once = GatedOutputs(Softmax(3), 1.0, gates), Rows(X, y), kept(X, y, np.sqrt(2.0))
    theta, batch = rng.normal(size=(1, 3 * 4 * 6)), rng.random((1, 50)) < 0.5
    assert np.allclose(query.total(each, theta, batch), query.total(once, theta, batch), rtol=1e-4, atol=1e-5)
    assert query._remembered(once)[0].shape == (50, 4)
    assert query._remembered(once)[0] is query._remembered(once)[0]
    assert query._remembered(each) is None


def test_gates_of_rows_that_are_not_short_enough_are_not_remembered():
    """Their weights would be those of longer rows."""
    rng = np.random.default_rng(1)
    X, y, gates = 3 * rng.normal(size=(20, 6)), rng.integers(3, size=20), rng.normal(size=(4, 6))
    query, long = GatedOutputs(Softmax(3), 1.0, gates), kept(X, y, 2.0)
    assert query._remembered(long) is None
    theta, everybody = rng.normal(size=(1, 3 * 4 * 6)), np.ones((1, 20), bool)
    assert np.linalg.norm(query.total(long, theta, everybody)) <= 20 * query.bound


def test_an_empty_batch_and_an_empty_table_are_zero():
    query = GatedOutputs(Softmax(2), 1.0, np.ones((2, 2)))
    some = kept(np.ones((3, 2)), np.zeros(3, int), 1.0)
    assert not query.total(some, np.ones((1, 8)), np.zeros((1, 3), bool)).any()
    none = kept(np.ones((0, 2)), np.zeros(0, int), 1.0)
    assert not query.total(none, np.ones((1, 8)), np.zeros((1, 0), bool)).any()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [Softmax(3, 0.4), OneVsRest(3), SquaredOutputs(3, 0.7)], ids=lambda loss: loss.name)
def test_products_are_the_sum_of_clipped_contributions(loss, kind, monkeypatch):
    """Also over several parts, and where no clip is left to do: each contribution is within the bound by itself."""
    monkeypatch.setattr("tacit.release.queries.outputs.PART", 7)
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(40, 5)) * rng.choice([0.1, 9.0], size=(40, 1))).astype(kind)
    y = rng.normal(size=(40, 3)) * 5 if isinstance(loss, SquaredOutputs) else rng.integers(3, size=40)
    members = rng.random((2, 40)) < 0.6
    for query, size in ((LinearOutputs(loss, 1.5), 15), (GatedOutputs(loss, 1.5, rng.normal(size=(4, 5))), 60)):
        state = rng.normal(size=(2, size))
        rows = Rows(X, y)
        alone = query.contributions(rows, state)
        assert np.linalg.norm(alone, axis=2).max() <= query.bound * (1 + 1e-6)
        by_hand = clipped_sum(query, rows, state, members)
        np.testing.assert_allclose(query.total(rows, state, members), by_hand, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_rows_that_do_not_fit_into_memory_give_the_same_sums(gated, monkeypatch):
    """Mapped batch by batch, never whole: to the bit without gates, as remembered ones are rounded once."""
    rng = np.random.default_rng(0)
    X, y = 3 * rng.normal(size=(300, 6)), rng.integers(3, size=300)
    query = GatedOutputs(Softmax(3), 1.0, rng.normal(size=(4, 6))) if gated else LinearOutputs(Softmax(3), 1.0)
    norm = np.sqrt(2.0) if gated else 1.0
    state, members = rng.normal(size=(1, 72 if gated else 18)), rng.random((1, 300)) < 0.3
    whole = query.total(kept(X, y, norm), state, members)
    monkeypatch.setattr(rows_module, "MAX_CACHE_BYTES", 1000)
    lazily = kept(X, y, norm)
    assert not lazily.fits
    part = query.total(lazily, state, members)
    assert not lazily._features.made
    assert np.allclose(part, whole, rtol=1e-6, atol=1e-6) if gated else np.array_equal(part, whole)


@pytest.mark.parametrize("norm", [0.0, 1e-7, 1e7, np.inf, np.nan])
def test_norms_that_float32_cannot_work_with_are_refused(norm):
    for make in (LinearOutputs, lambda loss, R: GatedOutputs(loss, R, np.ones((2, 3)))):
        with pytest.raises(InvalidInput, match="row_norm"):
            make(Softmax(2), norm)
    with pytest.raises(InvalidInput, match="gates must have shape"):
        GatedOutputs(Softmax(2), 1.0, np.ones(3))
