"""Old copies, deleted files and swapped files: the budget never comes back."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest
from ledger_helpers import Stub

from tacit.errors import LedgerCorrupt, LedgerError
from tacit.ledger import Ledger


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "project"
    place.mkdir()
    return place


def spend(path, times=1, mu=0.01):
    with Ledger(path, 1.0, 1e-5) as ledger:
        for _ in range(times):
            ledger.reserve(Stub(mu))


def anchor_of(file):
    return json.loads(file.read_text())


def test_a_single_file_copied_back_is_refused(folder, forget):
    spend(folder / "ledger", 3)
    shutil.copy(folder / "ledger", folder / "old")
    spend(folder / "ledger", 2)
    shutil.copy(folder / "old", folder / "ledger")
    with pytest.raises(LedgerCorrupt, match=r"rolled back: .* has seen 5 entries, here are 3"):
        Ledger(folder / "ledger")
    forget()  # the anchor beside the file suffices
    with pytest.raises(LedgerCorrupt, match=r"rolled back: .*ledger\.anchor"):
        Ledger(folder / "ledger")


def test_a_whole_folder_copied_back_is_refused(folder, tmp_path):
    spend(folder / "ledger", 3)
    shutil.copytree(folder, tmp_path / "backup")
    spend(folder / "ledger")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with pytest.raises(LedgerCorrupt, match=r"rolled back: .*/anchors/"):
        Ledger(folder / "ledger")
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        Ledger(tmp_path / "backup" / "ledger")  # and so is the copy where it lies


def test_two_copies_do_not_make_two_budgets(folder, tmp_path):
    spend(folder / "ledger", 3)
    shutil.copytree(folder, tmp_path / "twin")
    one, two = Ledger(folder / "ledger"), Ledger(tmp_path / "twin" / "ledger")
    one.reserve(Stub(0.01))
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        two.reserve(Stub(0.01))


def test_a_copy_that_went_on_elsewhere_contradicts_the_anchor(folder, tmp_path, forget):
    spend(folder / "ledger", 3)
    shutil.copy(folder / "ledger", tmp_path / "twin")
    spend(folder / "ledger", 1)
    forget()
    spend(tmp_path / "twin", 4)  # on another machine: no anchors there
    forget()
    shutil.copy(tmp_path / "twin", folder / "ledger")
    with pytest.raises(LedgerCorrupt, match="entry 4 is not the one"):
        Ledger(folder / "ledger")


def test_a_rollback_under_an_open_ledger_is_refused_without_any_anchor(folder, forget):
    spend(folder / "ledger", 3)
    shutil.copy(folder / "ledger", folder / "old")
    ledger = Ledger(folder / "ledger")
    ledger.reserve(Stub(0.01))
    shutil.copy(folder / "old", folder / "ledger")
    (folder / "ledger.anchor").unlink()
    forget()
    for ask in (lambda: ledger.reserve(Stub(0.01)), ledger.spent, ledger.entries, ledger.verify):
        with pytest.raises(LedgerCorrupt, match="rolled back"):
            ask()


def test_a_copy_without_its_write_ahead_log_is_refused(folder):
    spend(folder / "ledger", 2)
    with Ledger(folder / "ledger") as ledger:
        reader = sqlite3.connect(folder / "ledger")  # keeps the log from being folded into the file
        reader.execute("SELECT count(*) FROM entries").fetchall()
        ledger.reserve(Stub(0.01))
        assert (folder / "ledger-wal").stat().st_size > 0
        shutil.copy(folder / "ledger", folder / "copy")
        reader.close()
        assert ledger.verify() == 3
    with pytest.raises(LedgerCorrupt, match="rolled back"):
        Ledger(folder / "copy")


def test_a_closed_ledger_is_one_whole_file(folder, forget):
    spend(folder / "ledger", 5)
    assert sorted(p.name for p in folder.iterdir()) == ["ledger", "ledger.anchor"]
    shutil.copy(folder / "ledger", folder / "copy")
    assert Ledger(folder / "copy").verify() == 5


def test_a_deleted_ledger_is_not_started_anew(folder):
    spend(folder / "ledger", 2)
    ledger = Ledger(folder / "ledger")
    (folder / "ledger").unlink()
    for terms in ((1.0, 1e-5), ()):
        with pytest.raises(LedgerCorrupt, match="gone, but its anchor survives"):
            Ledger(folder / "ledger", *terms)
    with pytest.raises(LedgerCorrupt, match="gone"):
        ledger.reserve(Stub(0.01))
    assert [p.name for p in folder.iterdir()] == ["ledger.anchor"]


def remove_all(folder):
    for file in folder.glob("ledger*"):  # rm study.ledger*
        file.unlink()


def test_a_ledger_deleted_with_its_anchor_is_not_started_anew(folder, forget):
    """The anchor in the state directory survives ``rm study.ledger*``."""
    spend(folder / "ledger", 2)
    remove_all(folder)
    for terms in ((1.0, 1e-5), (9.0, 1e-3), ()):
        with pytest.raises(LedgerCorrupt, match=r"2 entries.*gone.*new=True") as caught:
            Ledger(folder / "ledger", *terms)
        assert "\n" not in str(caught.value)
    assert not list(folder.iterdir())
    forget()  # the place is known, what was spent there is not
    with pytest.raises(LedgerCorrupt, match="gone"):
        Ledger(folder / "ledger", 1.0, 1e-5)


def test_who_means_it_says_so(folder):
    spend(folder / "ledger", 2)
    with pytest.raises(LedgerError, match="leave out new"):
        Ledger(folder / "ledger", 1.0, 1e-5, new=True)
    remove_all(folder)
    with Ledger(folder / "ledger", 1.0, 1e-5, new=True) as ledger:
        assert not ledger.entries()
    spend(folder / "ledger", 1)
    (folder / "ledger").unlink()  # the anchor beside it stays
    assert not Ledger(folder / "ledger", 1.0, 1e-5, new=True).entries()
    spend(folder / "ledger", 1)
    assert Ledger(folder / "ledger").verify() == 1
    with pytest.raises(LedgerError, match="pass epsilon and delta"):
        Ledger(folder / "none", new=True)


def test_nothing_spent_is_nothing_lost(folder):
    """A ledger with the wrong limits may be deleted and made again, as long as it has granted nothing."""
    spend(folder / "ledger", 0)
    remove_all(folder)
    spend(folder / "ledger", 1)


def test_another_ledger_moved_to_its_place_is_refused(folder):
    spend(folder / "ledger", 2)
    spend(folder / "fresh", 0)
    remove_all(folder)
    (folder / "fresh").rename(folder / "ledger")
    with pytest.raises(LedgerCorrupt, match="another ledger was here"):
        Ledger(folder / "ledger")
    assert Ledger(folder / "ledger", new=True).verify() == 0
    assert Ledger(folder / "ledger").verify() == 0


def test_a_place_is_known_by_every_name_of_it(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    spend(tmp_path / "link" / "ledger", 2)
    remove_all(folder)
    with pytest.raises(LedgerCorrupt, match="gone"):
        spend(folder / "ledger")


# -- what lies in the way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ledger.anchor.tmp", "ledger.anchor"])
def test_anchors_are_not_written_through_links(folder, tmp_path, name):
    """Who can write into the folder, and not to the victim, could have the ledger's owner overwrite it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / name).symlink_to(victim)
    try:
        spend(folder / "ledger", 2)
    except LedgerCorrupt:
        assert name == "ledger.anchor"
    else:
        assert not (folder / "ledger.anchor").is_symlink()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_sqlites_own_files_are_not_written_through_links(folder, tmp_path, suffix):
    victim = tmp_path / "victim"
    victim.write_text("")
    (folder / f"ledger{suffix}").symlink_to(victim)
    with pytest.raises(LedgerError, match=r"left of a ledger that is gone.*remove it"):
        spend(folder / "ledger", 2)
    (folder / f"ledger{suffix}").unlink()
    spend(folder / "ledger", 1)
    (folder / f"ledger{suffix}").symlink_to(victim)
    with pytest.raises(LedgerError, match="symbolic link"):
        spend(folder / "ledger", 1)
    assert victim.read_text() == ""


