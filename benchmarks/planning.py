"""CPU seconds of a plan: the first time, and again; bands and noise of the plans. One process, BLAS as it comes.

``python benchmarks/planning.py``; lines are appended to ``results/planning.jsonl``.
"""

from __future__ import annotations

import sys
import time

from run import parser, record, table

from tacit.torch import TrainingPlan

CELLS = [(50_000, 450, 20, 1e-5, epsilon) for epsilon in (1.0, 2.0, 5.0, 8.0)]
CELLS += [(1_000_000, 4096, 10, 1e-7, epsilon) for epsilon in (2.0, 8.0)]


def cell(n: int, batch_size: int, epochs: int, delta: float, epsilon: float) -> dict[str, object]:
    seconds = []
    for _ in range(2):
        begun = time.process_time()
        plan = TrainingPlan(n, epsilon=epsilon, delta=delta, batch_size=batch_size, epochs=epochs)
        seconds.append(time.process_time() - begun)
    optimum = plan.noise.optimum
    return {
        "n": n,
        "batch": batch_size,
        "epochs": epochs,
        "epsilon": epsilon,
        "bands": plan.bands,
        "noise": plan.noise_multiplier,
        "gap": None if optimum is None else optimum.gap,
        "certified": plan.certificate.epsilon(delta),
        "cpu_first": round(seconds[0], 2),
        "cpu_again": round(seconds[1], 4),
    }


def main(arguments: list[str]) -> int:
    parser(__doc__).parse_args(arguments)
    TrainingPlan(1000, epsilon=3.0, delta=1e-4, batch_size=100, epochs=1)  # imports and compiled code
    found = [cell(*one) for one in CELLS]
    record("planning", found)
    table("planning", found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
