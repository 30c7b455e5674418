"""Servers that do not keep to the protocol, nodes that do not, strangers, and budgets: nothing is had for nothing."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from tacit import Ledger, _codec, federation
from tacit.accounting import gdp_epsilon
from tacit.errors import InvalidInput
from tacit.federation import (
    FactorNode,
    FederatedNMF,
    FederationError,
    LinkLost,
    Proposal,
    threaded_nodes,
)
from tacit.federation.desk import Desk
from tacit.federation.links import LocalLink
from tacit.federation.wire import decode, digest_of, encode, one_line
from tacit.maps import NonnegativeRows
from tacit.records import Rows
from tacit.release import noise_std
from tacit.solvers.nmf import NMFOptions

TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 4.0}
D = 6


def rows(n: int = 30) -> Any:
    return np.random.default_rng(0).poisson(1.0, (n, D)).astype(float)


def unit(k: int = 2, d: int = D) -> Any:
    return np.full((k, d), 1 / math.sqrt(d))


def proposal(**changes: Any) -> bytes:
    written = _codec.encode(Proposal(2, epochs=3))
    return encode("propose", proposal={**written, **{k: _codec.encode(v) for k, v in changes.items()}})


class Server:
    """Asks the desk of a node whatever it is told to ask."""

    def __init__(self, node: FactorNode, **settings: Any) -> None:
        self.desk, self.session = Desk(node, **settings), ""

    def ask(self, message: bytes, caller: str = "") -> Any:
        return decode(self.desk.answer(message, caller))

    def step(self, array: Any, step: Any = 0, **fields: Any) -> Any:
        return self.ask(encode("step", array, session=self.session, step=step, **fields))

    def propose(self) -> None:
        offer = self.ask(proposal())
        assert offer.kind == "offer"
        self.session = offer.fields["session"]

    def begin(self) -> None:
        self.propose()
        assert self.ask(encode("begin", session=self.session)).kind == "ready"


# -- servers -------------------------------------------------------------------------------------------------------

BAD_FACTORS: dict[str, Any] = {
    "none": None,
    "NaN": np.where(np.eye(2, D) == 1, np.nan, unit()),
    "infinite": np.where(np.eye(2, D) == 1, np.inf, unit()),
    "huge": 1e200 * unit(),
    "tiny": 1e-200 * unit(),
    "zero": 0 * unit(),
    "negative": -unit(),
    "too many rows": unit(3),
    "too many columns": unit(2, D + 1),
    "transposed": unit().T,
    "flat": unit().ravel(),
}


@pytest.mark.parametrize("name", list(BAD_FACTORS))
def test_strange_factors_are_refused_in_one_line_and_take_no_step(name: str) -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    answer = server.step(BAD_FACTORS[name])
    assert answer.kind == "refused"
    assert answer.array is None
    assert "\n" not in answer.fields["reason"]
    assert server.step(unit()).kind == "sum"


ODD_ROWS = np.array(
    [
        [1e308, 1e308, 1e308, 1e308, 0, 0],
        [5e-324, 5e-324, 0, 0, 0, 0],
        [1e308, 5e-324, 0, -1e308, 1, 1],
        [0, 0, 0, 0, 0, 0],
        [-1, -1, -1, -1, -1, -1],
        [1, 1e-200, 0, 0, 0, 1e-160],
        [1e154, 1e154, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 0],
    ]
)
ALLOWED = {
    "equal rows": np.ones((3, D)),
    "one item": np.eye(1, D).repeat(3, axis=0),
    "subnormal rest": np.where(np.eye(3, D) == 1, 1.0, 5e-324),
    "tiny rest": np.where(np.eye(3, D) == 1, 1.0, 1e-160),
    "nearly equal rows": np.ones((3, D)) + 1e-9 * np.arange(3 * D).reshape(3, D),
    "apart": np.kron(np.eye(3), np.ones(2)),
}


@pytest.mark.parametrize("name", list(ALLOWED))
@pytest.mark.parametrize("form", ["dense", "sparse", "unobserved"])
@pytest.mark.parametrize("update", ["residuals", "gradient"])
def test_no_factors_that_are_taken_make_a_person_count_for_more(update: str, form: str, name: str) -> None:
    """Whatever a row holds, and whichever H an adversary sends for it, C = 1e-3 being the shortest it may ask for."""
    H = ALLOWED[name] / np.linalg.norm(ALLOWED[name], axis=1, keepdims=True)
    missing = "unobserved" if form == "unobserved" else "zero"
    table: Any = sparse.csr_matrix(ODD_ROWS) if form == "sparse" else ODD_ROWS
    node = FactorNode(table, **{**TERMS, "row_norm": 1.0}, missing=missing)
    plan = node.plan(Proposal(3, epochs=1, update=update, missing=missing, contribution_norm=1e-3))
    with plan.open() as session:
        assert np.isfinite(session.answer(0, H)).all()
    for person in np.eye(len(ODD_ROWS), dtype=bool):
        assert np.linalg.norm(plan.query.total(Rows(table), H.ravel()[None], person[None])) <= 1e-3 * (1 + 1e-6)


@pytest.mark.parametrize("step", [0, 2, -1, 1.0, True, "1", None, 10**30])
def test_steps_are_answered_once_and_in_order(step: Any) -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    assert server.step(unit()).kind == "sum"
    answer = server.step(unit(2)[:, ::-1].copy() if step == 0 else unit(), step, again=True)  # 1 would be next
    assert (answer.kind, answer.array) == ("refused", None)
    assert "step 1 is next" in answer.fields["reason"]


def test_the_last_question_is_answered_again_to_the_bit_and_no_other() -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    first, question = server.step(unit()), encode("step", unit(), session=server.session, step=1)
    second = server.ask(question)
    again = server.ask(question)
    assert np.array_equal(second.array, again.array)
    assert not np.array_equal(first.array, second.array)
    assert again.fields["question"] == digest_of(question)
    other = np.array([[1.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0]])
    assert server.step(other, 1).kind == "refused", "one step, one question"
    assert server.step(unit(), 2).kind == "sum"
    assert server.ask(question).kind == "refused", "only the last answer is kept"


def test_no_step_is_answered_beyond_those_that_were_certified() -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    for step in range(3):
        assert server.step(unit(), step).kind == "sum"
    assert server.step(unit(), 3).kind == "refused"

    plan = FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=1))
    with plan.open() as session:
        with pytest.raises(FederationError, match="begun already"), plan.open():
            pass
        session.answer(0, unit())
        with pytest.raises(FederationError, match="all 1 certified steps"):
            session.answer(1, unit())
    with pytest.raises(FederationError, match="begun already"), plan.open():
        pass
    plan = FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=1))
    with plan.open() as session:
        pass
    with pytest.raises(FederationError, match="has ended"):
        session.answer(0, unit())


@pytest.mark.parametrize(
    "first",
    [
        encode("begin"),
        encode("begin", session="0" * 32),
        encode("step", unit(), step=0),
        encode("offer"),
        encode("propose"),
        b"",
        b"tct2",
        b"x" * 100,
        b"tct2\xff\xff\xff\xff",
    ],
    ids=["begin", "no session", "step", "offer", "no proposal", "nothing", "short", "noise", "long header"],
)
def test_a_session_starts_with_a_proposal(first: bytes) -> None:
    assert Server(FactorNode(rows(), **TERMS)).ask(first).kind == "refused"


def test_a_session_belongs_to_whom_it_was_offered_to() -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.propose()
    for question in (encode("begin", session=server.session), encode("end", session=server.session)):
        assert "no such session" in server.ask(question, "somebody else").fields["reason"]
    assert server.ask(encode("begin", session=server.session)).kind == "ready"
    assert server.ask(encode("begin", session=server.session)).fields["taken"] == 0, "begun once, told twice"


def test_a_session_that_nobody_goes_on_with_ends() -> None:
    now = [0.0]
    server = Server(FactorNode(rows(), **TERMS), patience=60.0, clock=lambda: now[0])
    server.begin()
    now[0] = 59.0
    assert server.step(unit()).kind == "sum"
    now[0] = 120.0
    assert "no such session" in server.step(unit(), 1).fields["reason"]


def test_offers_do_not_pile_up() -> None:
    server = Server(FactorNode(rows(), **TERMS))
    for _ in range(40):
        server.propose()
    assert len(server.desk._served) <= 32
    assert server.ask(encode("begin", session=server.session)).kind == "ready"


SETTINGS: dict[str, dict[str, Any]] = {
    "components": {"n_components": 10**9},
    "no components": {"n_components": 0},
    "epochs": {"epochs": 10**9},
    "tiny clip": {"contribution_norm": 1e-9},
    "negative clip": {"contribution_norm": -1.0},
    "schedule": {"noise_schedule": "none"},
    "zero variance": {"noise_schedule": [0.0, 1.0, 1.0]},
    "negative variance": {"noise_schedule": [-1.0, 1.0, 1.0]},
    "short schedule": {"noise_schedule": [1.0]},
    "ragged schedule": {"noise_schedule": [[1.0], 2.0, {}]},
    "update": {"update": "records"},
    "update type": {"update": {"a": 1}},
    "split": {"split": "vertical"},
    "missing": {"missing": "unobserved"},
    "names": {"item_names": ["a"] * 3},
    "names type": {"item_names": {"a": 1}},
    "step": {"step_size": -1.0},
    "ridge": {"person_l2": -1.0},
    "more": {"epsilon": 100.0},
    "noise": {"noise_multiplier": 0.0},
    "release": {"release": "both"},
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_strange_proposals_are_refused_before_anything_is_spent(name: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    server = Server(FactorNode(rows(), **TERMS, ledger=ledger))
    answer = server.ask(proposal(**SETTINGS[name]))
    assert answer.kind == "refused"
    assert "\n" not in answer.fields["reason"]
    assert ledger.entries() == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"contribution_norm": 1e300},
        {"noise_schedule": [1e-90, 1e-90, 1e-90]},
        {"noise_schedule": [1e-9, 1.0, 1e9]},
        {"person_l2": 1e300},
        {"step_size": 1e-300, "update": "gradient"},
        {"n_components": 1},
    ],
    ids=["clip", "small variances", "steep variances", "ridge", "step", "components"],
)
def test_no_setting_of_a_server_weakens_the_promise(settings: dict[str, Any]) -> None:
    """The node calibrates: Σ(Δ/σ)² is what its own ε and δ allow, and Δ is a bound on what it sums."""
    plain = FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=3))
    session = FactorNode(rows(), **TERMS).plan(Proposal(**{"n_components": 2, "epochs": 3, **settings}))
    assert session.certificate.mu is not None
    assert session.certificate.mu <= plain.certificate.mu * (1 + 1e-6)
    assert session.certificate.epsilon(1e-6) <= 1.0 * (1 + 1e-9)
    (mechanism,) = session.certificate.plan.parts
    total = session.query
    H, everybody = unit(total.problem.blocks[0].shape[0]), np.ones((1, 30), bool)
    sigma = np.array([noise_std(mechanism, total, t) for t in range(3)])
    clean = total.total(Rows(rows()), H.ravel()[None], everybody)
    others = total.total(Rows(rows()), H.ravel()[None], everybody & (np.arange(30) != 4))
    assert math.sqrt((np.linalg.norm(clean - others) ** 2 / sigma**2).sum()) <= session.certificate.mu
    assert np.isfinite(sigma).all()
    moved = total.diameter / sigma  # Δ/σ under replace-one: their root sum of squares is μ, and μ is all of ε
    assert math.sqrt((moved**2).sum()) == pytest.approx(session.certificate.mu, rel=1e-9)
    assert gdp_epsilon(session.certificate.mu, 1e-6) == pytest.approx(1.0, rel=1e-3)


def test_errors_inside_of_a_node_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, X: Any) -> Any:
        raise ValueError("row 17 holds 3.25")

    monkeypatch.setattr(NonnegativeRows, "__call__", fail)
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    answer = server.step(unit())
    assert answer.kind == "refused"
    assert answer.fields["reason"] == "the node stopped: its owner knows why"
    assert "no such session" in server.step(unit(), 1).fields["reason"]


def test_a_table_is_checked_where_its_owner_sees_it() -> None:
    bad = rows()
    bad[3, 2] = np.nan
    with pytest.raises(InvalidInput, match="NaN"):
        FactorNode(bad, **TERMS)
    with pytest.raises(InvalidInput, match="row_norm"):
        FactorNode(rows(), epsilon=1.0, delta=1e-6, row_norm=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="delta"):
        FactorNode(rows(), epsilon=1.0, delta=None, row_norm=1.0)  # type: ignore[arg-type]


# -- budgets -------------------------------------------------------------------------------------------------------


def test_the_budget_is_reserved_before_a_row_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    entries_when_read: list[int] = []
    prepare = NonnegativeRows.__call__

    def watched(self: Any, X: Any) -> Any:
        entries_when_read.append(len(ledger.entries()))
        return prepare(self, X)

    monkeypatch.setattr(NonnegativeRows, "__call__", watched)
    with threaded_nodes([FactorNode(rows(), **TERMS, ledger=ledger)]) as links:
        model = FederatedNMF(2, epochs=3, timeout=20).fit(links)
    assert entries_when_read
    assert set(entries_when_read) == {1}
    (entry,) = ledger.entries()
    assert entry.mu == pytest.approx(model.certificates_[0].mu)
    assert entry.digest == model.certificates_[0].digest  # what was offered is what was reserved, marks and all


def test_too_small_a_budget_is_refused_before_any_node_has_paid(tmp_path: Path) -> None:
    rich, poor = (Ledger(tmp_path / f"{e}.ledger", epsilon=e, delta=1e-5) for e in (9.0, 0.1))
    nodes = [FactorNode(rows(), **TERMS, ledger=ledger) for ledger in (rich, poor)]
    with (
        threaded_nodes(nodes) as links,
        pytest.raises(FederationError, match=r"node 1 of 2 refused.*nothing was spent"),
    ):
        FederatedNMF(2, epochs=3, timeout=20).fit(links)
    assert rich.entries() == poor.entries() == ()


def test_a_reservation_that_fails_at_last_reads_no_row_and_names_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else spends the budget between the offer and the start."""
    ledger = Ledger(tmp_path / "secret-name.ledger", epsilon=1.2, delta=1e-5)
    node = FactorNode(rows(), **TERMS, ledger=ledger)
    monkeypatch.setattr(NonnegativeRows, "__call__", lambda *_: pytest.fail("a row was read"))
    server = Server(node)
    server.propose()
    ledger.reserve(FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=3)).certificate)
    answer = server.ask(encode("begin", session=server.session))
    assert answer.kind == "refused"
    assert "no room" in answer.fields["reason"]
    assert "secret-name" not in answer.fields["reason"]
    assert len(ledger.entries()) == 1