def test_another_ledger_in_its_place_is_refused(folder):
    spend(folder / "ledger", 2)
    held = Ledger(folder / "ledger")
    spend(folder / "fresh", 0)
    shutil.copy(folder / "fresh", folder / "ledger")
    with pytest.raises(LedgerCorrupt, match="another ledger was here"):
        Ledger(folder / "ledger")
    (folder / "ledger.anchor").unlink()
    with pytest.raises(LedgerCorrupt, match="another ledger lies at this path"):
        held.reserve(Stub(0.01))


def test_a_ledger_ahead_of_its_anchors_is_whole(folder, state_dir):
    spend(folder / "ledger", 2)
    (far,) = (state_dir / "anchors").iterdir()
    shutil.copytree(folder, folder.parent / "then")
    old = far.read_bytes()
    spend(folder / "ledger", 2)
    # As after a crash between the commit and the anchors.
    shutil.copy(folder.parent / "then" / "ledger.anchor", folder / "ledger.anchor")
    far.write_bytes(old)
    assert Ledger(folder / "ledger").verify() == 4
    assert anchor_of(folder / "ledger.anchor")["count"] == anchor_of(far)["count"] == 4  # brought up to date


def test_moving_a_ledger_is_fine(folder, tmp_path, forget):
    spend(folder / "ledger", 2)
    folder.rename(tmp_path / "moved")
    spend(tmp_path / "moved" / "ledger", 1)
    forget()  # another machine
    spend(tmp_path / "moved" / "ledger", 1)
    assert Ledger(tmp_path / "moved" / "ledger").verify() == 4


def test_anchors_follow_every_commit_and_hold_no_more_than_a_hash(folder, state_dir):
    with Ledger(folder / "ledger", 1.0, 1e-5) as ledger:
        for count in range(4):
            (far,) = (state_dir / "anchors").iterdir()
            near = anchor_of(folder / "ledger.anchor")
            assert near == anchor_of(far)
            assert near["count"] == count
            assert set(near) == {"ledger", "count", "head"}
            ledger.reserve(Stub(0.01))


def test_a_locked_ledger_says_so_and_grants_nothing(folder, monkeypatch):
    spend(folder / "ledger", 1)
    ledger = Ledger(folder / "ledger")
    monkeypatch.setattr("tacit.ledger.store._BUSY_SECONDS", 0.05)
    other = sqlite3.connect(folder / "ledger", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="was locked for") as info:
        ledger.reserve(Stub(0.01))
    assert type(info.value) is LedgerError
    other.execute("ROLLBACK")
    other.close()
    assert ledger.verify() == 1
