"""Tables larger than memory: what a fit holds beside its imports, and what a pass costs over a pass in memory.

    python benchmarks/records.py                          all cells but the largest table
    python benchmarks/records.py "3e7"                    cells whose name contains the word

A memory cell fits logistic regression on a folder of Parquet files in a process of its own, which was warmed up by a
small fit; "extra_mb" is the peak of its resident set beyond what it held then. Goals: at most 500 MB, and no growth
with the number of records. A pass cell asks one query of an array, of the same array copied to a scratch file, and of
one that is encoded anew, turn by turn, in CPU time; goal 1.5. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from run import parser

from tacit import DPLogisticRegression, open_records
from tacit.accounting import certify
from tacit.maps import Linear, Standardise, feature_bounds
from tacit.mechanism import Arithmetic, Mechanism
from tacit.problem import Logistic
from tacit.records import InMemory, Records
from tacit.release import Session, open_session
from tacit.release.queries import GramSum, LossGradient, MomentSum

P, MOST_MB, MOST_RATIO = 20, 500.0, 1.5
MEMORY = {
    "3e5 x 20, float64": (300_000, "float64", 0),
    "3e6 x 20, float64": (3_000_000, "float64", 0),
    "3e5 x 20, read anew in every pass": (300_000, "float64", None),
    "3e7 x 20, float32": (30_000_000, "float32", 0),
    "3e5 x 20, persons": (300_000, "float64", 60_000),
    "3e6 x 20, persons": (3_000_000, "float64", 600_000),
}
"""Records, type, and persons (0 for none; None: no scratch copy)."""
PASSES = ("moments", "gram", "gradient", "gradient behind maps")


# -- memory -----------------------------------------------------------------------------------------------------


def write(folder: Path, n: int, dtype: str, persons: int) -> None:
    """A folder of Parquet files of a million rows each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    w = rng.normal(size=P)
    for k, first in enumerate(range(0, n, 1_000_000)):
        rows = min(1_000_000, n - first)
        X = rng.uniform(-1, 1, (rows, P)).astype(dtype)
        columns = {f"x{j}": X[:, j] for j in range(P)}
        columns["label"] = (X @ w + rng.logistic(size=rows) > 0).astype(np.int8)
        if persons:
            columns["who"] = rng.integers(0, persons, rows)
        pq.write_table(pa.table(columns), folder / f"part-{k:03}.parquet", row_group_size=200_000)


def resident(which: str) -> float:
    """VmRSS, or VmHWM, its peak, of this process in MB (a peak by getrusage would be that of the parent, too)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def fitted(folder: Path, persons: bool, scratch: bool) -> dict[str, object]:
    """One fit, in this process."""
    options = {"epsilon": 1.0, "delta": 1e-9, "feature_bounds": (-1, 1), "classes": [0, 1], "max_passes": 10}
    small = folder.with_name("small")
    DPLogisticRegression(**options).fit(open_records(small, "label", "who" if persons else None))
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what there is
    before, start, cpu = resident("VmRSS"), time.perf_counter(), time.process_time()
    records = open_records(folder, "label", "who" if persons else None, scratch=scratch)
    model = DPLogisticRegression(**options).fit(records)
    passes = sum(part.steps for part in model.certificate_.plan.parts)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"extra_mb": resident("VmHWM") - before, "seconds": seconds, "cpu_seconds": cpu, "passes": passes}


def memory_cell(name: str) -> dict[str, object]:
    """The fit, in a process of its own."""
    n, dtype, persons = MEMORY[name]
    with tempfile.TemporaryDirectory() as place:
        for folder, rows in (("small", 20_000), ("table", n)):
            (Path(place) / folder).mkdir()
            write(Path(place) / folder, rows, dtype, persons or 0)
        child = [
            sys.executable,
            __file__,
            "--child",
            f"{place}/table",
            str(int(bool(persons))),
            str(int(persons is not None)),
        ]
        done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {"cell": name, **found, "goal": MOST_MB, "met": found["extra_mb"] <= MOST_MB}


# -- passes -----------------------------------------------------------------------------------------------------


def behind(session: Session, which: str) -> tuple[Session, object, NDArray[np.float64]]:
    """What a pass asks, of which view, at which state."""
    bounds = feature_bounds((-1, 1), P, constant=True)
    if which == "moments":
        return session, MomentSum(np.full(P, -1.0), np.full(P, 1.0)), np.zeros(1)
    seen, width = session.through(bounds), P + 1
    if which == "gram":
        return seen, GramSum(3.0), np.zeros(1)
    if which == "gradient behind maps":
        rng = np.random.default_rng(0)
        seen = seen.through(Standardise(np.zeros(width), np.full(width, 0.5)))
        seen = seen.through(Linear(np.eye(width) + 0.01 * rng.normal(size=(width, width))))
    return seen, LossGradient(Logistic(), 1.0), np.full(width, 0.1)


def pass_cell(which: str, n: int = 1_000_000, rounds: int = 9) -> dict[str, object]:
    """Median CPU seconds of a pass in memory and from a scratch file, turn by turn."""
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.uniform(-1, 1, (n, P)), rng.choice([-1.0, 1.0], n)])
    places: dict[str, Records] = {
        "memory": InMemory(np.ascontiguousarray(table[:, :P]), table[:, P].copy()),
        "scratch": open_records(table, P, scratch=True, memory=0),
        "again": open_records(table, P, scratch=False),
    }
    mechanism = Mechanism(adjacency="zero-out", ratio=1.0, steps=rounds + 2, arithmetic=Arithmetic.EXACT)
    sessions = {name: behind(open_session(certify(mechanism), one), which) for name, one in places.items()}
    times: dict[str, list[float]] = {name: [] for name in places}
    for turn in range(rounds + 2):  # the first copies and compiles
        for name, (session, query, state) in sessions.items():
            start = time.process_time()
            session.release(query, state)
            if turn > 1:
                times[name].append(time.process_time() - start)
    seconds = {name: float(np.median(one)) for name, one in times.items()}
    ratio = seconds["scratch"] / seconds["memory"]
    found = {f"{name}_seconds": one for name, one in seconds.items()}
    return {"cell": f"a pass: {which}", **found, "ratio": ratio, "goal": MOST_RATIO, "met": ratio <= MOST_RATIO}


def main() -> int:
    """Print a line per cell; 1 if one misses its goal."""
    known = parser(__doc__)
    known.add_argument("names", nargs="*", metavar="cell", help="cells that contain one of these words")
    known.add_argument("--child", nargs=3, help="used by the script itself")
    given = known.parse_args()
    if given.child:
        folder, persons, scratch = given.child
        print(json.dumps(fitted(Path(folder), bool(int(persons)), bool(int(scratch)))))
        return 0
    worst = 0
    cells = {name: memory_cell for name in MEMORY} | {name: pass_cell for name in PASSES}
    for name, cell in cells.items():
        if any(word in name for word in given.names) if given.names else "3e7" not in name:
            found = cell(name)
            print(json.dumps(found), flush=True)
            worst |= not found["met"]
    return worst


if __name__ == "__main__":
    sys.exit(main())
