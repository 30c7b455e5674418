"""Networks by private block coordinate descent (DP-MBCD) at equal, true (ε, δ): beside DP-SGD, with falling noise.

δ = 1e-5, replace-one, everything released at every step is covered. ``published`` is what DP-MBCD would print for
cyclic batches with the same noise: no guarantee (errata E6).

``--networks``: MNIST and Fashion-MNIST, every picture centred by its own mean (a public map of one record). "blocks" is
``DPBlockMLPClassifier``; "dp-sgd" is ``TrainingPlan`` on the same layers, ε and relation, which it supports itself (one
record moves a sum by twice the clip). Both draw Poisson batches of n/40, at ε < 0.5 everybody: few steps on a short
path. References without privacy: "blocks" with ε = 1e6 and cyclic batches, "sgd" by torch. Settings are chosen on
10 000 of the 60 000 training pictures with one seed: three step sizes at ten epochs, then five and twenty epochs with
the best of them (where everybody is read: at 20, then 40 and 80; LeNet: at 5, then 10, where everybody is read four
step sizes at 10, then 20 and 40, and what was chosen at ε = 1 serves for 0.5 and 4, too), as many candidates for every
method; the choice is not paid for, as in the paper's tables. Then three seeds (start, batches and noise; one for LeNet
unless ``--seeds`` says more) on all training pictures, and the test pictures. ``mlp`` has one hidden layer of 64,
``lenet`` is smaller than the real one, whose epochs take minutes; ``--full``: 4 × 1200 and the real LeNet.

``--table4``: 6000 synthetic records of 20 features and 5 classes, 80/20, cyclic batches of 960: constant, linear and
"optimised" noise at equal certified ε, with steps that fall to a tenth (ours) or stay (the paper's). Step sizes are
chosen per network, loss, ε and schedule at twenty epochs, on a fifth of the training records. One hidden layer of 64
with either loss, and the paper's four of 200 with its squared loss.

``--speed``: one batch of sums against the matrix products and factorisations in it, in float32 and in float64, and a
whole step with its noise: milliseconds of one core, in one run.

Cells accumulate in ``results/block_networks.jsonl``; finished ones are skipped. Without options: networks and table 4,
about three and a half hours of one core; with a process for each data set (``--networks --only …``) and one for
``--table4``, less than two hours of two cores. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from typing import Any

import numpy as np
from data import folder
from final_model import pictures
from numpy.typing import NDArray
from papers.published import claims, published_epsilon
from run import record, recorded, table
from scipy.linalg import cho_factor, cho_solve
from sklearn.datasets import make_classification
from steps import seconds
from timing import version

from tacit import DPBlockMLPClassifier
from tacit.problem.layers import Convolution, Dense
from tacit.problem.network import architecture
from tacit.records import InMemory, Rows
from tacit.release import Streams, open_session
from tacit.solvers.blocks import BlockDescent, plan_blocks
from tacit.solvers.network import block_network

Cell, Array = dict[str, Any], NDArray[Any]
VERSION = version()  # of all code of ours, when this run began
DELTA, SEEDS, TUNING, TRAIN = 1e-5, 3, 1000, 50_000
DATA, EPSILONS, NO_PRIVACY = ("mnist", "fashion_mnist"), (0.06, 0.5, 1.0, 4.0), 1e6
ARCHITECTURES: dict[str, tuple[Any, ...]] = {
    "mlp": (64,),
    "lenet": (Convolution(6, 5, pool=2), Convolution(16, 5, stride=2), Dense(64)),
    "full mlp": (1200,) * 4,
    "full lenet": (Convolution(6, 5, padding=2), Convolution(16, 5, pool=2), Dense(120, pool=2), Dense(84)),
}
BATCHES, SGD_BATCHES, EVERYBODY_BELOW = 40, 400, 0.5
EPOCHS = {"mlp": (10, 5, 20), "lenet": (5, 10)}
EPOCHS_OF_EVERYBODY = {"mlp": (20, 40, 80), "lenet": (10, 20, 40)}
"""The first for the choice of the step size."""
RATES = {"blocks": (2.0, 4.0, 8.0), "dp-sgd": (0.5, 1.0, 2.0), "sgd": (0.03, 0.1, 0.3)}
FEW_STEPS = {"blocks": (8.0, 16.0, 32.0), "dp-sgd": (1.0, 2.0, 4.0)}
"""Step sizes where everybody is read at every step."""
LENET_NORM, LENET_RATES, LENET_TUNED_AT = 10.0, (1.0, 2.0, 4.0), 1.0
"""Ours, for convolutions: states of norm 10 instead of 1 (found on the validation pictures at ε = 1)."""
LENET_FEW_STEPS = {"blocks": (0.5, 1.0, 2.0, 4.0), "dp-sgd": (2.0, 4.0, 8.0, 16.0)}
LENGTH = 28.0
"""Of a picture that torch gets, so that pixels have variance 1; ours are scaled to norm 1, with weights to match."""
PASSES, LEVELS, BATCH = (10, 20, 30, 40), (4.0, 1.0), 960
TABLE4: dict[tuple[int, ...], dict[str, tuple[Any, ...]]] = {
    (64,): {
        "rate": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
        "loss": ("squared", "cross_entropy"),
        "schedule": ("constant", "linear", "optimised"),
    },
    (200,) * 4: {"rate": (0.0625, 0.125, 0.25, 0.5, 1.0), "loss": ("squared",), "schedule": ("constant", "linear")},
}
"""The second is the paper's network, with its loss and its two schedules."""
LAST_STEPS = {"table4": 0.1, "table4, equal steps": 1.0}


