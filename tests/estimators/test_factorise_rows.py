"""Private factorisation of any rows: contributions are bounded, factors are one's own, and nothing is kept or told."""

from __future__ import annotations

import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import tacit.estimators.factorise as factorise
from tacit.errors import InvalidInput, TacitError
from tacit.estimators.factorise import DPNMF
from tacit.ledger import Ledger
from tacit.run import SEEDED, Channel
from tacit.run.blocks import Block, GradientStep
from tacit.run.sums.factors import FactorRows, ItemFactors, ItemStatistic, PersonFactors, statistic_size
from tacit.solvers.factorise import UPDATES

SMALL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "epochs": 2, "progress": False}
MOMENTS, GRADIENT = ItemStatistic.MOMENTS, ItemStatistic.GRADIENT


def people(n: int = 20) -> Any:
    return np.abs(np.random.default_rng(0).normal(size=(n, 4)))


def unit_rows(k: int = 2, d: int = 4) -> Any:
    H = np.abs(np.random.default_rng(1).normal(size=(k, d)))
    return H / np.linalg.norm(H, axis=1, keepdims=True)


def block(name: str = "a", bound: float = 1.0, **more: Any) -> Block:
    return Block(name, np.zeros(3), bound, GradientStep(0.1), **more)


ODD = np.array(
    [
        [1e308, 1e308, 1e308, 1e308],
        [5e-324, 5e-324, 0, 0],
        [1e308, 5e-324, 0, -1e308],
        [0, 0, 0, 0],
        [-1, -1, -1, -1],
        [1, 1e-200, 0, 0],
        [0, 0, 0, 1e-160],
        [1e154, 1e154, 0, 1],
    ]
)


def in_parts(table: Any) -> Any:
    """Unsorted entries, each of them stored in two parts, zeros included."""
    n, d = table.shape
    indices = np.tile(np.concatenate([np.arange(d)[::-1], np.arange(d)]), n).astype(np.int32)
    data = np.concatenate([table[:, ::-1] / 2, table / 2], axis=1).ravel()
    return sparse.csr_matrix((data, indices, np.arange(n + 1, dtype=np.int32) * 2 * d), shape=table.shape)


def items_of(
    table: Any, statistic: ItemStatistic, bound: float, observed: bool = False, H: Any = None
) -> tuple[ItemFactors, Any]:
    H = unit_rows() if H is None else H
    described = Block("items", H, bound, GradientStep(1.0), statistic_size(H.shape[0], H.shape[1], statistic))
    return ItemFactors(FactorRows(table, 1.0, observed_only=observed), described, statistic, weight=0.5), H


def length(vector: Any) -> float:
    top = float(np.abs(vector).max())
    return top if top == 0 or not math.isfinite(top) else top * float(np.linalg.norm(vector / top))


@pytest.mark.parametrize("bound", [0.1, 1e-9])
@pytest.mark.parametrize("form", ["dense", "float32", "csr", "parts", "unknown", "unknown csr"])
@pytest.mark.parametrize("statistic", list(ItemStatistic), ids=lambda s: s.name)
def test_contributions_are_bounded_whatever_a_row_holds(statistic: ItemStatistic, form: str, bound: float) -> None:
    if statistic is MOMENTS and form.startswith("unknown"):
        with pytest.raises(InvalidInput, match="every entry"):
            items_of(people(), statistic, bound, observed=True)
        return
    with np.errstate(all="ignore"):
        table: Any = {
            "dense": ODD,
            "float32": np.clip(ODD, -3e38, 3e38).astype(np.float32),
            "csr": sparse.csr_matrix(ODD),
            "parts": in_parts(ODD),
            "unknown": np.where(ODD == 0, np.nan, ODD),
            "unknown csr": in_parts(ODD),
        }[form]
        problem, H = items_of(table, statistic, bound, form.startswith("unknown"))
        each = [problem.total(0, (H,), np.array([i])) for i in range(len(ODD))]
    assert max(map(length, each)) <= bound * (1 + 1e-9)
    if statistic is MOMENTS:
        assert max(length(a - b) for a in each for b in each) <= math.sqrt(2) * bound * (1 + 1e-9)


@pytest.mark.parametrize("update", ["gradient", "statistics", "residuals"])
def test_tiny_contribution_norms_are_refused_or_kept(update: str) -> None:
    """‖w‖²·(α²‖w‖² + ‖m‖²) underflows to 0, so that a short row is not clipped at all: 10³⁰ times the bound."""
    model = DPNMF(2, contribution_norm=1e-200, update=update, **SMALL)
    try:
        plan, weight = model._planned(20, 4)
    except InvalidInput:
        return
    table = people()
    table[0] *= 1e-85
    statistic = UPDATES[update]
    problem = ItemFactors(FactorRows(table, 1.0), plan.blocks[0], statistic, weight=weight)
    with np.errstate(all="ignore"):
        found = problem.total(0, (plan.blocks[0].start,), np.array([0]))
    assert length(found) <= plan.blocks[0].bound * (1 + 1e-9)


def test_small_residuals_of_sparse_rows_are_clipped_in_spite_of_rounding() -> None:
    H = np.abs(np.random.default_rng(0).normal(size=(100, 120))) + 3
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    table = np.concatenate([H[:3], np.abs(np.random.default_rng(1).normal(size=(3, 100))) @ H])
    problem, _ = items_of(sparse.csr_matrix(table), GRADIENT, 1e-12, H=H)
    assert max(length(problem.total(0, (H,), np.array([i]))) for i in range(6)) <= 1e-12 * (1 + 1e-6)


