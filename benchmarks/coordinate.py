"""Table 2 of DP-CD: DP-CD against DP-SGD on real data, tuned alike; relative errors at the last iterate.

Objective: mean of (w·x − y)² + λ‖w‖₁ (California, Sparse LASSO) or of log(1 + exp(−y w·x)) + λ/2‖w‖² (Electricity), no
intercept. The paper does not give λ; ours: California 1 (raw) and 0.1 (standardised, target centred), Electricity 1/n,
Sparse LASSO such that w = 0 has the paper's error 0.7551 (coefficients ±1, residual noise of variance 1). ε = 1 (Sparse
LASSO 10), δ = 1/n², replace-one. DP-CD: exact Gaussian composition; DP-SGD: Poisson batches by privacy loss
distributions. Features are public up to ± twice their largest absolute value. As in the paper tuning is not accounted
for, nor is standardising; the M_j of DP-CD and the global smoothness β of DP-SGD are given, and "private M" spends
10 % of μ² on them instead.

    TACIT_DATA_DIR=... python benchmarks/coordinate.py            # coarse grid, refined, then 5 fresh runs
    TACIT_DATA_DIR=... python benchmarks/coordinate.py --full     # the paper's grid; best mean of 5 runs, as there

``--plot`` draws docs/figures/coordinate.png. DP-SGD is also tuned over batch sizes, from 16 to 4096.

Cells are recorded in ``results/coordinate.jsonl`` as they finish, and skipped if they are there (not with ``--again``).
The exit status is 1 if DP-CD is less than 5 times better than DP-SGD on an imbalanced problem, each at its best number
of passes.
"""

from __future__ import annotations

import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from data import folder
from run import HERE, parser, record, recorded, table
from scipy import optimize
from sklearn.linear_model import Lasso

from tacit.accounting import Certificate, certify
from tacit.mechanism import Plan
from tacit.problem import ElasticNet, Facts, Logistic, Problem, Squared
from tacit.records import InMemory
from tacit.release import open_session
from tacit.solvers import Budget, CoordinateDescent, ProximalSGD, Solver

