"""What is kept beside a table counts against a budget, and no bit depends on it."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from tacit import DPLogisticRegression, DPRidge
from tacit.errors import InvalidInput
from tacit.inputs.parameters import parse_memory
from tacit.records import memory
from tacit.records.kept import MAX_KEPT, Kept, Room, bytes_of

DEAL = {"epsilon": 2.0, "delta": 1e-9, "feature_bounds": (-1, 1), "random_state": 0}
SIZES = {"500 MB": 500_000_000, "1.5GB": 1_500_000_000, "2 kib": 2048, "7B": 7, 12: 12, 1e3: 1000, None: None, 0: 0}


@pytest.mark.parametrize("given", SIZES, ids=str)
def test_sizes_are_understood(given):
    assert parse_memory(given) == SIZES[given]


NO_SIZES = ["", "much", "5", "5 XB", "-3 MB", -1, float("nan"), float("inf"), True, [5]]


@pytest.mark.parametrize("given", NO_SIZES, ids=str)
def test_what_is_no_size_is_refused_before_anything_is_read(given):
    with pytest.raises(InvalidInput, match="memory must be a number of bytes"):
        parse_memory(given)
    with pytest.raises(InvalidInput, match="memory must be a number of bytes"):
        DPRidge(target_bounds=(0, 1), memory=given, **DEAL).fit(np.zeros((9, 2)), np.zeros(9))


def test_it_is_a_parameter_like_others():
    model = DPLogisticRegression(memory="5 MB", **DEAL)
    assert clone(model).memory == "5 MB"
    assert "memory" in model.get_params()


def table(n=6000, p=12):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, p)) * (rng.random((n, p)) < 0.3)
    return X, (X @ np.arange(p) + rng.logistic(size=n) > 0).astype(int)


@pytest.mark.parametrize("form", [np.asarray, np.float32, sparse.csr_array, sparse.csc_array], ids=lambda f: f.__name__)
def test_no_budget_changes_a_bit_of_a_model(form, monkeypatch):
    X, y = table()
    monkeypatch.setattr(memory, "MIN_CHUNK", 512)
    monkeypatch.setattr(memory, "MAX_CHUNK", 512)
    X = X.astype(np.float32) if form is np.float32 else form(X)
    found = [DPLogisticRegression(memory=size, **DEAL).fit(X, y).coef_ for size in (None, 0, 60_000)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_sparse_tables_stay_as_they_are():
    X, y = table()
    X = sparse.csr_array(X)
    before = X.copy()
    DPLogisticRegression(**DEAL).fit(X, y)
    assert (X.data == before.data).all()
    assert (X.indices == before.indices).all()


def test_room_is_not_exceeded_and_given_back():
    room = Room(100)
    one, two = Kept(room), Kept(room)
    made = []

    def make(size):
        made.append(size)
        return np.zeros(size, np.int8)

    for _ in range(2):
        assert len(one.get("a", lambda: make(60))) == 60
        assert len(two.get("b", lambda: make(60))) == 60  # no room: made again
    assert made == [60, 60, 60]
    for k in range(MAX_KEPT):  # the oldest goes, and leaves its room
        one.get(k, lambda: make(1))
    assert len(two.get("b", lambda: make(60))) == 60
    assert not room.take(50)


def test_sizes_of_what_is_kept():
    X = sparse.csr_array(np.eye(3))
    assert bytes_of(np.zeros(5)) == 40
    assert bytes_of(X) == X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    assert bytes_of((np.zeros(2), None, 3)) == 16


def test_nothing_of_the_size_of_the_table_is_made():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (120_000, 50))
    y = (X[:, 0] > 0).astype(int)
    model = DPLogisticRegression(epsilon=1.0, delta=1e-10, feature_bounds=(-1, 1), classes=[0, 1], max_passes=4)
    model.fit(X[:3000], y[:3000])
    tracemalloc.start()
    try:
        model.fit(X, y)
        fitted = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        model.predict(X)
        predicted = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fitted < 0.6 * X.nbytes
    assert predicted < 0.4 * X.nbytes
