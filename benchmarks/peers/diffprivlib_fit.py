"""Fits of diffprivlib on a problem that ``untuned.py`` or ``timing.py`` has written: problem.npz → one JSON line a fit.

ε-DP (δ = 0): another guarantee than ours. It is given what we are given: bounds of every feature and the target, and a
row norm where public knowledge says more. Its linear regression takes no penalty.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression


def model(problem: dict[str, np.ndarray], epsilon: float, seed: int) -> LinearRegression | LogisticRegression:
    if problem["loss"] == "squared":
        bounds = (problem["low"], np.ones(len(problem["low"])))
        return LinearRegression(epsilon=epsilon, bounds_X=bounds, bounds_y=(-1, 1), random_state=seed)
    C = 1 / (len(problem["y"]) * float(problem["alpha"]))
    norm = float(problem["row_norm"])
    return LogisticRegression(epsilon=epsilon, data_norm=norm, C=C, max_iter=1000, random_state=seed)


def main(path: str, epsilons: str, seeds: str) -> None:
    warnings.simplefilter("ignore")
    with np.load(path) as held:
        problem = dict(held)
    X, y = problem["X"], problem["y"]
    for epsilon in map(float, epsilons.split(",")):
        for seed in range(int(seeds)):
            start, cpu = time.perf_counter(), time.process_time()
            fitted = model(problem, epsilon, seed).fit(X, y)
            wall, used = time.perf_counter() - start, time.process_time() - cpu
            w, b = np.ravel(fitted.coef_).tolist(), float(np.ravel(fitted.intercept_)[0])
            print(json.dumps({"epsilon": epsilon, "seed": seed, "w": w, "b": b, "seconds": wall, "cpu": used}))


if __name__ == "__main__":
    main(*sys.argv[1:])
