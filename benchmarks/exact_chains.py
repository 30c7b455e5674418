"""Hidden chains in exact arithmetic against floating point: what rounding costs in μ, and what a fit costs in time.

``mu_ratio`` is μ on the lattice over μ of reals, for logistic regression on d standardised features and 20·d records
(at least 6,000); the goal is below 1.002. ``time_ratio`` is CPU time of a fit over that of the same fit in floating
point; the goal is 1.3. Run with OMP_NUM_THREADS=1 on an idle machine.
"""

from __future__ import annotations

import json
import time

import numpy as np
from run import parser

from tacit.accounting import certify
from tacit.mechanism import Schedule
from tacit.problem import ElasticNet, Logistic, Softmax
from tacit.records import InMemory
from tacit.release import GradientChain, Query, open_session
from tacit.release.queries import LinearOutputs, LossGradient
from tacit.solvers.schedules import decaying

NOISE, ROUNDS = 5.0, 5
PRICES = [(d, T, k) for d in (10, 1000, 20_000) for T, k in ((100, 1), (100, 10), (6000, 60))]
FITS = {  # name: (records, features, classes, batches, epochs)
    "logistic, 10 features": (5000, 10, 1, 16, 50),
    "logistic, 50 features": (20_000, 50, 1, 16, 50),
    "logistic, 500 features": (20_000, 500, 1, 16, 20),
    "softmax, 785 features": (20_000, 785, 10, 100, 3),
}


def price(d: int, T: int, k: int, decay: bool) -> dict[str, object]:
    R = 1.5 * d**0.5
    query = LossGradient(Logistic(), R, R)
    eta = 1.5 / query.smoothness * (decaying(T) if decay else np.ones(T))
    chain = GradientChain(Schedule(eta), 0.0, k, max(20 * d, 6000))
    plain = certify(chain.mechanism(query, NOISE)).mu
    mechanism = chain.mechanism(query, NOISE, arithmetic="exact", size=d)
    rounding, read = mechanism.view.rounding, f"{k} batches" if k > 1 else "all records"
    return {
        "cell": f"d = {d}, T = {T}, {read}, {'decaying' if decay else 'constant'} steps",
        "mu": plain,
        "mu_ratio": certify(mechanism).mu / plain,
        "largest_prediction": rounding.radius * R,
        "noise_over_unit": mechanism.view.noise_std.max / rounding.unit,
    }


def seconds(chain: GradientChain, query: Query, size: int, X: np.ndarray, y: np.ndarray, arithmetic: str) -> float:
    certificate = certify(chain.mechanism(query, NOISE, arithmetic=arithmetic, size=size))
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        with open_session(certificate, InMemory(X, y)) as session:
            session.run_chain(chain, query, np.zeros(size))
        found.append(time.process_time() - start)
    return float(np.median(found))


def fit(name: str) -> dict[str, object]:
    n, p, K, k, epochs = FITS[name]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p))
    R = 1.5 * p**0.5
    query = LossGradient(Logistic(), R, R) if K == 1 else LinearOutputs(Softmax(K), R)
    y = rng.choice([-1.0, 1.0], n) if K == 1 else rng.integers(K, size=n)
    penalty = ElasticNet.of(p * K, l1=1e-4)
    chain = GradientChain(Schedule.constant(1.5 / query.smoothness, k * epochs), 0.0, k, n, penalty=penalty)
    plain, exact = (seconds(chain, query, p * K, X, y, word) for word in ("float", "exact"))
    return {"cell": name, "float_s": plain, "exact_s": exact, "time_ratio": exact / plain}


def main() -> None:
    parser(__doc__).parse_args()
    for setting in PRICES:
        for decay in (False, True):
            print(json.dumps(price(*setting, decay)))
    for name in FITS:
        print(json.dumps(fit(name)))


if __name__ == "__main__":
    main()
