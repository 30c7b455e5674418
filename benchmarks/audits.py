"""How tight the audits are, through the code that users call: mean lower bound over the truth."""

from __future__ import annotations

import json
import time

import numpy as np
from run import parser

from tacit.accounting import certify
from tacit.audit import audit_gdp
from tacit.mechanism import Mechanism, Schedule
from tacit.records import InMemory
from tacit.release import GradientChain, open_session
from tacit.release.queries import VectorSum

RUNS, REPEATS = 10_000, 20
TOTAL = VectorSum(1.0)


def full_batch(ratio: float):
    mechanism = Mechanism(adjacency="replace-one", ratio=ratio, steps=4)
    certificate = certify(mechanism)

    def sampler(value: float):
        records = InMemory(np.array([[value], [0.0]]))

        def sample(k: int) -> np.ndarray:
            with open_session(certificate, records, replicas=k) as session:
                return sum(session.release(TOTAL, np.zeros((k, 1))) for _ in range(4))[:, 0]

        return sample

    return certificate, sampler(1.0), sampler(-1.0)


def chain(noise_multiplier: float):
    steps = GradientChain(Schedule.constant(0.5, 24), 0.3, 1, 2)
    certificate = certify(steps.mechanism(TOTAL, noise_multiplier))

    def sampler(value: float):
        records = InMemory(np.array([[value], [0.0]]))

        def sample(k: int) -> np.ndarray:
            with open_session(certificate, records, replicas=k) as session:
                return session.run_chain(steps, TOTAL, np.zeros((k, 1)))[:, 0]

        return sample

    return certificate, sampler(1.0), sampler(-1.0)


def main() -> None:
    parser(__doc__).parse_args()
    cells = {"full batch, 4 releases": full_batch(0.713), "last iterate of a chain that attains its bound": chain(2.2)}
    for name, (certificate, here, there) in cells.items():
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
