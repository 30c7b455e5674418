"""Time per round of a federation: three nodes in processes of their own, gRPC with mutual TLS on loopback.

One line per cell: the medians of a round (from one question to the next) over gRPC and, turn by turn in the same run
with the same nodes, over pipes without encryption, which the version before had; their ratio, whose goal is 3; and CPU
time of the server per round. Wall times are those of whatever else the machine does; ratios are not. "echo" asks nodes
what they are, which needs no row and shows what the transport itself takes; "factors" are rounds of FederatedNMF (3
components, 30 items, 5,000 rows at each node), "linear" those of FederatedLinear (metric descent, 10 features, 5,000
rows at each node), "wide" the same with 300 features.

Then "owners": how often a logistic regression (10 features, 16,000 rows dealt out to p owners, δ = 1e-6) is right about
the more probable class of 20,000 fresh rows: of all owners together, and of each alone; means over five data sets.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
from run import parser

from tacit import DPLogisticRegression, Ledger
from tacit.federation import (
    TLS,
    FactorNode,
    FederatedLinear,
    FederatedNMF,
    LinearNode,
    connect,
    make_trial_certificates,
    serve_node,
    threaded_nodes,
)
from tacit.federation.desk import Desk
from tacit.federation.wire import decode, encode

NAMES = ("a", "b", "c")
ROWS, ECHOES, STEPS, TURNS = 5000, 100, 40, 3
GOAL = 3.0


def made(task: str, number: int, ledger: Ledger) -> FactorNode | LinearNode:
    rng, terms = np.random.default_rng(number), {"epsilon": 1.0, "delta": 1e-6, "ledger": ledger}
    if task in ("factors", "echo"):
        reasons = np.kron(np.eye(3), np.ones(10))
        return FactorNode(rng.poisson(rng.gamma(0.4, size=(ROWS, 3)) @ reasons), row_norm=10.0, **terms)
    X = rng.uniform(-1, 1, (ROWS, 10 if task == "linear" else 300))
    return LinearNode(X, X[:, 0] - X[:, 1] + rng.logistic(size=ROWS) / 3 > 0, classes=[False, True], **terms)


def serve(task: str, number: int, folder: str, door: Any) -> None:
    """One node, behind gRPC and behind a pipe."""
    os.environ["TACIT_STATE_DIR"] = f"{folder}/{task}{number}"
    node = made(task, number, Ledger(f"{folder}/{task}{number}.ledger", epsilon=1e3, delta=1e-2))
    desk = Desk(node)
    with serve_node(node, "127.0.0.1:0", tls=TLS.read(folder, NAMES[number])) as server:
        door.send_bytes(server.address.encode())
        while (message := door.recv_bytes()) != b"end":
            door.send_bytes(desk.answer(message))


class Pipe:
    """A link over a pipe: whole messages, one at a time."""

    def __init__(self, door: Any) -> None:
        self.door = door

    def submit(self, message: bytes, timeout: float) -> Any:
        """Send."""
        self.door.send_bytes(message)
        return self

    def result(self) -> bytes:
        """Receive."""
        return bytes(self.door.recv_bytes())

    def close(self) -> None:
        """Nothing to do."""


class Timed:
    """A link that notes when questions of steps leave."""

    def __init__(self, link: Any, into: list[float]) -> None:
        self.link, self.into = link, into

    def submit(self, message: bytes, timeout: float) -> Any:
        """Note the time, and send."""
        if decode(message).kind == "step":
            self.into.append(time.perf_counter())
        return self.link.submit(message, timeout)

    def close(self) -> None:
        """Ask nothing more."""
        self.link.close()


def rounds(task: str, links: list[Any]) -> tuple[list[float], float]:
    """Seconds of each round, and CPU seconds of the server per round."""
    asked: list[float] = []
    start = time.process_time()
    if task == "echo":
        for _ in range(ECHOES):
            asked.append(time.perf_counter())
            for one in [link.submit(encode("describe"), 10.0) for link in links]:
                one.result()
    elif task == "factors":
        FederatedNMF(3, epochs=STEPS, timeout=60).fit([Timed(links[0], asked), *links[1:]])
    else:
        estimator = DPLogisticRegression(feature_bounds=(-1, 1))
        FederatedLinear(estimator, timeout=60).fit([Timed(links[0], asked), *links[1:]])
    return np.diff(asked).tolist(), (time.process_time() - start) / len(asked)


def logistic(seed: int, n: int) -> tuple[Any, Any, Any]:
    """Features, labels, and the more probable label."""
    rng, w = np.random.default_rng(seed), np.linspace(-1.5, 1.5, 10)
    X = rng.uniform(-1, 1, (n, 10))
    return X, X @ w + rng.logistic(size=n) > 0, X @ w > 0


def accuracies(owners: int, epsilon: float) -> dict[str, Any]:
    """Together and alone, with fresh noise."""
    terms: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6}
    estimator, together, alone = DPLogisticRegression(feature_bounds=(-1, 1)), [], []
    for seed in range(5):
        X, y, _ = logistic(seed, 16_000)
        fresh, _, truth = logistic(seed + 100, 20_000)
        parts = list(zip(np.array_split(X, owners), np.array_split(y, owners), strict=True))
        with threaded_nodes([LinearNode(a, b, classes=[False, True], **terms) for a, b in parts]) as links:
            together.append(FederatedLinear(estimator, timeout=100).fit(list(links)).score(fresh, truth))
        one = DPLogisticRegression(feature_bounds=(-1, 1), **terms)
        alone.append(np.mean([one.fit(a, b).score(fresh, truth) for a, b in parts[:4]]))
    means = {"together": round(float(np.mean(together)), 4), "alone": round(float(np.mean(alone)), 4)}
    return {"cell": "owners", "owners": owners, "epsilon": epsilon, **means}


def compared(task: str, folder: str) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        tls, pipes = [], []
        for number, name in enumerate(NAMES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(task, number, folder, theirs), daemon=True)
            process.start()
            stack.callback(process.join, 10)
            stack.callback(ours.send_bytes, b"end")
            address = ours.recv_bytes().decode()
            tls.append(stack.enter_context(connect(address, tls=TLS.read(folder, "server"), node=name)))
            pipes.append(Pipe(ours))
        rounds(task, tls)  # compiled code is loaded
        taken: dict[str, list[float]] = {"tls": [], "pipes": []}
        cpu: dict[str, list[float]] = {"tls": [], "pipes": []}
        for _ in range(TURNS):
            for way, links in (("tls", tls), ("pipes", pipes)):
                found, seconds = rounds(task, links)
                taken[way] += found
                cpu[way].append(seconds)
    medians = {way: float(np.median(found)) for way, found in taken.items()}
    return {
        "cell": task,
        "rounds": len(taken["tls"]),
        **{f"{way}_ms": round(1e3 * seconds, 2) for way, seconds in medians.items()},
        "ratio": round(medians["tls"] / medians["pipes"], 2),
        "goal": GOAL,
        **{f"{way}_server_cpu_ms": round(1e3 * float(np.median(found)), 2) for way, found in cpu.items()},
    }


def main() -> None:
    parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = str(make_trial_certificates(pathlib.Path(name) / "certificates", NAMES))
        cells = [compared(task, folder) for task in ("echo", "factors", "linear", "wide")]
    cells += [accuracies(owners, epsilon) for epsilon in (1.0, 0.3) for owners in (1, 2, 4, 16)]
    for cell in cells:
        print(json.dumps(cell))


if __name__ == "__main__":
    main()