@pytest.mark.parametrize("observed", [False, True])
def test_factors_come_from_ones_own_row(observed: bool) -> None:
    a, b = people(), people()
    b[1:] = ODD[np.arange(19) % len(ODD)]
    H = unit_rows()
    with np.errstate(all="ignore"):
        here, there = (
            FactorRows(t, 1.0, observed_only=observed).weights(H, np.arange(20), 0.0, 1.0)[0] for t in (a, b)
        )
    assert np.allclose(here[0], there[0], rtol=1e-12, atol=0)
    assert (np.linalg.norm(there, axis=1) <= 1 + 1e-12).all()
    assert (there >= 0).all()


def test_forged_flags_of_a_sparse_table_do_not_hide_duplicates() -> None:
    table = sparse.csr_matrix((np.full(100, 1.0), np.zeros(100, np.int32), np.array([0, 100])), shape=(1, 3))
    table.has_canonical_format = table.has_sorted_indices = True
    taken = FactorRows(table, 1.0).take(np.array([0]))
    assert taken.toarray().max() <= 1 + 1e-12


class Reached(Exception):
    pass


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


@pytest.mark.parametrize("entry", [-1, 4, 10**6])
def test_entries_outside_of_a_sparse_table_are_refused(entry: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row with a column number out of range makes compiled code read, and write, memory that is not the table's."""
    monkeypatch.setattr("tacit.estimators._blocks.run_blocks", stop)
    table = sparse.csr_matrix(people())
    table.indices[1] = entry
    with pytest.raises(InvalidInput):
        DPNMF(2, random_state=0, **SMALL).fit(table)


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("release", ["items", "both"])
def test_no_row_raises_a_floating_point_error(release: str, form: str) -> None:
    """numpy.seterr belongs to the user; an error, or a warning, would tell about a record."""
    for row in ODD:
        table = people()
        table[3] = row
        made = table if form == "dense" else sparse.csr_matrix(table)
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            DPNMF(2, release=release, random_state=0, **SMALL).fit(made)


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e308])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_rows_that_change_during_a_fit_stay_bounded(form: str, value: float) -> None:
    """A schedule of the user's runs after the schema was checked."""
    table: Any = people() if form == "dense" else sparse.csr_matrix(people())

    def schedule(k: int, j: int) -> float:
        (table if form == "dense" else table.data)[:] = value
        return 1.0

    model = DPNMF(2, noise_schedule=schedule, release="both", random_state=0, **SMALL).fit(table)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.person_factors_).all()
    with np.errstate(all="ignore"):
        total = PersonFactors(FactorRows(table, 1.0), 2).total(model.components_.ravel()[None], np.ones((1, 20), bool))
    assert (np.linalg.norm(total.reshape(20, 2), axis=1) <= 1 + 1e-12).all()


def test_a_ledger_is_charged_once_and_before_any_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "small.ledger", epsilon=0.5, delta=1e-5)
    monkeypatch.setattr(factorise, "FactorRows", stop)
    with pytest.raises(TacitError):
        DPNMF(2, budget=ledger, **SMALL).fit(people())
    assert len(ledger.entries()) == 0
    monkeypatch.undo()
    ledger = Ledger(tmp_path / "large.ledger", epsilon=3.0, delta=1e-5)
    model = DPNMF(2, budget=ledger, release="both", **SMALL).fit(people())
    assert len(ledger.entries()) == 1
    assert model.certificate_.epsilon(1e-6) <= 1 + 1e-9
    assert len(model.certificate_.plan.parts) == 2


@pytest.mark.parametrize("release", ["items", "both"])
def test_an_interrupted_fit_leaves_no_model(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DPNMF(2, release=release, random_state=0, **SMALL).fit(people())
    assert SEEDED in model.certificate_.marks
    monkeypatch.setattr(Channel, "release", stop)
    with pytest.raises(Reached):
        model.fit(people())
    assert not {"components_", "person_factors_", "certificate_", "plan_"} & vars(model).keys()


def test_models_and_their_copies_hold_no_row() -> None:
    table = people() + 0.123456789
    model = DPNMF(2, **SMALL).fit(table)
    raw = pickle.dumps(model)
    assert not any(row.tobytes() in raw for row in table)
    assert not any(key.endswith("_") for key in vars(clone(model)))
    assert {key for key in vars(model) if key.endswith("_")} == {
        "certificate_",
        "components_",
        "n_features_in_",
        "plan_",
    }


@pytest.mark.parametrize("d", [2_000, 100_000])
def test_small_residuals_of_long_sparse_rows_are_clipped(d):
    """‖m − wH‖² as a difference of sums over 10⁵ entries is rounding alone: contributions were up to 8 C long."""
    rng = np.random.default_rng(0)
    base = np.full(d, 1 / np.sqrt(d))
    noise = rng.normal(size=d)
    noise -= base * (noise @ base)
    noise /= np.linalg.norm(noise)
    C, size = 1e-8, statistic_size(1, d, ItemStatistic.GRADIENT)
    block = Block("items", base[None], C, GradientStep(1.0), size, 2 * C)
    for share in (0.999999, 0.9, 0.7072):
        for length in np.geomspace(1e-7, 1e-5, 9):
            row = sparse.csr_matrix(np.maximum(share * base + length * noise, 0)[None])
            problem = ItemFactors(FactorRows(row, 1.0), block, ItemStatistic.GRADIENT)
            assert np.linalg.norm(problem.total(0, (base[None],), np.array([0]))) <= C * (1 + 1e-6)
