"""Killed at any time and resumed: each run is charged, each release has one result, no noise hides two sums."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tacit.ledger import Ledger

KILLS_PER_FOLDER = 20


@pytest.fixture
def nursery(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    command = [sys.executable, str(Path(__file__).with_name("killed_runs.py"))]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    )
    yield child
    child.stdin.close()
    child.stdout.close()
    child.wait(60)


def lines(folder: Path) -> list[list[str]]:
    """Releases that were written down whole."""
    file = folder / "released"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill_once(nursery, folder: Path, mutant: str, *, after: int, delay: float) -> None:
    """Kill a child ``delay`` seconds after it has released ``after`` times (however busy the machine is)."""
    before, deadline = len(lines(folder)), time.monotonic() + 60
    print(folder, mutant, file=nursery.stdin, flush=True)
    pid = int(nursery.stdout.readline())
    while len(lines(folder)) < before + after and time.monotonic() < deadline and _alive(pid):
        time.sleep(0.002)
    time.sleep(delay)
    assert _alive(pid), "the trainer failed"
    os.kill(pid, signal.SIGKILL)
    assert nursery.stdout.readline().strip() == "killed"


def check(folder: Path) -> tuple[int, int]:
    """Runs and releases of a folder, after everything that must hold was looked at."""
    results, hidden = defaultdict(set), defaultdict(set)
    for run, step, clean, noise in lines(folder):
        results[run, step].add((clean, noise))
        hidden[noise].add(clean)
    runs = {run for run, _ in results}
    entries = len(Ledger(folder / "b.ledger").entries()) if (folder / "b.ledger").exists() else 0
    assert len(runs) <= entries, "a run was not charged"
    assert all(len(found) == 1 for found in results.values()), "a release has two results"
    assert all(len(sums) == 1 for sums in hidden.values()), "noise hides two sums"
    return len(runs), len(lines(folder))


def kill(nursery, tmp_path: Path, kills: int, mutant: str = "none") -> tuple[int, int]:
    rng, runs, releases = random.Random(3), 0, 0
    for trial in range(kills):
        folder = tmp_path / f"run{trial // KILLS_PER_FOLDER}"
        folder.mkdir(exist_ok=True)
        after = rng.randrange(12) if trial % KILLS_PER_FOLDER else 0
        kill_once(nursery, folder, mutant, after=after, delay=rng.uniform(0, 0.02))
        found = check(folder)
        if trial % KILLS_PER_FOLDER == KILLS_PER_FOLDER - 1 or trial == kills - 1:
            runs, releases = runs + found[0], releases + found[1]
    return runs, releases


def test_a_killed_trainer_is_never_undercounted(nursery, tmp_path):
    runs, releases = kill(nursery, tmp_path, 12)
    assert runs > 0
    assert releases > 12  # the children did work


def test_the_check_catches_a_run_without_a_charge(nursery, tmp_path):
    with pytest.raises(AssertionError, match="not charged"):
        kill(nursery, tmp_path, 12, "uncharged")


@pytest.mark.attack
def test_nor_after_a_thousand_kills(nursery, tmp_path, record_property):
    kills = int(os.environ.get("TACIT_KILLS", "1000"))
    runs, releases = kill(nursery, tmp_path, kills)
    record_property("kills", kills)
    record_property("runs", runs)
    record_property("releases", releases)
    record_property("undercounts", 0)
