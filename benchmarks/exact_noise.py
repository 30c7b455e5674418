"""Exact rounded normal noise against ``standard_normal`` of the same AES generator: times within one run.

``ratio`` is the time of ``rounded_normal`` over that of ``Generator.standard_normal``, the best of alternating rounds;
the goal is 1.3. ``filled`` writes into an array that is there; ``scales`` has a scale for each draw, ``columns`` ten
scales that are broadcast. ``settled`` is one word that float64 does not decide, in microseconds. Run with
OMP_NUM_THREADS=1 on an idle machine.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

import numpy as np
from run import parser

from tacit.noise import rounded_normal
from tacit.noise.rounded import settle
from tacit.noise.streams import Streams

SCALES = (0.3, 1.0, 2.0**10, 2.0**20, 2.0**30, 2.0**36)
SIZES = (10**3, 10**5, 10**7)


def best(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each task: the least of its rounds, which take turns."""
    out = dict.fromkeys(tasks, np.inf)
    for task in tasks.values():
        task()
    for _ in range(rounds):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            out[name] = min(out[name], time.perf_counter() - start)
    return out


def show(**cell: object) -> None:
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in cell.items()}))


def draws(S: float, n: int) -> None:
    rng, out, each = Streams(1).at("noise"), np.empty(n, dtype=np.int64), np.full(n, S)
    tasks = {
        "normal": lambda: rng.standard_normal(n),
        "rounded": lambda: rounded_normal(rng, S, n),
        "filled": lambda: rounded_normal(rng, S, out=out),
        "scales": lambda: rounded_normal(rng, each),
        "columns": lambda: rounded_normal(rng, each[:10], (n // 10, 10)),
    }
    seconds = best(tasks, max(5, min(300, 10**7 // n)))
    ratios = {name: seconds[name] / seconds["normal"] for name in ("filled", "scales", "columns")}
    ns = {f"{name}_ns": seconds[name] / n * 1e9 for name in ("normal", "rounded")}
    show(cell=f"S = {S:g}, n = {n:g}", ratio=seconds["rounded"] / seconds["normal"], **ratios, **ns)


def settled(S: float) -> None:
    """A word next to a threshold, about one standard deviation out: b − 1 or b."""
    b = max(1, round(S))
    V = int(math.erfc((b - 0.5) / (S * math.sqrt(2))) * 2**63) + 5000
    times = best({"settle": lambda: settle(V, S, b - 1, b, lambda: 0)}, 300)
    show(cell=f"settled, S = {S:g}", microseconds=times["settle"] * 1e6)


def main() -> None:
    parser(__doc__).parse_args()
    for n in SIZES:
        for S in SCALES:
            draws(S, n)
    for S in SCALES:
        settled(S)


if __name__ == "__main__":
    main()
