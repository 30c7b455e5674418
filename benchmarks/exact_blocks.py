"""Exact arithmetic against floating point: CPU time of whole fits of factorisations, of many outputs, and of blocks.

The same plan is run with ``arithmetic="float"`` and ``"exact"``, several times in turns; ``ratio`` is that of the
medians, and the goal is 1.3. Run with OMP_NUM_THREADS=1 on an idle machine.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from run import parser
from scipy import sparse

from tacit.accounting import Certificate, certify
from tacit.maps import NonnegativeRows, Shorten
from tacit.problem import Softmax
from tacit.problem.network import architecture
from tacit.records import InMemory
from tacit.release import open_session
from tacit.release.queries import GatedOutputs, ItemFactors, LinearOutputs
from tacit.solvers.blocks import BlockDescent, plan_blocks
from tacit.solvers.hidden import plan_cyclic
from tacit.solvers.network import block_network
from tacit.solvers.nmf import UPDATES, NMFOptions, item_block

DELTA, ROUNDS, K = 1e-5, 7, 10
Run = Callable[[Certificate], object]


def exact(certificate: Certificate) -> Certificate:
    """The certificate of the same plan, in exact arithmetic."""
    plan = certificate.plan
    parts = tuple(dataclasses.replace(part, arithmetic="exact") for part in plan.parts)
    return certify(dataclasses.replace(plan, parts=parts), delta=DELTA)


def factorisation(update: str, n: int, items: int, k: int, density: float, **sizes: Any) -> tuple[Certificate, Run]:
    """DPNMF's solver on a random table."""
    rng = np.random.default_rng(0)
    if density < 1:
        M: Any = sparse.random_array((n, items), density=density, rng=rng, format="csr")
    else:
        M = np.abs(rng.normal(size=(n, k))) @ np.abs(rng.normal(size=(k, items)))
    block, weight = item_block(k, items, update, NMFOptions(), people=n, seed=0)
    problem = ItemFactors((block,), UPDATES[update], NonnegativeRows(items, 1.0), weight)
    plan = plan_blocks(4.0, DELTA, blocks=[block], n=n, **sizes)

    def run(certificate: Certificate) -> object:
        with open_session(certificate, InMemory(M), random_state=0) as session:
            return BlockDescent(dataclasses.replace(plan, certificate=certificate), problem).solve(session)

    return plan.certificate, run


def outputs(n: int, width: int, batch: int, gates: int = 0, epochs: int = 5) -> tuple[Certificate, Run]:
    """DPSoftmaxRegression's solver (or that of the convex network), every iterate shown, on Poisson batches."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, width), dtype=np.float32) / np.float32(width**0.5), rng.integers(K, size=n)
    loss, R = Softmax(K, 0.3), (gates / 2) ** 0.5 if gates else 1.0
    query = GatedOutputs(loss, 1.0, rng.normal(size=(gates, width))) if gates else LinearOutputs(loss, 1.0)
    sizes = {"n": n, "batch_size": batch, "epochs": epochs, "view": "all_iterates"}
    numbers = plan_cyclic(2.0, DELTA, **sizes, bound=query.bound, smoothness=query.smoothness)
    records, size = InMemory(X, y).through(Shorten(R, width)), K * max(gates, 1) * width

    def run(certificate: Certificate) -> object:
        with open_session(certificate, records, random_state=0) as session:
            return numbers.run(session, query, np.zeros(size))

    return numbers.certificate, run


def network(update: str, n: int = 4000, order: str = "jacobi") -> tuple[Certificate, Run]:
    """Two hidden layers of 64 by blocks."""
    rng = np.random.default_rng(0)
    net = architecture((100,), (64, 64), K)
    more = {"step_size": 0.3, "last_step": 0.1, "contribution_norm": None, "l2": 0.0}
    problem = block_network(net, update, seed=0, **more)
    X, Y = rng.standard_normal((n, 100), dtype=np.float32), np.eye(K)[rng.integers(K, size=n)]
    plan = plan_blocks(4.0, DELTA, blocks=problem.blocks, n=n, epochs=5, batch_size=500, order=order)

    def run(certificate: Certificate) -> object:
        with open_session(certificate, InMemory(X, Y), random_state=0) as session:
            return BlockDescent(dataclasses.replace(plan, certificate=certificate), problem).solve(session)

    return plan.certificate, run


CASES: dict[str, Callable[[], tuple[Certificate, Run]]] = {
    "NMF residuals, 1000 × 200": lambda: factorisation("residuals", 1000, 200, 10, 1.0, epochs=10),
    "NMF statistics, 20000 × 200": lambda: factorisation("statistics", 20_000, 200, 10, 1.0, epochs=3),
    "NMF residuals, sparse 10000 × 5000": lambda: factorisation(
        "residuals", 10_000, 5000, 20, 0.01, epochs=3, batch_size=1000
    ),
    "softmax, 784 pixels": lambda: outputs(20_000, 784, 500),
    "softmax, 2000 features": lambda: outputs(20_000, 2000, 500),
    "32 gates, 784 pixels": lambda: outputs(10_000, 784, 500, gates=32, epochs=1),
    "network, gradients": lambda: network("gradient"),
    "network, statistics": lambda: network("statistics"),
}


def case(name: str) -> dict[str, object]:
    certificate, run = CASES[name]()
    both = {"float": certificate, "exact": exact(certificate)}
    taken: dict[str, list[float]] = {kind: [] for kind in both}
    for turn in range(ROUNDS + 1):
        for kind, of in both.items():
            start = time.process_time()
            run(of)
            if turn:  # the first one compiles
                taken[kind].append(time.process_time() - start)
    middle = {kind: float(np.median(times)) for kind, times in taken.items()}
    seconds = {f"{kind}_s": value for kind, value in middle.items()}
    return {"cell": name, **seconds, "ratio": middle["exact"] / middle["float"]}


def main(arguments: list[str]) -> None:
    parser(__doc__).parse_args(arguments)
    for name in CASES:
        print(json.dumps(case(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
