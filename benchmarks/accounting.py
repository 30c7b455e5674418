"""How fast the accountants are: seconds, and ratios to a plain pass over the same arrays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
from run import parser

from tacit.accounting import (
    banded_noise_multiplier,
    gdp_epsilon,
    last_iterate_mu,
    noisy_cyclic_mu,
    poisson_epsilon,
    selection_epsilon,
)


def best(f: Callable[[], object], repeats: int = 3) -> float:
    """Fastest of a few calls, after one to compile and to fill caches of code (not of results)."""
    f()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def show(cell: str, seconds: float, **more: object) -> None:
    print(json.dumps({"cell": cell, "seconds": seconds, **more}), flush=True)


def main() -> None:
    parser(__doc__).parse_args()
    for t in (10**6, 10**7):
        c, d, s = np.full(t, 0.9999), np.ones(t), np.ones(t)
        plain = best(lambda: np.cumsum(c * c * s * s))  # noqa: B023 - called at once
        for name, call in {
            "last iterate": lambda: last_iterate_mu(c, d, s),  # noqa: B023
            "last iterate, bounded domain": lambda: last_iterate_mu(c, d, s, diameter=10.0),  # noqa: B023
            "all cyclic positions, 1000 batches": lambda: noisy_cyclic_mu(1000, t // 1000, 0.9999, 1.0),  # noqa: B023
        }.items():
            seconds = best(call)
            show(f"{name}, t = {t:.0e}", seconds, ratio_to_a_numpy_pass=seconds / plain)
    show("gdp_epsilon, 10⁴ values at once", best(lambda: gdp_epsilon(np.linspace(0.1, 5, 10_000), 1e-5)))
    noise = iter(np.linspace(4.9, 5.1, 50))  # another value each time: results are cached
    show(
        "Poisson ε with its lower value, 24000 steps",
        best(lambda: poisson_epsilon(float(next(noise)), 1 / 60, 24_000, 1e-5, adjacency="replace-one")),
    )
    show("selection, refined", best(lambda: selection_epsilon(0.3473, 20, 1e-5)))
    start = time.perf_counter()
    value = banded_noise_multiplier(2.0, 1e-5, n=50_000, batch_size=450, steps=2223, bands=10, adjacency="zero-out")
    show("calibrate banded noise", time.perf_counter() - start, noise_multiplier=value)


if __name__ == "__main__":
    main()
