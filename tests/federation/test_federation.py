"""A federation finds what one table finds; what leaves a node is a clipped sum with all of the node's noise."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse, stats

from tacit import Ledger, federation
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators.nmf import DPNMF
from tacit.federation import (
    FactorNode,
    FederatedModel,
    FederatedNMF,
    FederationError,
    Proposal,
    threaded_nodes,
)
from tacit.federation.factors import vertical_mark
from tacit.federation.node import horizontal_mark
from tacit.federation.wire import decode
from tacit.mechanism import Adjacency
from tacit.records import Rows
from tacit.release import SEEDED, channel, noise_std, sensitivity
from tacit.release.queries import factors
from tacit.solvers.nmf import ItemSolve, NMFOptions, public_rows
from tacit.solvers.schedules import Optimised

TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 8.0}
LOUD = 1e12
"""ε at which noise is nothing: accounting is precise up to here."""


def table(n: int, seed: int = 0, d: int = 12, k: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    reasons = np.kron(np.eye(k), np.ones(d // k)) * np.random.default_rng(99).uniform(0.3, 1.0, d)
    return rng.poisson(2 * rng.gamma(0.5, size=(n, k)) @ reasons).astype(float)


class Tap:
    """A link that writes down what passes."""

    def __init__(self, link: Any) -> None:
        self.link, self.received, self.sent = link, [], []

    def submit(self, message: bytes, timeout: float) -> Any:
        self.sent.append(message)
        self.pending = self.link.submit(message, timeout)
        return self

    def result(self) -> bytes:
        message = self.pending.result()
        self.received.append(message)
        return message

    def close(self) -> None:
        self.link.close()


def run(nodes: list[FactorNode], **settings: Any) -> tuple[FederatedModel, list[Tap]]:
    with threaded_nodes(nodes) as links:
        taps = [Tap(link) for link in links]
        return FederatedNMF(**{"n_components": 3, "epochs": 4, "timeout": 30.0, **settings}).fit(taps), taps


def sums(tap: Tap) -> Any:
    found = [decode(raw) for raw in tap.received]
    return np.array([message.array for message in found if message.kind == "sum"])


@pytest.mark.parametrize("name", ["node", "factors", "linear_node", "proposal", "questions", "model", "errors"])
def test_node_and_proposal_know_nothing_of_transport(name: str) -> None:
    source = Path(federation.__file__).with_name(f"{name}.py").read_text()
    imported = {
        module
        for line in ast.walk(ast.parse(source))
        if isinstance(line, ast.Import | ast.ImportFrom)
        for module in ([a.name for a in line.names] if isinstance(line, ast.Import) else [line.module or ""])
    }
    foreign = {"socket", "multiprocessing", "queue", "json", "struct", "grpc", "pickle"}
    assert not {module for module in imported if module.split(".")[0] in foreign}
    others = ("links", "wire", "desk", "local", "server", "team", "transport", "tls", "journal", "linear", "session")
    assert not imported & {f"tacit.federation.{part}" for part in others}


# -- the same as one table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["residuals", "statistics", "gradient"])
@pytest.mark.parametrize("sizes", [(300,), (100, 40, 160)])
def test_without_noise_a_federation_finds_what_one_table_finds(sizes: tuple[int, ...], update: str) -> None:
    M = table(300)
    settings: dict[str, Any] = {"update": update, "init_seed": 3, "epochs": 8}
    settings["options"] = NMFOptions(l2=0.01, person_l2=0.05)
    terms = {**TERMS, "epsilon": LOUD}
    parts = np.split(M, np.cumsum(sizes)[:-1])
    model, _ = run([FactorNode(part, **terms) for part in parts], **settings)
    plain = DPNMF(3, **settings, **terms).fit(M)
    assert np.allclose(model.components_, plain.components_, rtol=1e-6, atol=1e-6)
    start = public_rows(3, 12, 3)
    assert np.abs(plain.components_ - start).max() > 0.1, "it went somewhere"
    new = table(5, seed=7)
    assert np.allclose(model.transform(new), plain.transform(new), rtol=1e-4, atol=1e-5)
    assert model.top_items(3) == plain.top_items(3)
    assert np.allclose(model.item_similarities(0), plain.item_similarities(0), atol=1e-4)


@pytest.mark.parametrize("form", ["dense", "sparse", "unobserved"])
def test_sparse_and_partly_unknown_tables(form: str) -> None:
    M: Any = table(200)
    settings: dict[str, Any] = {"missing": "unobserved" if form == "unobserved" else "zero"}
    terms = {**TERMS, "epsilon": LOUD}
    if form == "unobserved":
        M = np.where(M == 0, np.nan, M)
    if form == "sparse":
        M = sparse.csr_matrix(M)
    nodes = [FactorNode(part, **settings, **terms) for part in (M[:80], M[80:])]
    model, _ = run(nodes, **settings)
    plain = DPNMF(3, epochs=4, **settings, **terms).fit(M)
    assert np.allclose(model.components_, plain.components_, rtol=1e-6, atol=1e-6)


def test_sums_in_different_units_are_added_in_one() -> None:
    """The second node states half the norm: its sums come in units of a quarter."""
    M = table(300)
    small = M[150:] * np.minimum(1, 4.0 / np.maximum(np.linalg.norm(M[150:], axis=1), 1e-9))[:, None]
    free: dict[str, Any] = {"update": "statistics", "epochs": 8}
    free["options"] = NMFOptions(contribution_norm=10.0, l1=0.001)  # nothing is clipped
    terms = {"epsilon": LOUD, "delta": 1e-6}
    nodes = [FactorNode(M[:150], row_norm=8.0, **terms), FactorNode(M[150:], row_norm=4.0, **terms)]
    model, _ = run(nodes, **free)
    plain = DPNMF(3, row_norm=8.0, **terms, **free).fit(np.concatenate([M[:150], small]))
    assert np.allclose(model.components_, plain.components_, rtol=1e-5, atol=1e-6)
    naive = DPNMF(3, row_norm=8.0, **terms, **free).fit(np.concatenate([M[:150], 2 * small]))
    assert np.abs(model.components_ - naive.components_).max() > 1e-3, "unscaled sums would be this"


@pytest.mark.parametrize("schedule", ["linear", Optimised(2.0), lambda k, j: 1.0 + k, [4.0, 3.0, 2.0, 1.0]])
def test_schedules_travel_as_numbers(schedule: Any) -> None:
    model, _ = run([FactorNode(table(50), **TERMS)], options=NMFOptions(noise_schedule=schedule))
    listed = (lambda k, j: schedule[k]) if isinstance(schedule, list) else schedule
    wanted = DPNMF(3, epochs=4, options=NMFOptions(noise_schedule=listed), **TERMS).planned_certificate(50, 12)
    assert model.certificates_[0].plan == wanted.plan


def test_the_update_is_told_the_noise_of_all_nodes_and_the_number_of_all_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    real = ItemSolve.__call__
    monkeypatch.setattr(ItemSolve, "__call__", lambda self, H, s, at: seen.append(at) or real(self, H, s, at))
    nodes = [
        FactorNode(table(50), epsilon=1.0, delta=1e-6, row_norm=8.0),
        FactorNode(table(70), epsilon=3.0, delta=1e-5, row_norm=2.0),
    ]
    model, _ = run(nodes, options=NMFOptions(noise_schedule="linear"))
    assert len(seen) == 4
    for t, at in enumerate(seen):
        parts = [2 * 0.02 / c.plan.parts[0].ratio[t] for c in model.certificates_]  # 2C over Δ/σ
        assert at.noise_std == pytest.approx(math.hypot(parts[0], parts[1] / 16), rel=1e-9)
        assert (at.expected, at.step, at.steps, at.n_batches) == (120.0, t, 4, 1)


# -- what leaves a node --------------------------------------------------------------------------------------------


def test_the_server_receives_offers_and_noisy_sums_and_nothing_else() -> None:
    M = table(60)
    _, (tap,) = run([FactorNode(M, **TERMS)])
    found = [decode(raw) for raw in tap.received]
    assert [message.kind for message in found] == ["node", "offer", "ready", *["sum"] * 4, "ended"]
    terms = {
        "task",
        "units",
        "columns",
        "unit",
        "adjacency",
        "epsilon",
        "delta",
        "row_norm",
        "split",
        "missing",
        "desk",
    }
    assert set(found[0].fields) == terms
    assert set(found[1].fields) == {"session", "certificate"}
    assert set(found[2].fields) == {"session", "steps", "taken"}
    assert set(found[7].fields) == {"session"}
    assert all(found[i].array is None for i in (0, 1, 2, 7))
    size = 3 * 4 // 2 + 3 * 12
    for raw, message in zip(tap.received[3:7], found[3:7], strict=True):
        assert set(message.fields) == {"session", "step", "question"}
        assert message.array is not None
        assert message.array.shape == (size,)
        assert len(raw) < 8 * size + 250, "no room for anything else"


def test_the_offer_does_not_depend_on_what_the_rows_hold() -> None:
    offers = []
    for M in (table(60), np.zeros((60, 12)), np.full((60, 12), 1e300)):
        _, (tap,) = run([FactorNode(M, **TERMS)])
        found = [decode(raw).fields for raw in tap.received[:3]]
        offers.append([{k: v for k, v in one.items() if k not in ("session", "desk")} for one in found])
    assert offers[0] == offers[1] == offers[2]


def _clean(M: Any, requests: list[Any]) -> Any:
    query, everybody = FactorNode(M, **TERMS).plan(Proposal(3, epochs=len(requests))).query, np.ones((1, len(M)), bool)
    return np.array([query.total(Rows(M), H.ravel()[None], everybody)[0] for H in requests])


def test_every_sum_has_the_noise_that_was_certified_and_nodes_share_none_of_it() -> None:
    wide = table(40, d=600)
    nodes = [  # with the same rows
        FactorNode(wide, epsilon=e, delta=1e-6, row_norm=8.0, random_state=i) for i, e in enumerate((0.5, 2.0, 2.0))
    ]
    model, taps = run(nodes, options=NMFOptions(noise_schedule="linear"))
    requests = [m.array for m in map(decode, taps[0].sent) if m.kind == "step"]
    clean = _clean(wide, requests)
    z = []
    for tap, certificate in zip(taps, model.certificates_, strict=True):
        (mechanism,) = certificate.plan.parts
        sigma = np.array([2 * 0.02 / mechanism.ratio[t] for t in range(4)])  # Δ = 2C of residuals, C = 0.02
        z.append((sums(tap) - clean) / sigma[:, None])
    noise = np.array(z).reshape(12, -1)  # nodes × steps, 1806 numbers each
    count = noise.shape[1]
    for row in noise:
        assert abs(row.std() - 1) < 5 / math.sqrt(2 * count)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(noise.ravel(), "norm", args=(0, 0.9)).pvalue < 1e-6, "a tenth less would be noticed"
    correlation = np.corrcoef(noise)[np.triu_indices(12, 1)]
    assert np.abs(correlation).max() < 5 / math.sqrt(count)


def test_two_sessions_of_one_node_share_no_noise(tmp_path: Any) -> None:
    node = FactorNode(np.zeros((40, 300)), **TERMS, ledger=Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5))
    (_, (a,)), (_, (b,)) = run([node]), run([node])
    assert len(node.ledger.entries()) == 2
    assert abs(np.corrcoef(sums(a)[0], sums(b)[0])[0, 1]) < 5 / math.sqrt(900)
    assert (sums(a) != sums(b)).all()


PAIRS = 12


def _far_rows(rng: Any, d: int) -> tuple[Any, Any]:
    """Replacing one by the other moves a sum as far as it goes, if half of the items belong to each."""
    here, there = np.zeros(d), np.zeros(d)
    here[: d // 2], there[d // 2 :] = 50 * rng.uniform(0.5, 1, d // 2), 50 * rng.uniform(0.5, 1, d - d // 2)
    return here, there


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("update", ["residuals", "statistics", "gradient"])
@pytest.mark.parametrize("form", ["dense", "sparse", "unobserved"])
def test_neighbours_move_what_is_sent_by_at_most_the_declared_sensitivity(
    relation: str, update: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record and replay on the node itself, noise taken off: the same messages of a server, two neighbouring tables."""
    if (update, form) == ("statistics", "unobserved"):
        node = FactorNode(table(5), **{**TERMS, "adjacency": relation, "missing": form})
        with pytest.raises(InvalidInput, match="needs every entry of a row"):
            node.plan(Proposal(2, epochs=1, update=update, missing=form, contribution_norm=0.05))
        return
    monkeypatch.setattr(channel, "rounded_normal", lambda rng, scale, size: np.zeros(size, np.int64))
    planned, plans = DPNMF._planned, {}  # plans do not depend on rows: make each of them once

    def once(self: Any, shape: Any, budget: Any) -> Any:
        key = (shape.n, shape.p, self.n_components)
        plans[key] = plans.get(key) or planned(self, shape, budget)
        return plans[key]

    monkeypatch.setattr(DPNMF, "_planned", once)
    rng = np.random.default_rng(5)
    worst = 0.0
    for _ in range(PAIRS):
        d = 8
        here = np.abs(rng.normal(size=(5, d))) * rng.choice([0.1, 30.0], size=(5, 1))
        there = here.copy()
        here[0], there[0] = _far_rows(rng, d)
        if relation == "zero-out":
            there[0] = 0.0
        # a server may ask about anything that has non-negative rows of norm 1
        H = np.abs(rng.normal(size=(2, d))) * 10.0 ** rng.integers(-9, 1, size=(2, d))
        H = np.kron(np.eye(2), np.ones(4)) if rng.random() < 0.5 else H
        H = np.ones((2, d)) if rng.random() < 0.3 else H
        H = H / np.linalg.norm(H, axis=1, keepdims=True)
        sent = []
        for M in (here, there):
            rows: Any = sparse.csr_matrix(M) if form == "sparse" else M
            missing = "unobserved" if form == "unobserved" else "zero"
            node = FactorNode(rows, **{**TERMS, "adjacency": relation, "missing": missing})
            plan = node.plan(Proposal(2, epochs=1, update=update, missing=missing, contribution_norm=0.05))
            with plan.open() as session:
                sent.append(session.answer(0, H))
        (mechanism,) = plan.certificate.plan.parts
        delta = sensitivity(mechanism, plan.query)
        assert delta == pytest.approx({"zero-out": 1.0, "replace-one": _reach(update)}[relation] * 0.05)
        assert noise_std(mechanism, plan.query, 0) == pytest.approx(delta / mechanism.ratio[0])
        worst = max(worst, float(np.linalg.norm(sent[0] - sent[1])) / delta)
    assert worst <= 1 + 1e-9
    assert worst > 0.6, "tame examples prove nothing"