def test_what_was_reserved_stays_spent_when_the_server_dies(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    server = Server(FactorNode(rows(), **TERMS, ledger=ledger))
    server.propose()
    assert ledger.entries() == ()
    for count in (1, 2):  # starting again is a new reservation, not the rest of the last one
        server.begin()
        assert server.step(unit()).kind == "sum"
        assert len(ledger.entries()) == count


def test_without_a_ledger_a_node_serves_once() -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.propose()
    server.begin()  # nothing was spent by the first
    answer = server.ask(proposal())
    assert answer.kind == "refused"
    assert "keeps no ledger" in answer.fields["reason"]


def test_two_servers_at_once_do_not_get_two_sessions_for_one() -> None:
    node = FactorNode(rows(), **TERMS)
    a, b = Server(node), Server(node)
    a.propose()
    b.propose()
    assert a.ask(encode("begin", session=a.session)).kind == "ready"
    answer = b.ask(encode("begin", session=b.session))
    assert answer.kind == "refused"
    assert "another session of this node began" in answer.fields["reason"]
    assert "name it once in a federation" in answer.fields["reason"]


# -- nodes that are lost, or lie -----------------------------------------------------------------------------------


COUNTER = itertools.count()


class Script:
    """A link to a node that says what it was told to say; ``None`` is silence."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), []

    def submit(self, message: bytes, timeout: float) -> Any:
        self.sent.append(decode(message))
        self.question = digest_of(message)
        return self

    def result(self) -> bytes:
        answer = self.answers.pop(0) if self.answers else None
        if answer is None:
            raise LinkLost("no answer for 5 seconds")
        return answer(self) if callable(answer) else answer

    def close(self) -> None:
        pass


def said(**changes: Any) -> bytes:
    return encode("node", **{**FactorNode(rows(), **TERMS).statement(), "desk": str(next(COUNTER)), **changes})


def offer(**changes: Any) -> bytes:
    certificate = FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=3)).certificate.to_json()
    return encode("offer", **{"session": "a", "certificate": certificate, **changes})


READY = encode("ready", session="a", steps=3, taken=0)


def total(array: Any = None, **changes: Any) -> Any:
    """The sum that is asked for: every step has other numbers, as noise would."""

    def answer(script: Script) -> bytes:
        found = np.random.default_rng(len(script.sent)).normal(size=15) if array is None else array
        fields = {"session": "a", "step": script.sent[-1].fields.get("step"), "question": script.question}
        return encode("sum", found, **{**fields, **changes})

    return answer


def fit(*links: Any, **settings: Any) -> Any:
    return FederatedNMF(**{"n_components": 2, "epochs": 3, "timeout": 5.0, **settings}).fit(links)


def test_a_lost_node_is_named_and_the_others_are_told() -> None:
    good = Script(said(), offer(), READY, total(), total())
    gone = Script(said(), offer(), READY, total())
    with pytest.raises(LinkLost) as caught:
        fit(good, gone)
    text = str(caught.value)
    assert "node 1 of 2 was lost" in text
    assert "at step 1" in text
    assert "stays spent" in text
    assert "\n" not in text
    assert good.sent[-1].kind == "end"


def test_a_node_lost_before_the_start_cost_nothing() -> None:
    good = Script(said(), offer())
    with pytest.raises(LinkLost, match=r"node 1 of 2 was lost.*nothing was spent"):
        fit(good, Script(said()))
    assert [message.kind for message in good.sent] == ["describe", "propose", "end"]


EARLIER = np.random.default_rng(9).normal(size=15)
LIES: dict[str, list[Any]] = {
    "NaN": [said(), offer(), READY, total(np.full(15, np.nan))],
    "huge": [said(), offer(), READY, total(np.full(15, 1e308))],
    "short": [said(), offer(), READY, total(np.zeros(14))],
    "a table": [said(), offer(), READY, total(np.zeros((3, 5)))],
    "other step": [said(), offer(), READY, total(step=1)],
    "other session": [said(), offer(), READY, total(session="b")],
    "other question": [said(), offer(), READY, total(question="0" * 64)],
    "an earlier answer": [said(), offer(), READY, total(EARLIER), total(EARLIER)],
    "no numbers": [said(), offer(), READY, encode("sum", session="a", step=0)],
    "not ready": [said(), offer(), total()],
    "noise": [b"\x80\x04K\x01."],
    "no people": [said(units=0)],
    "half a person": [said(units=0.5)],
    "many people": [said(units=1e300)],
    "wide": [said(columns=10**12)],
    "norm": [said(row_norm=0.0)],
    "another task": [said(task="linear")],
    "another unit": [said(unit="person"), offer()],
    "a new unit": [said(unit="house")],
    "no epsilon": [said(epsilon=None)],
    "no certificate": [said(), offer(certificate=None)],
    "certificate": [said(), offer(certificate="{}")],
    "other steps": [
        said(),
        offer(certificate=FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=2)).certificate.to_json()),
    ],
}


@pytest.mark.parametrize("name", list(LIES))
def test_nodes_that_say_strange_things_are_named(name: str) -> None:
    with pytest.raises(FederationError, match="node 0 of 1 ") as caught:
        fit(Script(*LIES[name]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in LIES if name != "another unit"])
def test_nodes_that_say_strange_things_are_dropped_where_the_rule_says_so(name: str) -> None:
    with threaded_nodes([FactorNode(rows(), **TERMS)]) as links:
        model = fit(Script(*LIES[name]), *links, on_loss="drop", min_nodes=1)
    (note,) = model.notes_
    assert note.startswith("node 0 was dropped ")
    begun = [said(), offer(), READY]
    assert len(model.certificates_) == (2 if LIES[name][2:3] == begun[2:] else 1), "what was released stays covered"


def test_dropping_ends_where_too_few_are_left() -> None:
    with threaded_nodes([FactorNode(rows(), **TERMS)]) as links, pytest.raises(FederationError) as caught:
        fit(Script(said(), offer(), READY), *links, on_loss="drop", min_nodes=2)
    assert "1 of 2 nodes are left, and min_nodes=2 (node 0 was dropped at step 0: no answer" in str(caught.value)
    assert "stays spent" in str(caught.value)


def test_a_certificate_is_computed_again_and_expensive_ones_are_not_computed_at_all() -> None:
    data = json.loads(decode(offer()).fields["certificate"])
    data["claim"]["epsilon"] = 0.01
    with pytest.raises(FederationError, match="claims"):
        fit(Script(said(), offer(certificate=json.dumps(data))))
    slow = of_poisson_batches()
    start = time.monotonic()
    with pytest.raises(FederationError, match="not one of the proposed run"):
        fit(Script(said(), offer(certificate=slow)))
    assert time.monotonic() - start < 2


def of_poisson_batches() -> str:
    """Their accounting takes long."""
    data = json.loads(decode(offer()).fields["certificate"])
    (part,) = data["plan"]["parts"]
    part["sampling"] = {"type": "Poisson", "probability": 0.01}
    return json.dumps(data)


def test_a_reason_of_somebody_else_stays_one_short_line() -> None:
    with pytest.raises(FederationError) as caught:
        fit(Script(encode("refused", reason="a\nb\x1b[31m" + "x" * 10_000)))
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert one_line(None) == "None"


def test_a_silent_node_does_not_hold_up_the_server_for_ever() -> None:
    silent = LocalLink(lambda message: threading.Event().wait(30) and message)
    start = time.monotonic()
    with pytest.raises(LinkLost, match=r"node 0 of 1 was lost \(no answer for 0\.2 seconds"):
        fit(silent, timeout=0.2)
    assert time.monotonic() - start < 5


def test_a_federation_needs_a_node() -> None:
    with pytest.raises(InvalidInput, match="at least one node"):
        fit()


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"update": "magic"},
        {"init_seed": -1},
        {"timeout": 0.0},
        {"timeout": None},
        {"on_loss": "ignore"},
        {"min_nodes": 2},
        {"on_loss": "drop"},
        {"on_loss": "drop", "min_nodes": 2},
        {"item_names": "abc"},
        {"options": NMFOptions(noise_schedule="none")},
        {"options": NMFOptions(contribution_norm=1e-9)},
    ],
    ids=str,
)
def test_settings_are_refused_before_nodes_are_asked(settings: dict[str, Any]) -> None:
    link = Script()
    with pytest.raises(InvalidInput):
        fit(link, **settings)
    assert link.sent == []


# -- bytes and links -----------------------------------------------------------------------------------------------


def test_messages_survive_the_way() -> None:
    H = np.random.default_rng(0).normal(size=(3, 4))
    message = decode(encode("step", H, step=3, word="ä"))
    assert (message.kind, message.fields) == ("step", {"step": 3, "word": "ä"})
    assert message.array is not None
    assert np.array_equal(message.array, H)
    message.array[0] = 1.0  # a copy of one's own


def framed(header: bytes, body: bytes = b"") -> bytes:
    return b"tct2" + len(header).to_bytes(4, "big") + header + body


@pytest.mark.parametrize(
    "data",
    [
        framed(b"[]"),
        framed(b"{}"),
        framed(b'{"kind": "a"}'),
        framed(b'{"kind": 1, "shape": null}'),
        framed(b'{"kind": "a", "shape": null}', b"12345678"),
        framed(b'{"kind": "a", "shape": [1000000000000]}', b"12345678"),
        framed(b'{"kind": "a", "shape": [-1, -1]}', b"12345678"),
        framed(b'{"kind": "a", "shape": [1, 1, 1]}', b"12345678"),
        framed(b'{"kind": "a", "shape": [true]}', b"12345678"),
        framed(b'{"kind": "a", "shape": []}', b"12345678"),
        framed(b'{"kind": "a", "shape": null, "x": NaN}'),
        framed(b"[" * 100_000),
        framed(b"\xff\xfe"),
        framed(b'{"kind": "a", "shape": null, "x": ' + b"9" * 5000 + b"}"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(FederationError, match="not a message"):
        decode(data)


def test_nothing_is_pickled_and_only_transport_and_tls_open_a_line() -> None:
    folder = Path(federation.__file__).parent
    for path in folder.glob("*.py"):
        source = path.read_text()
        for word in ("import pickle", "import socket", "multiprocessing", "authkey", "eval(", "exec("):
            assert word not in source
        if path.name not in ("transport.py", "tls.py"):
            assert "import grpc" not in source
            assert "cryptography" not in source


def test_closed_links_say_so() -> None:
    link = LocalLink(lambda message: message)
    link.close()
    with pytest.raises(LinkLost):
        link.submit(b"x", 1.0)
