"""Time per round of a federation: three nodes in processes of their own, gRPC with mutual TLS on loopback.

One line per cell: the median, the 90 % quantile and the CPU time of the server per round, that is, from one question to
the next. "echo" asks nodes what they are, which needs no row and shows what the transport itself takes; "factors" are
rounds of FederatedNMF (3 components, 30 items, 5,000 rows at each node), "linear" those of FederatedLinear (metric
descent, 10 features, 5,000 rows at each node), "wide" the same with 300 features; "threads" is "factors" without a
network. The goal is 24 ms, three times the 8 ms of sockets without encryption in the version before.

Then "owners": how often a logistic regression (10 features, 16,000 rows dealt out to p owners, δ = 1e-6) is right about
the more probable class of 20,000 fresh rows: of all owners together, and of each alone; means over five data sets.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import pathlib
import tempfile
import time
from typing import Any

import numpy as np
from run import parser

from tacit import DPLogisticRegression
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
from tacit.federation.wire import decode, encode

NAMES = ("a", "b", "c")
ROWS, ECHOES, STEPS = 5000, 200, 40
GOAL = 0.024


def made(task: str, number: int) -> FactorNode | LinearNode:
    rng = np.random.default_rng(number)
    if task in ("factors", "threads", "echo"):
        reasons = np.kron(np.eye(3), np.ones(10))
        return FactorNode(rng.poisson(rng.gamma(0.4, size=(ROWS, 3)) @ reasons), epsilon=1.0, delta=1e-6, row_norm=10.0)
    X = rng.uniform(-1, 1, (ROWS, 10 if task == "linear" else 300))
    y = X[:, 0] - X[:, 1] + rng.logistic(size=ROWS) / 3 > 0
    return LinearNode(X, y, classes=[False, True], epsilon=1.0, delta=1e-6)


def serve(task: str, number: int, folder: str, door: Any) -> None:
    with serve_node(made(task, number), "127.0.0.1:0", tls=TLS.read(folder, NAMES[number])) as server:
        door.send_bytes(server.address.encode())
        door.recv_bytes()


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


def rounds(task: str, links: list[Any]) -> dict[str, Any]:
    asked: list[float] = []
    if task == "echo":
        for _ in range(ECHOES):
            asked.append(time.perf_counter())
            for one in [link.submit(encode("describe"), 10.0) for link in links]:
                one.result()
        cpu = None
    else:
        timed = [Timed(links[0], asked), *links[1:]]
        start = time.process_time()
        if task in ("factors", "threads"):
            FederatedNMF(3, epochs=STEPS, timeout=60).fit(timed)
        else:
            FederatedLinear(DPLogisticRegression(feature_bounds=(-1, 1)), timeout=60).fit(timed)
        cpu = (time.process_time() - start) / len(asked)
    gaps = np.diff(asked)
    return {
        "cell": task,
        "nodes": len(links),
        "rounds": len(gaps),
        "median_ms": round(float(np.median(gaps)) * 1e3, 2),
        "p90_ms": round(float(np.quantile(gaps, 0.9)) * 1e3, 2),
        "server_cpu_ms": None if cpu is None else round(cpu * 1e3, 2),
        "goal_ms": GOAL * 1e3,
    }


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


def over_tls(task: str, folder: str) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        links = []
        for number, name in enumerate(NAMES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(task, number, folder, theirs), daemon=True)
            process.start()
            stack.callback(process.join, 10)
            stack.callback(ours.send_bytes, b"end")
            address = ours.recv_bytes().decode()
            links.append(stack.enter_context(connect(address, tls=TLS.read(folder, "server"), node=name)))
        return rounds(task, links)


def main() -> None:
    parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = str(make_trial_certificates(pathlib.Path(name) / "certificates", NAMES))
        cells = [over_tls(task, folder) for task in ("echo", "factors", "linear", "wide")]
    with threaded_nodes([made("threads", number) for number in range(3)]) as links:
        cells.append(rounds("threads", list(links)))
    cells += [accuracies(owners, epsilon) for epsilon in (1.0, 0.3) for owners in (1, 2, 4, 16)]
    for cell in cells:
        print(json.dumps(cell))


if __name__ == "__main__":
    main()
