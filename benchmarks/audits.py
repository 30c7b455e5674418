"""How tight the audits are, through the code that users call: mean lower bound over the truth."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
from run import parser

from tacit.accounting import Certificate, certify
from tacit.audit import audit_gdp
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.run import Channel, GradientChain, VectorSum, run_chain

RUNS, REPEATS = 10_000, 20
Sampler = Callable[[int], np.ndarray]
Pair = tuple[Certificate, Sampler, Sampler]


def full_batch(ratio: float) -> Pair:
    mechanism = Mechanism(adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(ratio, 4), steps=4)
    certificate = certify(mechanism)

    def sampler(value: float) -> Sampler:
        total = VectorSum([[value], [0.0]], 1.0)

        def sample(k: int) -> np.ndarray:
            channel = Channel(certificate, 2, replicas=k)
            releases = [channel.release(total, np.zeros((k, 1))) for _ in range(4)]
            return np.asarray(np.sum(releases, axis=0)[:, 0])

        return sample

    return certificate, sampler(1.0), sampler(-1.0)


def chain(noise_multiplier: float) -> Pair:
    steps = GradientChain(Schedule.constant(0.5, 24), 0.3, 1, 2)
    totals = [VectorSum([[value], [0.0]], 1.0) for value in (1.0, -1.0)]
    certificate = certify(steps.mechanism(totals[0], noise_multiplier))

    def sampler(total: VectorSum) -> Sampler:
        return lambda k: run_chain(steps, total, certificate, np.zeros(1), replicas=k)[0][:, 0]

    return certificate, sampler(totals[0]), sampler(totals[1])


def main() -> None:
    parser(__doc__).parse_args()
    cells = {"full batch, 4 releases": full_batch(0.713), "last iterate of a chain that attains its bound": chain(2.2)}
    for name, (certificate, here, there) in cells.items():
        assert certificate.mu is not None
        start = time.perf_counter()
        found = [audit_gdp(here, there, RUNS) for _ in range(REPEATS)]
        lower = float(np.mean([audit.mu_lower for audit in found]))
        print(
            json.dumps(
                {
                    "cell": name,
                    "runs_a_side": RUNS,
                    "repeats": REPEATS,
                    "mu_certified": certificate.mu,
                    "mu_lower_mean": lower,
                    "ratio": lower / certificate.mu,
                    "epsilon_certified": certificate.epsilon(1e-5),
                    "epsilon_lower_mean": float(np.mean([audit.epsilon_lower(1e-5) for audit in found])),
                    "above_the_certificate": sum(audit.mu_lower > certificate.mu for audit in found),
                    "seconds_each": (time.perf_counter() - start) / REPEATS,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
