"""How fast the kernels are: ns per sample and update, against a STREAM triad of the same length in the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numba
import numpy as np
import scipy.sparse
from run import parser

from tacit.kernels import coordinate

Rules = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Order, noise, clips, steps, ℓ1, ℓ2 and box of a sweep."""
LOSSES = {"squared": 0, "Huber": 1, "logistic": 2, "smoothed hinge": 3}
FEATURES, EPOCHS = 8, 10
FIT = """
import time
import numpy as np
import sklearn.linear_model
start, cpu = time.perf_counter(), time.process_time()
from tacit.kernels import coordinate
p = np.zeros(4)
X, z, settings = np.zeros((9, 4), order="F"), np.zeros(9), (np.arange(4), p, p + 1, p, p, p, p - 1, p + 1)
{call}
print(time.perf_counter() - start, time.process_time() - cpu)
"""
CALLS = {
    "sweep, squared": "coordinate.sweep_dense(X, z, p.copy(), *settings, 0, 1.0, p.copy())",
    "sweep, logistic": "coordinate.sweep_dense(X, z, p.copy(), *settings, 2, 1.0, p.copy())",
    "sum and apply, logistic": "coordinate.coordinate_sum_dense(X, z, 0, 1.0, 2, 1.0)\n"
    "coordinate.apply_dense(X, z, p.copy(), 0, 1.0, *settings[3:])",
    "block sum, logistic": "coordinate.block_sum_dense(X, z, np.arange(4), p + 1, 1.0, 2, 1.0)",
    "sweep, CSC, logistic": "coordinate.sweep_sparse(np.ones(4), np.arange(4, dtype=np.int32), np.arange(5), 9, z, "
    "p.copy(), *settings, 2, 1.0, p.copy())",
}


@numba.njit(fastmath=True)
def triad(a: np.ndarray, b: np.ndarray, c: np.ndarray, s: float, repeats: int) -> None:
    for _ in range(repeats):
        for i in range(a.size):
            a[i] = b[i] + s * c[i]
        s += 1e-9


def best(f: Callable[[], object], repeats: int = 60) -> float:
    f()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def show(cell: str, **more: object) -> None:
    print(json.dumps({"cell": cell, **more}), flush=True)


def settings(p: int, order: np.ndarray, rng: np.random.Generator) -> Rules:
    ones = np.ones(p)
    return (order, rng.normal(size=order.size), 2 * ones, 1e-7 * ones, 1e-9 * ones, 1e-9 * ones, -9 * ones, 9 * ones)


def shuffled(p: int, rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([rng.permutation(p) for _ in range(EPOCHS)])


def places(n: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same arrays at several addresses: which cache sets they share is luck, for the triad as for the sweep."""
    for _ in range(5):
        yield np.asfortranarray(rng.normal(size=(n, FEATURES))), rng.normal(size=n)


def numpy_sweep(X: np.ndarray, z: np.ndarray, w: np.ndarray, rules: Rules, logistic: bool) -> None:
    order, noise, clip, step, step_l1, step_l2, low, high = rules
    for k, j in enumerate(order):
        slope = -1 / (1 + np.exp(z)) if logistic else z
        v = w[j] - step[j] * (np.clip(slope * X[:, j], -clip[j], clip[j]).sum() + noise[k])
        new = np.clip(np.sign(v) * max(abs(v) - step_l1[j], 0) / (1 + step_l2[j]), low[j], high[j])
        z += (new - w[j]) * X[:, j]
        w[j] = new


def dense(n: int, rng: np.random.Generator) -> None:
    order = shuffled(FEATURES, rng)
    rules = settings(FEATURES, order, rng)
    scale = 1e9 / n / order.size
    triads: list[float] = []
    plain: dict[str, float] = {}
    sweeps: dict[str, list[float]] = {}
    for X, z in places(n, rng):
        a, b, c = (np.ones(n) for _ in range(3))
        triads.append(best(lambda: triad(a, b, c, 1.1, order.size)) * scale)  # noqa: B023 - called at once
        w, total = np.zeros(FEATURES), np.zeros(FEATURES)
        for name, loss in LOSSES.items():
            call = lambda: coordinate.sweep_dense(X, z, w, *rules, loss, 1.0, total)  # noqa: B023, E731
            sweeps.setdefault(name, []).append(best(call) * scale)
        X32 = X.astype(np.float32, order="F")
        call = lambda: coordinate.sweep_dense(X32, z, w, *rules, 0, 1.0, total)  # noqa: B023, E731
        sweeps.setdefault("squared, float32", []).append(best(call) * scale)
        for name, deep in {"squared": False, "logistic": True}.items():
            call = lambda: numpy_sweep(X, z, w, rules, deep)  # noqa: B023, E731
            plain[name] = min(best(call, 10) * scale, plain.get(name, np.inf))
    limit = min(triads)
    for name, times in sweeps.items():
        more = {"times_faster_than_numpy": plain[name] / min(times)} if name in plain else {}
        ratio = min(times) / limit
        show(f"sweep, {name}", n=n, ns_per_sample_update=min(times), triad_ns=limit, ratio=ratio, **more)


def blocks(n: int, p: int, rng: np.random.Generator) -> None:
    X, z = np.asfortranarray(rng.normal(size=(n, p))), rng.normal(size=n)
    every, ones = np.arange(p), np.ones(p)
    a, b, c = (np.ones(n) for _ in range(3))
    limit = best(lambda: triad(a, b, c, 1.1, p)) * 1e9 / n / p
    for name in ("squared", "logistic"):
        ns = best(lambda: coordinate.block_sum_dense(X, z, every, ones, 1.0, LOSSES[name], 1.0)) * 1e9 / n / p  # noqa: B023
        show(f"block sum, {name}, p = {p}", n=n, ns_per_sample_update=ns, triad_ns=limit, ratio=ns / limit)


def sparse(n: int, p: int, rng: np.random.Generator) -> None:
    S = scipy.sparse.random(n, p, 0.05, format="csc", rng=rng)
    columns = (S.data, S.indices.astype(np.int32), S.indptr.astype(np.int64))
    z, w, total = rng.normal(size=n), np.zeros(p), np.zeros(p)
    order = shuffled(p, rng)
    rules = settings(p, order, rng)
    for name, loss in LOSSES.items():
        seconds = best(lambda: coordinate.sweep_sparse(*columns, n, z, w, *rules, loss, 1.0, total))  # noqa: B023
        show(f"sweep, {name}, CSC, 5 % dense", n=n, ns_per_nonzero=seconds * 1e9 / S.nnz / EPOCHS)


def compilation() -> None:
    """Seconds beyond ``import sklearn.linear_model`` in a new process: nothing compiled before, then from the cache."""
    for name, call in CALLS.items():
        with tempfile.TemporaryDirectory() as folder:
            runs = []
            for _ in range(4):
                done = subprocess.run(
                    [sys.executable, "-c", FIT.format(call=call)],
                    env={**os.environ, "NUMBA_CACHE_DIR": folder},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                runs.append([float(value) for value in done.stdout.split()])
            (cold, cold_cpu), (warm, warm_cpu) = runs[0], min(runs[1:])
            seconds = {"cold_seconds": cold, "cold_cpu": cold_cpu, "warm_seconds": warm, "warm_cpu": warm_cpu}
            show(f"first call, {name}", **seconds)


def main() -> None:
    parser(__doc__).parse_args()
    rng = np.random.default_rng(0)
    for n in (20640, 45312):
        dense(n, rng)
    blocks(45312, 8, rng)
    blocks(20640, 100, rng)
    sparse(45312, 100, rng)
    compilation()


if __name__ == "__main__":
    main()
