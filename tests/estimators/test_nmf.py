"""DPNMF: what it promises, what it lets out, and how well it factorises."""

from __future__ import annotations

import dataclasses
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from contracts import WEIGHTS
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import NMF
from sklearn.utils.estimator_checks import parametrize_with_checks

from tacit import DPNMF, Ledger
from tacit.accounting import gdp_epsilon
from tacit.audit import audit_gdp
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered
from tacit.maps import NonnegativeRows
from tacit.problem import ElasticNet
from tacit.records import InMemory
from tacit.release import SEEDED, Channel, open_session
from tacit.release.queries import ItemFactors
from tacit.solvers import nmf as solver
from tacit.solvers.blocks import BlockDescent, plan_blocks
from tacit.solvers.nmf import UPDATES, NMFOptions, UnitRows, item_block

COMMON = {"epsilon": 1.0, "delta": 1e-5, "row_norm": 1.0, "epochs": 3}
EXACT = {"epsilon": 1e9, "delta": 1e-5, "random_state": 0}
MUCH = {"epsilon": 1e5, "delta": 1e-3, "row_norm": 50.0, "epochs": 3, "random_state": 0}


NAMES = {field.name for field in dataclasses.fields(NMFOptions)}


def nmf(n_components: int = 10, **settings: Any) -> DPNMF:
    """Settings of both kinds, as people think of them."""
    rare = {name: settings.pop(name) for name in NAMES & settings.keys()}
    return DPNMF(n_components, **settings, **({"options": NMFOptions(**rare)} if rare else {}))


