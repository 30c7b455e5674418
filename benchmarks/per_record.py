"""What a private step costs: over plain SGD for gradients, over torch's own ``normal_`` for the rest, and in memory.

``gradients``: CPU seconds of the clipped sum of one batch (read, differentiated, clipped, added) over those of plain
forward and backward on the same batch, for each model. ``rest``: CPU seconds of ``plan.step`` without its sum (batch,
noise, rows, optimiser) over those of ``normal_`` on a tensor of all parameters, at 2 and 20 million parameters and 1
and 10 bands. ``memory``: peak megabytes above imports, model and data, of private steps over plain ones, each in a
process of its own; ``first step`` has the trial on made-up records, too. Each cell is the median of three repeats, in
turns with what it is compared with; one thread.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from peers.cnn import cnn, memory, one_thread, reset_peak
from run import parser
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

REPEATS, CALLS = 3, 5
LOSS = nn.CrossEntropyLoss()
TARGETS = {"mlp": 1.3, "mlp as a module": 1.45, "transformer": 1.8, "cnn": 2.1}
WIDE = {"2 million": 2_000_000, "20 million": 20_000_000}
REST = {1: 2.5, 10: 3.3}


class MLP(nn.Module):
    """Three dense layers, as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        out: Tensor = self.c(relu(self.b(relu(self.a(x)))))
        return out


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.before, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        n, t, w = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, w))
        out: Tensor = x + self.down(gelu(self.up(self.after(x))))
        return out


