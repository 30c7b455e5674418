"""Accuracy at equal (ε, δ): DP-SGD, BandMF and NoiseCurve on real pictures.

For every task and ε each method chooses its learning rate and its number of bands on validation records that belong to
the training set, never on the test set: the same learning rates and tuning seeds for all. Then paired seeds: seed s is
the same split and the same start of the parameters for all methods, and differences are held against an exact sign-flip
test (two-sided).

δ = 1e-5, zero-out. Bands to try are multiples of the best ones for prefix sums (``choose_bands``, public numbers).
NoiseCurve takes its spectrum from another data set with random labels, and the step size times the share that clipping
leaves of a gradient there. Cells accumulate in ``results/training.jsonl``. ``python benchmarks/training.py`` makes the
small tasks; ``--full`` adds the paper's protocol (CIFAR-10: days on a CPU); ``--only``, ``--epsilons``, ``--methods``
and ``--seeds`` make a part; ``--predicted`` prints what theory says of the noise instead.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from data import folder
from numpy.typing import NDArray
from peers.cnn import cnn
from run import record, recorded
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from untuned import show

from tacit.accounting import banded_noise_multiplier, choose_bands
from tacit.noise import Strategy, identity, noisecurve_workload, optimise, prefix_sum
from tacit.torch import TrainingPlan, accuracy
from tacit.torch.curvature import hessian_spectrum

DELTA, SEEDS, TUNING = 1e-5, 6, (1000,)
METHODS = ("dpsgd", "bandmf", "noisecurve")
PUBLIC, CLIP_PROBE = 2000, 500
FINALISTS = 2
"""Candidates that the later tuning seeds decide between."""
REGULARISATION = 0.1
"""Of ``optimise``, if nothing else is said."""
STABLE = 1.5
"""Step × largest eigenvalue that NoiseCurve is told at most: a quadratic is not descended with more than 2."""
PROTOCOL = "1"
STORE = pathlib.Path(__file__).resolve().parents[1] / "out" / "training"
"""Spectra, strategies and noise levels that were computed before: minutes each, and public."""

Array = NDArray[np.float64]
Cell = dict[str, object]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Pictures:
    """What a task reads: records to split, test records, and inputs of another data set that count as public."""

    train: Pair
    test: Pair
    public: Tensor


@dataclass(frozen=True, eq=False)
class Task:
    """A problem with the settings that all methods share.

    Attributes:
        load: reads the data.
        model: makes the network.
        records: how many are trained on.
        validation: how many others choose the learning rate.
        batch: expected batch size.
        epochs: how often each record is read.
        clip: the longest gradient of one record.
        epsilons: privacy levels.
        rates: learning rates that tuning tries.
        tuning: seeds of tuning: the first for all candidates, the others for the ``FINALISTS``.
        band_factors: bands that tuning tries, in units of the best ones for prefix sums.
        regularisations: weights of the prefix-sum error beside NoiseCurve's own, tuned like the rest.
        curvature: more arguments of ``hessian_spectrum``.
    """

    name: str
    load: Callable[[], Pictures]
    model: Callable[[], nn.Module]
    records: int
    validation: int
    batch: int
    epochs: float
    clip: float
    epsilons: tuple[float, ...]
    rates: tuple[float, ...]
    tuning: tuple[int, ...] = TUNING
    band_factors: tuple[float, ...] = (1, 2)
    regularisations: tuple[float, ...] = (REGULARISATION,)
    curvature: dict[str, object] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """T."""
        return round(self.epochs * self.records / self.batch)


# -- data and models ------------------------------------------------------------------------------------------


def _grey(name: str) -> dict[str, Tensor]:
    with np.load(_place() / "large" / f"{name}.npz", allow_pickle=False) as held:
        parts = {key: torch.from_numpy(held[key]) for key in held.files}
    return {key: part.float() / 255 if key.startswith("x") else part.long() for key, part in parts.items()}


def _place() -> pathlib.Path:
    place = folder()
    if place is None:
        raise FileNotFoundError("set TACIT_DATA_DIR to the folder that holds large/*.npz")
    return place


def _unit_rows() -> Pictures:
    """MNIST as vectors of length 1; Fashion-MNIST is public."""
    here, there = _grey("mnist"), _grey("fashion_mnist")
    rows = [nn.functional.normalize(x.flatten(1)) for x in (here["x_train"], here["x_test"], there["x_train"])]
    return Pictures((rows[0], here["y_train"]), (rows[1], here["y_test"]), rows[2])


def _fashion() -> Pictures:
    """Fashion-MNIST, each picture standardised by itself; MNIST is public."""
    here, there = _grey("fashion_mnist"), _grey("mnist")
    images = [_standard(x[:, None]) for x in (here["x_train"], here["x_test"], there["x_train"])]
    return Pictures((images[0], here["y_train"]), (images[1], here["y_test"]), images[2])


def _standard(x: Tensor) -> Tensor:
    """Mean 0 and variance 1 within each picture: a function of that record alone."""
    flat = x.flatten(1)
    centred = flat - flat.mean(dim=1, keepdim=True)
    return (centred / centred.std(dim=1, keepdim=True).clamp(min=1e-3)).view_as(x)


def _cifar() -> Pictures:
    """CIFAR-10; Fashion-MNIST, padded and grey, stands for the paper's TinyImageNet."""
    sys.path.insert(0, str(_place()))
    from load import images

    path = _place() / "large" / "cifar10.npz"
    parts = [torch.from_numpy(images(str(path), name)).permute(0, 3, 1, 2).float() for name in ("x_train", "x_test")]
    with np.load(path, allow_pickle=False) as held:
        labels = [torch.from_numpy(held[name]).long() for name in ("y_train", "y_test")]
    grey = nn.functional.pad(_grey("fashion_mnist")["x_train"][:PUBLIC, None], (2, 2, 2, 2))
    public = _standard(grey).expand(-1, 3, -1, -1)
    return Pictures((_standard(parts[0]), labels[0]), (_standard(parts[1]), labels[1]), public)


