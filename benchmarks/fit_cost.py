"""What a fit of ``DPLogisticRegression`` costs: CPU time over scikit-learn's, and memory beside the table.

Time: defaults (exact arithmetic) against ``sklearn.linear_model.LogisticRegression`` with its defaults, on the same
table in the same process, turn by turn; CPU seconds of all threads, medians, after a fit that compiles. Memory: the
largest resident set of a new process during one fit, beyond what it was once packages were imported, a fit of a small
table had compiled everything and the table was there, over the size of the table. Goals are those of the project.

``python benchmarks/fit_cost.py --part time --only "1e5 x 100"`` makes a part; ``--small`` tries everything out on
tables of a hundredth of the rows, and records nothing. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
from run import parser, record
from scipy import sparse

TIMES = {"1e3 x 5": (1_000, 5, None), "1e6 x 8": (1_000_000, 8, 3.0), "1e6 x 50": (1_000_000, 50, 3.0)}
TIMES |= {"1e5 x 100": (100_000, 100, 3.0)}
MEMORY = {"float64": 0.6, "float32": 0.6, "memmap": 0.6, "sparse": 2.0}
"""Forms of a table, and what a fit may hold beside it, in parts of it."""
REPEATS, SHARE, ROWS, COLUMNS = 3, 0.05, 1_000_000, 50
Cell = dict[str, object]


def labels(rng: np.random.Generator, scores: np.ndarray) -> np.ndarray:
    return np.where(scores + rng.logistic(size=len(scores)) > 0, 1, -1)


def dense(n: int, p: int, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Uniform features and a noisy linear rule; made block by block, so that making them needs no memory."""
    rng = np.random.default_rng(0)
    X, y, w = np.empty((n, p), dtype), np.empty(n, np.int64), rng.normal(size=p) / np.sqrt(p) * 3
    for first in range(0, n, 10_000):
        part = slice(first, first + 10_000)
        X[part] = rng.uniform(-1, 1, X[part].shape)
        y[part] = labels(rng, X[part] @ w)
    return X, y


def thin(n: int, p: int) -> tuple[Any, np.ndarray]:
    """The same with ``SHARE`` of the entries, in CSR."""
    rng, each = np.random.default_rng(0), max(round(SHARE * p), 1)
    columns = np.sort(rng.integers(p, size=(n, each), dtype=np.int32), axis=1)
    data = rng.uniform(-1, 1, n * each)
    X = sparse.csr_array((data, columns.ravel(), np.arange(n + 1, dtype=np.int32) * each), (n, p))
    X.sum_duplicates()
    return X, labels(rng, X @ rng.normal(size=p) * 2)


def size_of(X: Any) -> int:
    return X.data.nbytes + X.indices.nbytes + X.indptr.nbytes if sparse.issparse(X) else X.nbytes


def private(n: int, **options: Any) -> Any:
    from tacit.estimators import DPLogisticRegression

    return DPLogisticRegression(
        epsilon=1.0, delta=1 / n**2, feature_bounds=(-1, 1), classes=[-1, 1], random_state=0, **options
    )


def timed(name: str, n: int) -> Cell:
    """Median CPU seconds of both, and their ratio."""
    from sklearn.linear_model import LogisticRegression

    _, p, goal = TIMES[name]
    X, y = dense(n, p)
    models = {"tacit": private(n), "sklearn": LogisticRegression()}
    models["tacit"].fit(*dense(1000, p))
    seconds: dict[str, list[float]] = {which: [] for which in models}
    for _ in range(REPEATS if n >= 100_000 else 15):
        for which, model in models.items():
            start = time.process_time()
            model.fit(X, y)
            seconds[which].append(time.process_time() - start)
    ours, theirs = (float(np.median(seconds[which])) for which in models)
    loss = {which: round(log_loss(model, X, y), 6) for which, model in models.items()}
    cell: Cell = {"kind": "time", "cell": name, "seconds": ours, "sklearn": theirs, "ratio": ours / theirs}
    return {**cell, "goal": goal, "losses": loss}


def log_loss(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    part = slice(0, 100_000)
    return float(np.logaddexp(0, -y[part] * model.decision_function(X[part])).mean())


def held(form: str, n: int, scratch: str, memory: str | None) -> Cell:
    """What a fit holds beside the table; in a process of its own, which calls this."""
    options = {} if memory is None else {"memory": memory}
    kind = np.float32 if form == "float32" else np.float64
    small, marks = thin(2_000, COLUMNS) if form == "sparse" else dense(2_000, COLUMNS, kind)
    if form == "memmap":  # compiled code knows read-only arrays as another type
        small.flags.writeable = False
    private(2_000, **options).fit(small, marks)
    if form == "memmap":
        path = pathlib.Path(scratch) / "table.npy"
        X = np.load(path, mmap_mode="r")
        y = np.load(pathlib.Path(scratch) / "labels.npy")
        X.sum()  # pages of the file are resident now, as far as they will be
    elif form == "sparse":
        X, y = thin(n, COLUMNS)
    else:
        X, y = dense(n, COLUMNS, kind)
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the largest resident set starts anew
    before = resident("VmRSS")
    start = time.process_time()
    private(n, **options).fit(X, y)
    spent = time.process_time() - start
    extra, table = max(resident("VmHWM") - before, 0), size_of(X)
    cell: Cell = {"kind": "memory", "cell": form, "extra_mb": extra / 2**20, "table_mb": table / 2**20}
    return {**cell, "ratio": extra / table, "seconds": spent, "goal": MEMORY[form], "memory": memory}


def resident(what: str) -> int:
    """Bytes, as the kernel counts them."""
    try:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what + ":"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_new_process(form: str, n: int, memory: str | None) -> Cell:
    with tempfile.TemporaryDirectory() as scratch:
        if form == "memmap":
            X, y = dense(n, COLUMNS)
            np.save(pathlib.Path(scratch) / "table.npy", X)
            np.save(pathlib.Path(scratch) / "labels.npy", y)
            del X, y
        command = [sys.executable, __file__, "--child", form, str(n), scratch]
        command += [] if memory is None else ["--memory", memory]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    known = parser(__doc__)
    known.add_argument("--part", choices=("time", "memory", "all"), default="all")
    known.add_argument("--only", default="", help="cells that contain this")
    known.add_argument("--small", action="store_true", help="a hundredth of the rows; nothing is recorded")
    known.add_argument("--memory", help="what estimators are told about memory; their default if missing")
    known.add_argument("--child", nargs=3, metavar=("FORM", "ROWS", "FOLDER"), help="one measurement of memory")
    given = known.parse_args()
    if given.child:
        print(json.dumps(held(given.child[0], int(given.child[1]), given.child[2], given.memory)))
        return 0
    cells: list[Cell] = []
    fewer = 100 if given.small else 1
    for name in TIMES if given.part != "memory" else ():
        if given.only in name:
            cells.append(timed(name, max(TIMES[name][0] // fewer, 1000)))
            print(json.dumps(cells[-1]), flush=True)
    for form in MEMORY if given.part != "time" else ():
        if given.only in form:
            cells.append(in_new_process(form, ROWS // fewer, given.memory))
            print(json.dumps(cells[-1]), flush=True)
    if not given.small:
        record("fit_cost", cells)
    return int(any(cell["goal"] is not None and cell["ratio"] > cell["goal"] for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