def planted(n=300, d=40, k=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(0.5, size=(n, k)) @ rng.gamma(0.5, size=(k, d))


def error(model, M):
    return np.linalg.norm(M - model.inverse_transform(model.transform(M))) / np.linalg.norm(M)


@parametrize_with_checks(
    [
        DPNMF(2, **MUCH),
        DPNMF(2, update="statistics", release="both", **MUCH),
        DPNMF(2, update="gradient", missing="unobserved", **MUCH),
    ],
    expected_failed_checks=lambda _: WEIGHTS,
    xfail_strict=False,
)
def test_scikit_learn_is_content(estimator, check):
    check(estimator)


# -- the promise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", list(UPDATES))
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("batch", [None, 100])
def test_the_certificate_is_the_composition_of_what_is_released(update, adjacency, batch):
    model = nmf(4, update=update, adjacency=adjacency, batch_size=batch, **COMMON).fit(planted())
    ratios = model.plan_.ratio[:, 0]
    worst = max((ratios[j :: model.plan_.n_batches] ** 2).sum() for j in range(model.plan_.n_batches))
    assert model.certificate_.epsilon(1e-5) == pytest.approx(gdp_epsilon(math.sqrt(worst), 1e-5), rel=1e-9)
    assert 1 - 1e-4 <= model.certificate_.epsilon(1e-5) <= 1
    assert model.certificate_.view == "every iterate"


def test_both_kinds_of_factors_are_paid_for():
    model = nmf(4, release="both", person_share=0.25, **COMMON).fit(planted())
    items, persons = model.certificate_.plan
    a, b = (items.ratio.to_array() ** 2).sum(), persons.ratio[0] ** 2
    assert b / (a + b) == pytest.approx(0.25)
    assert model.certificate_.epsilon(1e-5) == pytest.approx(gdp_epsilon(math.sqrt(a + b), 1e-5), rel=1e-9)
    assert model.person_factors_.shape == (300, 4)
    assert "local differential privacy" in model.certificate_.describe()
    assert not hasattr(nmf(4, **COMMON).fit(planted()), "person_factors_")


def test_people_who_bought_nothing_get_noise_too():
    model = nmf(3, release="both", **{**COMMON, "row_norm": 5.0}, random_state=1).fit(np.zeros((4000, 3)))
    sigma = math.sqrt(2) / model.certificate_.plan.parts[1].ratio[0]
    positive = model.person_factors_[model.person_factors_ > 0] / 5.0
    assert len(positive) == pytest.approx(6000, abs=300)  # half of the noise
    assert math.sqrt((positive**2).mean()) == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("update", list(UPDATES))
def test_items_that_nobody_touched_are_noised(update):
    M = planted()
    M[:, :20] = 0.0
    model = nmf(4, update=update, **COMMON).fit(M)
    untouched, touched = ((model.components_[:, part] > 0).mean() for part in (slice(0, 20), slice(20, None)))
    assert untouched > 0.2
    assert model.components_[:, :20].max() > 0.3 * model.components_[:, 20:].max()
    assert touched > 0.2


def test_the_words_name_the_unit_and_the_joint_promise():
    people = nmf(2, **COMMON).fit(planted())
    grouped = nmf(2, **COMMON).fit(planted(), groups=np.arange(len(planted())) // 2)
    assert (people.certificate_.unit, grouped.certificate_.unit) == ("record", "person")
    assert "joint (billboard)" in people.certificate_.describe()
    assert "for each person" in grouped.certificate_.describe()
    assert "training record" in people.certificate_.marks[0]
    assert "training person" in grouped.certificate_.marks[0]
    assert nmf(2, random_state=0, **COMMON).fit(planted()).certificate_.marks[-1] == SEEDED


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_option_has_an_effect(name):
    """On the plan, or on what is found without noise."""
    change: dict[str, Any] = {name: 0.4}
    change |= {"noise_schedule": {"noise_schedule": "linear"}, "contribution_norm": {name: 0.001}}.get(name, {})
    base: dict[str, Any] = {"step_size": {"update": "gradient"}, "person_share": {"release": "both"}}.get(name, {})
    base |= {"row_norm": 20.0, "epochs": 3, "delta": 1e-5, "random_state": 0, "epsilon": 5.0}
    plain, other = (nmf(2, **base, **more).fit(planted()) for more in ({}, change))
    assert not np.array_equal(plain.components_, other.components_)


def test_the_plan_is_known_before_the_data():
    model = nmf(4, batch_size=100, **COMMON)
    before = model.planned_certificate(300, 40)
    assert before.plan == model.fit(planted()).certificate_.plan
    assert before.marks == model.certificate_.marks


# -- nothing else gets out --------------------------------------------------------------------------------------------


def public(model):
    return {key: value for key, value in vars(model).items() if key.endswith("_") and key != "components_"}


def test_everything_but_the_components_is_the_same_for_all_data():
    tables = [planted(), planted(seed=1), np.zeros((300, 40)), -planted(), planted() * 1e200]
    here, *others = [nmf(4, **COMMON).fit(M) for M in tables]
    for there in others:
        assert set(vars(there)) == set(vars(here))
        assert there.certificate_.digest == here.certificate_.digest
        assert there.components_.shape == here.components_.shape
        assert np.isfinite(there.components_).all()
    assert not hasattr(here, "reconstruction_err_")
    assert public(here).keys() == {"n_features_in_", "certificate_", "notes_", "plan_"}


def test_a_budget_is_reserved_before_a_record_is_read(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger", 1.2, 2e-5)
    model = nmf(2, ledger=ledger, random_state=0, **COMMON).fit(planted())
    assert ledger.entries()[-1].digest == model.certificate_.digest
    assert SEEDED in ledger.entries()[-1].certificate
    monkeypatch.setattr(InMemory, "parts", lambda self: pytest.fail("a record was read"))
    with pytest.raises(BudgetExhausted):
        nmf(2, ledger=ledger, **COMMON).fit(planted())


@pytest.mark.parametrize("release", ["items", "both"])
def test_a_failed_fit_leaves_the_model_as_it_was(release, monkeypatch):
    model = nmf(2, release=release, **COMMON).fit(planted())
    before, done, right = dict(vars(model)), [], Channel.release

    def interrupted(self, *a, **k):
        done.append(1)
        if len(done) > 2:
            raise KeyboardInterrupt
        return right(self, *a, **k)

    monkeypatch.setattr(Channel, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(planted(seed=1))
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before if name != "n_features_in_")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delta": None}, "delta"),
        ({"row_norm": None}, "row_norm"),
        ({"row_norm": -1.0}, "row_norm"),
        ({"row_norm": 1e200}, "row_norm"),
        ({"n_components": 0}, "n_components"),
        ({"release": "persons"}, "release"),
        ({"update": "newton"}, "update"),
        ({"update": "statistics", "missing": "unobserved"}, "residuals"),
        ({"missing": "nan"}, "missing"),
        ({"adjacency": "add-remove"}, "add-remove"),
        ({"noise_schedule": "quadratic"}, "noise_schedule"),
        ({"noise_schedule": lambda k, j: 0.0}, "noise_schedule"),
        ({"batch_size": 301}, "batch_size"),
        ({"epochs": 0}, "epochs"),
        ({"sampling": "full"}, "sampling"),
        ({"contribution_norm": 0.0}, "contribution_norm"),
        ({"step_size": 0.0, "update": "gradient"}, "step_size must be positive"),
        ({"l1": -1.0}, "l1"),
        ({"person_l2": -1.0}, "person_l2"),
        ({"noise_threshold": -1.0}, "noise_threshold"),
        ({"release": "both", "person_share": 1.0}, "person_share"),
        ({"init_seed": None}, "init_seed"),
        ({"random_state": 1.5}, "random_state"),
        ({"ledger": 3}, "ledger"),
        ({"progress": 3}, "progress"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"options": {"l1": 0.1}}, "options must be"),
        ({"epsilon": 1e13}, "epsilon"),
    ],
)
def test_bad_parameters_are_refused_in_one_line_before_a_record_is_read(change, words, monkeypatch):
    monkeypatch.setattr(InMemory, "parts", lambda self: pytest.fail("a record was read"))
    with pytest.raises((InvalidInput, NotCovered), match=words) as caught:
        nmf(**{**COMMON, **change}).fit(planted())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_fault_in_the_schema_is_told_without_values(value):
    M = planted()
    M[3, 4] = value
    with pytest.raises(InvalidInput, match="contains"):
        nmf(2, **COMMON).fit(M)


