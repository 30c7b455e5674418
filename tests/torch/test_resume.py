"""Kill at any step and go on: the same parameters and noise to the bit; other data or settings are refused."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.ledger import Ledger
from tacit.torch import PrivateTrainer, TrainingPlan

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 3))


def plan(**change) -> TrainingPlan:
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 15, "bands": 4, "momentum": 0.6}
    return TrainingPlan(60, **{**settings, **change})


def flat(m: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in m.parameters()])


def go(p: TrainingPlan, m: nn.Module, until: int = 15, **how) -> torch.Tensor:
    for batch in p.batches((X, Y)):
        p.step(m, LOSS, batch, **how)
        if p.steps_done >= until:
            break
    return flat(m)


@pytest.mark.parametrize("stop", [1, 2, 7, 14])
@pytest.mark.parametrize("strategy", ["bandmf", "dpsgd"])
def test_a_restored_run_ends_where_the_first_one_does(tmp_path, stop, strategy):
    change = {"strategy": strategy, "bands": 4 if strategy == "bandmf" else None}
    first, m = plan(**change), model()
    go(first, m, stop)
    first.save(tmp_path / "c", m)
    again, other = plan(**change), model()
    other[0].weight.data.zero_()
    again.restore(tmp_path / "c", other, (X.clone(), Y.clone()))
    assert again.steps_done == stop
    assert torch.equal(go(again, other), go(first, m))


def test_an_optimiser_of_ones_own_goes_on_too(tmp_path):
    first, m = plan(), model()
    adam = torch.optim.Adam(m.parameters())
    go(first, m, 6, optimizer=adam)
    first.save(tmp_path / "c", m, optimizer=adam)
    again, other = plan(), model()
    adam2 = torch.optim.Adam(other.parameters())
    again.restore(tmp_path / "c", other, (X, Y), optimizer=adam2)
    assert torch.equal(go(again, other, optimizer=adam2), go(first, m, optimizer=adam))


def test_the_file_is_its_owners_only_and_says_nothing(tmp_path, capsys):
    old = os.umask(0)
    try:
        p, m = plan(), model()
        go(p, m, 3)
        p.save(tmp_path / "c", m)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600
    assert list(tmp_path.glob(".*tmp")) == []


def test_other_data_or_settings_are_refused(tmp_path):
    p, m = plan(), model()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    before = flat(model())
    for change in (
        {"clip_norm": 2.0},
        {"noise_multiplier": 1.1},
        {"learning_rate": 0.2},
        {"bands": 3},
        {"momentum": 0.5},
    ):
        with pytest.raises(MechanismMismatch, match="other settings"):
            plan(**change).restore(tmp_path / "c", model(), (X, Y))
    for data in ((X + 1e-6, Y), (X.flip(0), Y.flip(0)), (X, 2 - Y)):
        other = model()
        with pytest.raises(MechanismMismatch, match="other data"):
            plan().restore(tmp_path / "c", other, data)
        assert torch.equal(flat(other), before)
    with pytest.raises(InvalidInput, match="does not fit this model"):
        plan().restore(tmp_path / "c", nn.Linear(4, 3), (X, Y))
    with pytest.raises(MechanismMismatch, match="has begun"):
        p.restore(tmp_path / "c", m, (X, Y))
    with pytest.raises(MechanismMismatch, match="nothing to save"):
        plan().save(tmp_path / "d", m)


@pytest.mark.parametrize("damage", [b"", b"hello", None])
def test_damaged_files_are_refused(tmp_path, damage):
    if damage is None:
        p, m = plan(), model()
        go(p, m, 3)
        p.save(tmp_path / "c", m)
        data = bytearray((tmp_path / "c").read_bytes())
        del data[len(data) // 2 :]
        damage = bytes(data)
    (tmp_path / "c").write_bytes(damage)
    with pytest.raises(InvalidInput, match="not a checkpoint"):
        plan().restore(tmp_path / "c", model(), (X, Y))
    with pytest.raises(InvalidInput, match="cannot be read"):
        plan().restore(tmp_path / "none", model(), (X, Y))


def test_pickles_that_run_code_are_not_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"tacit": "checkpoint", "format": 1, "x": Evil()}, tmp_path / "c")
    with pytest.raises(InvalidInput, match="not a checkpoint"):
        plan().restore(tmp_path / "c", model(), (X, Y))
    assert not (tmp_path / "owned").exists()


def test_a_step_that_was_interrupted_half_way_is_not_saved(tmp_path, monkeypatch):
    p, m = plan(), model()
    go(p, m, 3)
    p.save(tmp_path / "c", m)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(p._session), "_move", interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(p, m)
    assert not p.settled
    with pytest.raises(MechanismMismatch, match="last checkpoint"):
        p.save(tmp_path / "c", m)


SCRIPT = """
import pathlib, sys, time, torch
from torch import nn
sys.path.insert(0, {here!r})
from tacit.ledger import Ledger
from tacit.torch import PrivateTrainer

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Tanh(), nn.Linear(5, 3))
g = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=g), torch.randint(0, 3, (60,), generator=g)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.CrossEntropyLoss()
    def forward(self, output, target):
        time.sleep({pause})
        return self.inner(output, target)

