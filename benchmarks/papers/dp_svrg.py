"""DP-SVRG (Wang, Ye, Xu 2017) beside DP-CD: the third method of Table 1 of DP-CD, which the paper does not run.

    cd benchmarks
    TACIT_DATA_DIR=... python -m papers.dp_svrg    # 15 minutes

Epoch: g̃ = the mean gradient at w̃ = w, clipped and released; then m = n/b steps w ← prox(w − η(g̃ + d)), d the sum
over a Poisson batch of ∇ℓ_i(w) − ∇ℓ_i(w̃), each difference clipped, divided by b, with noise. An epoch is two passes.
Everything runs through a session: one part of full batches (half of μ²), one of Poisson batches whose noise is
calibrated so that both together satisfy (ε, 1/n²)-DP under replace-one; the certificate's ε is in the cell.

Clips and steps are tuned on a grid, unpaid as in the paper; the error is that of 10 fresh runs. Cells are appended to
``results/dp_cd.jsonl``, and those that are there are not made again.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import sys
import time
from dataclasses import dataclass

import numpy as np
from coordinate import Case, california, electricity
from data import folder
from run import parser, record, recorded, table
from scipy import sparse

from tacit.accounting import Certificate, calibrate, certify
from tacit.mechanism import Adjacency, Mechanism, Plan, Poisson, Schedule
from tacit.problem import Loss, Squared
from tacit.records import Rows
from tacit.release import Example, Query, open_session, register
from tacit.release.queries import LossGradient

Cell = dict[str, object]
PASSES = (2, 10)
BATCH = 512
TUNING, FRESH = range(2), range(1000, 1010)


@register("benchmark-svrg")
@dataclass(frozen=True, eq=False)
class GradientDifference(Query):
    """Σ φ′(xᵀw)x − φ′(xᵀw̃)x, each difference clipped; the state is (w, w̃).

    Attributes:
        loss: φ.
        bound: C.
    """

    loss: Loss
    bound: float

    def contributions(self, rows: Rows, state: np.ndarray) -> np.ndarray:
        """The differences, not yet clipped."""
        X, out = np.asarray(rows.X.toarray() if sparse.issparse(rows.X) else rows.X, np.float64), []
        for both in state:
            w, anchor = np.split(both, 2)
            slope = self.loss.derivative(X @ w, rows.y) - self.loss.derivative(X @ anchor, rows.y)
            out.append(slope[:, None] * X)
        return np.array(out)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Neighbours for record-and-replay."""
        X, y = rng.normal(size=(records, 2)) * 5, rng.normal(size=records)
        X2, y2 = X.copy(), y.copy()
        X2[0], y2[0] = -X[0] * 3, -y[0]
        return Example(cls(Squared(), 0.5), Rows(X, y), Rows(X2, y2), rng.normal(size=(1, 4)))


def certified(p: Case, epochs: int) -> Certificate:
    """Half of μ² for full gradients, the rest for Poisson batches."""
    relation, steps = Adjacency.REPLACE_ONE, epochs * math.ceil(p.n / BATCH)
    full = Mechanism(
        adjacency=relation, ratio=Schedule.constant(p.budget.mu * math.sqrt(0.5 / epochs), epochs), steps=epochs
    )

    def make(noise: float) -> Plan:
        ratio = Schedule.constant(relation.sum_factor / noise, steps)
        return Plan.of(full, Mechanism(adjacency=relation, ratio=ratio, steps=steps, sampling=Poisson(BATCH / p.n)))

    return calibrate(make, epsilon=p.epsilon, delta=p.budget.delta).certificate


def run(p: Case, certificate: Certificate, clip: float, step: float, seed: int) -> float:
    """The relative error of one run."""
    loss, penalty, w = p.task.loss, p.task.penalty, np.zeros(p.task.facts.size)
    mechanisms = [part for part in certificate.plan if isinstance(part, Mechanism)]
    epochs, steps = mechanisms[0].steps, mechanisms[1].steps
    eta = step / p.beta
    whole, part = LossGradient(loss, clip), GradientDifference(loss, clip)
    with open_session(certificate, p.records, random_state=seed) as session:
        for _ in range(epochs):
            anchor = w
            mean = session.release(whole, w) / p.n
            for _ in range(steps // epochs):
                moved = session.release(part, np.concatenate([w, anchor]), part=1) / BATCH
                w = np.clip(penalty.prox(w - eta * (mean + moved), eta), -1e100, 1e100)
    return float(p.error(w))


def tuned(p: Case, passes: int) -> Cell:
    """The best setting of a grid, run afresh."""
    certificate = certified(p, passes // 2)
    natural = float(p.task.loss.slope * p.task.facts.row_norm)
    scale = natural if math.isfinite(natural) else float(np.sqrt(np.diag(p.second_moment).sum()) * np.abs(p.y).max())
    settings = list(itertools.product(scale * np.logspace(-3, 0, 5), np.logspace(-3, 0, 5)))
    with np.errstate(all="ignore"):
        errors = [np.nan_to_num(np.mean([run(p, certificate, *s, i) for i in TUNING]), nan=np.inf) for s in settings]
    clip, step = settings[int(np.argmin(errors))]
    start = time.process_time()
    found = np.array([run(p, certificate, clip, step, seed) for seed in FRESH])
    return {
        "error": float(f"{found.mean():.4g}"),
        "se": float(f"{found.std(ddof=1) / math.sqrt(len(found)):.2g}"),
        "runs": len(found),
        "epsilon": round(certify(certificate.plan).epsilon(p.budget.delta), 9),
        "seconds": round((time.process_time() - start) / len(found), 3),
        "clip": float(f"{clip:.4g}"),
        "step": float(f"{step:.4g}"),
    }


def main() -> int:
    parser(__doc__).parse_args()
    place = folder()
    if place is None:
        print("set TACIT_DATA_DIR to the folder of the data sets: skipped", file=sys.stderr)
        return 0
    small, rows = pathlib.Path(place) / "small", []
    done = {(cell["problem"], cell["passes"]) for cell in recorded("dp_cd") if cell["part"] == "svrg"}
    for make, balanced in itertools.product((california, electricity), (True, False)):
        p = make(balanced, small)
        for passes in PASSES:
            if (p.name, passes) in done:
                continue
            cell: Cell = {"part": "svrg", "problem": p.name, "passes": passes, "by": "tuned", **tuned(p, passes)}
            print(cell, flush=True)
            record("dp_cd", [cell])
            rows.append(cell)
    table("DP-SVRG", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
