"""CPU time and peak memory of typical work in this tree over another version's, interleaved in one run.

    python benchmarks/versions.py PATH        PATH: a checkout of the other version (``git worktree add PATH REVISION``)

Every repeat runs each case once in a new process of either version, one right after the other, warmed up inside; the
ratio is that of the medians. Cases use names that both versions have.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys

from run import parser, record, table

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = """
import numpy as np
from scipy import sparse
import tacit
rng = np.random.default_rng(0)
def table(n, p):
    X = np.clip(rng.normal(size=(n, p)), -3, 3)
    return X, (X @ rng.normal(size=p) + rng.logistic(size=n) > 0).astype(int)
deal = dict(epsilon=1.0, delta=1e-7)
labels = dict(feature_bounds=(-3, 3), classes=[0, 1], **deal)
numbers = dict(feature_bounds=(-3, 3), target_bounds=(0, 1), **deal)
"""
CASES = {
    "fit overhead (1000 × 5, ten fits)": """
X, y = table(1000, 5)
def work():
    for _ in range(10):
        tacit.DPLogisticRegression(**labels).fit(X, y)
""",
    "logistic, 100,000 × 50": """
X, y = table(100_000, 50)
def work():
    tacit.DPLogisticRegression(**labels).fit(X, y)
""",
    "ridge, 100,000 × 50": """
X, y = table(100_000, 50)
def work():
    tacit.DPRidge(**numbers).fit(X, y)
""",
    "coordinate descent, 100,000 × 100": """
X, y = table(100_000, 100)
def work():
    tacit.DPLasso(1e-3, solver="coordinate", max_passes=5, **numbers).fit(X, y)
""",
    "coordinate descent, sparse 50,000 × 500": """
X = sparse.random(50_000, 500, 0.02, format="csr", random_state=0)
y = (X @ rng.normal(size=500) > 0).astype(int)
def work():
    tacit.DPLogisticRegression(solver="coordinate", max_passes=5, **{**labels, "feature_bounds": (0, 1)}).fit(X, y)
""",
    "final model, softmax 20,000 × 50": """
X, y = table(20_000, 50)
def work():
    tacit.DPSoftmaxRegression(classes=[0, 1], feature_norm=8.0, view="final_model", **deal).fit(X, y)
""",
    "final model, logistic 20,000 × 50": """
X, y = table(20_000, 50)
def work():
    tacit.DPLogisticRegression(view="final_model", **labels).fit(X, y)
""",
    "NMF, 2,000 × 200": """
X = rng.random((2000, 200)) * (rng.random((2000, 200)) < 0.2)
def work():
    tacit.DPNMF(10, row_norm=5.0, **deal).fit(X)
""",
    "block network, 5,000 × 64": """
X, y = table(5000, 64)
def work():
    tacit.DPBlockMLPClassifier(hidden_layer_sizes=(32,), epochs=3, **labels).fit(X, y)
""",
    "selection, 5,000 × 10": """
X, y = table(5000, 10)
def work():
    model = tacit.DPLogisticRegression(feature_bounds=(-3, 3), classes=[0, 1])
    tacit.DPSelection(model, {"alpha": [1e-3, 1e-2]}, mean_trials=10, **{**deal, "epsilon": 5.0}).fit(X, y)
""",
    "correlated noise, 10 bands of 10⁶": """
try:
    from tacit.noise import StreamingNoise
except ImportError:
    from tacit.factorisation import StreamingNoise
from tacit.noise.streams import Streams
def work():
    noise = StreamingNoise(0.9 ** np.arange(10)[None])
    state, streams = noise.init(1_000_000), Streams(0)
    for step in range(12):
        noise.next(state, streams.at("noise", step))
""",
    "training step, MLP of 100,000 parameters": """
import torch
from tacit.torch import TrainingPlan
X, y = torch.randn(2000, 100), torch.randint(0, 10, (2000,))
model = torch.nn.Sequential(torch.nn.Linear(100, 800), torch.nn.ReLU(), torch.nn.Linear(800, 10))
plan = TrainingPlan(2000, epsilon=2.0, delta=1e-5, batch_size=200, epochs=3, bands=4)
batches = iter(plan.batches((X, y)))
def work():
    for _ in range(10):
        plan.step(model, torch.nn.CrossEntropyLoss(), next(batches))
""",
}
MEASURE = """
import json, resource, time
work()
start = time.process_time()
work()
spent = time.process_time() - start
print(json.dumps([spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def measured(tree: pathlib.Path, case: str) -> tuple[float, float]:
    """CPU seconds and peak MB of a case in a new process."""
    code = DATA + CASES[case] + MEASURE
    if not (tree / "src" / "tacit" / "noise").exists():
        code = code.replace("from tacit.noise.streams import", "from tacit.run import")
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} in {tree}: {done.stderr.strip().splitlines()[-1]}")
    seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return float(seconds), float(megabytes)


def main() -> None:
    """Measure, print, record."""
    arguments = parser(__doc__)
    arguments.add_argument("before", nargs="?", type=pathlib.Path, help="a checkout of the other version")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--only", default="", help="cases whose name contains this")
    given = arguments.parse_args()
    if given.before is None:
        arguments.error("name a checkout of the other version: git worktree add PATH REVISION")
    cells = []
    for case in (name for name in CASES if given.only in name):
        runs = [(measured(given.before, case), measured(ROOT, case)) for _ in range(given.repeats)]
        before, now = ([statistics.median(run[side][i] for run in runs) for i in (0, 1)] for side in (0, 1))
        cells.append(
            {
                "case": case,
                "before s": before[0],
                "now s": now[0],
                "time ratio": now[0] / before[0],
                "before MB": before[1],
                "now MB": now[1],
            }
        )
        table("versions", cells[-1:])
    record("versions", cells)
    table("versions", cells)


if __name__ == "__main__":
    main()