class Board:
    """Cells that were made before, and new ones."""

    def __init__(self) -> None:
        self.cells = recorded("block_networks")

    def get(self, key: Cell) -> Cell:
        """The finished cell of this key, made if there is none."""
        for cell in self.cells:
            if all(cell.get(name) == value for name, value in key.items()):
                return cell
        start = time.process_time()
        made = network_cell(key) if key["task"] == "networks" else table4_cell(key)
        cell = {**key, **made, "cpu_seconds": round(time.process_time() - start, 1), "version": VERSION}
        record("block_networks", [cell])
        print(json.dumps(cell), flush=True)
        self.cells.append(cell)
        return cell


def split(X: Array, y: Array, T: Array, wanted: Array, stage: str, train: int) -> tuple[Array, Array, Array, Array]:
    """Training and test records; for tuning, both from the training records."""
    return (X, y, T, wanted) if stage == "test" else (X[:train], y[:train], X[train:], y[train:])


def fitted(key: Cell, records: tuple[Array, Array], **more: Any) -> DPBlockMLPClassifier:
    steps = {"epochs": key["epochs"], "step_size": key["rate"]}
    seeds = {"init_seed": key["seed"], "random_state": key["seed"], "progress": False}
    return DPBlockMLPClassifier(epsilon=key["epsilon"], delta=DELTA, **steps, **seeds, **more).fit(*records)


# -- networks -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def centred(name: str) -> tuple[Array, Array, Array, Array]:
    X, y, T, wanted = pictures(name)
    X, T = ((A - A.mean(axis=1, keepdims=True)) / np.float32(255) for A in (X, T))
    return X, y, T, wanted


def network_cell(key: Cell) -> Cell:
    X, y, T, wanted = split(*centred(key["data"]), key["stage"], TRAIN)
    fit = blocks if key["method"] == "blocks" else descent
    found, certified, published = fit(key, X, y, T)
    return {"accuracy": float(np.mean(found == wanted)), "certified": certified, "published": published}


def blocks(key: Cell, X: Array, y: Array, T: Array) -> tuple[Array, float | None, float | None]:
    """Ours: predictions, ε, and what the paper would print."""
    private = key["epsilon"] is not None
    model = fitted(
        {**key, "epsilon": key["epsilon"] if private else NO_PRIVACY},
        (X, y),
        hidden_layer_sizes=ARCHITECTURES[key["architecture"]],
        layer_norms=key.get("norm", 1.0),
        feature_bounds=(-1, 1),
        classes=range(10),
        input_shape=(1, 28, 28) if "lenet" in key["architecture"] else None,
        batch_size=len(X) // key["batches"],
        sampling="poisson" if private else "cyclic",
    )
    if not private:
        return model.predict(T), None, None
    return model.predict(T), model.certificate_.epsilon(DELTA), published(model)