# -- how well it factorises -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference():
    """The synthetic data of DP-MBCD, Table 2, and scikit-learn's error on it."""
    rng = np.random.default_rng(0)
    M = np.abs(rng.normal(size=(1000, 10))) @ np.abs(rng.normal(size=(10, 200)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = NMF(10, init="random", random_state=0, max_iter=200).fit(M)
    return M, model.reconstruction_err_ / np.linalg.norm(M)


@pytest.mark.parametrize("update", ["statistics", "residuals"])
def test_without_noise_it_is_as_good_as_scikit_learn(reference, update):
    M, theirs = reference
    model = nmf(10, row_norm=200.0, epochs=60, update=update, contribution_norm=9.0, **EXACT).fit(M)
    assert error(model, M) <= theirs + 0.01
    assert theirs < 0.02


def test_gradients_get_there_more_slowly():
    M = planted(k=2)
    long = {"epochs": 300, "contribution_norm": 1.0, "step_size": 20.0, **EXACT}
    model = nmf(2, row_norm=20.0, update="gradient", **long).fit(M)
    assert error(model, M) < 0.05


def test_many_people_make_it_work_at_a_small_epsilon():
    M = planted(20_100, 20, 3)
    model = nmf(3, epsilon=1.0, delta=1e-6, row_norm=5.0, random_state=0).fit(M[:20_000])
    assert error(model, M[:20_000]) < 0.1
    assert error(model, M[20_000:]) < 0.1  # people whom it has not seen


def test_unknown_entries_are_completed():
    M = planted(400, 30, 2)
    rng = np.random.default_rng(1)
    seen = rng.random(M.shape) < 0.5
    holes = np.where(seen, M, np.nan)
    settings = {"row_norm": 20.0, "epochs": 150, "missing": "unobserved", "contribution_norm": 9.0, **EXACT}
    dense = nmf(2, **settings).fit(holes)
    W = dense.transform(holes)
    assert np.linalg.norm((W @ dense.components_ - M)[~seen]) < 0.05 * np.linalg.norm(M[~seen])
    table = sparse.csr_matrix(np.where(seen, M, 0.0))
    table_model = nmf(2, **settings).fit(table)
    np.testing.assert_allclose(table_model.components_, dense.components_, atol=1e-5)


def test_sparse_tables_give_what_dense_ones_give():
    M = planted() * (np.random.default_rng(0).random((300, 40)) < 0.3)
    settings = {"row_norm": 5.0, "epochs": 5, **EXACT}
    dense, csr = nmf(3, **settings).fit(M), nmf(3, **settings).fit(sparse.csr_matrix(M))
    # Long dense rows are made a little shorter than sparse ones (2⁻¹⁶), for the sake of float32.
    np.testing.assert_allclose(csr.components_, dense.components_, atol=1e-4)
    np.testing.assert_allclose(csr.transform(sparse.coo_matrix(M)), csr.transform(M), atol=1e-9)
    counts = sparse.csr_matrix(M.round().astype(int))
    assert nmf(3, **settings).fit(counts).components_.shape == (3, 40)


def test_units_do_not_matter():
    a = nmf(3, random_state=0, **COMMON).fit(planted())
    b = nmf(3, random_state=0, **{**COMMON, "row_norm": 4.0}).fit(4 * planted())
    np.testing.assert_array_equal(a.components_, b.components_)
    np.testing.assert_allclose(b.transform(4 * planted()), 4 * a.transform(planted()), rtol=1e-9)


def test_components_are_non_negative_rows_of_norm_one_and_penalties_bite():
    M = planted()
    plain = nmf(4, row_norm=5.0, epochs=10, **EXACT).fit(M)
    thin = nmf(4, row_norm=5.0, epochs=10, l1=0.003, **EXACT).fit(M)
    for model in (plain, thin, nmf(4, row_norm=5.0, epochs=3, l1=1e3, **EXACT).fit(M)):
        assert (model.components_ >= 0).all()
        np.testing.assert_allclose(np.linalg.norm(model.components_, axis=1), 1.0)
    assert (thin.components_ == 0).mean() > (plain.components_ == 0).mean() + 0.05


def test_long_lists_of_items_are_freed_of_noise():
    """More items than people: by default most of what nobody touched is close to 0, and accuracy gains."""
    M = np.zeros((1000, 1500))
    M[:, :30] = planted(1000, 30, 3)
    shared = {"epsilon": 20.0, "delta": 1e-5, "row_norm": 5.0, "random_state": 0}
    cut, raw = (nmf(3, noise_threshold=t, **shared).fit(sparse.csr_matrix(M)) for t in (None, 0.0))
    assert np.linalg.norm(cut.components_[:, 30:]) < 0.5 * np.linalg.norm(raw.components_[:, 30:])
    assert error(cut, M) < 0.9 * error(raw, M)
    assert cut.certificate_.plan == raw.certificate_.plan  # post-processing


@pytest.mark.parametrize("update", list(UPDATES))
def test_e13_what_would_go_negative_is_projected(update, monkeypatch):
    """Errata E13: Algorithm 3 of DP-MBCD has no projection; its noisy steps and solutions go negative, ours do not."""
    seen = []

    def spy(function, argument):
        def called(*args):
            seen.append((np.array(args[argument]), function(*args)))
            return seen[-1][1]

        return called

    if update == "gradient":
        monkeypatch.setattr(ElasticNet, "prox", spy(ElasticNet.prox, 1))
    else:
        monkeypatch.setattr(solver, "nonnegative_rows", spy(solver.nonnegative_rows, 1))
    model = nmf(3, update=update, random_state=0, **COMMON).fit(planted())
    assert len(seen) == 3  # once an epoch
    assert all(before.min() < 0 for before, _ in seen)
    assert min(after.min() for _, after in seen) >= 0
    assert model.components_.min() >= 0


def test_rows_that_vanish_start_again():
    rows = UnitRows(0)(np.array([[0.0, -1.0, 0.0], [3.0, 0.0, 4.0], [np.nan, np.inf, 0.0]]))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)
    np.testing.assert_allclose(rows[1], [0.6, 0, 0.8])
    assert (rows >= 0).all()


# -- what people do with it -------------------------------------------------------------------------------------------


def test_items_topics_and_names():
    M = pd.DataFrame(planted(), columns=[f"word{i}" for i in range(40)])
    model = nmf(4, row_norm=5.0, epochs=10, **EXACT).fit(M)
    top = model.top_items(3)
    assert [len(row) for row in top] == [3] * 4
    best = model.components_.argmax(axis=1)
    assert [row[0] for row in top] == [f"word{i}" for i in best]
    assert model.top_items(1, names=range(40)) == [[int(i)] for i in best]
    near = model.item_similarities("word3")
    assert near.shape == (40,)
    assert near[3] == pytest.approx(1.0)
    assert near.max() <= 1 + 1e-12
    np.testing.assert_array_equal(near, model.item_similarities(3))
    assert list(model.get_feature_names_out()) == ["dpnmf0", "dpnmf1", "dpnmf2", "dpnmf3"]
    for call in (lambda: model.item_similarities("nobody"), lambda: model.top_items(2, names=["a"])):
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(InvalidInput, match="shape"):
        model.inverse_transform(np.zeros((2, 3)))
    assert pickle.loads(pickle.dumps(model)).certificate_ is not None
    assert clone(model).get_params()["row_norm"] == 5.0


def test_a_row_is_transformed_by_itself():
    model = nmf(4, row_norm=5.0, epochs=5, **EXACT).fit(planted())
    M = planted(seed=5) * 1e3  # longer than row_norm: whoever holds the row loses nothing
    np.testing.assert_allclose(model.transform(M)[7], model.transform(M[7:8])[0], rtol=1e-9)
    np.testing.assert_allclose(model.transform(M), 1e3 * model.transform(M / 1e3), rtol=1e-6, atol=1e-9)


# -- audits -----------------------------------------------------------------------------------------------------------


def audit(update, count=1200):
    """An attack on the last H by somebody who knows all other rows."""
    block, weight = item_block(1, 2, update, NMFOptions(step_size=1.0), people=3, seed=0)
    plan = plan_blocks(6.0, 1e-5, blocks=[block], n=3, epochs=2)
    problem = ItemFactors((block,), UPDATES[update], NonnegativeRows(2, 1.0), weight)

    def sampler(M, seed):
        def sample(k):
            with open_session(plan.certificate, InMemory(M), random_state=seed, replicas=k) as session:
                (H,) = BlockDescent(plan, problem).solve(session)
            return H[:, 0, 0] - H[:, 0, 1]

        return sample

    here, there = np.zeros((3, 2)), np.zeros((3, 2))
    here[0], there[0] = [9.0, 0.0], [0.0, 9.0]
    return audit_gdp(sampler(here, 11), sampler(there, 12), count).verdict(plan.certificate)


@pytest.mark.parametrize("update", list(UPDATES))
def test_an_attack_on_the_items_stays_below_the_certificate(update):
    assert not audit(update).violated


def test_people_who_are_not_clipped_are_caught(monkeypatch):
    monkeypatch.setattr(ItemFactors, "_factors", lambda self, W, squares: np.full(len(W), 4.0))
    assert audit("statistics").violated


def test_a_sparse_table_is_never_made_dense():
    import tracemalloc

    table = sparse.random_array((20_000, 3000), density=0.01, format="csr", random_state=0)
    size = table.data.nbytes + table.indices.nbytes + table.indptr.nbytes
    tracemalloc.start()
    nmf(3, **{**COMMON, "epochs": 1}).fit(table)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * size  # besides the table itself; an array would be 67 times as large