def _reach(update: str) -> float:
    return math.sqrt(2) if update == "statistics" else 2.0


def test_the_replay_would_notice_a_sum_that_is_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    right = factors.person_integers
    wrong = lambda W, squares, weight, inside, longest, *rest: right(W, squares, weight, (1.0, 0.0), 1.0, *rest)  # noqa: E731
    monkeypatch.setattr(factors, "person_integers", wrong)
    with pytest.raises(AssertionError):
        test_neighbours_move_what_is_sent_by_at_most_the_declared_sensitivity(
            "replace-one", "residuals", "dense", monkeypatch
        )


# -- certificates --------------------------------------------------------------------------------------------------


def test_each_node_has_its_own_promise_and_the_model_the_weakest() -> None:
    nodes = [
        FactorNode(table(50, seed=1), epsilon=0.5, delta=1e-6, row_norm=8.0),
        FactorNode(table(90, seed=2), epsilon=2.0, delta=1e-6, row_norm=8.0),
        FactorNode(table(30, seed=3), epsilon=1.0, delta=1e-5, row_norm=8.0),
    ]
    model, _ = run(nodes)
    assert [c.epsilon(d) for c, d in zip(model.certificates_, (1e-6, 1e-6, 1e-5), strict=True)] == pytest.approx(
        [0.5, 2.0, 1.0], rel=1e-3
    )
    for delta in (1e-8, 1e-6, 1e-5, 1e-3):
        assert model.certificate_.epsilon(delta) == max(c.epsilon(delta) for c in model.certificates_)
    assert (model.epsilon, model.delta) == (pytest.approx(2.0, rel=1e-3), 1e-6)
    assert all(horizontal_mark("record") in c.marks for c in (*model.certificates_, model.certificate_))
    assert any("weakest of the certificates that 3 nodes stated" in mark for mark in model.certificate_.marks)
    assert any("joint (billboard)" in mark for mark in model.certificate_.marks)
    assert "at this node only" in model.certificates_[0].describe()


