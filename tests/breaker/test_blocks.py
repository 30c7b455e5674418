"""Attacks on block runs, factorisation, kept rows, noise names, model files and searches: each test states a claim."""

from __future__ import annotations

import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tacit.estimators._outputs as shared
import tacit.estimators.factorise as factorise
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tacit.estimators.factorise import DPNMF
from tacit.estimators.networks import DPConvexReLUClassifier, DPSoftmaxRegression
from tacit.run import SEEDED, Channel, Streams
from tacit.run.blocks import Block, GradientStep
from tacit.run.channel import sensitivity
from tacit.run.clipped_sum import VectorSum
from tacit.run.sums import LinearOutputs, ShortRows, TableRows
from tacit.run.sums.factors import FactorRows, ItemFactors, ItemStatistic, PersonFactors, statistic_size
from tacit.solvers.factorise import UPDATES

from tacit.accounting import certify
from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.estimators import DPSelection
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.problem.outputs import Softmax
from tacit.solvers.blocks import plan_blocks, run_blocks

SMALL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.0, "epochs": 2, "progress": False}
NETWORK: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 2, "classes": [0, 1], "random_state": 0}
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
    total = VectorSum(np.zeros((100, 3)), 1.0)
    sharp = type("Sharp", (VectorSum,), {"diameter": property(lambda self: 1.2)})(np.zeros((100, 3)), 1.0)
    wide = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
    assert sensitivity(plan.mechanism, total) == wide
    full = relation is Adjacency.REPLACE_ONE and sampling == "full"
    assert sensitivity(plan.mechanism, sharp) == (1.2 if full else wide)


def test_a_certificate_composes_every_release_of_the_worst_batch_and_what_is_beside() -> None:
    def extra_mechanism(strength: float) -> Mechanism:
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
        extra_mechanism=extra_mechanism,
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
    problem = ItemFactors(FactorRows(np.zeros((12, 1000)), 1.0), items, MOMENTS)
    run_blocks(plan, problem, Channel(plan.certificate, 12, streams=Streams(0)))
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


# -- 3. rows that are kept -----------------------------------------------------------------------------------------


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


# -- 4. names of noise ----------------------------------------------------------------------------------------------


def resumed_twice(first: Any, second: Any, n: int = 3) -> tuple[Any, Any]:
    certificate = certify(Mechanism(adjacency=Adjacency.ZERO_OUT, ratio=Schedule.constant(1.0, 2), steps=2), delta=1e-6)
    checkpoint = Channel(certificate, n, streams=Streams(0)).checkpoint()
    a, b = (Channel(certificate, n, resume=checkpoint).release(total, np.zeros((1, 3)))[0] for total in (first, second))
    return a, b


def test_a_step_that_is_repeated_with_another_bound_shares_no_noise() -> None:
    """Same sum, same name, same z, but σ and 2σ: 2a − b is the sum in the clear."""
    X = np.array([[0.1, 0.2, 0.3]] * 3)
    a, b = resumed_twice(VectorSum(X, 1.0), VectorSum(X, 2.0))
    assert not np.allclose(2 * a - b, X.sum(axis=0), rtol=1e-9), "both releases together show the sum without noise"


def test_sums_that_hardly_differ_share_no_noise_and_equal_ones_share_all() -> None:
    X = np.array([[0.1, 0.2, 0.3]] * 3)
    moved = X.copy()
    moved[0, 0] += 1e-15
    a, b = resumed_twice(VectorSum(X, 1.0), VectorSum(moved, 1.0))
    assert np.abs(a - b).min() > 1e-6
    a, b = resumed_twice(VectorSum(X, 1.0), VectorSum(np.asfortranarray(X), 1.0))
    assert (a == b).all()


def test_names_do_not_depend_on_the_layout_of_a_sum() -> None:
    certificate = certify(Mechanism(adjacency=Adjacency.ZERO_OUT, ratio=Schedule.constant(1.0, 1), steps=1), delta=1e-6)
    channel = Channel(certificate, 3)
    sums = np.arange(12.0).reshape(3, 4)
    same = [sums, np.asfortranarray(sums), np.repeat(sums, 2, axis=1)[:, ::2]]
    assert len({channel._named(one) for one in same}) == 1
    assert channel._named(sums) != channel._named(sums[::-1])


# -- 6. searches ----------------------------------------------------------------------------------------------------

GRIDS: dict[str, dict[str, Any]] = {
    "long steps": {"step_fraction": [0.5, 2.0]},
    "no gates": {"n_gates": [0, 4]},
    "secret partition": {"partition": ["fixed", "secret"]},
    "own epsilon": {"epsilon": [1.0, 9.0]},
    "own map": {"features": [None, make_pipeline(StandardScaler())]},
    "own norm": {"feature_norm": [1.0, math.nan]},
    "own view": {"view": ["final_model", "nobody"]},
}


@pytest.mark.parametrize("name", list(GRIDS))
def test_a_bad_grid_is_refused_before_anything_is_spent_or_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    monkeypatch.setattr(DPConvexReLUClassifier, "fit", stop)
    ledger = Ledger(tmp_path / "a.ledger", epsilon=3.0, delta=1e-4)
    inner = DPConvexReLUClassifier(feature_norm=1.0, n_gates=4, epochs=2, classes=[0, 1])
    search = DPSelection(inner, GRIDS[name], epsilon=2.0, delta=1e-5, budget=ledger, random_state=0)
    with pytest.raises((InvalidInput, NotCovered)):
        search.fit(X, (X[:, 0] > 0).astype(int))
    assert len(ledger.entries()) == 0
    assert not hasattr(search, "certificate_")


def test_a_search_does_not_take_a_factorisation_for_a_candidate() -> None:
    """Its ``planned_certificate`` has other arguments, and it has no target."""
    search = DPSelection(DPNMF(2, row_norm=1.0), {"epochs": [2]}, epsilon=2.0, delta=1e-5)
    with pytest.raises((InvalidInput, NotCovered)):
        search.fit(people(), np.arange(20.0))


def test_candidates_run_the_plan_that_was_admitted() -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = (X[:, 0] > 0).astype(int)
    inner = DPConvexReLUClassifier(feature_norm=1.0, epochs=2, classes=[0, 1])
    search = DPSelection(
        inner,
        {"n_gates": [2, 4], "step_fraction": [0.5, 1.0]},
        epsilon=2.0,
        delta=1e-5,
        mean_trials=3.0,
        random_state=1,
    ).fit(X, y)
    model = search.best_estimator_
    assert search.certificate_.epsilon(1e-5) <= 2.0
    assert model is None or model.certificate_ == search.certificate_ == model.plan_.certificate


def test_linear_outputs_do_not_trust_rows_kept_for_a_larger_norm() -> None:
    X = np.full((4, 3), 10.0)
    rows = ShortRows(TableRows(X), 5.0)
    total = LinearOutputs(rows, np.zeros(4, int), Softmax(2), row_norm=1.0)
    found = total.total(np.zeros((1, 6)), np.eye(1, 4, dtype=bool))
    assert np.linalg.norm(found) <= total.bound


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
