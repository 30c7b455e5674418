"""DP-SkGD: the error over block sizes τ and ways to draw blocks, at equal privacy; our steps and the published.

Least squares on synthetic designs, n = 10000, p = 20, ε = 1, δ = 1/n², replace-one; the same number of passes for all,
so T = passes·p/τ releases; clips by the solver's default rule; M_j given; nothing is tuned. *ours*: steps 1/v_j of an
expected separable over-approximation; *published*: Γ = P M⁻¹, i.e. steps 1/M_j on the drawn block whatever its size.
"diverged": the median run ends worse than w = 0 (clipped gradients cannot grow without bound, so runs do not overflow).

The last cells compare the ends of the family: τ = 1 is DP-CD, τ = p is noisy gradient descent on all coordinates (the
paper's reading of DP-SGD). p-values of two-sample Kolmogorov–Smirnov tests over 1000 runs, and the largest difference
of the coefficients with next to no noise. Draws docs/figures/sketches.png if asked: ``python benchmarks/sketches.py
--plot``.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from dataclasses import dataclass

import numpy as np
from run import parser
from scipy import stats

from tacit.accounting import certify
from tacit.problem import ElasticNet, Facts, Problem, Squared
from tacit.records import InMemory
from tacit.release import open_session
from tacit.solvers import Budget, CoordinateDescent, NoisyGradientDescent, Solver
from tacit.solvers.coordinate import overapproximation

N, P, PASSES, SEEDS = 10_000, 20, 20, 15
TAUS = (1, 2, 5, 10, 20)
BLOCKS = ("nice", "independent", "partition")
BUDGET = Budget(1.0, 1 / N**2)


@dataclass(frozen=True, eq=False)
class Case:
    """A design with its target, and its minimum."""

    task: Problem
    X: np.ndarray
    y: np.ndarray
    minimum: float

    @property
    def M(self) -> np.ndarray:
        """Coordinate-wise smoothness."""
        return (self.X * self.X).mean(axis=0)

    def error(self, w: np.ndarray) -> float:
        """Relative to the minimum."""
        return float(self.task.loss.value(self.X @ w, self.y).mean()) / self.minimum - 1


def designs(rng: np.random.Generator) -> dict[str, np.ndarray]:
    e, f = rng.normal(size=(N, P)), rng.normal(size=(N, 1))
    return {
        "imbalanced": e * np.logspace(-1.5, 1.5, P),
        "0.95-correlated": np.sqrt(0.95) * f + np.sqrt(0.05) * e,
        "five times four duplicates": np.repeat(e[:, :5], 4, axis=1),
    }


def problem(X: np.ndarray, rng: np.random.Generator) -> Case:
    y = X @ (rng.normal(size=P) / X.std(axis=0)) / np.sqrt(P)
    y = (y + 0.5 * y.std() * rng.normal(size=N)) / y.std()
    reach = 2 * np.abs(X).max(axis=0)
    task = Problem(Squared(), ElasticNet.of(P), Facts(N, -reach, reach, 3.0), intercept=False)
    return Case(task, X, y, float(task.loss.value(X @ np.linalg.lstsq(X, y)[0], y).mean()))


def run(p: Case, solver: Solver, seeds: range, budget: Budget = BUDGET) -> np.ndarray:
    """Coefficients, a row per run."""
    solver.check(p.task, budget)
    certificate, records, out = certify(solver.plan(p.task, budget), delta=budget.delta), InMemory(p.X, p.y), []
    for seed in seeds:
        with open_session(certificate, records, random_state=seed) as session:
            out.append(solver.solve(p.task, budget, session).v)
    return np.array(out)


def cell(p: Case, name: str, sampling: str, tau: int) -> dict[str, object]:
    factor = overapproximation(sampling, tau, P, P)
    errors = {}
    for label, step in (("ours", 1.0), ("published", factor)):
        solver = CoordinateDescent(sampling, tau, passes=PASSES, step=step, smoothness=p.M)
        errors[label] = float(np.median([p.error(w) for w in run(p, solver, range(SEEDS))]))
    zero = p.error(np.zeros(P))
    return {
        "cell": f"{name}, {sampling}, τ = {tau}",
        "releases": CoordinateDescent(sampling, tau, passes=PASSES).updates(p.task, BUDGET),
        "factor": factor,
        **errors,
        "at_zero": zero,
        "ours_diverged": bool(not errors["ours"] <= zero),
        "published_diverged": bool(not errors["published"] <= zero),
    }


def ends(p: Case) -> list[dict[str, object]]:
    """Members of the family that must have one law."""
    full = CoordinateDescent("full", passes=4, clip=20.0, smoothness="public")
    public = p.task.facts.reach**2
    gradient = NoisyGradientDescent(steps=4, clip=float(20.0 * np.sqrt(P / public.sum())))
    pairs = {
        "nice, τ = 1 and uniform (DP-CD)": (
            CoordinateDescent("nice", 1, passes=4, smoothness=p.M),
            CoordinateDescent("uniform", passes=4, smoothness=p.M),
        ),
        "nice, τ = p and full": (CoordinateDescent("nice", P, passes=4, clip=20.0, smoothness="public"), full),
        "partition, τ = p and full": (
            CoordinateDescent("partition", P, passes=4, clip=20.0, smoothness="public"),
            full,
        ),
        "independent, τ = p and full": (
            CoordinateDescent("independent", P, passes=4, clip=20.0, smoothness="public"),
            full,
        ),
        "full and noisy gradient descent": (full, gradient),
    }
    out: list[dict[str, object]] = []
    for i, (name, (a, b)) in enumerate(pairs.items()):
        one, two = (run(p, solver, range(k * 1000, (k + 1) * 1000)) for k, solver in ((2 * i, a), (2 * i + 1, b)))
        direction = np.sqrt(p.M)
        found: dict[str, object] = {
            "cell": name,
            "ks_p_value": float(stats.ks_2samp(one @ direction, two @ direction)[1]),
        }
        if "uniform" not in name:
            silent = Budget(1e12, 1e-8)
            found["difference_without_noise"] = float(
                np.abs((run(p, a, range(1), silent) - run(p, b, range(1), silent)) * direction).max()
            )
        out.append(found)
    return out


def draw(cells: list[dict[str, object]], names: list[str]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(names), figsize=(11, 3.4), sharey=True, layout="constrained")
    by = {str(c["cell"]): c for c in cells}
    for ax, name in zip(axes, names, strict=True):
        for color, sampling in zip(("C0", "C1", "C2"), BLOCKS, strict=True):
            found = [by[f"{name}, {sampling}, τ = {tau}"] for tau in TAUS]
            ax.loglog(TAUS, [c["ours"] for c in found], "o-", color=color, label=f"{sampling}, ours")
            ax.loglog(TAUS, [c["published"] for c in found], "x--", color=color, label=f"{sampling}, published step")
        ax.axhline(float(str(found[0]["at_zero"])), color="0.6", lw=1)
        ax.set(title=name, xlabel="block size τ")
    axes[0].set_ylabel("relative error")
    axes[0].text(1, float(str(found[0]["at_zero"])) * 1.1, "w = 0", color="0.4", fontsize=8)
    axes[-1].legend(fontsize=7)
    folder = pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures"
    figure.savefig(folder / "sketches.png", dpi=150)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--plot", action="store_true", help="draw docs/figures/sketches.png")
    options = arguments.parse_args()
    rng = np.random.default_rng(0)
    problems = {name: problem(X, rng) for name, X in designs(rng).items()}
    cells = []
    for name, p in problems.items():
        singles = [("uniform", 1), ("importance", 1), ("full", P)]
        for sampling, tau in [*singles, *itertools.product(BLOCKS, TAUS)]:
            cells.append(cell(p, name, sampling, tau))
            print(json.dumps(cells[-1]), flush=True)
    for line in ends(problems["0.95-correlated"]):
        print(json.dumps(line), flush=True)
    if options.plot:
        draw(cells, list(problems))
    return int(any(c["ours_diverged"] for c in cells))


if __name__ == "__main__":
    sys.exit(main())
