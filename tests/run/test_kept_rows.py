"""Rows that are kept stay within their norm, whatever they hold and whoever changes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tacit.estimators._outputs as shared
from tacit.errors import TacitError
from tacit.estimators.networks import DPConvexReLUClassifier, DPSoftmaxRegression
from tacit.problem.outputs import Softmax
from tacit.run.sums import LinearOutputs, ShortRows, TableRows

NETWORK: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 2, "classes": [0, 1], "random_state": 0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("R", [1e-6, 0.1, 1.0, 1e6])
def test_kept_rows_are_within_their_norm_exactly(R: float, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    long = rng.normal(size=(300, 37))
    long *= R / np.linalg.norm(long, axis=1, keepdims=True) * (1 + rng.normal(size=(300, 1)) * 1e-7)
    with np.errstate(all="ignore"):
        odd = np.array([[top] * 37 for top in (1e308, 3e38, 1e-45, 5e-324, np.inf, np.nan, 0.0, -1e300)])
        X = np.concatenate([long, odd]).astype(dtype)
        wide = np.asfortranarray(np.repeat(X, 2, axis=1))[:, ::2]
        rows = ShortRows(TableRows(wide), R).take(np.arange(len(X)))
    norms = [math.sqrt(math.fsum(float(v) ** 2 for v in row)) for row in rows]
    assert rows.dtype == dtype
    assert max(norms) <= R


def test_rows_of_half_precision_are_refused_or_within_their_norm() -> None:
    X = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float16)
    try:
        rows = ShortRows(TableRows(X), 0.3).take(np.arange(500))
    except (TacitError, NotImplementedError):
        return
    assert np.linalg.norm(np.asarray(rows, np.float64), axis=1).max() <= 0.3


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 0)])
def test_kept_rows_of_any_shape(shape: tuple[int, int]) -> None:
    assert ShortRows(TableRows(np.ones(shape, np.float32)), 1.0).take(np.arange(shape[0])).shape == shape


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "too large to keep"])
@pytest.mark.parametrize("kind", [DPSoftmaxRegression, DPConvexReLUClassifier])
@pytest.mark.filterwarnings("ignore")
def test_rows_that_change_while_they_are_summed_stay_bounded(
    kind: Any, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the user's own float32 table are checked, and then read again: another thread has the time between."""
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    if not kept:
        monkeypatch.setattr(shared, "KEPT", 0)
    gradient = Softmax.gradient

    def meanwhile(self: Any, *arguments: Any) -> Any:
        X[:] = 1e20
        return gradient(self, *arguments)

    monkeypatch.setattr(Softmax, "gradient", meanwhile)
    model = kind(feature_norm=1.0, **NETWORK).fit(X, y)
    assert np.abs(model.coef_).max() < 1e6, "one contribution was 1e20 long, with noise for 1"


@pytest.mark.parametrize("index", [[0, 0, 2], [0, 2, 1, 3], [3, 4, 4, 6]])
def test_rows_that_are_taken_are_those_that_were_asked_for(index: list[int]) -> None:
    """[0, 0, 2] ends two after its start and is taken for [0, 1, 2]: a record that no batch holds is read."""
    X = np.arange(16.0).reshape(8, 2)
    assert (TableRows(X).take(np.array(index)) == X[index]).all()


def test_linear_outputs_do_not_trust_rows_kept_for_a_larger_norm() -> None:
    X = np.full((4, 3), 10.0)
    rows = ShortRows(TableRows(X), 5.0)
    total = LinearOutputs(rows, np.zeros(4, int), Softmax(2), row_norm=1.0)
    found = total.total(np.zeros((1, 6)), np.eye(1, 4, dtype=bool))
    assert np.linalg.norm(found) <= total.bound