def _linear() -> nn.Module:
    model = nn.Linear(784, 10, bias=False)  # a bias would be a far longer direction than all pixels
    nn.init.zeros_(model.weight)
    return model


_GREY = functools.partial(cnn, channels=1)
TASKS = {
    task.name: task
    for task in (
        Task(
            "logistic, MNIST",
            _unit_rows,
            _linear,
            records=50_000,
            validation=10_000,
            batch=500,
            epochs=10,
            clip=0.25,
            epsilons=(1.0, 2.0, 5.0, 8.0),
            rates=(32.0, 64.0, 128.0, 256.0, 512.0),
        ),
        Task(
            "logistic, MNIST, 5000 records",
            _unit_rows,
            _linear,
            records=5_000,
            validation=10_000,
            batch=50,
            epochs=10,
            clip=0.25,
            epsilons=(2.0, 8.0),
            rates=(4.0, 8.0, 16.0, 32.0, 64.0),
            band_factors=(0.5, 1),
        ),
        Task(
            "CNN, Fashion-MNIST",
            _fashion,
            _GREY,
            records=20_000,
            validation=5_000,
            batch=500,
            epochs=10,
            clip=1.0,
            epsilons=(2.0, 8.0),
            rates=(2.0, 4.0),
            tuning=(1000, 1001, 1002),
            band_factors=(0.25, 1),
        ),
        Task(
            "CNN, CIFAR-10",
            _cifar,
            cnn,
            records=45_000,
            validation=5_000,
            batch=450,
            epochs=20,
            clip=1.0,
            epsilons=(1.0, 2.0, 5.0, 8.0),
            rates=(0.1, 0.2, 0.5, 1.0),
        ),
    )
}
FULL = ("CNN, CIFAR-10",)


@functools.cache
def pictures(name: str) -> Pictures:
    return TASKS[name].load()


def split(task: Task, seed: int) -> tuple[Pair, Pair]:
    """Training and validation records of a seed, both from the training set."""
    x, y = pictures(task.name).train
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    first, second = order[: task.records], order[task.records : task.records + task.validation]
    return (x[first], y[first]), (x[second], y[second])


# -- noise ----------------------------------------------------------------------------------------------------


def stored(make: Callable[[], object], *words: object) -> Array:
    """An array that is computed once for these words."""
    path = STORE / (hashlib.sha256(repr(words).encode()).hexdigest()[:20] + ".npy")
    if not path.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}.npy")
        np.save(made, np.asarray(make(), dtype=np.float64))
        made.rename(path)
    return np.load(path, allow_pickle=False)


def multiplier(task: Task, epsilon: float, bands: int) -> float:
    """σ/C; a hair more than calibrated, so that rounding in a strategy's columns cannot cost the certificate."""
    kind = {"n": task.records, "batch_size": task.batch, "steps": task.steps, "bands": bands}

    def make() -> float:
        return banded_noise_multiplier(epsilon, DELTA, adjacency="zero-out", **kind) * (1 + 1e-9)

    return float(stored(make, "sigma", epsilon, DELTA, tuple(kind.values())))


def band_mf(task: Task, bands: int) -> Strategy:
    """The best C for prefix sums."""

    def make() -> Array:
        return optimise(prefix_sum(task.steps), bands, tolerance=1e-4).strategy.bands

    return Strategy(stored(make, "bandmf", task.steps, bands))


