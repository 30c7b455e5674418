"""Attacks on block runs and on factorisation: each test states a claim."""

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

from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.estimators.nmf import DPNMF
from tacit.ledger import Ledger
from tacit.maps import NonnegativeRows
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.problem.blocks import Block, GradientStep
from tacit.records import InMemory, Rows
from tacit.release import SEEDED, Channel, open_session, sensitivity
from tacit.release.queries import ItemFactors, ItemStatistic, PersonFactors, VectorSum
from tacit.release.queries.factors import statistic_size
from tacit.solvers.blocks import BlockDescent, plan_blocks
from tacit.solvers.nmf import NMFOptions

SMALL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "epochs": 2, "progress": False}
MOMENTS, GRADIENT = ItemStatistic.MOMENTS, ItemStatistic.GRADIENT


def people(n: int = 20) -> Any:
    return np.abs(np.random.default_rng(0).normal(size=(n, 4)))


def unit_rows(k: int = 2, d: int = 4) -> Any:
    H = np.abs(np.random.default_rng(1).normal(size=(k, d)))
    return H / np.linalg.norm(H, axis=1, keepdims=True)


def block(name: str = "a", bound: float = 1.0, **more: Any) -> Block:
    return Block(name, np.zeros(3), bound, GradientStep(0.1), **more)


# -- 1. block runs: sensitivity, composition, schedules, views ---------------------------------------------------


@pytest.mark.parametrize("sampling", ["cyclic", "poisson", "full"])
@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_the_diameter_counts_only_where_every_step_reads_everybody(relation: Adjacency, sampling: str) -> None:
    size = None if sampling == "full" else 10
    both = [block("a", diameter=1.2), block("b", 3.0, diameter=3.5)]
    plan = plan_blocks(1.0, 1e-5, blocks=both, n=100, batch_size=size, epochs=3, sampling=sampling, adjacency=relation)
    total = VectorSum(1.0)
    sharp = type("Sharp", (VectorSum,), {"diameter": property(lambda self: 1.2)})(1.0)
    wide = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
    assert sensitivity(plan.mechanism, total) == wide
    full = relation is Adjacency.REPLACE_ONE and sampling == "full"
    assert sensitivity(plan.mechanism, sharp) == (1.2 if full else wide)


def test_a_certificate_composes_every_release_of_the_worst_batch_and_what_is_beside() -> None:
    def extra(strength: float) -> Mechanism:
        return Mechanism(adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(2 * strength, 1), steps=1)

    plan = plan_blocks(
        None,
        1e-5,
        blocks=[block("a"), block("b", 3.0)],
        n=100,
        batch_size=25,
        epochs=3,
        noise_schedule=lambda k, j: 1.0 + 3 * j + 0.5 * k,
        shares={"a": 1.0, "b": 4.0},
        noise_multiplier=3.0,
        extra_mechanism=extra,
    )
    squares = (plan.ratio**2).sum(axis=1)
    worst = max(squares[j::4].sum() for j in range(4))
    assert plan.certificate.mu is not None
    assert plan.certificate.mu >= math.sqrt(5 * worst) * (1 - 1e-12)


@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("sampling", ["cyclic", "poisson", "full"])
def test_every_entry_of_every_release_has_the_noise_that_was_certified(relation: Adjacency, sampling: str) -> None:
    """Rows of zeros contribute nothing: what an update sees is noise, also for items that nobody touched."""
    seen: list[Any] = []

    def keep(value: Any, noisy: Any, at: Any) -> Any:
        seen.append(noisy.copy())
        return value

    H = unit_rows(2, 1000)
    size, bound = statistic_size(2, 1000, MOMENTS), 0.5
    items = Block("items", H, bound, keep, size, diameter=math.sqrt(2) * bound)
    plan = plan_blocks(
        1.0,
        1e-5,
        blocks=[items],
        n=12,
        batch_size=None if sampling == "full" else 4,
        epochs=2,
        sampling=sampling,
        noise_schedule="linear",
        adjacency=relation,
    )
    problem = ItemFactors((items,), MOMENTS, NonnegativeRows(1000, 1.0))
    with open_session(plan.certificate, InMemory(np.zeros((12, 1000))), random_state=0) as session:
        BlockDescent(plan, problem).solve(session)
    replaced = (math.sqrt(2) if sampling == "full" else 2.0) * bound
    delta = replaced if relation is Adjacency.REPLACE_ONE else bound
    for noisy, ratio in zip(seen, plan.ratio[:, 0], strict=True):
        assert noisy.std() == pytest.approx(delta / ratio, rel=0.1)
        assert (noisy != 0).all(), "an entry without noise tells that nobody touched it"


