"""DP-CD beyond its Table 2: shuffled coordinates, greedy ones, and baselines, with the true ε beside each figure.

    cd benchmarks
    TACIT_DATA_DIR=... python -m papers.dp_cd shuffled    # 15 minutes
    TACIT_DATA_DIR=... python -m papers.dp_cd greedy      # 4 minutes
    TACIT_DATA_DIR=... python -m papers.dp_cd crossover   # 3 minutes
    TACIT_DATA_DIR=... python -m papers.dp_cd words       # 1 minute
    python -m papers.dp_cd --plot

**shuffled**: the problems of Table 2 with M_j given as there, every number of passes: uniform draws against shuffled
ones, both by the default rules ("rule") and with clip and step tuned alike, unpaid as in the paper, on seeds of their
own and on a coarse grid ("tuned"). Relative errors of 20 fresh runs, and the standard error of each mean. On Sparse
LASSO the default rules diverge under either order: a pass is a thousand releases there.

**greedy**: problems with ℓ1 penalties. All settings by the rules of the solvers, none tuned: greedy descent with M_j
given and with everything paid for, shuffled coordinates, metric descent, and what ``solver="auto"`` picks. Sparse LASSO
as in Table 2; "wide" is n = 10,000, p = 1,000, ten coefficients ±1, noise of variance 1, λ = .2; Madelon is
standardised, logistic loss, λ = .04.

**crossover**: greedy and metric descent, both untuned, over x = nμ/p: a9a (λ = 10⁻³, most coefficients count) and 4,000
records of 200 features, ten of which count.

**words**: newsgroups comp.* against the rest, 44,077 words. A row holds 1/√m for each of its m distinct words, a public
map of one record; accuracy on a fifth of the records (split by a public seed), everything paid for, intercept included.

Cells are appended to ``results/dp_cd.jsonl``. The exit status is 1 if a target of the issue is missed.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from coordinate import PUBLISHED, Case, Setting, california, electricity, grid, problem, sparse_lasso, standard
from data import folder
from run import HERE, parser, record, recorded, table
from scipy import sparse
from sklearn.linear_model import Lasso, LogisticRegression

from tacit.accounting import certify
from tacit.estimators import DPGeneralizedLinear
from tacit.problem import ElasticNet, Facts, Logistic, Problem
from tacit.release import open_session
from tacit.solvers import Budget, CoordinateDescent, GreedyDescent, MetricDescent, Solver
from tacit.solvers.base import LARGEST_GRAM, choose

Cell = dict[str, object]
PASSES = (1, 2, 5, 10, 20)
FEW = 5
"""Passes up to which shuffled coordinates must not be worse."""
FRESH = range(1000, 1020)
TARGETS = {("Sparse LASSO", 10.0): 0.02, ("Madelon", 1.0): 0.005}
WORDS = {10.0: 0.84, 1.0: 0.79}


# -- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Runs:
    """Errors of several runs, and what each promises."""

    errors: np.ndarray
    epsilon: float
    seconds: float

    def cell(self) -> Cell:
        """Mean, standard error, the certified ε, CPU seconds a run."""
        error = float(self.errors.std(ddof=1) / np.sqrt(len(self.errors)))
        return {
            "error": float(f"{self.errors.mean():.4g}"),
            "se": float(f"{error:.2g}"),
            "runs": len(self.errors),
            "epsilon": round(self.epsilon, 9),
            "seconds": round(self.seconds / len(self.errors), 3),
        }


def runs(p: Case, solver: Solver, seeds: range, least: float, budget: Budget | None = None) -> Runs:
    """Relative errors of a solver under its own certificate."""
    budget = budget or p.budget
    certificate = certify(solver.plan(p.task, budget), delta=budget.delta)
    start, out = time.process_time(), []
    for seed in seeds:
        with open_session(certificate, p.records, random_state=seed) as session:
            out.append(p.objective(solver.solve(p.task, budget, session).v) / least - 1)
    return Runs(np.array(out), certificate.epsilon(budget.delta), time.process_time() - start)


def show(cell: Cell) -> Cell:
    print(cell, flush=True)
    record("dp_cd", [cell])
    return cell


def number(cell: Cell, name: str) -> float:
    return float(str(cell[name]))


# -- shuffled --------------------------------------------------------------------------------------------------------


def tuned(p: Case, sampling: str, passes: int) -> Setting:
    """The best clip and step of a coarse grid, by the mean error of 4 runs: not accounted for."""
    errors = []
    settings = grid(p, "given", 10, 5)
    for s in settings:
        solver = CoordinateDescent(sampling, passes=passes, clip=s.clip, step=s.step, smoothness=p.M)
        errors.append(np.nan_to_num(runs(p, solver, range(4), p.minimum).errors.mean(), nan=np.inf))
    return settings[int(np.argmin(errors))]


def shuffled(data: pathlib.Path) -> bool:
    """Whether shuffled coordinates, tuned as uniform ones are, are nowhere worse at few passes."""
    made: list[Callable[[], Case]] = [
        *(functools.partial(california, balanced, data) for balanced in (True, False)),
        *(functools.partial(electricity, balanced, data) for balanced in (True, False)),
        sparse_lasso,
    ]
    rows, good = [], True
    for make in made:
        p = make()
        for passes in PASSES:
            for by in ("rule", "tuned"):
                found: dict[str, Cell] = {}
                for sampling in ("uniform", "shuffled"):
                    s = tuned(p, sampling, passes) if by == "tuned" else None
                    clip, step = (None, 1.0) if s is None else (s.clip, s.step)
                    solver = CoordinateDescent(sampling, passes=passes, smoothness=p.M, clip=clip, step=step)
                    more: Cell = {} if s is None else {"clip": clip, "step": step}
                    cell = {"part": "shuffled", "problem": p.name, "passes": passes, "by": by, "sampling": sampling}
                    found[sampling] = show({**cell, **runs(p, solver, FRESH, p.minimum).cell(), **more})
                a, b = found["shuffled"], found["uniform"]
                good &= passes > FEW or by == "rule" or number(a, "error") <= number(b, "error")
                errors = {name: c["error"] for name, c in found.items()}
                rows.append({"problem": p.name, "passes": passes, "by": by, **errors})
    table("DP-CD, uniform and shuffled coordinates", rows)
    return good


# -- greedy ----------------------------------------------------------------------------------------------------------


def wide(epsilon: float, n: int = 10_000, p: int = 1000) -> Case:
    rng = np.random.default_rng(1)
    X, w = rng.normal(size=(n, p)), np.zeros(p)
    w[rng.choice(p, 10, replace=False)] = rng.choice([-1.0, 1.0], 10)
    return problem("wide", X, X @ w + rng.normal(size=n), ElasticNet.of(p, l1=0.2), epsilon=epsilon)


def madelon(epsilon: float, data: pathlib.Path) -> Case:
    with np.load(data / "madelon.npz", allow_pickle=False) as z:
        X = np.concatenate([z["X_train"], z["X_valid"]]).astype(np.float64)
        y = np.where(np.concatenate([z["y_train"], z["y_valid"]]) > 0, 1.0, -1.0)
    return problem("Madelon", standard(X), y, ElasticNet.of(X.shape[1], l1=0.04), labels=True, epsilon=epsilon)


def least(p: Case) -> float:
    """The minimum without privacy."""
    penalty = p.task.penalty
    assert isinstance(penalty, ElasticNet)
    l1 = float(penalty.l1[0])
    if p.task.loss.labels:
        settings = {"penalty": "l1", "solver": "liblinear", "fit_intercept": False, "tol": 1e-8, "max_iter": 10**4}
        return float(p.objective(LogisticRegression(C=1 / (p.n * l1), **settings).fit(p.X, p.y).coef_[0]))
    return float(p.objective(Lasso(l1, fit_intercept=False, tol=1e-10, max_iter=10**6).fit(p.X, p.y).coef_))


def greedy(data: pathlib.Path) -> bool:
    """Whether the targets of the issue are met, with M_j given."""
    cases = [sparse_lasso(), wide(1.0), madelon(10.0, data), madelon(1.0, data)]
    rows, good = [], True
    for p in cases:
        best, size = least(p), p.task.facts.size
        solvers: dict[str, Solver] = {
            "greedy, M given": GreedyDescent(smoothness=p.M),
            "greedy": GreedyDescent(),
            "greedy, optimal composition": GreedyDescent(composition="optimal"),
            "shuffled, M given, 1 pass": CoordinateDescent(passes=1, smoothness=p.M),
        }
        if size <= LARGEST_GRAM:
            solvers["metric"] = MetricDescent()
        x = p.n * p.budget.mu / size
        head = {"part": "greedy", "problem": p.name, "target_epsilon": p.epsilon, "x": round(x, 2)}
        for name, solver in solvers.items():
            found = runs(p, solver, FRESH if name != "metric" else range(1000, 1005), best).cell()
            cell = show({**head, "method": name, **found, "at_zero": p.objective(np.zeros(size)) / best - 1})
            rows.append({"problem": p.name, "ε": p.epsilon, "method": name, "error": cell["error"], "se": cell["se"]})
            if name.startswith("greedy"):
                good &= number(cell, "error") <= TARGETS.get((p.name, p.epsilon), np.inf)
        good &= choose(p.task, p.budget) is GreedyDescent
    table("ℓ1 problems", rows)
    return good


# -- crossover -------------------------------------------------------------------------------------------------------


def a9a(epsilon: float, data: pathlib.Path, l1: float = 1e-3) -> Case:
    """With an intercept in front, which is free."""
    with np.load(data / "a9a.npz", allow_pickle=False) as z:
        starts, indices, size = z["indptr_train"], z["indices_train"].astype(np.int32), int(z["n_features"])
        y = np.where(z["y_train"] > 0, 1.0, -1.0)
    X = sparse.csr_array((np.ones(len(indices)), indices, starts), shape=(len(y), size)).toarray()
    facts = Facts(len(y), np.append(1.0, np.zeros(size)), np.ones(size + 1))
    task = Problem(Logistic(), ElasticNet.of(size, l1=l1).with_free_intercept(), facts, intercept=True)
    return Case("a9a", task, np.hstack([np.ones((len(y), 1)), X]), y, epsilon, ())


def least_a9a(p: Case, l1: float = 1e-3) -> float:
    settings = {"penalty": "l1", "solver": "liblinear", "intercept_scaling": 100.0, "tol": 1e-6, "max_iter": 500}
    fit = LogisticRegression(C=1 / (p.n * l1), **settings).fit(p.X[:, 1:], p.y)
    return float(p.objective(np.append(fit.intercept_, fit.coef_)))


def crossover(data: pathlib.Path) -> bool:
    """Where metric descent overtakes: what the rule of ``auto`` rests on; there is no target."""
    rows, first = [], a9a(1.0, data)
    cases = [(a9a(epsilon, data), least_a9a(first)) for epsilon in (0.03, 0.1, 0.3, 1.0)]
    cases += [(p, least(p)) for p in (wide(epsilon, 4000, 200) for epsilon in (3.0, 10.0, 30.0))]
    for p, best in cases:
        x = round(p.n * p.budget.mu / p.task.facts.size, 2)
        for name, solver in {"greedy": GreedyDescent(), "metric": MetricDescent()}.items():
            cell: Cell = {"part": "crossover", "problem": p.name, "target_epsilon": p.epsilon, "x": x, "method": name}
            rows.append(show({**cell, **runs(p, solver, range(1000, 1006), best).cell()}))
    table("greedy and metric descent", rows)
    return True


# -- words -----------------------------------------------------------------------------------------------------------


def newsgroups(data: pathlib.Path) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """Rows of unit norm, whether their group is comp.*, and which are held out."""
    with np.load(data / "newsgroups20_counts.npz", allow_pickle=False) as z:
        size, starts = int(z["n_features"]), z["indptr"].astype(np.int64)
        indices, comp = z["indices"].astype(np.int32), np.char.startswith(z["group_names"], "comp.")[z["group"]]
    entries = np.repeat(1 / np.sqrt(np.maximum(np.diff(starts), 1)), np.diff(starts))
    X = sparse.csr_array((entries, indices, starts), shape=(len(starts) - 1, size))
    held = np.zeros(len(comp), bool)
    held[np.random.default_rng(0).permutation(len(comp))[: len(comp) // 5]] = True
    return X, comp.astype(int), held


def words(data: pathlib.Path) -> bool:
    """Whether accuracies reach what the issue's sketch had, less two points."""
    X, y, held = newsgroups(data)
    train, rows, good = sparse.csc_array(X[~held]), [], True
    plain = LogisticRegression(C=10.0, max_iter=1000).fit(X[~held], y[~held]).score(X[held], y[held])
    show({"part": "words", "method": "without privacy", "accuracy": round(plain, 4)})
    show({"part": "words", "method": "majority", "accuracy": round(float(1 - y[held].mean()), 4)})
    for epsilon in WORDS:
        for name, solver in {"auto": "auto", "shuffled coordinates": "coordinate"}.items():
            accuracy, start = [], time.process_time()
            for seed in range(5 if name == "auto" else 3):
                settings = {"penalty": "l1", "alpha": 1e-4, "feature_bounds": (0, 1), "classes": [0, 1]}
                model = DPGeneralizedLinear(
                    "logistic", solver=solver, epsilon=epsilon, delta=1e-6, random_state=seed, **settings
                ).fit(train, y[~held])
                accuracy.append(model.score(X[held], y[held]))
            cell = show(
                {
                    "part": "words",
                    "method": name,
                    "target_epsilon": epsilon,
                    "epsilon": round(model.certificate_.epsilon(1e-6), 9),
                    "arithmetic": model.certificate_.arithmetic,
                    "accuracy": round(float(np.mean(accuracy)), 4),
                    "se": round(float(np.std(accuracy, ddof=1) / np.sqrt(len(accuracy))), 4),
                    "runs": len(accuracy),
                    "words": int((model.coef_ != 0).sum()),
                    "seconds": round((time.process_time() - start) / len(accuracy), 2),
                }
            )
            rows.append(cell)
            good &= name != "auto" or number(cell, "accuracy") >= WORDS[epsilon]
    table("newsgroups, comp.* against the rest", rows)
    return good


