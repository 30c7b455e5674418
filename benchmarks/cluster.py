"""Records on a Dask cluster: what a release costs without data, and a pass over a pass in memory.

    python benchmarks/cluster.py                          all cells
    python benchmarks/cluster.py "release"                cells whose name contains the word

A release cell asks a query of 16 rows, again and again, on a cluster of one or two processes: wall seconds of a round
trip, goal 15 ms; "cpu_ms" is the CPU time of it in all processes. A pass cell asks one query of an array and of the
same array on one worker, turn by turn, in CPU time of all processes; goal 3. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dask.array
import distributed
import numpy as np
import psutil
from numpy.typing import NDArray
from run import parser, record

from tacit.maps import Standardise
from tacit.problem import Logistic
from tacit.records import InMemory, Opened, Records, open_records
from tacit.release.queries import GramSum, LossGradient
from tacit.release.query import Grid

MOST_MS, MOST_RATIO, P = 15.0, 3.0, 20
QUERIES = {"gram": GramSum(1.0, with_target=True), "gradient": LossGradient(Logistic(), 1.0)}
ROWS = (20_000, 200_000)


def table(n: int) -> NDArray[np.float64]:
    """Features, and labels in the last column."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, P))
    return np.column_stack([X, np.where(X[:, 0] + rng.normal(0, 0.3, n) > 0, 1.0, -1.0)])


def cpu() -> float:
    """Seconds of this process and its children."""
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (me, *me.children(recursive=True)) if one.is_running())


def asked(records: Records, name: str) -> Callable[[], Any]:
    """One pass."""
    query, grid = QUERIES[name], Grid.fine(1e3, 1.0)
    if name == "gram":
        grid = Grid.of_squares(1e3, 1.0)
    state, everybody = np.full((1, P), 0.1), np.broadcast_to(np.True_, (1, records.n))
    return lambda: records.total(query, state, everybody, grid)


def opened(X: NDArray[np.float64], partitions: int) -> Opened:
    """On the cluster."""
    return open_records(dask.array.from_array(X, chunks=(-(-len(X) // partitions), -1)), P)


def release(workers: int) -> dict[str, Any]:
    """A round trip."""
    one = asked(opened(table(16), workers), "gradient")
    for _ in range(5):
        one()
    before, walls = cpu(), []
    for _ in range(100):
        start = time.perf_counter()
        one()
        walls.append(1e3 * (time.perf_counter() - start))
    found = {"wall_ms": float(np.median(walls)), "best_ms": min(walls), "cpu_ms": 10 * (cpu() - before)}
    return found | {"goal_ms": MOST_MS}


def one_pass(name: str, n: int, mapped: bool) -> dict[str, Any]:
    """Turn by turn, the medians of what both cost."""
    X = table(n)
    both: list[Records] = [InMemory(X[:, :P], X[:, P]), opened(X, 4)]
    if mapped:
        both = [one.through(Standardise(np.zeros(P), np.full(P, 2.0))) for one in both]
    passes = [asked(one, name) for one in both]
    sums = [one() for one in passes]
    assert np.array_equal(*sums)
    each, repeats = 1 + 400_000 // n, 7
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for k, one in enumerate(passes):
            start = cpu()
            for _ in range(each):
                one()
            times[k].append((cpu() - start) / each)
    memory, cluster = (float(np.median(some)) for some in times)
    found = {"memory_ms": 1e3 * memory, "cluster_ms": 1e3 * cluster, "ratio": cluster / memory}
    return found | {"goal": MOST_RATIO}


def main() -> None:
    """Run the cells."""
    cli = parser(__doc__)
    cli.add_argument("cells", nargs="?", default="")
    options = cli.parse_args()
    cells: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {}
    for workers in (1, 2):
        cells[f"release without data, {workers} workers"] = workers, lambda workers=workers: release(workers)
    for n in ROWS:
        for name in QUERIES:
            for mapped in (False, True):
                title = f"pass, {name}{' behind a map' if mapped else ''}, {n} x {P}"
                cells[title] = 1, lambda name=name, n=n, mapped=mapped: one_pass(name, n, mapped)
    for name, (workers, cell) in cells.items():
        if options.cells in name:
            with (
                distributed.LocalCluster(
                    workers, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit="1 GB"
                ) as local,
                distributed.Client(local),
            ):
                found: dict[str, object] = {"cell": name, **cell()}
            print(found, flush=True)
            record("cluster", [found])


if __name__ == "__main__":
    main()
