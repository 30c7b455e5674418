"""Stub certificates, and the child processes of the concurrency, crash and fork tests (run as a script)."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from tacit.errors import BudgetExhausted
from tacit.ledger import Ledger


class Relation(Enum):
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


class Stub:
    """The smallest object that is a certificate."""

    def __init__(
        self,
        mu: float | None = None,
        epsilon: float | Callable[[float], float] = math.inf,
        *,
        adjacency: Enum = Relation.ADD_REMOVE,
        unit: str = "record",
    ) -> None:
        self.mu = mu
        self.adjacency = adjacency
        self.unit = unit
        self.digest = "0123abcd"
        self.asked: list[float] = []
        self._epsilon = epsilon

    def epsilon(self, delta: float) -> float:
        self.asked.append(delta)
        return self._epsilon(delta) if callable(self._epsilon) else self._epsilon

    def to_json(self) -> str:
        return json.dumps({"mu": self.mu, "unit": self.unit})


def start(*arguments: object) -> subprocess.Popen[str]:
    """This file as a child process."""
    command = [sys.executable, "-W", "error", __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def finish(child: subprocess.Popen[str]) -> str:
    try:
        out, _ = child.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its own children included
        child.communicate()
        raise
    assert child.returncode == 0
    return out


def reserve_many(path: str, mu: str, times: str) -> None:
    """Reserve ``times`` times and print the numbers of the granted entries."""
    granted = []
    with Ledger(path) as ledger:
        for _ in range(int(times)):
            try:
                granted.append(ledger.reserve(Stub(float(mu))))
            except BudgetExhausted:
                continue
    print(json.dumps(granted))


def crash_nursery() -> None:
    """For every line "ledger side-file order": fork a child that loops until killed, and say how it ended."""
    import tacit.accounting  # noqa: F401  (once here instead of once per child)

    for line in sys.stdin:
        path, side, order = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                reserve_and_release(Path(path), Path(side), order)
            finally:
                os._exit(1)  # reached only by an error, which the parent then sees as an exit code
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else "failed", flush=True)


def reserve_and_release(path: Path, side: Path, order: str) -> None:
    ledger = Ledger(path, epsilon=100.0, delta=1e-6)
    out = os.open(side, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for k in itertools.count():
        token = f"{os.getpid()}-{k}"
        if order == "release-first":  # the mutant: what the check must catch
            os.write(out, f"{token}\n".encode())
        ledger.reserve(Stub(1e-3), token)
        if order == "reserve-first":
            os.write(out, f"{token}\n".encode())


def fork_under_threads(path: str) -> None:
    """Threads reserve while the main thread forks children that reserve through the same object."""
    ledger = Ledger(path)
    stop = threading.Event()
    counts = [0, 0, 0]

    def keep_reserving(i: int) -> None:
        while not stop.is_set():
            ledger.reserve(Stub(1e-4))
            counts[i] += 1

    threads = [threading.Thread(target=keep_reserving, args=(i,)) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for _ in range(5):
                    ledger.reserve(Stub(1e-4))
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"failed": failed, "threads": sum(counts), "children": 100}))


if __name__ == "__main__":
    _, name, *arguments = sys.argv
    roles: dict[str, Callable[..., None]] = {
        "reserve_many": reserve_many,
        "crash_nursery": crash_nursery,
        "fork_under_threads": fork_under_threads,
    }
    roles[name](*arguments)