PASSES = (2, 5, 10, 20, 50)
TARGET = 5.0
Cell = dict[str, object]
PUBLISHED = {
    "Electricity (imbalanced)": ((0.1458, 0.0842, 0.0436, 0.0147, 0.0020), (0.2047, 0.1804, 0.1766, 0.1644, 0.1484)),
    "Electricity (balanced)": ((0.0186, 0.0023, 0.0013, 0.0013, 0.0019), (0.0391, 0.0189, 0.0123, 0.0106, 0.0040)),
    "California (imbalanced)": ((0.1708, 0.1232, 0.0598, 0.0287, 0.0124), (0.2799, 0.1863, 0.1476, 0.1094, 0.1068)),
    "California (balanced)": ((0.0007, 0.0011, 0.0012, 0.0010, 0.0017), (0.0351, 0.0226, 0.0125, 0.0087, 0.0042)),
    "Sparse LASSO": ((0.2498, 0.4702, 0.5982, 0.7160, 0.7551), (0.7551,) * 5),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A task with its records, and what the paper takes as given."""

    name: str
    task: Problem
    X: np.ndarray
    y: np.ndarray
    epsilon: float
    batches: tuple[int, ...]

    @property
    def n(self) -> int:
        """Records."""
        return len(self.X)

    @functools.cached_property
    def records(self) -> InMemory:
        """For the library."""
        return InMemory(self.X, self.y)

    @functools.cached_property
    def budget(self) -> Budget:
        """(ε, 1/n²), replace-one."""
        return Budget(self.epsilon, 1 / self.n**2)

    @functools.cached_property
    def second_moment(self) -> np.ndarray:
        """XᵀX/n."""
        X = self.X
        return X.T @ X / self.n

    @functools.cached_property
    def M(self) -> np.ndarray:
        """Coordinate-wise smoothness."""
        return self.task.loss.curvature * np.diag(self.second_moment)

    @functools.cached_property
    def beta(self) -> float:
        """Global smoothness."""
        return self.task.loss.curvature * float(np.linalg.eigvalsh(self.second_moment)[-1])

    @functools.cached_property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Records row by row, and their norms: for batches."""
        X = np.ascontiguousarray(self.X)
        return X, np.linalg.norm(X, axis=1)

    @functools.cached_property
    def minimum(self) -> float:
        """Of the objective, without privacy."""
        X, y, penalty, loss = self.X, self.y, self.task.penalty, self.task.loss
        if not loss.labels:
            fit = Lasso(penalty.l1[0], fit_intercept=False, precompute=X.T @ X, tol=1e-11, max_iter=10**6).fit(X, y)
            return self.objective(fit.coef_)
        scale = 1 / np.sqrt(np.diag(self.second_moment))
        scaled = penalty.rescaled(scale)
        A = X * scale

        def f(v: np.ndarray) -> tuple[float, np.ndarray]:
            f = A @ v
            return loss.value(f, y).mean() + scaled.value(v), A.T @ loss.derivative(f, y) / len(f) + scaled.l2 * v

        settings = {"maxiter": 10**4, "ftol": 1e-15, "gtol": 1e-10}
        return float(optimize.minimize(f, np.zeros(len(scale)), jac=True, method="L-BFGS-B", options=settings).fun)

    def objective(self, w: np.ndarray) -> float:
        """Mean loss and penalty."""
        return float(self.task.loss.value(self.X @ w, self.y).mean()) + self.task.penalty.value(w)

    def error(self, w: np.ndarray) -> float:
        """Relative to the minimum."""
        return self.objective(w) / self.minimum - 1


def problem(name: str, X: np.ndarray, y: np.ndarray, penalty: ElasticNet, *, labels: bool = False, **more) -> Case:
    n, reach = len(X), 2 * np.abs(X).max(axis=0)
    facts = Facts(n, -reach, reach, 1.0 if labels else 2 * float(np.abs(y).max()))
    task = Problem(Logistic() if labels else Squared(), penalty, facts, intercept=False)
    return Case(name, task, X, y, more.pop("epsilon", 1.0), more.pop("batches", (16, 64, 512, 4096)))


def california(balanced: bool, data: pathlib.Path) -> Case:
    with np.load(data / "california_housing.npz", allow_pickle=False) as z:
        X, y = z["X"], z["y"]
    if not balanced:
        return problem("California (imbalanced)", X, y, ElasticNet.of(8, l1=0.5))
    return problem("California (balanced)", standard(X), y - y.mean(), ElasticNet.of(8, l1=0.05))


def electricity(balanced: bool, data: pathlib.Path) -> Case:
    with np.load(data / "electricity.npz", allow_pickle=False) as z:
        X, y = z["X"], np.where(z["y"] == 1, 1.0, -1.0)
    name = f"Electricity ({'balanced' if balanced else 'imbalanced'})"
    return problem(name, standard(X) if balanced else X, y, ElasticNet.of(8, l2=1 / len(X)), labels=True)


def standard(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / X.std(axis=0)


def sparse_lasso() -> Case:
    rng, n = np.random.default_rng(0), 1000
    X = rng.normal(size=(n, n))
    w = np.zeros(n)
    w[rng.choice(n, 10, replace=False)] = rng.choice([-1.0, 1.0], 10)
    y = X @ w + rng.normal(size=n)

    def make(l1: float) -> Case:
        return problem("Sparse LASSO", X, y, ElasticNet.of(n, l1=l1), epsilon=10.0, batches=(64, 512))

    found = optimize.brentq(lambda l1: make(l1).error(np.zeros(n)) - 0.7551, 0.05, 1.0, xtol=1e-4)
    return make(found)


# -- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    clip: float
    step: float
    batch: int = 0


@functools.cache
def certified(plan_of: tuple[Case, int, str]) -> Certificate:
    """One certificate per number of releases: it depends neither on clips nor on steps."""
    p, passes, smoothness = plan_of
    solver = CoordinateDescent("uniform", passes=passes, smoothness=smoothness if smoothness == "private" else p.M)
    return certify(solver.plan(p.task, p.budget), delta=p.budget.delta)


def solved(p: Case, solver: Solver, certificate: Certificate, seed: int) -> float:
    """The error of one run of a solver."""
    with open_session(certificate, p.records, random_state=seed) as session:
        return p.error(solver.solve(p.task, p.budget, session).v)


def descend(p: Case, passes: int, smoothness: str, setting: Setting, seed: int) -> float:
    """The error of one run of DP-CD."""
    given = smoothness if smoothness == "private" else p.M
    solver = CoordinateDescent("uniform", passes=passes, clip=setting.clip, step=setting.step, smoothness=given)
    return solved(p, solver, certified((p, passes, smoothness)), seed)


@functools.cache
def sgd_plan(n: int, epsilon: float, batch: int, passes: int) -> Plan:
    """Calibrated once: neither features, clip nor step play a part."""
    task = Problem(Squared(), ElasticNet.of(1), Facts(n, -np.ones(1), np.ones(1)), intercept=False)
    return ProximalSGD(batch, passes).plan(task, Budget(epsilon, 1 / n**2))


@numba.njit
def sgd_loop(rng, steps, rate, X, y, norms, logistic, W, C, sigma, eta, l1, l2):
    """Proximal DP-SGD for many settings at once, a column of W each; ``eta`` is the step over the batch size."""
    (n, p), columns = X.shape, W.shape[1]
    total, z = np.empty((p, columns)), np.empty(columns)
    for _ in range(steps):
        for j in range(p):
            for k in range(columns):
                total[j, k] = sigma[k] * rng.standard_normal()
        i = rng.geometric(rate) - 1
        while i < n:  # a Poisson batch: gaps between its members are geometric
            z[:] = 0.0
            for j in range(p):
                for k in range(columns):
                    z[k] += X[i, j] * W[j, k]
            cap = 1 / max(norms[i], 1e-300)
            for k in range(columns):
                slope = -y[i] / (1 + np.exp(y[i] * z[k])) if logistic else z[k] - y[i]
                z[k] = min(max(slope, -C[k] * cap), C[k] * cap)
            for j in range(p):
                for k in range(columns):
                    total[j, k] += X[i, j] * z[k]
            i += rng.geometric(rate)
        for j in range(p):
            for k in range(columns):
                v = W[j, k] - eta[k] * total[j, k]
                t = eta[k] * rate * n  # the step itself
                W[j, k] = np.sign(v) * max(abs(v) - t * l1[j], 0.0) / (1 + t * l2[j])


def sgd(p: Case, passes: int, settings: list[Setting], seed: int) -> np.ndarray:
    """The errors of one run of proximal DP-SGD for each setting, all of one batch size.

    Same batches, noise of its own for each; the law of each is that of ``ProximalSGD`` (``agreement`` checks it), which
    reads all records at each step to draw a batch.
    """
    n, batch, loss, penalty = p.n, settings[0].batch, p.task.loss, p.task.penalty
    mechanism = sgd_plan(n, p.epsilon, batch, passes).parts[0]
    C = np.minimum([s.clip for s in settings], loss.slope * p.task.facts.row_norm)
    eta = np.array([s.step for s in settings]) / p.beta
    sigma = mechanism.adjacency.sum_factor * C / mechanism.ratio[0]
    W, rng = np.zeros((p.task.facts.size, len(settings))), np.random.default_rng(seed)
    X, norms = p.rows
    data = X, p.y, norms, loss.labels
    sgd_loop(rng, mechanism.steps, batch / n, *data, W, C, sigma, eta / batch, penalty.l1, penalty.l2)
    return np.array([p.error(w) for w in W.T])


# -- tuning ----------------------------------------------------------------------------------------------------------


def evaluate(p: Case, method: str, passes: int, settings: list[Setting], seeds: range) -> np.ndarray:
    """Errors, a row per setting and a column per run."""
    if method == "sgd":
        out = np.empty((len(settings), len(seeds)))
        for batch in p.batches:
            index = [i for i, s in enumerate(settings) if s.batch == batch]
            if index:
                out[index] = np.transpose([sgd(p, passes, [settings[i] for i in index], seed) for seed in seeds])
        return out
    smoothness = "private" if method == "private" else "given"
    return np.array([[descend(p, passes, smoothness, s, seed) for seed in seeds] for s in settings])


def widest(p: Case, method: str) -> float:
    """Beyond this clip nothing changes: the loss and the public bounds cap it."""
    if method == "sgd":
        return float(p.task.loss.slope * p.task.facts.row_norm)
    M = p.M if method == "given" else np.maximum(p.M, 1e-6 * p.task.facts.reach**2)
    return float(10 * (p.task.loss.slope * p.task.facts.reach * np.sqrt(M.sum() / M)).max())


def grid(p: Case, method: str, clips: int, steps: int) -> list[Setting]:
    """The paper's ranges: clips 1e-3 to 1e6, steps 1e-6 to 1 (DP-SGD, units of 1/β) or 1e-2 to 10 (DP-CD, of 1/M_j)."""
    low, high = (-6, 0) if method == "sgd" else (-2, 1)
    sizes = np.unique(np.minimum(np.logspace(-3, 6, clips), widest(p, method)))
    batches = p.batches if method == "sgd" else (0,)
    return [Setting(float(c), float(s), b) for b in batches for c in sizes for s in np.logspace(low, high, steps)]


def around(s: Setting) -> list[Setting]:
    """A finer grid: quarters of a decade, also beyond the paper's ranges."""
    by = 10 ** np.array([-0.5, -0.25, 0, 0.25, 0.5])
    return [Setting(float(s.clip * c), float(s.step * t), s.batch) for c in by for t in by]


def best_of(settings: list[Setting], errors: np.ndarray) -> dict[int, Setting]:
    """The best setting of each batch size."""
    order = np.argsort(-np.nan_to_num(errors.mean(axis=1), nan=np.inf), kind="stable")
    return {settings[i].batch: settings[i] for i in order}


def tuned(p: Case, method: str, passes: int, full: bool) -> dict[str, float]:
    """The best setting's mean error and its deviation over 5 runs."""
    if full:
        settings = grid(p, method, 100, 10)
        errors = evaluate(p, method, passes, settings, range(5))
        best = int(np.nanargmin(errors.mean(axis=1)))
        chosen, last = settings[best], errors[best]
    else:
        coarse = grid(p, method, 10, 7)
        kept = best_of(coarse, evaluate(p, method, passes, coarse, range(5)))
        fine = [s for setting in kept.values() for s in around(setting)]
        chosen = fine[int(np.nanargmin(evaluate(p, method, passes, fine, range(100, 105)).mean(axis=1)))]
        last = evaluate(p, method, passes, [chosen], range(200, 205))[0]
    found = {"error": last.mean(), "sd": last.std(ddof=1), "clip": chosen.clip, "step": chosen.step}
    return {**{key: float(f"{value:.4g}") for key, value in found.items()}, "batch": chosen.batch}


def agreement(p: Case) -> dict[str, object]:
    """The vectorised DP-SGD beside ``ProximalSGD``: mean error of 20 runs each."""
    passes, s = 5, Setting(float(np.sqrt(8.0)), 0.1, 4096)
    ours = np.array([sgd(p, passes, [s], seed)[0] for seed in range(20)])
    unit = p.task.loss.curvature * p.task.facts.row_norm**2 / p.beta
    solver = ProximalSGD(s.batch, passes, s.clip, s.step * unit, diagonal=False)
    certificate = certify(solver.plan(p.task, p.budget), delta=p.budget.delta)
    library = np.array([solved(p, solver, certificate, seed) for seed in range(20)])
    gap = abs(ours.mean() - library.mean()) / np.sqrt((ours.var(ddof=1) + library.var(ddof=1)) / 20)
    return {"vectorised": float(ours.mean()), "library": float(library.mean()), "standard_errors_apart": float(gap)}


# -- cells -----------------------------------------------------------------------------------------------------------

METHODS = {"given": "DP-CD", "private": "DP-CD, private M", "sgd": "DP-SGD"}
PROTOCOL = "refined 3"  # another number for another grid


def makers(data: pathlib.Path) -> dict[str, Callable[[], Case]]:
    return {
        "Electricity (imbalanced)": lambda: electricity(False, data),
        "California (imbalanced)": lambda: california(False, data),
        "Electricity (balanced)": lambda: electricity(True, data),
        "California (balanced)": lambda: california(True, data),
        "Sparse LASSO": sparse_lasso,
    }


def work(name: str, make: Callable[[], Case], full: bool, done: dict[str, Cell]) -> None:
    """The cells of one problem that are not there yet."""
    methods = ["given", "private", "sgd"] if "(imbalanced)" in name else ["given", "sgd"]
    cells = {f"{name}, {k} passes, {METHODS[m]}": (k, m) for k, m in itertools.product(PASSES, methods)}
    missing = {cell: key for cell, key in cells.items() if cell not in done}
    p = make() if missing else None
    for cell, (passes, method) in missing.items():
        start = time.perf_counter()
        protocol = "full" if full else PROTOCOL
        found: Cell = {"cell": cell, "protocol": protocol, **tuned(p, method, passes, full)}
        if method != "private":
            found["published"] = PUBLISHED[name][int(method == "sgd")][PASSES.index(passes)]
        found |= {"at_zero": p.error(np.zeros(p.task.size)), "seconds": round(time.perf_counter() - start, 1)}
        done[cell] = found
        show(found)


def finished(protocol: str) -> dict[str, Cell]:
    """Cells of former runs, the last of each."""
    cells = recorded("coordinate")
    return {str(cell["cell"]): cell for cell in cells if cell["cell"] == "agreement" or cell["protocol"] == protocol}


def show(cell: Cell) -> None:
    print(json.dumps(cell), flush=True)
    record("coordinate", [cell])


def summary(name: str, done: dict[str, Cell]) -> tuple[list[Cell], float]:
    """Rows of the table, and the ratio of the best errors."""
    rows: list[Cell] = []
    best: dict[str, float] = {}
    for label in METHODS.values():
        cells = {k: done[c] for k in PASSES if (c := f"{name}, {k} passes, {label}") in done}
        if cells:
            rows.append({"problem": name, "method": label, **{str(k): c["error"] for k, c in cells.items()}})
            best[label] = min(float(c["error"]) for c in cells.values())
    for i, label in enumerate(("DP-CD", "DP-SGD")):
        rows.append(
            {
                "problem": name,
                "method": f"{label}, published",
                **dict(zip(map(str, PASSES), PUBLISHED[name][i], strict=True)),
            }
        )
    return rows, best.get("DP-SGD", np.nan) / best.get("DP-CD", np.nan)


def draw(rows: list[Cell]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(PUBLISHED), figsize=(14, 3.2), layout="constrained")
    looks = {"DP-CD": "C0o-", "DP-CD, private M": "C2+-", "DP-SGD": "C1^-"}
    looks |= {"DP-CD, published": "C0o:", "DP-SGD, published": "C1^:"}
    for ax, name in zip(axes, PUBLISHED, strict=True):
        for row in (row for row in rows if row["problem"] == name):
            values = [row[str(k)] for k in PASSES]
            ax.loglog(
                PASSES, values, looks[row["method"]], label=row["method"], alpha=0.6 if "pub" in row["method"] else 1
            )
        ax.set(title=name, xlabel="passes")
        ax.title.set_fontsize(9)
        ax.set_xticks(PASSES, [str(k) for k in PASSES])
        ax.minorticks_off()
    axes[0].set_ylabel("relative error")
    axes[0].legend(fontsize=7)
    figure.savefig(HERE.parent / "docs" / "figures" / "coordinate.png", dpi=150)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--full", action="store_true", help="the paper's grid")
    arguments.add_argument("--again", action="store_true", help="make all cells again")
    arguments.add_argument("--plot", action="store_true", help="draw docs/figures/coordinate.png")
    options = arguments.parse_args()
    place = folder()
    if place is None:
        print("set TACIT_DATA_DIR to the folder that holds small/*.npz: skipped", file=sys.stderr)
        return 0
    full = options.full
    done = {} if options.again else finished("full" if full else PROTOCOL)
    rows, missed = [], False
    if "agreement" not in done:
        show({"cell": "agreement", **agreement(electricity(True, place / "small"))})
    for name, make in makers(place / "small").items():
        work(name, make, full, done)
        more, ratio = summary(name, done)
        rows += more
        published = min(PUBLISHED[name][1]) / min(PUBLISHED[name][0])
        print(f"{name}: best DP-SGD / best DP-CD = {ratio:.3g} (published {published:.3g})")
        missed |= "(imbalanced)" in name and not ratio >= TARGET
    table("Table 2 of DP-CD", rows)
    if options.plot:
        draw(rows)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
