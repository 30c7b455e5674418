"""A trainer that is killed: the child processes of ``test_killed_runs`` (run as a script)."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.ledger import Ledger
from tacit.torch import PrivateTrainer
from tacit.torch import run as runs
from tacit.torch.in_place import InPlace

STEPS = 8


def digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def watch(side: Path, mutant: str) -> None:
    """Write down each release before it is used: run, number, sum, noise."""
    out = os.open(side, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    add_noise, release = InPlace.add_noise, runs.Run.release
    hidden: list[str] = []

    def added(self: Any, sigma: float, key: bytes, rows: Any, target: int, coefficients: Any) -> None:
        clean = digest(self.sums.numpy())
        add_noise(self, sigma, key, rows, target, coefficients)
        noise = digest(np.frombuffer(key, np.uint8))  # the difference is rounded
        hidden.append(f"{clean}/{digest(self.sums.numpy())} {noise}")

    def released(self: Any, query: Any, **how: Any) -> Any:
        noisy = release(self, query, **how)
        run = digest(np.frombuffer(self.secret, np.uint8))
        os.write(out, f"{run} {self.step} {hidden.pop()}\n".encode())
        return noisy

    InPlace.add_noise, runs.Run.release = added, released  # type: ignore[method-assign]
    if mutant == "uncharged":
        Ledger.reserve = lambda self, *args, **options: 1  # type: ignore[method-assign]


def train_for_ever(folder: Path, mutant: str) -> None:
    watch(folder / "released", mutant)
    ledger = Ledger(folder / "b.ledger", 1e4, 1e-3, adjacency="zero-out")
    g = torch.Generator().manual_seed(0)
    data = torch.randn(60, 4, generator=g), torch.randint(0, 3, (60,), generator=g)
    path = folder / "c"
    while True:
        trainer = PrivateTrainer(
            nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.3)),
            nn.CrossEntropyLoss(),
            noise_multiplier=200.0,
            delta=1e-4,
            batch_size=10,
            steps=STEPS,
            bands=2,
            checkpoint=path,
            checkpoint_every=2,
            ledger=ledger,
            progress=False,
        )
        trainer.fit(data, resume=path.exists())


def nursery() -> None:
    """For every line "folder mutant": fork a child that trains until it is killed, and say how it ended."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        folder, mutant = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                train_for_ever(Path(folder), mutant)
            except BaseException:
                traceback.print_exc()
            os._exit(1)  # reached only by an error, which the parent then sees as an exit code
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("killed" if os.WIFSIGNALED(status) else "failed", flush=True)


if __name__ == "__main__":
    nursery()
