"""Rows that are kept stay within their norm, whatever they hold and whoever changes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tacit import DPConvexReLUClassifier, DPSoftmaxRegression
from tacit.maps import PublicSteps, RandomFourier, Shorten, Standardise
from tacit.problem import Softmax
from tacit.records import InMemory, Rows
from tacit.records import rows as rows_module
from tacit.release.queries import LinearOutputs

NETWORK: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 2, "classes": [0, 1], "random_state": 0}


def kept(X: Any, norm: float, y: Any = None) -> Rows:
    (rows,) = InMemory(X, y).through(Shorten(norm, X.shape[1])).parts()
    return rows


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("R", [1e-6, 0.1, 1.0, 1e6])
def test_kept_rows_are_within_their_norm_exactly(R: float, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    long = rng.normal(size=(300, 37))
    long *= R / np.linalg.norm(long, axis=1, keepdims=True) * (1 + rng.normal(size=(300, 1)) * 1e-7)
    with np.errstate(all="ignore"):
        odd = np.array([[top] * 37 for top in (1e308, 3e38, 1e-45, 5e-324, np.inf, np.nan, 0.0, -1e300)])
        X = np.concatenate([long, odd]).astype(dtype)
        wide = np.asfortranarray(np.repeat(X, 2, axis=1))[:, ::2]
        rows = kept(wide, R)
        taken = rows.take(np.arange(len(X))).X
    norms = [math.sqrt(math.fsum(float(v) ** 2 for v in row)) for row in taken]
    assert taken.dtype == np.float32
    assert max(norms) <= R == rows.norm


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 0)])
def test_kept_rows_of_any_shape(shape: tuple[int, int]) -> None:
    assert kept(np.ones(shape, np.float32), 1.0).take(np.arange(shape[0])).X.shape == shape


@pytest.mark.parametrize("fits", [True, False], ids=["kept", "too large to keep"])
@pytest.mark.parametrize("kind", [DPSoftmaxRegression, DPConvexReLUClassifier])
@pytest.mark.filterwarnings("ignore")
def test_rows_that_change_while_they_are_summed_stay_bounded(
    kind: Any, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the user's own float32 table are checked, and then read again: another thread has the time between."""
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    monkeypatch.setattr(rows_module, "MAX_CACHE_BYTES", 2**30 if fits else 0)
    gradient = Softmax.gradient

    def meanwhile(self: Any, *arguments: Any) -> Any:
        X[:] = 1e20
        return gradient(self, *arguments)

    monkeypatch.setattr(Softmax, "gradient", meanwhile)
    model = kind(feature_norm=1.0, **NETWORK).fit(X, y)
    assert np.abs(model.coef_).max() < 1e6, "one contribution was 1e20 long, with noise for 1"


def test_rows_that_change_while_they_are_mapped_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of a chunk and its copy, too."""
    X = np.full((10, 3), 0.1, np.float32)
    check = Shorten.__call__

    def meanwhile(self: Any, rows: Any) -> Any:
        out = check(self, rows)
        X[:] = 1e20
        return out

    monkeypatch.setattr(Shorten, "__call__", meanwhile)
    assert np.linalg.norm(kept(X, 1.0).X, axis=1).max() <= 1.0


@pytest.mark.parametrize("maps", [(), (Shorten(9.0, 2),)], ids=["the caller's", "kept"])
@pytest.mark.parametrize("index", [[0, 0, 2], [0, 2, 1, 3], [3, 4, 4, 6], [2, 3, 4], [5], []])
def test_rows_that_are_taken_are_those_that_were_asked_for(index: list[int], maps: Any) -> None:
    """[0, 0, 2] ends two after its start and is taken for [0, 1, 2]: a record that no batch holds is read."""
    X = np.arange(16.0).reshape(8, 2) / 4
    records = InMemory(X, np.arange(8))
    for one in maps:
        records = records.through(one)
    (rows,) = records.parts()
    taken = rows.take(np.array(index, int))
    assert np.array_equal(taken.X, X[index])
    assert taken.y.tolist() == index
    assert not np.shares_memory(taken.X, X)


def test_linear_outputs_do_not_trust_rows_kept_for_a_larger_norm() -> None:
    query, rows = LinearOutputs(Softmax(2), 1.0), kept(np.full((4, 3), 10.0), 5.0, np.zeros(4, int))
    found = query.total(rows, np.zeros((1, 6)), np.eye(1, 4, dtype=bool))
    assert np.linalg.norm(found) <= query.bound


# -- batch by batch -------------------------------------------------------------------------------------------------


def test_a_table_that_is_too_large_is_never_made_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(500, 3))
    features = PublicSteps(RandomFourier(40).fit(X), 40, 1.0)
    (whole,) = InMemory(X).through(features).parts()
    assert whole.fits
    table = whole.X
    monkeypatch.setattr(rows_module, "MAX_CACHE_BYTES", 500 * 40 * 4 - 1)
    seen: list[int] = []
    plain = PublicSteps.__call__
    monkeypatch.setattr(PublicSteps, "__call__", lambda self, rows: seen.append(len(rows)) or plain(self, rows))
    (rows,) = InMemory(X).through(features).parts()
    assert not rows.fits
    for index in (np.arange(20, 60), np.array([4, 400, 7])):
        assert np.array_equal(rows.take(index).X, table[index])
    assert max(seen) == 40
    monkeypatch.setattr(rows_module, "MAX_CACHE_BYTES", 500 * 40 * 4)
    (rows,) = InMemory(X).through(features).parts()
    assert rows.fits


def test_a_large_table_is_made_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between source and result takes the memory of a chunk."""
    monkeypatch.setattr(rows_module, "CHUNK", 64)
    X, seen = np.random.default_rng(0).normal(size=(500, 3)), []
    plain = Standardise.__call__
    monkeypatch.setattr(Standardise, "__call__", lambda self, rows: seen.append(len(rows)) or plain(self, rows))
    records = InMemory(X).through(Standardise(np.zeros(3), np.full(3, 2.0))).through(Shorten(1.0, 3, 0.5))
    (rows,) = records.parts()
    table = rows.X
    assert max(seen) == 64
    assert table.flags.c_contiguous
    assert np.array_equal(table, Shorten(1.0, 3, 0.5)(X / 2))
