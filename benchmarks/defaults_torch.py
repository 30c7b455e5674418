"""Defaults against tuned rates: ``PrivateTrainer(model, loss, epsilon=, delta=)`` and the best of a grid of rates.

Accuracy on records of the training data that were held out (no test data are used), in per cent. Everything but the
rate is that of the defaults: batches, epochs, clip, noise. The grid is the default's own rate times 1/8 … 8; a best
factor at an end of the grid is flagged, because a better rate may lie beyond. Small models and parts of the data, so
that two cores suffice. ``python benchmarks/defaults_torch.py --only banking77 --seeds 3``; cells that are there are
kept. Data: TACIT_DATA_DIR.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from run import parser, record, recorded, table
from torch import Tensor, nn

from tacit.torch import PrivateTrainer

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
EPSILONS = (1.0, 3.0, 8.0)
Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def split(X: np.ndarray, y: np.ndarray, n: int, shown: int) -> Split:
    order = np.random.default_rng(0).permutation(len(X))[: n + shown]
    inputs = torch.as_tensor(np.ascontiguousarray(X[order]), dtype=torch.float32)
    labels = torch.as_tensor(np.asarray(y)[order].astype(np.int64))
    return (inputs[:n], labels[:n]), (inputs[n:], labels[n:])


def folder() -> pathlib.Path:
    return pathlib.Path(os.environ["TACIT_DATA_DIR"])


def grey(name: str) -> Split:
    with np.load(folder() / "large" / f"{name}.npz") as z:
        return split((z["x_train"] / 255.0).reshape(len(z["x_train"]), -1), z["y_train"], 10_000, 4000)


def questions() -> Split:
    with np.load(folder() / "text" / "banking77_minilm.npz") as z:
        return split(z["x_train"], z["y_train"], 8000, 2000)


def pictures() -> Split:
    """CIFAR-10 at 16 × 16."""
    where = importlib.util.spec_from_file_location("load", folder() / "load.py")
    assert where is not None
    assert where.loader is not None
    load = importlib.util.module_from_spec(where)
    where.loader.exec_module(load)
    x = load.images(folder() / "large" / "cifar10.npz", "x_train")
    with np.load(folder() / "large" / "cifar10.npz") as z:
        y = z["y_train"].ravel()
    x, y = x[:9000], y[:9000]
    small = x.reshape(len(x), 16, 2, 16, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2) / 127.5 - 1
    return split(small, y, 6000, 3000)


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


TASKS: dict[str, tuple[Callable[[], Split], Callable[[], nn.Module]]] = {
    "banking77": (questions, lambda: nn.Linear(384, 77)),
    "mnist": (lambda: grey("mnist"), lambda: nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))),
    "fashion_mnist": (
        lambda: grey("fashion_mnist"),
        lambda: nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10)),
    ),
    "cifar10": (pictures, convolutions),
}


def cell(task: str, data: Split, epsilon: float, factor: float, seed: int, default: float | None) -> dict[str, object]:
    """One run: the defaults, or the default's rate and clip with the rate times a factor."""
    torch.manual_seed(seed)
    model, begun = TASKS[task][1](), time.process_time()
    settings: dict[str, object] = {"random_state": seed}
    if default is not None:
        rate, clip = former(task, epsilon, seed)
        settings |= {"learning_rate": rate * factor, "clip_norm": clip}
    trainer = PrivateTrainer(model, nn.CrossEntropyLoss(), epsilon=epsilon, delta=1e-5, progress=False, **settings)
    trainer.fit(data[0])
    plan = trainer.plan_
    assert plan is not None
    with torch.no_grad():
        right = float((model(data[1][0]).argmax(1) == data[1][1]).double().mean())
    start = plan.start_
    return {
        "task": task,
        "epsilon": epsilon,
        "factor": factor,
        "seed": seed,
        "accuracy": round(100 * right, 2),
        "rate": start.learning_rates[0],
        "clip": start.clip_norm,
        "bands": plan.bands,
        "noise": plan.noise_multiplier,
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def former(task: str, epsilon: float, seed: int) -> tuple[float, float]:
    """Rate and clip of the defaults' run."""
    found = cells()[task, epsilon, 0.0, seed]
    return float(str(found["rate"])), float(str(found["clip"]))


def cells() -> dict[tuple[object, ...], dict[str, object]]:
    return {(c["task"], c["epsilon"], c["factor"], c["seed"]): c for c in recorded("defaults_torch")}


def summary(task: str, epsilon: float, seeds: int) -> dict[str, object] | None:
    """Means over seeds: of the defaults, and of the best factor."""
    there = cells()
    means = {}
    for factor in (0.0, *FACTORS):
        values = [there[key]["accuracy"] for s in range(seeds) if (key := (task, epsilon, factor, s)) in there]
        if len(values) == seeds:
            means[factor] = statistics.mean(map(float, map(str, values)))
    grid = {factor: value for factor, value in means.items() if factor}
    if not grid or 0.0 not in means:
        return None
    best = max(grid, key=lambda factor: grid[factor])
    edge = "edge" if best in (min(grid), max(grid)) else ""
    row: dict[str, object] = {"task": task, "epsilon": epsilon, "seeds": seeds, "defaults": means[0.0]}
    return row | {"tuned": grid[best], "factor": best, "behind": grid[best] - means[0.0], "grid": edge}


def main(arguments: list[str]) -> int:
    known = parser(__doc__)
    known.add_argument("--seeds", type=int, default=1)
    known.add_argument("--only", default=",".join(TASKS))
    known.add_argument("--factors", default=",".join(map(str, FACTORS)))
    options = known.parse_args(arguments)
    if "TACIT_DATA_DIR" not in os.environ:
        print("defaults_torch: skipped, set TACIT_DATA_DIR", file=sys.stderr)
        return 0
    torch.set_num_threads(1)
    tasks, factors = options.only.split(","), [0.0, *map(float, options.factors.split(","))]
    loaded = {task: TASKS[task][0]() for task in tasks}
    for seed in range(options.seeds):
        for factor in sorted(factors, key=lambda f: (f > 0, abs(np.log2(f or 1)))):
            for epsilon in EPSILONS:
                for task in tasks:
                    if (task, epsilon, factor, seed) not in cells():
                        default = None if factor == 0 else factor
                        record("defaults_torch", [cell(task, loaded[task], epsilon, factor, seed, default)])
    rows = [summary(task, epsilon, options.seeds) for task in tasks for epsilon in EPSILONS]
    table("defaults against tuned rates", [row for row in rows if row is not None])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
