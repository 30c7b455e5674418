"""Servers that do not keep to the protocol, nodes that do not, strangers, and budgets: nothing is had for nothing."""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from tacit import Ledger, federation
from tacit.accounting import gdp_epsilon
from tacit.errors import BudgetExhausted, InvalidInput, TacitError
from tacit.federation import (
    FactorNode,
    FederatedNMF,
    FederationError,
    LinkLost,
    Proposal,
    link_pair,
    serve,
    threaded_nodes,
)
from tacit.federation.links import PipeLink
from tacit.federation.wire import MAX_MESSAGE, decode, encode, one_line
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
    return encode("propose", **{**Proposal(2, epochs=3).written(), **changes})


class Server:
    """Sends what it is told to a node in a thread, and keeps what comes back."""

    def __init__(self, node: FactorNode) -> None:
        self.link, theirs = link_pair()
        self.error: BaseException | None = None

        def answer() -> None:
            try:
                serve(node, theirs, timeout=10)
            except BaseException as error:
                self.error = error
            theirs.close()

        self.thread = threading.Thread(target=answer, daemon=True)
        self.thread.start()

    def ask(self, message: bytes) -> Any:
        self.link.send(message)
        return decode(self.link.receive(10))

    def begin(self) -> None:
        assert self.ask(proposal()).kind == "offer"
        assert self.ask(encode("begin")).kind == "ready"

    def ended(self) -> BaseException | None:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.error


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
def test_strange_factors_are_refused_in_one_line_and_end_the_session(name: str) -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    answer = server.ask(encode("step", BAD_FACTORS[name], step=0))
    assert answer.kind == "refused"
    assert answer.array is None
    assert "\n" not in answer.fields["reason"]
    assert isinstance(server.ended(), FederationError)


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
    assert server.ask(encode("step", unit(), step=0)).kind == "sum"
    answer = server.ask(encode("step", unit(), step=step))  # 1 would be next
    assert (answer.kind, answer.array) == ("refused", None)
    assert "step 1 is next" in answer.fields["reason"]
    with pytest.raises(LinkLost):
        server.link.receive(10)


def test_no_step_is_answered_beyond_those_that_were_certified() -> None:
    server = Server(FactorNode(rows(), **TERMS))
    server.begin()
    for step in range(3):
        assert server.ask(encode("step", unit(), step=step)).kind == "sum"
    assert server.ask(encode("step", unit(), step=3)).kind == "refused"

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
        encode("step", unit(), step=0),
        encode("offer"),
        b"",
        b"tct1",
        b"x" * 100,
        b"tct1\xff\xff\xff\xff",
    ],
    ids=["begin", "step", "offer", "nothing", "short", "noise", "long header"],
)
def test_a_session_starts_with_a_proposal(first: bytes) -> None:
    server = Server(FactorNode(rows(), **TERMS))
    assert server.ask(first).kind == "refused"
    assert isinstance(server.ended(), FederationError)


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
    assert server.ended() is not None
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
    answer = server.ask(encode("step", unit(), step=0))
    assert answer.kind == "refused"
    assert answer.fields["reason"] == "the node stopped: its owner knows why"
    assert isinstance(server.ended(), ValueError)


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
    assert server.ask(proposal()).kind == "offer"
    ledger.reserve(FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=3)).certificate)
    answer = server.ask(encode("begin"))
    assert answer.kind == "refused"
    assert "secret-name" not in answer.fields["reason"]
    assert isinstance(server.ended(), BudgetExhausted)
    assert len(ledger.entries()) == 1