def noise_curve(task: Task, bands: int, rate: float, regularisation: float) -> Strategy:
    """The best C for the last iterate under public curvature."""
    eigenvalues = spectrum(task)
    step = min(rate * clip_factor(task), STABLE / float(eigenvalues.max()))

    def make() -> Array:
        workload = noisecurve_workload(eigenvalues, step, task.steps)
        start = band_mf(task, bands)
        return optimise(workload, bands, start=start, regularisation=regularisation).strategy.bands

    extra = () if regularisation == REGULARISATION else (regularisation,)
    return Strategy(stored(make, "noisecurve", task.steps, bands, step, eigenvalues.tobytes(), *extra))


def band_choices(task: Task, epsilon: float) -> tuple[int, ...]:
    """The best b for prefix sums, times the factors to try, if the records allow."""

    def make() -> int:
        sizes = {"n": task.records, "batch_size": task.batch, "steps": task.steps}
        return choose_bands(epsilon, DELTA, adjacency="zero-out", **sizes).bands

    best = int(stored(make, "bands", epsilon, DELTA, task.records, task.batch, task.steps))
    tried = dict.fromkeys(max(2, round(best * k)) for k in task.band_factors)
    return tuple(b for b in tried if b * task.batch <= task.records)


@functools.cache
def spectrum(task: Task) -> Array:
    """Eigenvalues of a public Hessian, random labels."""

    def make() -> Array:
        torch.manual_seed(0)
        public = pictures(task.name).public[:PUBLIC]
        found = hessian_spectrum(task.model(), nn.CrossEntropyLoss(), public, classes=10, **task.curvature)
        return np.asarray(found.eigenvalues)

    return stored(make, "spectrum", task.name, PUBLIC, sorted(task.curvature.items()))


@functools.cache
def clip_factor(task: Task) -> float:
    """The share of a gradient that clipping leaves, at the start, on public inputs with random labels: the median."""
    torch.manual_seed(0)
    model, loss = task.model(), nn.CrossEntropyLoss()
    at = {name: part.detach() for name, part in model.named_parameters()}
    x = pictures(task.name).public[:CLIP_PROBE]
    y = torch.randint(10, (len(x),), generator=torch.Generator().manual_seed(0))
    one = grad(lambda p, x, y: loss(functional_call(model, p, (x[None],)), y[None]))
    norms = [
        torch.cat([g.flatten() for g in vmap(one, (None, 0, 0))(at, a[None], b[None]).values()]).norm()
        for a, b in zip(x, y, strict=True)
    ]
    return float(np.median(np.minimum(1.0, task.clip / np.array(norms))))


# -- runs -----------------------------------------------------------------------------------------------------


def fitted(task: Task, records: Pair, epsilon: float, settings: Cell, seed: int) -> nn.Module:
    """One private training; the plan certifies it anew."""
    method, bands, rate = str(settings["method"]), int(str(settings["bands"])), float(str(settings["rate"]))
    strategy: Strategy | str = "dpsgd"
    if bands > 1:
        weight = float(str(settings.get("regularisation", REGULARISATION)))
        strategy = band_mf(task, bands) if method == "bandmf" else noise_curve(task, bands, rate, weight)
    torch.manual_seed(seed)
    model, loss = task.model(), nn.CrossEntropyLoss()
    plan = TrainingPlan(
        task.records,
        noise_multiplier=multiplier(task, epsilon, bands),
        delta=DELTA,
        batch_size=task.batch,
        steps=task.steps,
        clip_norm=task.clip,
        learning_rate=rate,
        strategy=strategy,
        adjacency="zero-out",
        random_state=seed,
    )
    if plan.certificate.epsilon(DELTA) > epsilon * (1 + 1e-6):
        raise RuntimeError(f"certified ε is {plan.certificate.epsilon(DELTA)}, not {epsilon}")
    for batch in plan.batches(records):
        plan.step(model, loss, batch)
    return model.eval()


def score(model: nn.Module, records: Pair) -> float:
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in records[0].split(1000)])
    return accuracy(outputs, records[1])