trainer = PrivateTrainer(
    model, Slow(), noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=5, bands=4, momentum=0.6, seed=3,
    checkpoint={path!r}, checkpoint_every=1, budget=Ledger({ledger!r}, 500.0, 1e-3, adjacency="zero-out"),
)
print("ready", flush=True)
trainer.fit((X, Y), resume=pathlib.Path({path!r}).exists())
torch.save(model.state_dict(), {out!r})
"""


def _run(tmp_path, name: str, pause: float, *, kill_after: float | None = None) -> None:
    """Run the script to its end in this process, or in one that is killed after its first checkpoint."""
    script = textwrap.dedent(SCRIPT).format(
        here=str(tmp_path),
        pause=pause,
        path=str(tmp_path / f"{name}.checkpoint"),
        ledger=str(tmp_path / f"{name}.ledger"),
        out=str(tmp_path / f"{name}.pt"),
    )
    if kill_after is None:
        exec(script, {"__name__": "script"})
        return
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while not (tmp_path / f"{name}.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(kill_after)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=120) == -signal.SIGKILL
    process.stdout.close()


def test_kill_9_loses_nothing_and_charges_once(tmp_path):
    """Seeded, so that an uninterrupted run is there to compare with."""
    _run(tmp_path, "whole", 0.0)
    _run(tmp_path, "killed", 0.05, kill_after=0.1)
    _run(tmp_path, "killed", 0.05, kill_after=0.2)
    _run(tmp_path, "killed", 0.0)
    whole, killed = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "killed"))
    for name, value in whole.items():
        assert torch.equal(value, killed[name])
    assert len(Ledger(tmp_path / "killed.ledger").entries()) == 1
    assert not (tmp_path / "killed.checkpoint").exists()  # a finished run leaves no key behind


def test_an_unfinished_run_is_not_overwritten(tmp_path):
    path = tmp_path / "c"
    p, m = plan(), model()
    go(p, m, 3)
    p.save(path, m)
    trainer = PrivateTrainer(
        model(),
        LOSS,
        noise_multiplier=1.0,
        delta=1e-4,
        batch_size=10,
        epochs=2.5,
        bands=4,
        momentum=0.6,
        checkpoint=path,
    )
    with pytest.raises(MechanismMismatch, match="unfinished run"):
        trainer.fit((X, Y))
    trainer.fit((X, Y), resume=True)
    assert not path.exists()
    with pytest.raises(InvalidInput, match="pass checkpoint="):
        PrivateTrainer(model(), LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=2, bands=2).fit(
            (X, Y), resume=True
        )


def test_nothing_to_go_on_from_is_no_new_run(tmp_path):
    """A mistyped name, or a run that has ended, would otherwise spend the budget again."""
    ledger = Ledger(tmp_path / "b.ledger", 500.0, 1e-3, adjacency="zero-out")
    how = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "epochs": 2, "bands": 2, "budget": ledger}
    trainer = PrivateTrainer(model(), LOSS, checkpoint=tmp_path / "c", **how)
    with pytest.raises(InvalidInput, match=r"no checkpoint .* leave out resume"):
        trainer.fit((X, Y), resume=True)
    assert not ledger.entries()
    trainer.fit((X, Y))
    with pytest.raises(InvalidInput, match="has ended removes its own"):
        trainer.fit((X, Y), resume=True)
    assert len(ledger.entries()) == 1
