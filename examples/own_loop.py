"""A training loop of your own: you write the loop, the plan draws batches, clips, adds noise and certifies.

    python examples/own_loop.py

Anything you do with the parameters after a step is post-processing: here Adam, a schedule, an average of iterates, and
a checkpoint from which a second plan goes on to the same end, to the bit.
"""

from __future__ import annotations

import argparse
import copy
import pathlib
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel

from tacit.torch import TrainingPlan

DELTA = 1e-5


def make_plan(n: int) -> TrainingPlan:
    return TrainingPlan(n, epsilon=6.0, delta=DELTA, batch_size=120, epochs=15, clip_norm=1.0, bands=4)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    data, loss = (X[train], y[train]), nn.CrossEntropyLoss()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    start = copy.deepcopy(model)
    plan = make_plan(len(train))
    print(plan)
    print(plan.certificate.describe(DELTA))

    optimizer = Adam(model.parameters(), lr=0.02)
    schedule = CosineAnnealingLR(optimizer, plan.n_steps)
    average = AveragedModel(model)  # private, too: the certificate covers every iterate
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "half-way.checkpoint"
        for batch in plan.batches(data):
            plan.step(model, loss, batch, optimizer=optimizer)
            schedule.step()
            if batch.step >= plan.n_steps // 2:
                average.update_parameters(model)
            if batch.step == plan.n_steps // 2:
                plan.save(path, model, optimizer=optimizer)  # holds the noise key: keep it as safe as the data
        resumed = _resume(path, start, data, loss)

    for name, m in (("last iterate", model), ("average of the second half", average)):
        with torch.no_grad():
            correct = (m(X[test]).argmax(dim=1) == y[test]).float().mean()
        print(f"{name}: accuracy {correct:.3f}")
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    print(f"resumed from half way: {'the same parameters to the bit' if same else 'DIFFERENT'}")


def _resume(path: pathlib.Path, model: nn.Module, data: tuple[torch.Tensor, ...], loss: nn.Module) -> nn.Module:
    plan = make_plan(len(data[0]))
    optimizer = Adam(model.parameters(), lr=0.02)
    schedule = CosineAnnealingLR(optimizer, plan.n_steps)
    plan.restore(path, model, data, optimizer=optimizer)
    schedule.last_epoch = plan.steps_done  # the optimiser's rate came with the checkpoint
    for batch in plan.batches(data):
        plan.step(model, loss, batch, optimizer=optimizer)
        schedule.step()
    return model


if __name__ == "__main__":
    main()
