"""Two processes share the batches of one run: noise exactly once, the result that of one process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from tacit.ledger import Ledger
from tacit.torch import TrainingPlan

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch import nn
from tacit.ledger import Ledger
from tacit.torch import TrainingPlan
from tacit.errors import MechanismMismatch

rank = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://{folder}/meet", rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (60,), generator=g)
if {differ} and rank == 1:
    X = X + 1
torch.manual_seed(rank)  # the leader's parameters win
model = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3)).double()
ledger = Ledger("{folder}/b.ledger", 500.0, 1e-3, adjacency="zero-out") if rank == 0 and ({sigma} or 0) > 1 else None
plan = TrainingPlan(
    60, noise_multiplier={sigma}, delta=1e-4, batch_size=12, steps=12, bands=4, momentum=0.5,
    random_state={seed}, ledger=ledger, **{more},
)
try:
    for batch in plan.batches((X, Y)):
        plan.step(model, nn.CrossEntropyLoss(), batch)
        if batch.step == 5:
            plan.save("{folder}/c", model)
except MechanismMismatch as error:
    print(error)
    time.sleep(2)  # a process that leaves at once may cut off what the other is still receiving
    sys.exit(3)
torch.save(model.state_dict(), "{folder}/" + str(rank) + ".pt")
dist.barrier()  # a process that leaves at once may cut off what the other is still receiving
dist.destroy_process_group()
os._exit(0)  # gloo's threads sometimes abort a process that ends by itself
"""


def two(tmp_path, monkeypatch, *, differ: bool = False, sigma: float | None = 1e-12, seed: int | None = 3, **more):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    script = textwrap.dedent(SCRIPT).format(folder=tmp_path, differ=differ, sigma=sigma, seed=seed, more=more)
    team = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(r)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    return [(*process.communicate(timeout=180), process.returncode) for process in team]


def alone(sigma: float | None, **more) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    X, Y = torch.randn(60, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (60,), generator=g)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3)).double()
    settings = {"delta": 1e-4, "batch_size": 12, "steps": 12, "bands": 4, "momentum": 0.5, "random_state": 3}
    plan = TrainingPlan(60, noise_multiplier=sigma, **settings, **more)
    for batch in plan.batches((X, Y)):
        plan.step(model, nn.CrossEntropyLoss(), batch)
    return model.state_dict()


def test_two_processes_are_one(tmp_path, monkeypatch):
    for out, err, code in two(tmp_path, monkeypatch):
        assert code == 0, (out, err)
    here, there = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    for name, value in alone(1e-12).items():
        assert torch.equal(here[name], there[name])
        torch.testing.assert_close(here[name], value, rtol=0, atol=1e-6)


def test_in_exact_arithmetic_two_processes_are_one_to_the_bit(tmp_path, monkeypatch):
    """Integers add up to the same sum, whoever adds them."""
    exact = {"arithmetic": "exact", "chunk_size": 1}
    for out, err, code in two(tmp_path, monkeypatch, sigma=0.5, **exact):
        assert code == 0, (out, err)
    here, there = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    for name, value in alone(0.5, **exact).items():
        assert torch.equal(here[name], there[name])
        assert torch.equal(here[name], value)


def test_noise_is_added_exactly_once(tmp_path, monkeypatch):
    """Distances from the quiet run have the size of one process's noise, not √2 of it, and both hold the same model."""
    for out, err, code in two(tmp_path, monkeypatch, sigma=50.0, seed=None):
        assert code == 0, (out, err)
    here, there = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    flat = [torch.cat([v.reshape(-1) for v in state.values()]) for state in (here, there, alone(1e-12), alone(50.0))]
    assert torch.equal(flat[0], flat[1])
    assert (tmp_path / "c").exists()
    assert len(Ledger(tmp_path / "b.ledger").entries()) == 1
    ours, reference = (flat[0] - flat[2]).norm(), (flat[3] - flat[2]).norm()
    assert 0.9 < ours / reference < 1.1  # 3203 numbers: its standard deviation is below 2 %, √2 or 1/√2 stand out


def test_processes_with_different_data_do_not_start(tmp_path, monkeypatch):
    for out, _, code in two(tmp_path, monkeypatch, differ=True):
        assert code == 3
        assert "different data" in out


@pytest.mark.parametrize("rank", [0])
def test_one_process_is_a_team_of_one(rank):
    from tacit.torch.records import Team

    team = Team()
    assert (team.rank, team.size, team.is_leader) == (rank, 1, True)


def test_a_pilot_release_counts_every_record_once(tmp_path, monkeypatch):
    """Clip and rate follow from counts over both processes: in exact arithmetic the bits of one process."""
    how = {"epsilon": 50.0, "pilot": True, "arithmetic": "exact", "chunk_size": 1}
    for out, err, code in two(tmp_path, monkeypatch, sigma=None, **how):
        assert code == 0, (out, err)
    here, there = (torch.load(tmp_path / f"{r}.pt") for r in range(2))
    for name, value in alone(None, **how).items():
        assert torch.equal(here[name], there[name])
        assert torch.equal(here[name], value)