def test_a_seed_at_one_node_is_told_on_the_certificate_of_the_model() -> None:
    nodes = [FactorNode(table(50), epsilon=2.0, delta=1e-6, row_norm=8.0)]
    nodes.append(FactorNode(table(50), epsilon=0.1, delta=1e-6, row_norm=8.0, random_state=0))
    model, _ = run(nodes)
    assert [SEEDED in c.marks for c in model.certificates_] == [False, True]
    assert SEEDED in model.certificate_.marks


def test_a_model_of_nodes_is_a_model_but_cannot_be_fitted_again() -> None:
    names = [f"item {i}" for i in range(12)]
    model, _ = run([FactorNode(table(50), **TERMS)], item_names=names)
    assert isinstance(model, DPNMF)
    assert set(model.top_items(2)[0]) <= set(names)
    assert model.item_similarities("item 3").shape == (12,)
    assert model.transform(table(4)).shape == (4, 3), "without names"
    with pytest.raises(InvalidInput, match="fitted by nodes"):
        model.fit(table(50))
    assert not hasattr(model, "plan_")


@pytest.mark.parametrize(
    ("second", "word"),
    [({"adjacency": "zero-out"}, "adjacency"), ({"groups": np.arange(50) // 2}, "unit"), ({"d": 9}, "columns")],
)
def test_nodes_that_do_not_belong_together_are_refused_before_anything_is_spent(
    second: dict[str, Any], word: str
) -> None:
    d = second.pop("d", 12)
    nodes = [FactorNode(table(50), **TERMS), FactorNode(table(50, d=d), **{**TERMS, **second})]
    with pytest.raises(FederationError, match=f"nodes differ in {word}.*nothing was spent"):
        run(nodes)
    assert [node._sessions for node in nodes] == [0, 0]


def test_a_node_with_names_of_its_own_compares_them() -> None:
    pandas = pytest.importorskip("pandas")
    names = [f"item {i}" for i in range(12)]
    frame = pandas.DataFrame(table(50), columns=names)
    model, _ = run([FactorNode(frame, **TERMS)], item_names=names)
    assert set(model.top_items(2)[0]) <= set(names)
    with pytest.raises(FederationError, match="item_names are not the columns of this node, in their order"):
        run([FactorNode(frame, **TERMS)], item_names=names[::-1])


def test_add_remove_is_refused_at_the_node() -> None:
    with pytest.raises(NotCovered):
        FactorNode(table(50), **TERMS, adjacency=Adjacency.ADD_REMOVE.value)


# -- the vertical split --------------------------------------------------------------------------------------------


def test_columns_at_different_nodes_are_a_promise_to_items_and_say_so() -> None:
    M = table(40, d=240)
    terms = {**TERMS, "epsilon": LOUD}
    nodes = [FactorNode(part, **terms, split="vertical") for part in (M[:, :90], M[:, 90:])]
    model, _ = run(nodes, split="vertical")
    plain = DPNMF(3, epochs=4, **terms).fit(M.T)
    assert np.allclose(model.components_, plain.components_, atol=1e-5)
    assert model.components_.shape == (3, 40), "factors of people: all nodes and the server know them"
    assert model.transform(M.T[:5]).shape == (5, 3)
    for certificate in (*model.certificates_, model.certificate_):
        assert certificate.unit == "item"
        assert vertical_mark() in certificate.marks
        assert not any("joint (billboard)" in mark for mark in certificate.marks)
        text = certificate.describe()
        assert "for each item" in text
        assert "a promise to items (columns of the table), not to people" in text
        assert "no person is covered" in text
    assert certificate.plan.parts[0].label == "factors of people, from items"
    with pytest.raises(InvalidInput, match="columns of components_ are people"):
        model.top_items(3)
    with pytest.raises(InvalidInput, match="columns of components_ are people"):
        model.item_similarities(0)


def test_sparse_columns() -> None:
    M = table(40, d=60)
    terms = {**TERMS, "epsilon": LOUD}
    model, _ = run([FactorNode(sparse.csr_matrix(M), **terms, split="vertical")], split="vertical")
    dense, _ = run([FactorNode(M, **terms, split="vertical")], split="vertical")
    assert np.allclose(model.components_, dense.components_, atol=1e-5)


def test_no_person_is_promised_anything_where_columns_are_split() -> None:
    with pytest.raises(InvalidInput, match="spread over all nodes"):
        FactorNode(table(40), **TERMS, split="vertical", groups=np.arange(40) // 2)


@pytest.mark.parametrize("splits", [("vertical", "horizontal"), ("horizontal", "vertical")])
def test_a_node_does_not_change_its_split_because_a_server_says_so(splits: tuple[str, str]) -> None:
    node = FactorNode(table(40), **TERMS, split=splits[0])
    with pytest.raises(FederationError, match=r"split.*agree on one"):
        run([node], split=splits[1])
    assert node._sessions == 0


@pytest.mark.parametrize(
    ("update", "idle"),
    [("residuals", {"step_size": 5.0}), ("gradient", {"noise_threshold": 1.0}), ("residuals", {"person_share": 0.5})],
    ids=["step", "threshold", "share"],
)
def test_settings_without_effect_are_refused_before_nodes_are_asked(update: str, idle: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"has no effect with (update|release)="):
        FederatedNMF(2, update=update, options=NMFOptions(**idle))
    assert FederatedNMF(2, update="gradient").proposal.step_size == 5.0


# -- what newcomers pass -------------------------------------------------------------------------------------------


def test_a_second_session_without_a_ledger_says_that_a_ledger_is_missing() -> None:
    node = FactorNode(table(50), **TERMS)
    run([node])
    with pytest.raises(
        FederationError, match=r"keeps no ledger.*give it ledger=Ledger\(\.\.\.\); nothing was spent"
    ) as told:
        run([node])
    assert "no room" not in str(told.value)


def test_a_node_is_named_once_in_a_federation(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    node, other = FactorNode(table(50), **TERMS, ledger=ledger), FactorNode(table(50, seed=1), **TERMS)
    with pytest.raises(InvalidInput, match=r"nodes\[0\] and nodes\[2\] are the same node: .*name it once"):
        run([node, other, node])
    with (
        threaded_nodes([node, other]) as links,
        pytest.raises(InvalidInput, match=r"links\[1\] and links\[2\] are the same node: .*name it once"),
    ):
        FederatedNMF(3, epochs=4).fit([*links, links[1]])
    assert ledger.entries() == ()
    assert other._sessions == 0


@pytest.mark.parametrize("links", [[np.ones((4, 3))] * 2, np.ones((4, 3)), [None], None, 3])
def test_tables_are_not_links(links: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^links(\[0\])? must be .*got \w+: give rows to a FactorNode"):
        FederatedNMF(2).fit(links)


def test_nodes_are_not_links_and_tables_are_not_nodes() -> None:
    node = FactorNode(table(50), **TERMS)
    with pytest.raises(InvalidInput, match=r"links\[0\] must be a link to a node, got FactorNode: .*serve_node"):
        FederatedNMF(2).fit([node])
    with (
        pytest.raises(InvalidInput, match=r"nodes\[0\] must be a FactorNode or a LinearNode, got ndarray: "),
        threaded_nodes([table(9)]),
    ):
        pass
