from __future__ import annotations

import os
import random
import signal
import time

import pytest
from ledger_helpers import finish, start

from tacit.ledger import Ledger

TRIALS = 200
TRIALS_PER_LEDGER = 10  # a young ledger also gets killed while it is created


def lines(file):
    return file.read_text().split() if file.exists() else []


def unaccounted(path, side):
    """Releases without an entry: the one thing that must not exist."""
    entries = Ledger(path).entries() if path.exists() else ()
    return set(lines(side)) - {entry.note for entry in entries}, len(entries)


def kill_once(nursery, path, side, order, *, after, delay):
    """Kill a child ``delay`` seconds after it has released ``after`` times (however busy the machine is)."""
    before, deadline = len(lines(side)), time.monotonic() + 30
    print(path, side, order, file=nursery.stdin, flush=True)
    pid = int(nursery.stdout.readline())
    while len(lines(side)) < before + after and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    assert nursery.stdout.readline().strip() == "killed"


def kill_and_count(tmp_path, trials):
    """Entries, releases and ledgers that never came to be, over many kills; none may leave a release without entry."""
    rng, nursery = random.Random(1), start("crash_nursery")
    entries = releases = never_created = 0
    for trial in range(trials):
        path = tmp_path / f"ledger{trial // TRIALS_PER_LEDGER}"
        side = path.with_suffix(".released")
        young = trial % TRIALS_PER_LEDGER == 0
        after, delay = (0, rng.uniform(0, 0.02)) if young else (rng.randrange(5), rng.uniform(0, 0.01))
        kill_once(nursery, path, side, "reserve-first", after=after, delay=delay if trial else 0.0)
        missing, count = unaccounted(path, side)
        assert not missing, f"trial {trial}"
        never_created += not path.exists()
        if trial % TRIALS_PER_LEDGER == TRIALS_PER_LEDGER - 1:
            entries, releases = entries + count, releases + len(lines(side))
    finish(nursery)
    return entries, releases, never_created


def test_no_release_is_uncounted_after_kill(tmp_path):
    entries, releases, never_created = kill_and_count(tmp_path, TRIALS)
    assert releases > TRIALS // 10  # the children did work, on a busy machine, too
    assert entries > releases  # and some died between the entry and the release
    assert never_created > 0  # and some before there was a ledger


@pytest.mark.attack
def test_nor_after_a_thousand_kills(tmp_path, record_property):
    kills = int(os.environ.get("TACIT_KILLS", "1000"))
    entries, releases, _ = kill_and_count(tmp_path, kills)
    record_property("kills", kills)
    record_property("entries", entries)
    record_property("releases", releases)
    record_property("undercounts", 0)


def test_the_check_catches_a_release_before_its_reservation(tmp_path):
    rng, nursery = random.Random(2), start("crash_nursery")
    path, side = tmp_path / "ledger", tmp_path / "released"
    for _ in range(TRIALS):
        kill_once(nursery, path, side, "release-first", after=rng.randrange(5), delay=rng.uniform(0, 0.01))
        if unaccounted(path, side)[0]:
            break
    else:
        raise AssertionError("the mutant survived")
    finish(nursery)