def test_what_was_reserved_stays_spent_when_the_server_dies(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    node = FactorNode(rows(), **TERMS, ledger=ledger)
    server = Server(node)
    assert server.ask(proposal()).kind == "offer"
    server.link.close()
    assert "nothing was spent" in str(server.ended())
    assert ledger.entries() == ()
    for count in (1, 2):  # starting again is a new reservation, not the rest of the last one
        server = Server(node)
        server.begin()
        assert server.ask(encode("step", unit(), step=0)).kind == "sum"
        server.link.close()
        error = server.ended()
        assert isinstance(error, LinkLost)
        assert "after 1 of 3 steps; the session's budget stays spent" in str(error)
        assert len(ledger.entries()) == count


def test_without_a_ledger_a_node_serves_once() -> None:
    node = FactorNode(rows(), **TERMS)
    first = Server(node)
    assert first.ask(proposal()).kind == "offer"
    first.link.close()
    first.ended()
    second = Server(node)  # nothing was spent
    second.begin()
    second.link.close()
    second.ended()
    third = Server(node)
    assert third.ask(proposal()).kind == "refused"
    assert "keeps no ledger" in str(third.ended())


def test_two_servers_at_once_do_not_get_two_sessions_for_one() -> None:
    node = FactorNode(rows(), **TERMS)
    a, b = Server(node), Server(node)
    assert a.ask(proposal()).kind == b.ask(proposal()).kind == "offer"
    assert a.ask(encode("begin")).kind == "ready"
    answer = b.ask(encode("begin"))
    assert answer.kind == "refused"
    assert "another session of this node began" in answer.fields["reason"]
    assert "name it once in a federation" in answer.fields["reason"]


# -- nodes that are lost, or lie -----------------------------------------------------------------------------------


class Script:
    """A link to a node that says what it was told to say."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), []

    def send(self, message: bytes) -> None:
        self.sent.append(decode(message))

    def receive(self, timeout: float | None = None) -> bytes:
        if not self.answers:
            raise LinkLost("the other side closed the link")
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def offer(**changes: Any) -> bytes:
    certificate = FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=3)).certificate.to_json()
    return encode("offer", **{"units": 30, "columns": D, "row_norm": 4.0, "certificate": certificate, **changes})


def fit(*links: Any, **settings: Any) -> Any:
    return FederatedNMF(**{"n_components": 2, "epochs": 3, "timeout": 5.0, **settings}).fit(links)


def test_a_lost_node_is_named_and_the_others_are_told() -> None:
    good = Script(offer(), encode("ready"), encode("sum", np.zeros(15), step=0), encode("sum", np.zeros(15), step=1))
    gone = Script(offer(), encode("ready"), encode("sum", np.zeros(15), step=0))
    with pytest.raises(LinkLost) as caught:
        fit(good, gone)
    text = str(caught.value)
    assert "node 1 of 2 was lost" in text
    assert "at step 1 of 3" in text
    assert "stays spent" in text
    assert "\n" not in text
    assert good.sent[-1].kind == "stop"


def test_a_node_lost_before_the_start_cost_nothing() -> None:
    good = Script(offer())
    with pytest.raises(LinkLost, match=r"node 1 of 2 was lost.*nothing was spent"):
        fit(good, Script())
    assert [message.kind for message in good.sent] == ["propose", "stop"]


LIES: dict[str, list[Any]] = {
    "NaN": [offer(), encode("ready"), encode("sum", np.full(15, np.nan), step=0)],
    "huge": [offer(), encode("ready"), encode("sum", np.full(15, 1e308), step=0)],
    "short": [offer(), encode("ready"), encode("sum", np.zeros(14), step=0)],
    "other step": [offer(), encode("ready"), encode("sum", np.zeros(15), step=1)],
    "no numbers": [offer(), encode("ready"), encode("sum", step=0)],
    "not ready": [offer(), encode("sum", np.zeros(15), step=0)],
    "noise": [b"\x80\x04K\x01."],
    "no people": [offer(units=0)],
    "half a person": [offer(units=0.5)],
    "many people": [offer(units=1e300)],
    "wide": [offer(columns=10**12)],
    "norm": [offer(row_norm=0.0)],
    "no certificate": [offer(certificate=None)],
    "certificate": [offer(certificate="{}")],
    "other steps": [offer(certificate=FactorNode(rows(), **TERMS).plan(Proposal(2, epochs=2)).certificate.to_json())],
}


@pytest.mark.parametrize("name", list(LIES))
def test_nodes_that_say_strange_things_are_named(name: str) -> None:
    with pytest.raises(FederationError, match="node 0 of 1 ") as caught:
        fit(Script(*LIES[name]))
    assert "\n" not in str(caught.value)


def test_a_certificate_is_computed_again_and_expensive_ones_are_not_computed_at_all() -> None:
    data = json.loads(decode(offer()).fields["certificate"])
    data["claim"]["epsilon"] = 0.01
    with pytest.raises(FederationError, match="claims"):
        fit(Script(offer(certificate=json.dumps(data))))
    slow = of_poisson_batches()
    start = time.monotonic()
    with pytest.raises(FederationError, match="not one of the proposed run"):
        fit(Script(offer(certificate=slow)))
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
    ours, _theirs = link_pair()
    start = time.monotonic()
    with pytest.raises(LinkLost, match=r"node 0 of 1 was lost \(no message for 0\.2 seconds"):
        fit(ours, timeout=0.2)
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
    return b"tct1" + len(header).to_bytes(4, "big") + header + body


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


def test_links_over_pipes_end_to_end() -> None:
    certificates: list[Any] = []

    def node(n: int, link: PipeLink) -> None:
        certificates.append(serve(FactorNode(rows(n), **TERMS), link, timeout=20))

    pairs = [Pipe() for _ in range(2)]
    threads = [
        threading.Thread(target=node, args=(n, PipeLink(theirs)))
        for n, (_, theirs) in zip((20, 40), pairs, strict=True)
    ]
    for thread in threads:
        thread.start()
    model = fit(*(PipeLink(ours) for ours, _ in pairs), timeout=20.0)
    for thread in threads:
        thread.join(10)
    assert model.components_.shape == (2, D)
    assert {c.digest for c in certificates} == {c.digest for c in model.certificates_}


def test_the_folder_opens_no_socket_and_holds_no_key() -> None:
    """A network needs a transport with authentication and encryption; what is here stays on one machine."""
    source = "".join(path.read_text() for path in Path(federation.__file__).parent.glob("*.py"))
    for word in ("authkey", "challenge", "create_server", "create_connection", "Listener", "Client(", "hmac"):
        assert word not in source


def test_a_message_that_is_begun_and_not_finished_does_not_hold_up_anybody() -> None:
    ours, theirs = Pipe()
    link, raw = PipeLink(ours), socket.socket(fileno=theirs.fileno())
    raw.sendall((100).to_bytes(4, "big") + b"half")
    start = time.monotonic()
    with pytest.raises(LinkLost, match="not finished"):
        link.receive(0.3)
    assert time.monotonic() - start < 5
    raw.detach()


def test_long_messages_are_not_read() -> None:
    ours, theirs = Pipe()
    link, raw = PipeLink(ours), socket.socket(fileno=theirs.fileno())
    raw.sendall((-1).to_bytes(4, "big", signed=True) + (MAX_MESSAGE + 1).to_bytes(8, "big") + b"x")
    with pytest.raises(LinkLost):
        link.receive(1)
    raw.detach()


def test_a_side_that_takes_nothing_does_not_hold_up_the_other() -> None:
    ours, _theirs = Pipe()
    link = PipeLink(ours, send_timeout=0.3)
    with pytest.raises(LinkLost, match="takes no messages"):
        link.send(b"x" * (1 << 24))
    with pytest.raises(LinkLost):
        link.send(b"x")


def test_closed_links_say_so() -> None:
    a, b = link_pair()
    a.close()
    for call in (lambda: b.receive(1), lambda: b.receive(1), lambda: a.send(b"x"), lambda: b.send(b"x")):
        with pytest.raises(TacitError):
            call()
