"""One charge, one run: copies of a checkpoint, with or without its journal, do not go on in several directions."""

from __future__ import annotations

import os
import shutil
import stat

import pytest
import torch
from torch import nn

from tacit.errors import MechanismMismatch
from tacit.ledger import Ledger
from tacit.torch import PrivateTrainer, TrainingPlan

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def plan(**change) -> TrainingPlan:
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 8, "bands": 2}
    return TrainingPlan(60, **{**settings, **change})


def go(p: TrainingPlan, m: nn.Module, until: int = 8, loss=LOSS) -> None:
    for batch in p.batches((X, Y)):
        p.step(m, loss, batch)
        if p.steps_done >= until:
            break


def begun(folder, ledger=None, until: int = 3) -> None:
    """A run that was interrupted after a few steps."""
    folder.mkdir()
    p, m = plan(ledger=ledger), model()
    go(p, m, until)
    p.save(folder / "c", m)


def weighted(weight: float):
    return lambda out, y: weight * LOSS(out, y)


def directions(paths, ledger=None) -> int:
    """How many of the checkpoints went on, each with a loss of its own."""
    done = 0
    for k, path in enumerate(paths):
        again, m = plan(ledger=ledger), model()
        try:
            again.restore(path, m, (X, Y))
            go(again, m, loss=weighted(1.0 + k))
        except MechanismMismatch:
            continue
        done += 1
    return done


@pytest.mark.parametrize("with_journal", [False, True])
def test_six_copies_of_a_checkpoint_are_one_run(tmp_path, with_journal):
    """Six copies gave six runs, with six losses, for one charge."""
    ledger = Ledger(tmp_path / "b.ledger", 500.0, 1e-3, adjacency="zero-out")
    begun(tmp_path / "run", ledger)
    copies = []
    for k in range(6):
        (tmp_path / f"copy{k}").mkdir()
        for file in (tmp_path / "run").iterdir() if with_journal else [tmp_path / "run" / "c"]:
            shutil.copy(file, tmp_path / f"copy{k}" / file.name)
        copies.append(tmp_path / f"copy{k}" / "c")
    assert directions(copies, ledger) == 1
    assert len(ledger.entries()) == 1


def test_a_folder_that_is_put_back_does_not_go_on_again(tmp_path):
    begun(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    done = 0
    for k in range(3):
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(tmp_path / "backup", tmp_path / "run")
        done += directions([tmp_path / "run" / "c"]) if k == 0 else _with(tmp_path / "run" / "c", 1.0 + k)
    assert done == 1


def _with(path, weight: float) -> int:
    again, m = plan(), model()
    try:
        again.restore(path, m, (X, Y))
        go(again, m, loss=weighted(weight))
    except MechanismMismatch:
        return 0
    return 1


def test_an_older_checkpoint_of_a_run_does_not_go_on_in_another_direction(tmp_path):
    """The journal was cut at every new checkpoint: steps before it could be made again."""
    begun(tmp_path / "run", until=2)
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    again, m = plan(), model()
    again.restore(tmp_path / "run" / "c", m, (X, Y))
    go(again, m, 6)
    again.save(tmp_path / "run" / "c", m)
    assert _with(tmp_path / "old" / "c", 2.0) == 0


def test_a_run_that_has_ended_does_not_go_on_from_a_copy(tmp_path):
    how = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 8, "bands": 2}
    begun(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    PrivateTrainer(model(), LOSS, checkpoint=tmp_path / "run" / "c", **how).fit((X, Y), resume=True)
    assert not list((tmp_path / "run").iterdir())
    with pytest.raises(MechanismMismatch, match=r"has ended.*begin a new run"):
        PrivateTrainer(model(), LOSS, checkpoint=tmp_path / "copy" / "c", **how).fit((X, Y), resume=True)


def test_a_checkpoint_without_any_journal_is_refused(tmp_path, state):
    """On another machine, without its journal: what happened since cannot be known."""
    begun(tmp_path / "run")
    shutil.rmtree(state / "journals")
    (tmp_path / "run" / "c.journal").unlink()
    m = model()
    before = m.weight.detach().clone()
    with pytest.raises(MechanismMismatch, match=r"journal.*c\.journal.*TACIT_STATE_DIR"):
        plan().restore(tmp_path / "run" / "c", m, (X, Y))
    assert torch.equal(before, m.weight)


def test_with_its_journal_a_checkpoint_moves_to_another_machine(tmp_path, state):
    begun(tmp_path / "run")
    shutil.rmtree(state)
    (tmp_path / "run").rename(tmp_path / "there")
    assert _with(tmp_path / "there" / "c", 1.0) == 1


def test_a_checkpoint_written_again_and_again_keeps_its_whole_journal(tmp_path):
    p, m = plan(), model()
    for batch in p.batches((X, Y)):
        p.step(m, LOSS, batch)
        p.save(tmp_path / "c", m)
        shutil.copy(tmp_path / "c", tmp_path / f"c{batch.step}")
    assert directions([tmp_path / f"c{k}" for k in range(7)]) == 1  # the first repeats the run, with the same loss


def test_seeded_runs_repeat_themselves(tmp_path):
    """They share a noise key, and are not private."""
    ends = []
    for _ in range(2):
        p, m = plan(random_state=3), model()
        go(p, m, 3)
        p.save(tmp_path / "c", m)
        go(p, m)
        p.forget(tmp_path / "c")
        ends.append(m.weight.detach().clone())
    assert torch.equal(*ends)


def test_the_journal_says_nothing_and_is_its_owners_only(tmp_path, state):
    old = os.umask(0)
    try:
        begun(tmp_path / "run")
    finally:
        os.umask(old)
    (far,) = (state / "journals").iterdir()
    saved = torch.load(tmp_path / "run" / "c")
    for file in (far, tmp_path / "run" / "c.journal"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for secret in (saved["channel"]["key"], saved["channel"]["history"], saved["run"]):
            assert secret not in file.read_text() + file.name


def test_journals_are_not_written_through_links(tmp_path):
    (tmp_path / "victim").write_text("precious")
    p, m = plan(), model()
    go(p, m, 2)
    (tmp_path / "c.journal").symlink_to(tmp_path / "victim")
    with pytest.raises(Exception, match=r"c\.journal"):
        p.save(tmp_path / "c", m)
    assert (tmp_path / "victim").read_text() == "precious"
