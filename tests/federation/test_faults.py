"""Three processes, mutual TLS, and faults: never a wrong model, never a budget spent twice.

After every fault one of three things is true, and the test knows which: the model has the bits of a run without faults;
it has those of a run that lost this node at this step; or there is no model, and the error names the node. In each
case every node's ledger holds each session that began there once, and no step of a session had two answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import federation_node
import pytest
from relay import Relay

from tacit import DPLogisticRegression, Ledger
from tacit.federation import (
    TLS,
    FederatedLinear,
    FederatedNMF,
    FederationError,
    LinkLost,
    connect,
    make_trial_certificates,
    threaded_nodes,
)
from tacit.federation.wire import decode

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
NAMES = ("a", "b", "c")
SERVE = Path(federation_node.__file__)
STEPS = 6


class Fault(NamedTuple):
    """What goes wrong, where, and by which rule the run goes on."""

    kind: str
    node: int
    step: int
    task: str
    rule: str = "stop"
    what: str = ""
    on: str = "step"


def _faults() -> list[Fault]:
    """Fifty of them: every kind, at the first, a middle and the last step, at each node, in both tasks."""
    lies = ("garbage", "replay", "old sum", "shape", "NaN", "huge", "step", "session", "type", "refuse")
    out = [
        Fault("lie", i % 3, 1 + i % (STEPS - 1), ("factors", "linear")[i % 2], ("drop", "stop")[i // 2 % 2], what)
        for i, what in enumerate(lies)
    ]
    for i, kind in enumerate(("cut before", "cut after", "slow", "twice", "server stops", "pause and resume")):
        for j, step in enumerate((0, 3, STEPS - 1)):
            out.append(Fault(kind, (i + j) % 3, step, ("factors", "linear")[(i + j) % 2]))
    for i, kind in enumerate(("kill before", "kill after", "pause")):
        for j, (step, rule) in enumerate(((0, "drop"), (2, "stop"), (STEPS - 1, "drop"), (3, "drop"))):
            out.append(Fault(kind, (i + j) % 3, step, ("linear", "factors")[(i + j) % 2], rule))
    for i, on in enumerate(("describe", "propose", "begin")):
        out.append(Fault("kill before", i, 0, "factors", "drop", on=on))
        out.append(Fault("kill after", (i + 1) % 3, 0, "linear", ("drop", "stop")[i % 2], on=on))
    out += [Fault("gone between", i, 3, ("factors", "linear")[i % 2]) for i in range(2)]
    return [*out, Fault("cut often", 0, 2, "linear"), Fault("cut often", 1, 2, "factors")]


FAULTS = _faults()


def test_there_are_fifty() -> None:
    assert len(FAULTS) == 50
    assert len(set(FAULTS)) == 50


class Party:
    """One node's process."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number, self.name = folder, number, NAMES[number]
        self.process: subprocess.Popen[bytes] | None = None

    def file(self, end: str) -> Path:
        return self.folder / f"{self.name}.{end}"

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.file("address").unlink(missing_ok=True)
        command = [sys.executable, str(SERVE), str(self.folder), self.name, str(self.number)]
        with self.file("stderr").open("ab") as errors:
            self.process = subprocess.Popen(command, stderr=errors)

    def addresses(self) -> list[str]:
        for _ in range(1200):
            if self.file("address").exists():
                return json.loads(self.file("address").read_text())
            time.sleep(0.05)
        raise AssertionError(self.file("stderr").read_text())

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def released(self) -> list[list[Any]]:
        if not self.file("log").exists():
            return []
        return [json.loads(line) for line in self.file("log").read_text().splitlines()]

    def entries(self) -> int:
        with mock.patch.dict(os.environ, TACIT_STATE_DIR=str(self.folder / f"{self.name}.state")):
            return len(Ledger(self.file("ledger")).entries())


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Party]]:
    folder = tmp_path_factory.mktemp("parties")
    make_trial_certificates(folder / "certificates", NAMES)
    found = [Party(folder, number) for number in range(3)]
    yield found
    for party in found:
        party.end()


class Line:
    """A link that can lose its node, cut the line or ask twice at a step."""

    def __init__(self, link: Any, fault: Fault | None = None, relay: Any = None) -> None:
        self.link, self.fault, self.relay = link, fault, relay

    def submit(self, message: bytes, timeout: float) -> Any:
        kind = decode(message).kind
        here = self.fault is not None and kind == self.fault.on
        step = decode(message).fields.get("step", 0)
        if here and self.fault.kind == "lost" and step >= self.fault.step:
            raise LinkLost("lost")
        if here and self.fault.kind in ("cut before", "cut often") and step == self.fault.step:
            self.relay.cut()
        if here and self.fault.kind == "cut often" and step == self.fault.step:
            for seconds in (0.05, 0.3, 0.6):
                threading.Timer(seconds, self.relay.cut).start()
        if here and self.fault.kind == "cut after" and step == self.fault.step:
            threading.Timer(0.3, self.relay.cut).start()  # the node answers after half a second
        if here and self.fault.kind == "twice":
            self.link.submit(message, timeout).result()
        if here and self.fault.kind in ("server stops", "gone between") and step == self.fault.step:
            raise KeyboardInterrupt
        return self.link.submit(message, timeout)

    def close(self) -> None:
        self.link.close()


def server(task: str, **settings: Any) -> Any:
    if task == "factors":
        return FederatedNMF(2, epochs=STEPS, **settings)
    estimator = DPLogisticRegression(feature_bounds=(-1, 1), solver="gradient", max_passes=STEPS)
    return FederatedLinear(estimator, **settings)