# -- the figure ------------------------------------------------------------------------------------------------------


def draw() -> None:
    """Errors over passes from the recorded cells, with the paper's own numbers: docs/figures/dp_cd.png."""
    from matplotlib.figure import Figure

    cells = [cell for cell in recorded("dp_cd") if "problem" in cell]
    figure = Figure(figsize=(15, 3.6), layout="constrained")
    for ax, name in zip(figure.subplots(1, len(PUBLISHED)), PUBLISHED, strict=True):
        here = [cell for cell in cells if cell["problem"] == name]
        for label, look, wanted in (
            ("uniform", "C0o-", {"part": "shuffled", "by": "tuned", "sampling": "uniform"}),
            ("shuffled", "C2s-", {"part": "shuffled", "by": "tuned", "sampling": "shuffled"}),
            ("DP-SVRG", "C4v-", {"part": "svrg"}),
        ):
            curve = {number(c, "passes"): number(c, "error") for c in here if wanted.items() <= c.items()}
            ax.loglog(sorted(curve), [curve[k] for k in sorted(curve)], look, label=label, markersize=4)
        for label, look, values in zip(("DP-CD, paper", "DP-SGD, paper"), ("C0:", "C1:"), PUBLISHED[name], strict=True):
            ax.loglog((2, 5, 10, 20, 50), values, look, label=label)
        for cell in (c for c in here if c.get("method") == "greedy"):
            ax.axhline(number(cell, "error"), color="C3", label="greedy, all paid")
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("passes")
    figure.axes[0].set_ylabel("relative error")
    figure.axes[-1].legend(fontsize=7)
    figure.savefig(HERE.parent / "docs" / "figures" / "dp_cd.png", dpi=130)


PARTS: dict[str, tuple[Callable[[pathlib.Path], bool], str]] = {
    "shuffled": (shuffled, "small"),
    "greedy": (greedy, "small"),
    "crossover": (crossover, "small"),
    "words": (words, "large"),
}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all if missing")
    arguments.add_argument("--plot", action="store_true", help="draw docs/figures/dp_cd.png from the recorded cells")
    options = arguments.parse_args()
    if options.plot:
        draw()
        return 0
    names = options.parts
    if unknown := sorted(set(names) - set(PARTS)):
        arguments.error(f"no part is called {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    place = folder()
    if place is None:
        print("set TACIT_DATA_DIR to the folder of the data sets: skipped", file=sys.stderr)
        return 0
    good = True
    for name in names or PARTS:
        run, inside = PARTS[name]
        good &= run(place / inside)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
