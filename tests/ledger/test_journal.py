"""Each release of a run has one result, whoever goes on from its checkpoint, or a copy of it."""

from __future__ import annotations

import multiprocessing

import pytest

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.ledger.journal import Journal

KEY = bytes(range(32))


def test_a_release_is_repeated_exactly_or_refused(tmp_path):
    for beside in (None, tmp_path / "c"):  # a session may have no file of its own
        journal = Journal(KEY if beside else b"\1" * 32, beside)
        with pytest.raises(MechanismMismatch, match="missing"):
            journal.require(3, b"three")
        journal.check(3, b"three")
        again = Journal(KEY if beside else b"\1" * 32, beside)
        again.require(3, b"three")
        again.check(3, b"three")
        again.check(4, b"four")
        for other in (journal, again):
            with pytest.raises(MechanismMismatch, match="release 4 was made before"):
                other.check(4, b"other")
        with pytest.raises(MechanismMismatch, match="missing or another"):
            again.require(3, b"other")


def test_another_run_has_another_journal(tmp_path):
    Journal(KEY).check(1, b"one")
    Journal(bytes(32)).check(1, b"another")


def test_a_journal_left_by_a_run_that_was_killed_is_not_in_the_way(tmp_path):
    """Killed after its checkpoint was removed, and before its journal was: the next run has the same names of files."""
    Journal(KEY, tmp_path / "c").check(1, b"one")
    following = Journal(bytes(32), tmp_path / "c")
    following.check(1, b"another")
    following.require(1, b"another")
    with pytest.raises(MechanismMismatch):
        Journal(KEY, tmp_path / "c").check(1, b"another")


def test_after_the_end_nothing_is_released(tmp_path):
    journal, copy = Journal(KEY, tmp_path / "c"), Journal(KEY, tmp_path / "copy")
    journal.check(1, b"one")
    copy.require(1, b"one")
    journal.end()
    assert not list(tmp_path.glob("c.*"))
    with pytest.raises(MechanismMismatch, match="has ended"):
        copy.require(1, b"one")
    for name in (b"one", b"two"):
        with pytest.raises(MechanismMismatch):
            copy.check(1, name)


def test_a_line_that_a_crash_cut_off_is_not_a_release(tmp_path):
    Journal(KEY, tmp_path / "c").check(1, b"one")
    file = tmp_path / "c.journal"
    lines = file.read_text()
    for cut in range(1, len(lines) - 1):
        file.write_text(lines + lines.replace(" 1 ", " 2 ")[:cut].rstrip("\n"))
        journal = Journal(KEY, tmp_path / "c")
        journal.require(1, b"one")
        journal.check(2, b"two")
        Journal(KEY, tmp_path / "c").check(2, b"two")


def test_a_journal_that_cannot_be_written_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="TACIT_STATE_DIR"):
        Journal(KEY).check(1, b"one")
    Journal(KEY, tmp_path / "c").check(1, b"one")  # the one beside the checkpoint is enough
    with pytest.raises(InvalidInput, match="cannot be written"):
        Journal(KEY, tmp_path / "file" / "c").check(1, b"one")


def _race(barrier, folder, number: int, won) -> None:
    journal = Journal(KEY, folder / f"copy{number}")
    for release in range(30):
        barrier.wait()
        try:
            journal.check(release, b"%d" % number)
        except MechanismMismatch:
            continue
        won[release * 4 + number] = 1


def test_of_processes_that_release_at_once_one_wins(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(4), context.Array("i", 120)
    children = [context.Process(target=_race, args=(barrier, tmp_path, i, won)) for i in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert all(sum(won[4 * r : 4 * r + 4]) <= 1 for r in range(30))
    assert sum(won) > 20