@pytest.mark.parametrize(
    "value",
    [math.inf, math.nan, 0.0, -1.0, 1e300, np.ones(2), 1j, None, "much"],
    ids=["inf", "nan", "zero", "negative", "huge", "array", "complex", "none", "word"],
)
@pytest.mark.filterwarnings("ignore")
def test_strange_variances_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        plan_blocks(1.0, 1e-5, blocks=[block()], n=100, epochs=2, noise_schedule=lambda k, j: value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("multiplier", [1e-320, 1e-200, 1e-100, 1e200])
def test_noise_that_vanishes_is_refused_or_certified_as_such(multiplier: float) -> None:
    try:
        plan = plan_blocks(None, 1e-5, blocks=[block()], n=100, epochs=2, noise_multiplier=multiplier)
    except TacitError:
        return
    assert plan.certificate.epsilon(1e-5) > 1e6 or multiplier > 1


def test_an_update_with_memory_is_not_certified_as_one_without() -> None:
    """The certificate says "no momentum and no per-record state is carried between steps [enforced]"."""

    class Heavy(GradientStep):
        def __call__(self, value: Any, noisy: Any, at: Any) -> Any:
            past = vars(self).setdefault("past", [])
            past.append(noisy)
            return np.mean(past, axis=0).reshape(value.shape)  # an average of all releases: nothing is forgotten

    both = [Block("a", np.zeros(3), 1.0, Heavy(0.1)), block("b")]
    with pytest.raises(NotCovered):
        plan_blocks(
            None, 1e-5, blocks=both, n=100, epochs=5, view="final_model", coupling=np.eye(2) / 2, noise_multiplier=3.0
        )


# -- 2. factorisation: bounds whatever a row holds -----------------------------------------------------------------

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


def items_of(statistic: ItemStatistic, bound: float, observed: bool = False, H: Any = None) -> tuple[ItemFactors, Any]:
    H = unit_rows() if H is None else H
    described = Block("items", H, bound, GradientStep(1.0), statistic_size(H.shape[0], H.shape[1], statistic))
    return ItemFactors((described,), statistic, NonnegativeRows(H.shape[1], 1.0, observed), weight=0.5), H


def one(table: Any, i: int) -> Rows:
    return Rows(table[i : i + 1])


def length(vector: Any) -> float:
    top = float(np.abs(vector).max())
    return top if top == 0 or not math.isfinite(top) else top * float(np.linalg.norm(vector / top))


@pytest.mark.parametrize("bound", [0.1, 1e-9])
@pytest.mark.parametrize("form", ["dense", "float32", "csr", "parts", "unknown", "unknown csr"])
@pytest.mark.parametrize("statistic", list(ItemStatistic), ids=lambda s: s.name)
def test_contributions_are_bounded_whatever_a_row_holds(statistic: ItemStatistic, form: str, bound: float) -> None:
    if statistic is MOMENTS and form.startswith("unknown"):
        with pytest.raises(InvalidInput, match="every entry"):
            items_of(statistic, bound, observed=True)
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
        problem, H = items_of(statistic, bound, form.startswith("unknown"))
        each = [problem.total(0, (H,), one(table, i)) for i in range(len(ODD))]
    assert max(map(length, each)) <= bound * (1 + 1e-9)
    if statistic is MOMENTS:
        assert max(length(a - b) for a in each for b in each) <= math.sqrt(2) * bound * (1 + 1e-9)


@pytest.mark.parametrize("update", ["gradient", "statistics", "residuals"])
def test_tiny_contribution_norms_are_refused_or_kept(update: str) -> None:
    """‖w‖²·(α²‖w‖² + ‖m‖²) underflows to 0, so that a short row is not clipped at all: 10³⁰ times the bound."""
    model = DPNMF(2, update=update, options=NMFOptions(contribution_norm=1e-200), **SMALL)
    shape = model._shape(20, 4)
    try:
        problem = model._planned(shape, model._budget(shape)).problem
    except InvalidInput:
        return
    table, block = people(), problem.blocks[0]
    table[0] *= 1e-85
    with np.errstate(all="ignore"):
        found = problem.total(0, (block.start,), one(table, 0))
    assert length(found) <= block.bound * (1 + 1e-9)


def test_small_residuals_of_sparse_rows_are_clipped_in_spite_of_rounding() -> None:
    H = np.abs(np.random.default_rng(0).normal(size=(100, 120))) + 3
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    table = np.concatenate([H[:3], np.abs(np.random.default_rng(1).normal(size=(3, 100))) @ H])
    problem, _ = items_of(GRADIENT, 1e-12, H=H)
    rows = sparse.csr_matrix(table)
    assert max(length(problem.total(0, (H,), one(rows, i))) for i in range(6)) <= 1e-12 * (1 + 1e-6)


@pytest.mark.parametrize("observed", [False, True])
def test_factors_come_from_ones_own_row(observed: bool) -> None:
    a, b = people(), people()
    b[1:] = ODD[np.arange(19) % len(ODD)]
    H = unit_rows()
    with np.errstate(all="ignore"):
        query = PersonFactors(NonnegativeRows(4, 1.0, observed), 2, 20)
        everybody = np.ones((1, 20), bool)
        here, there = (query.total(Rows(t, np.arange(20)), H.ravel()[None], everybody).reshape(20, 2) for t in (a, b))
    assert np.allclose(here[0], there[0], rtol=1e-12, atol=0)
    assert (np.linalg.norm(there, axis=1) <= 1 + 1e-12).all()
    assert (there >= 0).all()


def test_forged_flags_of_a_sparse_table_do_not_hide_duplicates() -> None:
    table = sparse.csr_matrix((np.full(100, 1.0), np.zeros(100, np.int32), np.array([0, 100])), shape=(1, 3))
    table.has_canonical_format = table.has_sorted_indices = True
    assert NonnegativeRows(3, 1.0)(table).toarray().max() <= 1 + 1e-12
    assert table.nnz == 100, "the caller's table stays as it is"


class Reached(Exception):
    pass


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


@pytest.mark.parametrize("entry", [-1, 4, 10**6])
def test_entries_outside_of_a_sparse_table_are_refused(entry: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row with a column number out of range makes compiled code read, and write, memory that is not the table's."""
    monkeypatch.setattr(InMemory, "parts", stop)
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

    options = NMFOptions(noise_schedule=schedule)
    model = DPNMF(2, options=options, release="both", random_state=0, **SMALL).fit(table)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.person_factors_).all()
    with np.errstate(all="ignore"):
        query, rows = PersonFactors(NonnegativeRows(4, 1.0), 2, 20), Rows(table, np.arange(20))
        total = query.total(rows, model.components_.ravel()[None], np.ones((1, 20), bool))
    assert (np.linalg.norm(total.reshape(20, 2), axis=1) <= 1 + 1e-12).all()


def test_a_ledger_is_charged_once_and_before_any_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "small.ledger", epsilon=0.5, delta=1e-5)
    monkeypatch.setattr(InMemory, "parts", stop)
    with pytest.raises(TacitError):
        DPNMF(2, ledger=ledger, **SMALL).fit(people())
    assert len(ledger.entries()) == 0
    monkeypatch.undo()
    ledger = Ledger(tmp_path / "large.ledger", epsilon=3.0, delta=1e-5)
    model = DPNMF(2, ledger=ledger, release="both", **SMALL).fit(people())
    assert len(ledger.entries()) == 1
    assert model.certificate_.epsilon(1e-6) <= 1 + 1e-9
    assert len(model.certificate_.plan.parts) == 2


@pytest.mark.parametrize("release", ["items", "both"])
def test_an_interrupted_fit_leaves_the_model_as_it_was(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a part of the new model, nor the old one under a new certificate."""
    model = DPNMF(2, release=release, random_state=0, **SMALL).fit(people())
    assert SEEDED in model.certificate_.marks
    before = {key: value for key, value in vars(model).items() if key.endswith("_")}
    monkeypatch.setattr(Channel, "release", stop)
    with pytest.raises(Reached):
        model.set_params(random_state=None).fit(people())
    after = {key: value for key, value in vars(model).items() if key.endswith("_")}
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in ("certificate_", "components_", "plan_"))
    fresh = DPNMF(2, release=release, random_state=0, **SMALL)
    with pytest.raises(Reached):
        fresh.fit(people())
    assert not {"components_", "person_factors_", "certificate_", "plan_"} & vars(fresh).keys()


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
        "notes_",
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
            problem = ItemFactors((block,), ItemStatistic.GRADIENT, NonnegativeRows(d, 1.0))
            assert np.linalg.norm(problem.total(0, (base[None],), Rows(row))) <= C * (1 + 1e-6)
