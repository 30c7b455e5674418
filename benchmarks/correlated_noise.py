"""How fast strategies are found and noise is drawn: seconds, values against the design's, ratios to plain noise."""

from __future__ import annotations

import json
import time

import numpy as np
from run import parser

from tacit.noise import (
    StreamingNoise,
    identity,
    noisecurve_workload,
    optimise,
    optimise_buffered,
    optimise_toeplitz,
    prefix_sum,
    square_root,
    toeplitz,
)

PREFIX = {500: 30.646650, 1000: 57.098662, 2000: 108.948531, 4000: 211.290656}  # mean errors with ten bands
CURVES = {"i^-1.3401": (89.3, 96.09), "log-uniform": (3570.0, 4392.0)}  # NoiseCurve at most, BandMF


def show(cell: str, **figures: object) -> None:
    print(json.dumps({"cell": cell, **figures}), flush=True)


def timed(f):
    start = time.process_time()
    return f(), time.process_time() - start


def prefix_sums() -> None:
    optimise(prefix_sum(50), 3)  # compile
    for steps, known in PREFIX.items():
        found, seconds = timed(lambda: optimise(prefix_sum(steps), 10))  # noqa: B023 - called at once
        show(
            f"prefix sums, b = 10, T = {steps}",
            cpu_seconds=seconds,
            mean_error=found.error,
            ratio_to_known=found.error / known,
            gap=found.gap,
            evaluations=found.evaluations,
        )
    for steps in (10_000, 100_000):
        workload, bands = prefix_sum(steps), square_root(steps, 20)
        workload.value_and_gradient(bands)
        _, seconds = timed(lambda: workload.value_and_gradient(bands))  # noqa: B023
        show(
            f"one value and gradient, b = 20, T = {steps}",
            cpu_seconds=seconds,
            microseconds_per_step=seconds / steps * 1e6,
        )


def other_strategies() -> None:
    T = 2000
    workload = prefix_sum(T)
    c, seconds = timed(lambda: optimise_toeplitz(workload, 10))
    value = workload.value(toeplitz(c, T, normalise=False))
    show("Toeplitz, b = 10, T = 2000", cpu_seconds=seconds, mean_error=value, ratio_to_banded=value / PREFIX[T])
    value = workload.value(square_root(T, 10))
    show("square root, b = 10, T = 2000", mean_error=value, ratio_to_banded=value / PREFIX[T])
    optimise_buffered(20, 4)
    C, seconds = timed(lambda: optimise_buffered(T, 4))
    show("4 buffers, T = 2000", cpu_seconds=seconds, mean_error=C.prefix_error(T) * C.sensitivity(T) ** 2)


def noise_curves() -> None:
    i = np.arange(1, 30_001.0)
    for name, mu in {"i^-1.3401": i**-1.3401417, "log-uniform": np.logspace(0, -6, 30_000)}.items():
        workload, compress = timed(lambda: noisecurve_workload(mu, 0.5, 2000))  # noqa: B023
        plain, first = timed(lambda: optimise(prefix_sum(2000), 10, tolerance=1e-4))
        found, seconds = timed(lambda: optimise(workload, 10, start=plain.strategy))  # noqa: B023
        value, banded = found.error, workload.value(plain.strategy.bands)
        show(
            f"NoiseCurve, {name}, p = 30000, T = 2000, b = 10",
            compress_seconds=compress,
            cpu_seconds=first + seconds,
            independent=workload.value(identity(2000)),
            banded=banded,
            value=value,
            ratio_to_limit=value / CURVES[name][0],
            ratio_to_banded=value / banded,
            gap=found.gap,
            largest_row_norm=float(found.strategy.inverse_row_norms().max()),
        )


def streaming() -> None:
    size = 10**6
    noise, rng = StreamingNoise(square_root(500, 10)), np.random.default_rng(0)
    state = noise.init(size, np.float32)
    plain_row = np.empty(size, np.float32)
    for _ in range(12):
        noise.next(state, rng)
    plain, correlated = [], []
    for _ in range(40):  # in turns: other programs slow both down
        start = time.perf_counter()
        rng.standard_normal(out=plain_row, dtype=np.float32)
        middle = time.perf_counter()
        noise.next(state, rng)
        plain.append(middle - start)
        correlated.append(time.perf_counter() - middle)
    show(
        "a row of correlated noise, b = 10, 10⁶ float32",
        seconds=min(correlated),
        ratio_to_plain_noise=min(correlated) / min(plain),
        median_ratio=float(np.median(correlated) / np.median(plain)),
    )


def long_run() -> None:
    T, b = 100_000, 20
    found, seconds = timed(lambda: optimise(prefix_sum(T), b, tolerance=1e-3, max_evaluations=400))
    show(f"prefix sums, b = {b}, T = {T}", cpu_seconds=seconds, mean_error=found.error, gap=found.gap)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--long", action="store_true", help="100 000 steps, too")
    options = arguments.parse_args()
    streaming()
    prefix_sums()
    other_strategies()
    noise_curves()
    if options.long:
        long_run()


if __name__ == "__main__":
    main()
