"""More than 200 damaged files: each is refused, or reads exactly the same; never a smaller spent."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shutil
import sqlite3
import struct
import tempfile
from pathlib import Path

import pytest
from ledger_helpers import Stub

from tacit.errors import LedgerCorrupt, LedgerError
from tacit.ledger import Ledger

ENTRIES = 40
EDITED_COLUMNS = (
    ("time", "'2020-01-01T00:00:00+00:00'"),
    ("kind", "'basic'"),
    ("mu", "mu / 2"),
    ("mu", "NULL"),
    ("mu", "X'00'"),
    ("epsilon", "0.0"),
    ("adjacency", "'REPLACE_ONE'"),
    ("unit", "'user'"),
    ("digest", "'ff'"),
    ("note", "note || ' '"),
    ("nonce", "''"),
    ("certificate", "'{}'"),
    ("previous", "hash"),
    ("hash", "previous"),
    ("id", "id + 1000"),
    ("id", "-id"),
)


class Bulky(Stub):
    """Certificates as large as real ones, so that the file has many pages."""

    def to_json(self):
        return '{"steps": "' + "0123456789" * 60 + '"}'


class Whole:
    """A closed ledger, its entries, and copies of it on demand (with or without the anchors)."""

    def __init__(self, place):
        self.folder, self.states = place / "whole", place / "states"
        self.folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TACIT_STATE_DIR", str(self.states))
            with Ledger(self.folder / "ledger", 1.0, 1e-5) as ledger:
                for k in range(ENTRIES):
                    ledger.reserve(Bulky(0.01 + k * 1e-4), f"run {k}")
                self.entries, self.spent = ledger.entries(), ledger.spent()

    def copy(self, *, anchored=True):
        state_dir = Path(os.environ["TACIT_STATE_DIR"])
        shutil.rmtree(state_dir)
        shutil.copytree(self.states, state_dir)
        folder = shutil.copytree(self.folder, Path(tempfile.mkdtemp(dir=self.folder.parent)) / "copy")
        if not anchored:
            (folder / "ledger.anchor").unlink()
            shutil.rmtree(state_dir / "anchors")
        return folder / "ledger"

    def is_refused(self, path):
        """True if refused; False if it reads the same; an error if it reads anything else."""
        try:
            ledger = Ledger(path)
            found = ledger.entries(), ledger.spent()
        except LedgerError as caught:
            found = caught
        if isinstance(found, tuple):
            assert found == (self.entries, self.spent)
            return False
        assert type(found) is LedgerCorrupt, found
        assert "restore" in str(found)
        assert "\n" not in str(found)
        return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Whole(tmp_path_factory.mktemp("damage"))


def edit(path, *statements):
    raw = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            raw.execute(statement)
    finally:
        raw.close()


def flip(path, position, rng):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("anchored", [True, False])
def test_30_bytes_flipped_in_content(whole, anchored):
    rng = random.Random(3)
    for _ in range(30):
        path = whole.copy(anchored=anchored)
        entry = rng.choice(whole.entries)
        field = getattr(entry, rng.choice(["hash", "previous", "nonce", "note", "mu"]))
        stored = struct.pack(">d", field) if isinstance(field, float) else field.encode()
        places = [match.start() for match in re.finditer(re.escape(stored), path.read_bytes())]
        assert places
        flip(path, rng.choice(places) + rng.randrange(len(stored)), rng)
        assert whole.is_refused(path)


@pytest.mark.parametrize("anchored", [True, False])
def test_30_bytes_flipped_anywhere(whole, anchored):
    rng, refused = random.Random(4), 0
    size = (whole.folder / "ledger").stat().st_size
    for _ in range(30):
        path = whole.copy(anchored=anchored)
        flip(path, rng.randrange(size), rng)
        refused += whole.is_refused(path)
    assert refused >= 15  # the others hit page space that holds nothing


@pytest.mark.parametrize("anchored", [True, False])
def test_20_truncations(whole, anchored):
    rng = random.Random(4)
    size = (whole.folder / "ledger").stat().st_size
    lengths = [0, 1, 99, 100, 4096, size - 1, size - 4096, *(rng.randrange(size) for _ in range(13))]
    for length in lengths:
        path = whole.copy(anchored=anchored)
        os.truncate(path, length)
        assert whole.is_refused(path), length


@pytest.mark.parametrize("anchored", [True, False])
def test_15_overwritten_pages(whole, anchored):
    rng = random.Random(5)
    pages = (whole.folder / "ledger").stat().st_size // 4096
    assert pages > 8
    for k in range(15):
        path = whole.copy(anchored=anchored)
        with path.open("r+b") as stream:
            stream.seek(4096 * rng.randrange(pages))
            stream.write(bytes(4096) if k % 3 == 0 else rng.randbytes(4096))
        assert whole.is_refused(path)


def test_5_files_of_another_kind(whole):
    rng = random.Random(6)
    for k in range(4):
        path = whole.copy(anchored=k % 2 == 0)
        path.write_bytes(rng.randbytes(1 + k * 7000))
        assert whole.is_refused(path)
    path = whole.copy(anchored=False)
    path.unlink()
    edit(path, "CREATE TABLE entries (id INTEGER PRIMARY KEY)")  # somebody else's database
    assert whole.is_refused(path)


@pytest.mark.parametrize("anchored", [True, False])
@pytest.mark.parametrize("row", [1, 17, ENTRIES])
def test_16_edited_fields_in_three_rows(whole, row, anchored):
    for column, value in EDITED_COLUMNS:
        if anchored and row == 17:
            continue  # 80 of them are enough
        path = whole.copy(anchored=anchored)
        edit(path, f"UPDATE entries SET {column} = {value} WHERE id = {row}")
        assert whole.is_refused(path), (column, value)


@pytest.mark.parametrize(
    "statements",
    [
        [f"DELETE FROM entries WHERE id = {ENTRIES}"],
        ["DELETE FROM entries WHERE id = 1"],
        ["DELETE FROM entries WHERE id = 20"],
        ["DELETE FROM entries"],
        ["UPDATE entries SET id = -1 WHERE id = 5", "UPDATE entries SET id = 5 WHERE id = 6",
         "UPDATE entries SET id = 6 WHERE id = -1"],
        ["UPDATE entries SET mu = (SELECT mu FROM entries AS e WHERE e.id = entries.id - 1) WHERE id > 1"],
        ["INSERT INTO entries (id) VALUES (0)"],
        ["INSERT INTO entries (id) VALUES (-7)"],
        [f"INSERT INTO entries (id) VALUES ({ENTRIES + 1})"],
        [f"INSERT INTO entries SELECT {ENTRIES + 1}, time, kind, mu, epsilon, delta, adjacency, unit, digest,"
         f" note, nonce, certificate, previous, hash FROM entries WHERE id = {ENTRIES}"],
        ["UPDATE genesis SET epsilon = 10.0"],
        ["UPDATE genesis SET delta = 0.1"],
        ["UPDATE genesis SET gaussian_mu = 10.0"],
        ["UPDATE genesis SET basic_share = 0.5"],
        ["UPDATE genesis SET unit = 'user'"],
        ["UPDATE genesis SET ledger = '../../etc'"],
        ["UPDATE genesis SET hash = 'x'"],
        ["INSERT INTO genesis SELECT * FROM genesis"],
        ["DELETE FROM genesis"],
        ["UPDATE head SET count = count - 1"],
        ["UPDATE head SET hash = 'x'"],
        ["DELETE FROM head"],
        ["DROP TABLE head"],
        ["DROP TABLE entries"],
        ["ALTER TABLE entries RENAME COLUMN mu TO nu"],
    ],
)  # fmt: skip
def test_25_edits_by_hand(whole, statements):
    path = whole.copy(anchored=False)
    edit(path, *statements)
    assert whole.is_refused(path)


def test_damage_that_would_strike_only_later_is_refused(whole):
    path = whole.copy(anchored=False)
    content = bytearray(path.read_bytes())
    content[39] = 1  # the header now promises a free page, which the next entry would overwrite
    path.write_bytes(content)
    assert whole.is_refused(path)


def test_a_row_edited_together_with_its_hash_is_refused(whole):
    for row in whole.entries[:-1:5]:
        path = whole.copy(anchored=False)
        forged = dataclasses.replace(row, mu=row.mu / 2).sealed()
        edit(path, f"UPDATE entries SET mu = {forged.mu!r}, hash = '{forged.hash}' WHERE id = {row.id}")
        assert whole.is_refused(path)


def test_a_consistent_cut_is_refused_by_either_anchor(whole, forget):
    cut = (
        f"DELETE FROM entries WHERE id > {ENTRIES - 3}",
        f"UPDATE head SET count = {ENTRIES - 3}, hash = (SELECT hash FROM entries WHERE id = {ENTRIES - 3})",
    )
    path = whole.copy()
    edit(path, *cut)
    forget()
    assert whole.is_refused(path)
    path = whole.copy()
    edit(path, *cut)
    (path.parent / "ledger.anchor").unlink()
    assert whole.is_refused(path)


def test_a_damaged_anchor_is_refused_or_says_the_same(whole, forget):
    rng = random.Random(7)
    for k in range(20):
        path = whole.copy()
        forget()
        file = path.parent / "ledger.anchor"
        content = bytearray(file.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content[: k * 8] if k % 4 == 0 else content)
        whole.is_refused(path)  # asserts that what is read is the same
    for content in (b"", b"[]", b"{}", b"null", b'{"ledger": 1, "count": "x", "head": 2}', b"\xff" * 50):
        path = whole.copy()
        forget()
        (path.parent / "ledger.anchor").write_bytes(content)
        assert whole.is_refused(path)


def test_damage_under_an_open_ledger_is_refused_too(whole):
    for statement in (
        "UPDATE head SET hash = 'x'",
        f"UPDATE entries SET hash = 'x' WHERE id = {ENTRIES}",
        f"DELETE FROM entries WHERE id = {ENTRIES}",
        "UPDATE genesis SET epsilon = 10.0",
        f"INSERT INTO entries (id) VALUES ({ENTRIES + 1})",
    ):
        ledger = Ledger(whole.copy())
        edit(ledger.path, statement)
        with pytest.raises(LedgerCorrupt):
            ledger.reserve(Stub(0.001))
        for ask in (ledger.spent, ledger.remaining, ledger.entries, ledger.verify):
            with pytest.raises(LedgerCorrupt):
                ask()


def test_an_edit_deep_in_the_chain_is_found_by_verify_and_on_opening(whole):
    ledger = Ledger(whole.copy())
    edit(ledger.path, "UPDATE entries SET mu = mu / 2 WHERE id = 3")
    # What was verified once is kept in memory: the sums stay those of the true rows.
    assert ledger.spent() == whole.spent
    for ask in (ledger.verify, ledger.entries, lambda: Ledger(ledger.path)):
        with pytest.raises(LedgerCorrupt, match="entry 3 does not match its hash"):
            ask()
