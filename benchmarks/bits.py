"""Bits of releases: the share that is impossible on a neighbour, in floating point and in exact arithmetic.

1,024 people answer yes (1) or no (−1), as many of each; on the neighbour one of them answers otherwise. The sum is
released through a session, 20,000 times on each side for each ε (δ = 10⁻⁶). A release is impossible if no noise value
leads to it from the neighbour's sum (``tacit.audit.reaches``). Draws docs/figures/bits.png if asked:
``python benchmarks/bits.py --plot``.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
from run import parser

from tacit.accounting import certify, gdp_mu
from tacit.audit import reaches
from tacit.mechanism import Mechanism
from tacit.records import InMemory
from tacit.release import open_session
from tacit.release.queries import VectorSum

RUNS, REPLICAS, DELTA = 20_000, 500, 1e-6
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
HERE = np.where(np.arange(1024) % 2 == 0, 1.0, -1.0)[:, None]
THERE = np.concatenate([[[-1.0]], HERE[1:]])
SUMS = 0.0, -2.0
TOTAL = VectorSum(1.0)


def releases(X: np.ndarray, epsilon: float, arithmetic: str) -> tuple[np.ndarray, float]:
    """Sums with noise, each of them (ε, δ)-DP, and σ."""
    steps = RUNS // REPLICAS
    m = Mechanism(adjacency="replace-one", ratio=gdp_mu(epsilon, DELTA), steps=steps, arithmetic=arithmetic)
    with open_session(certify(m), InMemory(X), replicas=REPLICAS, random_state=0) as session:
        sigma = session.noise_std(TOTAL)
        return np.concatenate([session.release(TOTAL, np.zeros((REPLICAS, 1)))[:, 0] for _ in range(steps)]), sigma


def last_bit(x: np.ndarray) -> np.ndarray:
    """The e with x = odd·2^e."""
    mantissa, exponent = np.frexp(x)
    whole = (mantissa * 2.0**53).astype(np.int64)
    return exponent - 53 + np.log2((whole & -whole).astype(float)).astype(int)


def cell(epsilon: float) -> dict[str, float]:
    out: dict[str, float] = {"epsilon": epsilon}
    for arithmetic in ("float", "exact"):
        x, sigma = releases(HERE, epsilon, arithmetic)
        out[arithmetic] = float((~reaches(x, SUMS[1])).mean())
        if arithmetic == "float":
            out["float, noise known to be fl(σz)"] = float((~reaches(x, SUMS[1], sigma)).mean())
    return out


def draw(cells: list[dict[str, float]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axes, arithmetic, words in ((left, "float", "floating point"), (middle, "exact", "exact")):
        sides = [releases(X, 1.0, arithmetic)[0] for X in (HERE, THERE)]
        fine = [last_bit(x[np.abs(x) < 2]) for x in sides]
        bins = np.arange(min(map(np.min, fine)), min(map(np.min, fine)) + 15)
        for k, (bits, label, colour) in enumerate(zip(fine, ("D", "D′"), ("tab:blue", "tab:orange"), strict=True)):
            shares = [np.mean(bits == e) for e in bins]
            axes.bar(bins + 0.4 * (k - 0.5), shares, 0.4, label=label, color=colour)
        axes.set_title(f"{words}, ε = 1: releases below 2")
        axes.set(xlabel="exponent of the last bit", xticks=bins[::3])
        axes.set_ylabel("share of them")
        axes.legend()
    epsilon = [one["epsilon"] for one in cells]
    right.plot(epsilon, [100 * one["float, noise known to be fl(σz)"] for one in cells], "--", label="float, fl(σz)")
    right.plot(epsilon, [100 * one["float"] for one in cells], "o-", label="float")
    right.plot(epsilon, [100 * one["exact"] for one in cells], "s-", label="exact")
    right.set(xscale="log", xlabel="ε", ylabel="% of releases", title="impossible on the neighbour")
    right.legend()
    figure.savefig(pathlib.Path(__file__).parent.parent / "docs" / "figures" / "bits.png", dpi=110)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--plot", action="store_true", help="draw docs/figures/bits.png")
    plot = options.parse_args().plot
    cells = [cell(epsilon) for epsilon in EPSILONS]
    for one in cells:
        print(json.dumps(one, ensure_ascii=False), flush=True)
    if plot:
        draw(cells)


if __name__ == "__main__":
    main()
