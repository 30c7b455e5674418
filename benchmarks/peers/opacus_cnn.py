"""DP-SGD steps of Opacus on the CNN: ``opacus_cnn.py <mode> <records> <batch> <passes>`` → one JSON line.

Modes: those of ``PrivacyEngine`` (hooks, functorch, ew, ghost); ``hooks/64`` is hooks under its BatchMemoryManager with
at most 64 pictures at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from cnn import cnn, memory, one_thread, pictures, reset_peak
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

Loader = DataLoader[Any]
Loss = Callable[..., Any]  # that of ghost clipping returns no tensor
Parts = tuple[torch.nn.Module, torch.optim.Optimizer, Loss, Loader]


def private(mode: str, records: TensorDataset, model: torch.nn.Module, batch: int) -> Parts:
    """Model, optimiser, loss and loader of Opacus: Poisson batches, noise multiplier 1, clip 1."""
    sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    loader: Loader = DataLoader(records, batch_size=batch)
    settings = {"module": model, "optimizer": sgd, "data_loader": loader, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    if mode == "ghost":
        model, sgd, loss, loader = PrivacyEngine().make_private(**settings, criterion=loss, grad_sample_mode=mode)
    else:
        model, sgd, loader = PrivacyEngine().make_private(**settings, grad_sample_mode=mode)
    return model, sgd, loss, loader


@contextlib.contextmanager
def portions(loader: Loader, sgd: torch.optim.Optimizer, limit: str) -> Iterator[Loader]:
    if not limit:
        yield loader
        return
    manager = BatchMemoryManager(data_loader=loader, max_physical_batch_size=int(limit), optimizer=sgd)
    with manager as parts:
        yield parts


def one_pass(model: torch.nn.Module, sgd: torch.optim.Optimizer, loss: Loss, loader: Loader, limit: str) -> int:
    """Steps over one pass; how many pictures they have read."""
    read = 0
    with portions(loader, sgd, limit) as parts:
        for x, y in parts:
            sgd.zero_grad()
            loss(model(x), y).backward()
            sgd.step()
            read += len(y)
    return read


def main(mode: str, records: str, batch: str, passes: str) -> None:
    warnings.simplefilter("ignore")
    one_thread()
    torch.manual_seed(0)
    data, model = TensorDataset(*pictures(int(records))), cnn()
    base = reset_peak()
    kind, _, limit = mode.partition("/")
    parts = private(kind, data, model, int(batch))
    times = []
    for _ in range(1 + int(passes)):  # the first one warms up
        start, cpu = time.perf_counter(), time.process_time()
        read = one_pass(*parts, limit)
        times.append(((time.perf_counter() - start) / read, (time.process_time() - cpu) / read))
    print(json.dumps({"times": times[1:], "memory": memory(base), "torch": torch.__version__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