class Board:
    """Cells that were made before, and new ones."""

    def __init__(self) -> None:
        self.cells = [cell for cell in recorded("training") if cell.get("protocol") == PROTOCOL]

    def get(self, task: Task, epsilon: float, settings: Cell, seed: int, stage: str) -> float:
        """Accuracy on validation ("tune") or test ("test") records."""
        shared = {"n": task.records, "batch": task.batch, "epochs": task.epochs, "clip": task.clip}
        key = {"task": task.name, **shared, "epsilon": epsilon, **settings, "seed": seed, "stage": stage}
        for cell in self.cells:
            if all(cell.get(name) == key.get(name) for name in (*key, "regularisation")):
                return float(str(cell["accuracy"]))
        start = time.perf_counter()
        train, validation = split(task, seed)
        model = fitted(task, train, epsilon, settings, seed)
        found = score(model, validation if stage == "tune" else pictures(task.name).test)
        cell = {**key, "accuracy": found, "seconds": round(time.perf_counter() - start, 1), "protocol": PROTOCOL}
        record("training", [cell])
        print(json.dumps(cell), flush=True)
        self.cells.append(cell)
        return found


def candidates(task: Task, epsilon: float, method: str) -> list[Cell]:
    bands = (1,) if method == "dpsgd" else band_choices(task, epsilon)
    plain = [{"method": method, "bands": b, "rate": rate} for b, rate in itertools.product(bands, task.rates)]
    others = [w for w in task.regularisations if w != REGULARISATION and method == "noisecurve"]
    return [*plain, *({**one, "regularisation": w} for w in others for one in plain)]


def tuned(task: Task, epsilon: float, method: str, board: Board) -> Cell:
    """The settings with the best mean accuracy on validation records: all on the first seed, the best few on all."""

    def quality(settings: Cell, seeds: int) -> float:
        return float(np.mean([board.get(task, epsilon, settings, seed, "tune") for seed in task.tuning[:seeds]]))

    best = sorted(candidates(task, epsilon, method), key=lambda one: -quality(one, 1))[:FINALISTS]
    return max(best, key=lambda one: quality(one, len(task.tuning)))


def sign_flips(differences: Array) -> float:
    """The exact two-sided p-value of the paired permutation test on the mean."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(differences))))
    return float(np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12))


def row(task: Task, epsilon: float, seeds: int, methods: list[str], board: Board) -> Cell:
    """All seeds of all methods at one ε, in percent."""
    out: Cell = {"task": task.name, "ε": epsilon}
    found: dict[str, Array] = {}
    for method in methods:
        settings = tuned(task, epsilon, method, board)
        found[method] = np.array([100 * board.get(task, epsilon, settings, s, "test") for s in range(seeds)])
        out[method] = f"{found[method].mean():.2f} ± {found[method].std(ddof=1):.2f}"
        out[f"{method} η, b"] = f"{settings['rate']:g}, {settings['bands']}"
    for one, other in (("bandmf", "dpsgd"), ("noisecurve", "bandmf"), ("noisecurve", "dpsgd")):
        if one in found and other in found:
            gap = found[one] - found[other]
            out[f"{one} − {other}"] = f"{gap.mean():+.2f} (p {sign_flips(gap):.3f})"
    return out


def predicted(task: Task, epsilon: float) -> list[Cell]:
    """What theory says of noise in the last iterate of a quadratic with the public spectrum: σ²·Tr(AX⁻¹) by method."""
    out = []
    for bands, rate in itertools.product(band_choices(task, epsilon), task.rates):
        step = min(rate * clip_factor(task), STABLE / float(spectrum(task).max()))
        workload = noisecurve_workload(spectrum(task), step, task.steps)
        curve = noise_curve(task, bands, rate, REGULARISATION)
        strategies = {"dpsgd": Strategy(identity(task.steps)), "bandmf": band_mf(task, bands), "noisecurve": curve}
        cell: Cell = {"task": task.name, "ε": epsilon, "b": bands, "η": rate}
        for method, strategy in strategies.items():
            sigma = multiplier(task, epsilon, 1 if method == "dpsgd" else bands)
            cell[f"σ {method}"] = f"{sigma:.3f}"
            cell[method] = f"{sigma**2 * workload.value(strategy.bands):.0f}"
        out.append(cell)
    return out


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the paper's protocol, too")
    parser.add_argument("--only", default="", help="tasks, separated by semicolons")
    parser.add_argument("--epsilons", default="", help="separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--predicted", action="store_true", help="what theory says of the noise; trains nothing")
    options = parser.parse_args(arguments)
    if folder() is None:
        print("training: skipped, set TACIT_DATA_DIR to the folder that holds large/*.npz", file=sys.stderr)
        return 0
    torch.set_num_threads(1)
    chosen = [name for name in options.only.split(";") if name] or [n for n in TASKS if options.full or n not in FULL]
    board, rows = Board(), []
    for name in chosen:
        task = TASKS[name]
        levels = [float(e) for e in options.epsilons.split(",") if e] or task.epsilons
        if options.predicted:
            rows += [cell for epsilon in levels for cell in predicted(task, epsilon)]
            continue
        rows += [row(task, epsilon, options.seeds, options.methods.split(","), board) for epsilon in levels]
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
