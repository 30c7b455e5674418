"""One step of noisy cyclic descent, noise included, against its two bare matrix products and the bare noise draw.

Ratios within one run: ``ratio`` is the step over (products + noise); the goal is 1.5. Peak memory is that of a fit of
60 000 × 784 random records with 128 gates, in a process of its own. Run with OMP_NUM_THREADS=1 on an idle machine.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from run import parser

from tacit.maps import Shorten
from tacit.problem import Softmax
from tacit.records import InMemory
from tacit.release import Streams, open_session
from tacit.release.queries import GatedOutputs, LinearOutputs
from tacit.solvers.hidden import plan_cyclic

K, ROUNDS, EPOCHS = 10, 5, 5
CASES = {  # name: (records, width, batch, gates)
    "softmax, 2000 features": (20_000, 2000, 500, 0),
    "softmax, 784 pixels": (20_000, 784, 500, 0),
    "32 gates": (10_000, 784, 500, 32),
    "128 gates": (10_000, 784, 500, 128),
}


def seconds(f: Callable[[], object], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        f()
    return (time.process_time() - start) / times


def case(name: str) -> dict[str, object]:
    n, width, b, P = CASES[name]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, width), dtype=np.float32) / np.float32(width**0.5)
    y, loss = rng.integers(K, size=n), Softmax(K, 0.3)
    query = GatedOutputs(loss, 1.0, rng.normal(size=(P, width))) if P else LinearOutputs(loss, 1.0)
    records = InMemory(X, y).through(Shorten((P / 2) ** 0.5 if P else 1.0, width))
    size = K * max(P, 1) * width
    sizes = {"n": n, "batch_size": b, "epochs": 1 if P else EPOCHS}
    plan = plan_cyclic(2.0, 1e-5, **sizes, bound=query.bound, smoothness=query.smoothness)
    W = rng.standard_normal((width, K * max(P, 1)), dtype=np.float32)
    G = rng.standard_normal((b, K * max(P, 1)), dtype=np.float32)
    whole, products, noise = [], [], []
    for _ in range(ROUNDS):
        certificate = plan.certificate

        def run(certificate=certificate) -> None:
            with open_session(certificate, records) as session:
                plan.run(session, query, np.zeros(size))

        whole.append(seconds(run, 1) / len(plan.step_sizes))
        batches = [X[i : i + b] for i in range(0, n, b)]
        products.append(seconds(lambda batches=batches: [(B @ W, G.T @ B) for B in batches], 1) / len(batches))
        draw = Streams().at("noise")
        noise.append(seconds(lambda draw=draw: draw.standard_normal(size), 10))
    step, gemm, drawn = (float(np.median(v)) for v in (whole, products, noise))
    cell = {"cell": name, "batch": b, "step_ms": 1e3 * step, "products_ms": 1e3 * gemm, "noise_ms": 1e3 * drawn}
    return {**cell, "ratio": step / (gemm + drawn)}


def peak() -> dict[str, object]:
    """Memory of a fit with 128 gates, after imports and with the records."""
    from tacit import DPConvexReLUClassifier

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60_000, 784), dtype=np.float32), rng.integers(K, size=60_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    model = DPConvexReLUClassifier(128, epsilon=2.0, delta=1e-5, feature_norm=1.0, classes=range(K), epochs=1)
    model.fit(X, y)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {"cell": "memory, 128 gates", "before_mb": before, "peak_mb": after}


def main(arguments: list[str]) -> None:
    known = parser(__doc__)
    known.add_argument("part", nargs="?", choices=["peak"], help="memory only (used by itself)")
    if known.parse_args(arguments).part == "peak":
        print(json.dumps(peak()))
        return
    for name in CASES:
        print(json.dumps(case(name)), flush=True)
    done = subprocess.run([sys.executable, __file__, "peak"], stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout.strip())


if __name__ == "__main__":
    main(sys.argv[1:])
