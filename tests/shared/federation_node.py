"""A node in a process of its own that makes the fault it is told to make: for tests/federation/test_faults.py.

    python federation_node.py FOLDER NAME NUMBER

It writes what it released (session, step, digest of the sum) into NAME.log, and its address into NAME.address.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tacit import Ledger
from tacit.federation import TLS, FactorNode, LinearNode, serve_node
from tacit.federation.wire import decode, digest_of, encode

SIZES = (300, 200, 250)
CLASSES = ["no", "yes"]


def rows(number: int) -> tuple[Any, Any]:
    """Counts for a factorisation, features for a linear model."""
    rng = np.random.default_rng(number)
    counts = rng.poisson(1.0, (SIZES[number], 6)).astype(float)
    return counts, rng.uniform(-1, 1, (SIZES[number], 3))


def factors(number: int, ledger: Any = None) -> FactorNode:
    """Seeded, so that a run can be compared with one without faults."""
    return FactorNode(rows(number)[0], epsilon=0.5, delta=1e-7, row_norm=4.0, ledger=ledger, random_state=number)


def linear(number: int, ledger: Any = None) -> LinearNode:
    """As ``factors``."""
    X = rows(number)[1]
    y = np.where(X @ [1.0, -2.0, 0.5] > 0, "yes", "no")
    return LinearNode(X, y, classes=CLASSES, epsilon=0.5, delta=1e-7, ledger=ledger, random_state=number)


def lie(kind: str, answer: bytes, earlier: list[bytes]) -> bytes:
    """An answer that is none."""
    message = decode(answer)
    found, fields = message.array, dict(message.fields)
    assert found is not None
    if kind == "garbage":
        return b"\x80\x04K\x01."
    if kind == "replay":
        return earlier[-1]
    if kind == "old sum":
        found = decode(earlier[-1]).array
    if kind == "shape":
        found = np.append(found, 1.0)
    if kind == "NaN":
        found = np.full(found.shape, np.nan)
    if kind == "huge":
        found = np.full(found.shape, 1e300)
    if kind == "step":
        fields["step"] += 1
    if kind == "session":
        fields["session"] = "0" * 32
    if kind == "type":
        return encode("ready", **fields)
    if kind == "refuse":
        return encode("refused", reason="not today")
    return encode("sum", found, **fields)


def end(how: signal.Signals) -> None:
    """Kill or stop this process; nothing may leave before the signal takes effect, which other threads may delay."""
    os.kill(os.getpid(), how)
    time.sleep(1.0)


def main() -> None:
    """Serve two nodes, one of each task, with one ledger; the fault is read anew with every question."""
    folder, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.environ["TACIT_STATE_DIR"] = str(folder / f"{name}.state")
    ledger = Ledger(folder / f"{name}.ledger", epsilon=500.0, delta=1e-3)
    log = (folder / f"{name}.log").open("a", buffering=1)
    earlier: list[bytes] = []

    def answer(desk: Any, raw: bytes, caller: str) -> bytes:
        message, fault = decode(raw), {}
        with contextlib.suppress(OSError, ValueError):
            fault = json.loads((folder / f"{name}.fault").read_text())
        here = message.kind == fault.get("on", "step") and message.fields.get("step", 0) == fault.get("step", 0)
        kind = fault.get("kind") if here else None
        if kind == "kill before":
            end(signal.SIGKILL)
        out = desk(raw, caller)
        found = decode(out)
        if found.kind in ("sum", "ready"):
            released = digest_of(found.array.tobytes()) if found.array is not None else ""
            log.write(json.dumps([found.kind, found.fields["session"], found.fields.get("step"), released]) + "\n")
        if kind == "kill after":
            end(signal.SIGKILL)
        if kind == "pause":
            (folder / f"{name}.fault").unlink()
            end(signal.SIGSTOP)
        if kind == "slow":
            time.sleep(fault["seconds"])
        if kind == "lie" and found.kind == "sum":
            out = lie(fault["what"], out, earlier)
        elif found.kind == "sum":
            earlier.append(out)
        return out

    with contextlib.ExitStack() as stack:
        tls = TLS.read(folder / "certificates", name)
        servers = [
            stack.enter_context(serve_node(make(number, ledger), "127.0.0.1:0", tls=tls, answer=answer))
            for make in (factors, linear)
        ]
        place = folder / f"{name}.address"
        place.with_suffix(".new").write_text(json.dumps([server.address for server in servers]))
        place.with_suffix(".new").replace(place)
        servers[0].wait()


if __name__ == "__main__":
    main()