def published(model: DPBlockMLPClassifier) -> float | None:
    """DP-MBCD's figure for cyclic batches and the same noise (of a constant schedule)."""
    plan = model.plan_
    mu = float(np.sqrt(np.sum(plan.ratio[0] ** 2)))
    shares = {block.name: float((r / mu) ** 2) for block, r in zip(plan.blocks, plan.ratio[0], strict=True)}
    sizes = {"n": plan.n, "batch_size": plan.n // plan.n_batches, "epochs": plan.epochs, "noise_multiplier": 1 / mu}
    cyclic = plan_blocks(None, DELTA, blocks=plan.blocks, shares=shares, order="jacobi", **sizes)
    return published_epsilon(cyclic.mechanism, DELTA, claims(cyclic, model.network_))


def torch_network(layers: tuple[Any, ...]) -> Any:
    """The same layers in torch, from flat pictures."""
    from torch import nn

    maps = [connection.map for connection in architecture((1, 28, 28), layers, 10).connections]
    made: list[Any] = [nn.Unflatten(1, (1, 28, 28))] if maps[0].patches > 1 else []
    for m in maps:
        made += [nn.AvgPool2d(m.pool)] * (m.pool > 1)
        if m.patches > 1:
            made += [nn.Conv2d(m.source[0], m.channels, m.kernel, m.stride, m.padding), nn.ReLU()]
        else:  # a plain chain of linear layers has cheap norms, so nothing is put in between without need
            made += [nn.Flatten()] * (len(m.source) == 3 and len(made) > 0)
            made += [nn.Linear(m.weights[1] - 1, m.width), nn.ReLU()]
    return nn.Sequential(*made[:-1])


def descent(key: Cell, X: Array, y: Array, T: Array) -> tuple[Array, float | None, float | None]:
    """DP-SGD or SGD in torch; the rate falls linearly to a tenth, as ours does."""
    import torch

    from tacit.torch import TrainingPlan

    torch.set_num_threads(1)
    torch.manual_seed(key["seed"])
    net, loss = torch_network(ARCHITECTURES[key["architecture"]]), torch.nn.CrossEntropyLoss()
    x, t = (LENGTH * torch.nn.functional.normalize(torch.from_numpy(A)) for A in (X, T))
    labels, steps, b = torch.from_numpy(y), key["epochs"] * key["batches"], len(X) // key["batches"]
    rates = key["rate"] * np.linspace(1, 0.1, steps)
    certified = None
    if key["epsilon"] is None:
        optimiser = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
        for rate in rates:
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad()
            batch = torch.randint(len(x), (b,))
            loss(net(x[batch]), labels[batch]).backward()
            optimiser.step()
    else:
        sizes = {"batch_size": b, "steps": steps, "learning_rate": rates, "random_state": key["seed"]}
        relation = {"strategy": "dpsgd", "adjacency": "replace-one"}
        plan = TrainingPlan(len(x), epsilon=key["epsilon"], delta=DELTA, clip_norm=1.0, **sizes, **relation)
        for turn in plan.batches((x, labels)):
            plan.step(net, loss, turn)
        certified = plan.certificate.epsilon(DELTA)
    with torch.no_grad():
        return torch.cat([net(part).argmax(1) for part in t.split(1000)]).numpy(), certified, None


def network_row(data: str, name: str, method: str, epsilon: float | None, seeds: int, board: Board) -> Cell:
    """Tuning and test of one method."""
    few = epsilon is not None and epsilon < EVERYBODY_BELOW
    k = 1 if few else SGD_BATCHES if method == "sgd" else BATCHES
    key = {"task": "networks", "data": data, "architecture": name, "method": method, "epsilon": epsilon, "batches": k}
    tune: Cell = {"seed": TUNING, "stage": "tune"}
    rates = (FEW_STEPS if few else RATES)[method]
    if method == "blocks" and "lenet" in name:
        key, rates = {**key, "norm": LENET_NORM}, LENET_RATES
    if few and "lenet" in name:
        rates = LENET_FEW_STEPS[method]
    if "lenet" in name and epsilon is not None and not few:
        tune["epsilon"] = LENET_TUNED_AT
    first, *others = (EPOCHS_OF_EVERYBODY if few else EPOCHS)[name.split()[-1]]
    tried = [board.get({**key, "epochs": first, "rate": rate, **tune}) for rate in rates]
    rate = max(tried, key=lambda cell: cell["accuracy"])["rate"]
    tried += [board.get({**key, "epochs": epochs, "rate": rate, **tune}) for epochs in others]
    best = max(tried, key=lambda cell: cell["accuracy"])
    settings = {"epochs": best["epochs"], "rate": best["rate"]}
    cells = [board.get({**key, **settings, "seed": seed, "stage": "test"}) for seed in range(seeds)]
    shown = {"data": data, "network": name, "method": method, "ε": "none" if epsilon is None else epsilon}
    return {**shown, **summary(cells), "validation": best["accuracy"], "batches": k, **settings}


def summary(cells: list[Cell]) -> Cell:
    """Test accuracy in percent, the certified ε and the paper's figure (those of the first seed)."""
    found = 100 * np.array([cell["accuracy"] for cell in cells])
    spread = f" ± {found.std(ddof=1):.2f}" if len(found) > 1 else ""
    figures = {name: "-" if cells[0][name] is None else cells[0][name] for name in ("certified", "published")}
    return {"test %": f"{found.mean():.2f}{spread}", **figures}


def network_table(options: argparse.Namespace, board: Board) -> None:
    names = [("full " if options.full else "") + name for name in options.architecture.split(",")]
    levels = [None if word == "none" else float(word) for word in options.epsilons.split(",")]
    rows = []
    for data, name, method, epsilon in itertools.product(options.only.split(","), names, RATES, levels):
        if {"blocks": True, "dp-sgd": epsilon is not None, "sgd": epsilon is None}[method]:
            seeds = options.seeds or (1 if "lenet" in name else SEEDS)
            rows.append(network_row(data, name, method, epsilon, seeds, board))
    table("block networks", rows)


# -- table 4 --------------------------------------------------------------------------------------------------------


@functools.cache
def synthetic() -> tuple[Array, Array, Array, Array]:
    kinds = {"n_informative": 10, "n_redundant": 5, "n_classes": 5, "n_clusters_per_class": 1}
    X, y = make_classification(6000, 20, **kinds, random_state=0)
    return X[:4800], y[:4800], X[4800:], y[4800:]


def table4_cell(key: Cell) -> Cell:
    X, y, T, wanted = split(*synthetic(), key["stage"], 3840)
    public = {"hidden_layer_sizes": tuple(key["hidden"]), "feature_bounds": (-6, 6), "classes": range(5)}
    batches = {"batch_size": BATCH, "sampling": "cyclic", "noise_schedule": key["schedule"]}
    model = fitted(key, (X, y), loss=key["loss"], last_step=LAST_STEPS[key["task"]], **public, **batches)
    printed = published_epsilon(model.plan_.mechanism, DELTA, claims(model.plan_, model.network_))
    figures = {"certified": model.certificate_.epsilon(DELTA), "published": printed}
    return {"accuracy": float(np.mean(model.predict(T) == wanted)), **figures}


def table4_row(key: Cell, seeds: int, board: Board) -> tuple[Cell, Array]:
    """Of the table, and the accuracies themselves in percent."""
    tune = {"epochs": 20, "seed": TUNING, "stage": "tune"}
    tried = [board.get({**key, **tune, "rate": rate}) for rate in TABLE4[tuple(key["hidden"])]["rate"]]
    rate = max(tried, key=lambda cell: cell["accuracy"])["rate"]
    cells = [board.get({**key, "rate": rate, "seed": seed, "stage": "test"}) for seed in range(seeds)]
    names = {"hidden": f"{len(key['hidden'])} × {key['hidden'][0]}", "last step": LAST_STEPS[key["task"]]}
    shown = {"loss": key["loss"], "ε": key["epsilon"], "epochs": key["epochs"], "noise": key["schedule"]}
    row = {**names, **shown, **summary(cells), "rate": rate}
    return row, 100 * np.array([cell["accuracy"] for cell in cells])


def table4(seeds: int, board: Board) -> None:
    rows, gains = [], []
    for hidden, grid in TABLE4.items():
        for task, loss, epsilon in itertools.product(LAST_STEPS, grid["loss"], LEVELS):
            found: dict[str, list[Array]] = {}
            for epochs, schedule in itertools.product(PASSES, grid["schedule"]):
                key = {"loss": loss, "epsilon": epsilon, "epochs": epochs, "schedule": schedule}
                row, accuracies = table4_row({"task": task, "hidden": list(hidden), **key}, seeds, board)
                rows.append(row)
                found.setdefault(schedule, []).append(accuracies)
            constant = np.concatenate(found.pop("constant"))
            for schedule, parts in found.items():
                gain = np.concatenate(parts) - constant
                error = {"s.e.": gain.std(ddof=1) / np.sqrt(len(gain)), "pairs": len(gain)}
                kind = {name: row[name] for name in ("hidden", "last step", "loss", "ε")}
                gains.append({**kind, "noise": schedule, "points gained": gain.mean(), **error})
    table("table 4 at equal certified ε", rows)
    table("accuracy less that with constant noise (pairs of epochs and seed; s.e. as if they were independent)", gains)


# -- speed ----------------------------------------------------------------------------------------------------------


def bare(x: Array, weights: list[Array], outputs: Array) -> None:
    """The products and factorisations of one batch; states and residuals are whatever has their shape."""
    V1, V2, V3 = weights
    d1, d2 = (np.ones((len(x), V.shape[1]), x.dtype) for V in (V2, V3))
    h1 = np.matmul(x, V1.T)  # forward
    h2 = np.matmul(d1, V2.T)
    np.matmul(d2, V3.T)
    last = solved(V3[:, :-1])
    for _ in range(2):  # two Newton steps for the last x, and its image after each
        np.matmul(outputs, last)
        np.matmul(d2, V3.T)
    np.matmul(h2, solved(V2[:, :-1]))  # the first x, and its image
    np.matmul(d1, V2.T)
    for r, d in ((h1, x), (h2, d1), (outputs, d2)):
        np.matmul(np.ascontiguousarray(r.T), d)


def solved(A: Array) -> Array:
    """(AAᵀ + I)⁻¹A in float64."""
    wide = A.astype(np.float64)
    return cho_solve(cho_factor(wide @ wide.T + np.eye(len(A))), wide).astype(A.dtype)


def speed(rounds: int = 9, batch: int = 1000, widths: tuple[int, ...] = (256, 256)) -> Cell:
    """Medians over rounds, in milliseconds, and ratios."""
    rng, n, network = np.random.default_rng(0), 4 * batch, architecture((784,), widths, 10)
    options = {"step_size": 1.0, "last_step": 0.1, "contribution_norm": None, "l2": 0.0}
    problem = block_network(network, "gradient", seed=0, **options)
    X = rng.standard_normal((n, 784), dtype=np.float32) / np.float32(28)
    y = np.eye(10, dtype=np.float32)[rng.integers(10, size=n)]
    records, rows = InMemory(X, y), Rows(X, y)
    plan = plan_blocks(1.0, DELTA, blocks=problem.blocks, n=n, batch_size=batch, epochs=1, order="jacobi")
    starts = tuple(block.start for block in problem.blocks)
    design = np.hstack([X[:batch], np.ones((batch, 1), np.float32)])
    times: dict[str, list[float]] = {name: [] for name in ("sums", "bare32", "bare64", "step", "noise")}
    for turn in range(rounds + 1):
        index = (np.arange(batch) + turn * batch) % n
        times["sums"].append(seconds(lambda index=index: problem.totals(starts, rows.take(index)), 3))
        for name, kind in (("bare32", np.float32), ("bare64", np.float64)):
            parts = (design.astype(kind), [W.astype(kind) for W in starts], y[:batch].astype(kind))
            times[name].append(seconds(lambda parts=parts: bare(*parts), 3))
        descent = BlockDescent(plan, problem)
        with open_session(plan.certificate, records) as session:
            run = functools.partial(descent.solve, session)
            times["step"].append(seconds(run, 1) / plan.steps)
        draw = Streams().at("noise")
        times["noise"].append(seconds(lambda draw=draw: [draw.standard_normal(W.size) for W in starts], 3))
    sizes = {"task": "speed", "version": VERSION, "batch": batch, "widths": list(widths)}
    found = {name: 1e3 * float(np.median(values[1:])) for name, values in times.items()}
    ratios = {"ratio": found["sums"] / found["bare32"], "ratio64": found["sums"] / found["bare64"]}
    return {**sizes, **found, **ratios, "step64": found["step"] / found["bare64"]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("--networks", "--table4", "--speed"):
        parser.add_argument(part, action="store_true")
    parser.add_argument("--only", default=",".join(DATA), help="data sets, separated by commas")
    parser.add_argument("--architecture", default="mlp,lenet", help="mlp, lenet, separated by commas")
    parser.add_argument("--epsilons", default="none,0.06,0.5,1,4", help="separated by commas")
    parser.add_argument("--seeds", type=int, default=None, help="3 if missing, and 1 for LeNet")
    parser.add_argument("--full", action="store_true", help="4 x 1200, and the real LeNet: slow")
    options = parser.parse_args(arguments)
    everything = not (options.networks or options.table4 or options.speed)
    board = Board()
    if options.speed:
        record("block_networks", [cell := speed()])
        table("one step", [cell])
    if options.table4 or everything:
        table4(options.seeds or SEEDS, board)
    if options.networks or everything:
        if folder() is None:
            print("block_networks: pictures skipped, set TACIT_DATA_DIR to the folder of large/*.npz", file=sys.stderr)
        else:
            network_table(options, board)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