class Text(nn.Module):
    """A small text transformer."""

    def __init__(self, words: int = 5000, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        h = self.blocks(self.words(x) + self.places(torch.arange(x.shape[1])))
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


class Residual(nn.Module):
    """A residual block with group norm."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, outside), nn.GroupNorm(8, outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        return relu(self.short(x) + self.norm2(self.second(relu(self.norm1(self.first(x))))))


class ResNet(nn.Module):
    """Three residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Residual(3, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        out: Tensor = self.head(self.body(x).mean((2, 3)))
        return out


class Bag(nn.Module):
    """A bag of words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.up, self.head = nn.EmbeddingBag(20_000, 64), nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        out: Tensor = self.head(relu(self.up(self.bag(x))))
        return out


class Recurrent(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(5000, 64), nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """As PyTorch calls it."""
        out: Tensor = self.head(self.rnn(self.words(x))[0][:, -1])
        return out


def sequential() -> nn.Module:
    layers = nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    return nn.Sequential(*layers)


Inputs = Callable[[int], Tensor]
MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs, int]] = {
    "mlp": (sequential, lambda n: torch.randn(n, 784), 256),
    "mlp as a module": (MLP, lambda n: torch.randn(n, 784), 256),
    "transformer": (Text, lambda n: torch.randint(5000, (n, 64)), 64),
    "cnn": (cnn, lambda n: torch.randn(n, 3, 32, 32), 256),
    "resnet": (ResNet, lambda n: torch.randn(n, 3, 32, 32), 64),
    "embedding bag": (Bag, lambda n: torch.randint(20_000, (n, 64)), 256),
    "lstm": (Recurrent, lambda n: torch.randint(5000, (n, 32)), 64),
}


def seconds(f: Callable[[], object], calls: int = CALLS) -> float:
    """The median of some calls."""
    times = []
    for _ in range(calls):
        start = time.process_time()
        f()
        times.append(time.process_time() - start)
    return float(np.median(times))


def plain(model: nn.Module, X: Tensor, y: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        LOSS(model(X), y).backward()

    return step


def private(model: nn.Module, X: Tensor, y: Tensor, chunk: int | None = None) -> Callable[[], None]:
    from tacit.torch.gradients import PerRecordGradients
    from tacit.torch.objective import Objective
    from tacit.torch.records import Records
    from tacit.torch.trial import try_step

    records = Records((X, y))
    trial = try_step(model, LOSS, records, chunk_size=chunk, vectorised=True)
    query = PerRecordGradients(Objective(model, LOSS), 1.0, chunk_size=chunk, **trial._asdict())
    index = np.arange(len(X))

    def step() -> None:
        place = query.place()
        query.add_up(records, place.at, index, place.sums)

    return step


def gradients(name: str) -> dict[str, object]:
    make, inputs, batch = MODELS[name]
    torch.manual_seed(0)
    model, X, y = make(), inputs(batch), torch.randint(10, (batch,))
    ours, theirs = private(model, X, y), plain(model, X, y)
    pairs = []
    seconds(ours, 2), seconds(theirs, 2)
    for _ in range(REPEATS):
        before, used, after = seconds(theirs), seconds(ours), seconds(theirs)
        pairs.append((used, (before + after) / 2))
    ratios = [a / b for a, b in pairs]
    cell = {"cell": f"gradients, {name}", "batch": batch, "plain_ms": 1e3 * float(np.median([b for _, b in pairs]))}
    return {**cell, "ratio": float(np.median(ratios)), "worst": max(ratios), "target": TARGETS.get(name, "")}


def rest(name: str, bands: int) -> dict[str, object]:
    """Steps of a model of two large layers, with the time of the sum taken out."""
    from tacit.torch import TrainingPlan
    from tacit.torch.gradients import PerRecordGradients

    width = WIDE[name] // 2000
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, width), nn.ReLU(), nn.Linear(width, 1000))
    X, y = torch.randn(64, 1000), torch.randint(1000, (64,))
    size = sum(p.numel() for p in model.parameters())
    steps = 2 + REPEATS * CALLS
    strategy = "dpsgd" if bands == 1 else "bandmf"
    how = {
        "steps": max(steps, 2 * bands),
        "batch_size": 4,
        "strategy": strategy,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
    }
    plan = TrainingPlan(64, bands=bands, **how)
    inside, add_up = [0.0], PerRecordGradients.add_up

    def timed(self, *args) -> None:
        start = time.process_time()
        add_up(self, *args)
        inside[0] += time.process_time() - start

    PerRecordGradients.add_up, turns = timed, plan.batches((X, y))  # type: ignore[method-assign]
    try:
        room, ratios, used = torch.empty(size), [], []
        for _ in range(2):
            plan.step(model, LOSS, next(turns))
        for _ in range(REPEATS):
            normal, times = seconds(lambda: room.normal_()), []
            for _ in range(CALLS):
                inside[0], start = 0.0, time.process_time()
                plan.step(model, LOSS, next(turns))
                times.append(time.process_time() - start - inside[0])
            normal = (normal + seconds(lambda: room.normal_())) / 2
            used.append(float(np.median(times)))
            ratios.append(used[-1] / normal)
    finally:
        PerRecordGradients.add_up = add_up  # type: ignore[method-assign]
    cell = {"cell": f"rest, {name}, b = {bands}", "ns_per_parameter": 1e9 * float(np.median(used)) / size}
    return {**cell, "ratio": float(np.median(ratios)), "worst": max(ratios), "target": REST[bands]}


def peak(name: str, kind: str) -> float:
    """Peak megabytes of steps, above imports, model and data."""
    from tacit.torch import TrainingPlan

    one_thread()
    make, inputs, batch = MODELS[name]
    torch.manual_seed(0)
    model, X, y = make(), inputs(batch), torch.randint(10, (batch,))
    chunk = max(1, batch // 8)
    plan = TrainingPlan(
        batch, steps=6, batch_size=batch // 2, strategy="dpsgd", noise_multiplier=1.0, delta=1e-5, chunk_size=chunk
    )
    optimizer, turns = torch.optim.SGD(model.parameters(), lr=0.1), plan.batches((X, y))

    def step() -> None:
        if kind == "plain":
            plain(model, X[: batch // 2], y[: batch // 2])()
            optimizer.step()
        else:
            plan.step(model, LOSS, next(turns))

    base = reset_peak()
    step()
    if kind == "first step":  # with its trial on made-up records
        return memory(base)
    model.zero_grad(set_to_none=True)
    gc.collect()
    base = reset_peak()
    for _ in range(3):
        step()
    return memory(base)


def memories(name: str) -> dict[str, object]:
    megabytes = {}
    for kind in ("plain", "private", "first step"):
        command = [sys.executable, __file__, "--peak", name, kind]
        each = [float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout) for _ in range(3)]
        megabytes[kind] = float(np.median(each))
    ratio = megabytes["private"] / megabytes["plain"]
    return {"cell": f"memory, {name}", **megabytes, "ratio": ratio, "target": 1.5}


def main(arguments: list[str]) -> None:
    known = parser(__doc__)
    known.add_argument("--peak", nargs=2, metavar=("model", "kind"), help="memory only (used by itself)")
    known.add_argument("--only", default="", help="cells whose name begins with this")
    options = known.parse_args(arguments)
    if options.peak:
        print(peak(*options.peak))
        return
    one_thread()
    cells: list[tuple[str, Callable[[], dict[str, object]]]] = []
    cells += [(f"gradients, {name}", lambda name=name: gradients(name)) for name in MODELS]
    cells += [(f"rest, {name}, b = {b}", lambda name=name, b=b: rest(name, b)) for name in WIDE for b in REST]
    cells += [
        (f"memory, {name}", lambda name=name: memories(name)) for name in ("mlp as a module", "transformer", "cnn")
    ]
    for name, cell in cells:
        if name.startswith(options.only):
            print(json.dumps(cell()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
