"""Two processes share the batches of one run: noise exactly once, the result that of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.ledger import Ledger
from tacit.torch import TrainingPlan

SCRIPT = """
import json, pathlib, sys, time, torch, torch.distributed as dist
from torch import nn
from tacit.ledger import Ledger
from tacit.torch import TrainingPlan
from tacit.errors import MechanismMismatch

rank, place = int(sys.argv[1]), pathlib.Path(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
for name, differ, sigma, seed in json.loads(sys.argv[3]):
    folder = place / name
    g = torch.Generator().manual_seed(0)
    X, Y = torch.randn(60, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (60,), generator=g)
    if differ and rank == 1:
        X = X + 1
    torch.manual_seed(rank)  # the leader's parameters win
    model = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3)).double()
    budget = Ledger(folder / "b.ledger", 500.0, 1e-3, adjacency="zero-out") if rank == 0 and sigma > 1 else None
    plan = TrainingPlan(
        60, noise_multiplier=sigma, delta=1e-4, batch_size=12, steps=12, bands=4, momentum=0.5, seed=seed, budget=budget
    )
    try:
        for batch in plan.batches((X, Y)):
            plan.step(model, nn.CrossEntropyLoss(), batch)
            if batch.step == 5:
                plan.save(folder / "c", model)
    except MechanismMismatch as error:
        print(name, error)
        time.sleep(2)  # a process that leaves at once may cut off what the other is still receiving
        sys.exit(3)
    torch.save(model.state_dict(), folder / f"{rank}.pt")
dist.destroy_process_group()
"""
RUNS = (("quiet", False, 1e-12, 3), ("loud", False, 50.0, None), ("apart", True, 1e-12, 3))
"""Name, whether the second process has other data, σ, seed. One pair of processes: starting them costs most."""


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """The folder of two processes that have been through all runs, and (output, errors, exit code) of each."""
    folder = tmp_path_factory.mktemp("team")
    for name, *_ in RUNS:
        (folder / name).mkdir()
    environment = {**os.environ, "TACIT_STATE_DIR": str(folder / "state")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(folder), json.dumps(RUNS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    return folder, [(*process.communicate(timeout=180), process.returncode) for process in processes]


def models(folder: Path) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def alone(sigma: float) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    X, Y = torch.randn(60, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (60,), generator=g)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3)).double()
    plan = TrainingPlan(60, noise_multiplier=sigma, delta=1e-4, batch_size=12, steps=12, bands=4, momentum=0.5, seed=3)
    for batch in plan.batches((X, Y)):
        plan.step(model, nn.CrossEntropyLoss(), batch)
    return model.state_dict()


def test_two_processes_are_one(team):
    here, there = models(team[0] / "quiet")
    for name, value in alone(1e-12).items():
        assert torch.equal(here[name], there[name])
        torch.testing.assert_close(here[name], value, rtol=0, atol=1e-6)


def test_noise_is_added_exactly_once(team, monkeypatch):
    """Distances from the quiet run have the size of one process's noise, not √2 of it, and both hold the same model."""
    monkeypatch.setenv("TACIT_STATE_DIR", str(team[0] / "state"))
    folder = team[0] / "loud"
    here, there = models(folder)
    flat = [torch.cat([v.reshape(-1) for v in state.values()]) for state in (here, there, alone(1e-12), alone(50.0))]
    assert torch.equal(flat[0], flat[1])
    assert (folder / "c").exists()
    assert len(Ledger(folder / "b.ledger").entries()) == 1
    ours, reference = (flat[0] - flat[2]).norm(), (flat[3] - flat[2]).norm()
    assert 0.9 < ours / reference < 1.1  # 3203 numbers: its standard deviation is below 2 %, √2 or 1/√2 stand out


def test_processes_with_different_data_do_not_start(team):
    folder, ends = team
    for out, err, code in ends:
        assert code == 3, (out, err)
        assert out.startswith("apart ")  # the runs before it ended well
        assert "different data" in out
    assert not list((folder / "apart").glob("*.pt"))


@pytest.mark.parametrize("rank", [0])
def test_one_process_is_a_team_of_one(rank):
    from tacit.torch.distributed import Team

    team = Team()
    assert (team.rank, team.size, team.leads) == (rank, 1, True)