def bits(model: Any) -> bytes:
    return (model.components_ if hasattr(model, "components_") else model.coef_).tobytes()


REFERENCE: dict[Any, Any] = {}


def reference(task: str, lost: Fault | None = None) -> Any:
    """The model of the same nodes without a network, if one of them is lost at that step."""
    key = (task, lost and (lost.node, lost.step, lost.on))
    if key not in REFERENCE:
        nodes = [getattr(federation_node, task)(i) for i in range(3)]
        with threaded_nodes(nodes) as links:
            broken = [
                Line(link, lost._replace(kind="lost") if lost is not None and lost.node == i else None)
                for i, link in enumerate(links)
            ]
            rule: Any = {} if lost is None else {"on_loss": "drop", "min_nodes": 2}
            REFERENCE[key] = server(task, **rule).fit(broken)
    return REFERENCE[key]


def told(party: Party, fault: Fault) -> None:
    """Write the node's part of the fault where it looks for it."""
    words: dict[str, Any] = {"kind": fault.kind, "step": fault.step, "on": fault.on, "what": fault.what}
    if fault.kind in ("cut after", "slow"):
        words |= {"kind": "slow", "seconds": 0.5}
    if fault.kind == "pause and resume":
        words["kind"] = "pause"
    party.file("fault").write_text(json.dumps(words))


def wait_for(fault: Fault) -> dict[str, Any]:
    """Short where a node will never answer."""
    rule: dict[str, Any] = {"timeout": 6.0 if fault.kind.startswith(("kill", "pause", "gone")) else 60.0}
    if fault.rule == "drop":
        rule |= {"on_loss": "drop", "min_nodes": 2}
    return rule


class Lines:
    """The three lines of one run, one of them with the fault."""

    def __init__(self, parties: list[Party], fault: Fault) -> None:
        self.fault, self.stack = fault, contextlib.ExitStack()
        tls = TLS.read(parties[0].folder / "certificates", "server")
        for party in parties:
            party.start()
        self.relays = [Relay(party.addresses()[fault.task == "linear"]) for party in parties]
        self.links = []
        for party, relay in zip(parties, self.relays, strict=True):
            link = self.stack.enter_context(connect(relay.address, tls=tls, node=party.name))
            self.links.append(Line(link, fault if party.number == fault.node else None, relay))

    def __enter__(self) -> list[Line]:
        return self.links

    def __exit__(self, *reason: object) -> None:
        self.stack.close()
        for relay in self.relays:
            relay.close()


def goes_on(parties: list[Party], fault: Fault, journal: Path) -> Any:
    """Stop a run, mend what can be mended, and go on with it."""
    with Lines(parties, fault) as links, pytest.raises((LinkLost, KeyboardInterrupt)):
        server(fault.task, **wait_for(fault)).fit(links, journal=journal)
    party = parties[fault.node]
    party.file("fault").unlink(missing_ok=True)
    if fault.kind == "pause and resume":
        party.signal(signal.SIGCONT)
    if fault.kind == "gone between":
        party.end()
    with Lines(parties, fault._replace(kind="none")) as links:
        if fault.kind != "gone between":
            return server(fault.task, timeout=60.0).fit(links, journal=journal, resume=True)
        with pytest.raises(FederationError, match=f"node {fault.node} of 3 .*no such session"):
            server(fault.task, timeout=60.0).fit(links, journal=journal, resume=True)
        return server(fault.task, timeout=60.0).fit(links)  # charged anew


def run(parties: list[Party], fault: Fault, journal: Path) -> None:
    """One run with one fault, and what must be true of its end."""
    party = parties[fault.node]
    for one in parties:
        one.start()
    party.addresses()
    told(party, fault)
    try:
        if fault.kind in ("server stops", "pause and resume", "gone between"):
            assert bits(goes_on(parties, fault, journal)) == bits(reference(fault.task))
            return
        fatal = fault.kind.startswith(("kill", "pause")) or fault.kind == "lie"
        with Lines(parties, fault) as links:
            if fatal and fault.rule == "stop":
                with pytest.raises(FederationError, match=f"node {fault.node} of 3 "):
                    server(fault.task, **wait_for(fault)).fit(links)
                return
            model = server(fault.task, **wait_for(fault)).fit(links)
        if fatal:
            assert [note for note in model.notes_ if f"node {fault.node} was dropped" in note]
        assert bits(model) == bits(reference(fault.task, fault if fatal else None))
    finally:
        party.file("fault").unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            party.signal(signal.SIGCONT)


def check_budgets(parties: list[Party]) -> None:
    """Each session that began is in its ledger once, and no step of it was answered in two ways."""
    for party in parties:
        released = party.released()
        begun = {session for kind, session, _, _ in released if kind == "ready"}
        assert party.entries() == len(begun)
        answers: dict[tuple[str, int], set[str]] = {}
        for kind, session, step, name in released:
            if kind == "sum":
                answers.setdefault((session, step), set()).add(name)
        assert all(len(names) == 1 for names in answers.values()), "two answers to one step"
        assert all(session in begun and step < STEPS for session, step in answers)


QUICK = FAULTS[3::6]


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: " ".join(map(str, fault)).strip())
def test_no_fault_makes_a_wrong_model_or_spends_twice(parties: list[Party], fault: Fault, tmp_path: Path) -> None:
    run(parties, fault, tmp_path / "run.journal")
    check_budgets(parties)


@pytest.mark.attack
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: " ".join(map(str, fault)).strip())
def test_fifty_faults(parties: list[Party], fault: Fault, tmp_path: Path) -> None:
    run(parties, fault, tmp_path / "run.journal")
    check_budgets(parties)
