"""Does the noise that is drawn do what Theorem 4.1 of NoiseCurve says? Gradient descent on quadratics, 2000 runs each.

The loss is ½Σμ_i w_i², every gradient gets σ × a row of C⁻¹Z from ``StreamingNoise``. The excess loss of the last
iterate over noise-free descent has mean ½η²σ²·Tr(X⁻¹VᵀMV). Same σ and unit columns for each strategy, so all have the
same privacy under one participation: independent noise must lose to BandMF, and BandMF to NoiseCurve.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from run import parser

from tacit.noise import (
    Strategy,
    StreamingNoise,
    identity,
    noisecurve_workload,
    optimise,
    prefix_sum,
)

STEPS, BANDS, RUNS, STEP_SIZE, SIGMA = 300, 10, 2000, 0.5, 0.1
SPECTRA = {"log-uniform": np.logspace(0, -4, 50), "i^-1.34": np.arange(1, 51.0) ** -1.34}


def excess_losses(mu: np.ndarray, strategy: Strategy, rng: np.random.Generator) -> np.ndarray:
    """One number per run: the last iterate's loss minus that of noise-free descent from the same start."""
    noise = StreamingNoise(strategy)
    state = noise.init(RUNS * len(mu))
    plain = np.ones(len(mu))
    w = np.ones((RUNS, len(mu)))
    for _ in range(STEPS):
        row = noise.next(state, rng).reshape(RUNS, -1)
        w -= STEP_SIZE * (mu * w + SIGMA * row)
        plain -= STEP_SIZE * mu * plain
    return 0.5 * (mu * (w * w - plain * plain)).sum(axis=1)


def main() -> int:
    parser(__doc__).parse_args()
    right = True
    banded = optimise(prefix_sum(STEPS), BANDS).strategy
    for name, mu in SPECTRA.items():
        workload = noisecurve_workload(mu, STEP_SIZE, STEPS)
        strategies = {
            "C = I": Strategy(identity(STEPS)),
            "BandMF": banded,
            "NoiseCurve": optimise(workload, BANDS, start=banded).strategy,
        }
        last = np.inf
        for seed, (kind, strategy) in enumerate(strategies.items()):
            start = time.process_time()
            found = excess_losses(mu, strategy, np.random.default_rng(seed))
            theory = 0.5 * STEP_SIZE**2 * SIGMA**2 * workload.value(strategy.bands)
            mean, error = float(found.mean()), float(found.std(ddof=1)) / RUNS**0.5
            right &= mean < last and abs(mean - theory) < 4 * error
            last = mean
            cell = {"cell": f"{name}, p = {len(mu)}, T = {STEPS}, b = {strategy.n_bands}: {kind}"}
            figures = {"excess": mean, "theory": theory, "ratio": mean / theory, "standard_error": error / theory}
            print(json.dumps({**cell, **figures, "runs": RUNS, "cpu_seconds": time.process_time() - start}), flush=True)
    if not right:
        print("quadratic: a mean is off its theory, or the strategies are not in order", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
