from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from ledger_helpers import Stub

from tacit.errors import InvalidInput, LedgerCorrupt, LedgerError
from tacit.ledger import Ledger


def refused(kind, *args, **kwargs):
    with pytest.raises(kind) as info:
        Ledger(*args, **kwargs)
    assert "\n" not in str(info.value)
    assert type(info.value) is kind
    return str(info.value)


@pytest.mark.parametrize("epsilon", [0, -1, -0.0, math.nan, math.inf, -math.inf, "1", True, 1j, [1.0]])
def test_bad_epsilon_leaves_no_file(tmp_path, epsilon):
    assert "epsilon" in refused(InvalidInput, tmp_path / "ledger", epsilon, 1e-5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("delta", [0, 1, 1.5, -1e-5, math.nan, math.inf, "1e-5", False, None])
def test_bad_delta_leaves_no_file(tmp_path, delta):
    assert "delta" in refused(InvalidInput, tmp_path / "ledger", 1.0, delta)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "terms",
    [
        {"basic_share": -0.1},
        {"basic_share": 1.1},
        {"basic_share": math.nan},
        {"basic_share": "half"},
        {"basic_share": True},
        {"unit": ""},
        {"unit": 3},
        {"unit": "\udfff"},
        {"adjacency": 3},
        {"adjacency": ""},
    ],
)
def test_bad_terms_leave_no_file(tmp_path, terms):
    assert next(iter(terms)) in refused(InvalidInput, tmp_path / "ledger", 1.0, 1e-5, **terms)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1e-300, 1e-300), (1e-9, 1e-12), (5e-324, 0.5), (700.0, 1e-300), (1e6, 0.999), (1e100, 0.5)],
)
def test_extreme_limits_work_or_are_refused(tmp_path, epsilon, delta):
    try:
        ledger = Ledger(tmp_path / "ledger", epsilon, delta)
    except InvalidInput:
        assert list(tmp_path.iterdir()) == []
        return
    ledger.reserve(Stub(ledger.remaining().mu / 2))
    assert 0 <= ledger.spent().epsilon <= epsilon
    assert Ledger(tmp_path / "ledger").remaining() == ledger.remaining()


@pytest.mark.parametrize("path", ["", 3, None, b"ledger", 1.5, "a\0b", "x" * 300, ["ledger"]])
def test_bad_paths(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert "path" in refused(InvalidInput, path, 1.0, 1e-5)
    assert list(tmp_path.iterdir()) == []


def test_places_where_no_ledger_can_be(tmp_path):
    assert "not a regular file" in refused(InvalidInput, tmp_path, 1.0, 1e-5)
    assert "not a regular file" in refused(InvalidInput, "/dev/null", 1.0, 1e-5)
    assert "does not exist: create it" in refused(LedgerError, tmp_path / "no" / "ledger", 1.0, 1e-5)
    (tmp_path / "file").write_text("x")
    assert "does not exist" in refused(LedgerError, tmp_path / "file" / "ledger", 1.0, 1e-5)
    assert {entry.name for entry in tmp_path.iterdir()} == {"file"}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root cannot write")
def test_unwritable_folder():
    assert "check the folder's permissions" in refused(LedgerError, "/proc/ledger", 1.0, 1e-5)


def test_a_missing_ledger_is_not_made_up(tmp_path):
    assert "pass epsilon and delta to create one" in refused(LedgerError, tmp_path / "ledger")
    assert "epsilon is missing" in refused(InvalidInput, tmp_path / "ledger", delta=1e-5)
    assert "delta is missing" in refused(InvalidInput, tmp_path / "ledger", 1.0)
    assert list(tmp_path.iterdir()) == []


def test_odd_but_legal_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a b?c#d%20&e", "ünï🙂", "-x", ":memory:", "file:x"):
        with Ledger(name, 1.0, 1e-5) as ledger:
            ledger.reserve(Stub(0.1))
        assert (tmp_path / name).stat().st_size > 0
        assert Ledger(tmp_path / name).verify() == 1


def test_a_symbolic_link_is_the_same_ledger(tmp_path):
    (tmp_path / "real").mkdir()
    Ledger(tmp_path / "real" / "ledger", 1.0, 1e-5).reserve(Stub(0.1))
    os.symlink(tmp_path / "real" / "ledger", tmp_path / "link")
    Ledger(tmp_path / "link").reserve(Stub(0.1))
    assert Ledger(tmp_path / "real" / "ledger").verify() == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_an_unusable_state_directory_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", "/proc/nowhere"):
        monkeypatch.setenv("TACIT_STATE_DIR", str(place))
        with Ledger(tmp_path / "ledger", 1.0, 1e-5) as ledger:
            ledger.reserve(Stub(0.1))
    assert Ledger(tmp_path / "ledger").verify() == 2


def test_the_state_directory_follows_the_environment(tmp_path, monkeypatch, state_dir):
    Ledger(tmp_path / "one", 1.0, 1e-5)
    assert len(list((state_dir / "anchors").iterdir())) == 1
    monkeypatch.delenv("TACIT_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    Ledger(tmp_path / "two", 1.0, 1e-5)
    assert len(list((tmp_path / "xdg" / "tacit" / "anchors").iterdir())) == 1
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Ledger(tmp_path / "three", 1.0, 1e-5)
    assert len(list((tmp_path / "home" / ".local" / "state" / "tacit" / "anchors").iterdir())) == 1


def test_a_foreign_file_is_left_alone(tmp_path):
    path = tmp_path / "thesis.tex"
    path.write_bytes(b"\\documentclass{article}" * 100)
    refused(LedgerCorrupt, path, 1.0, 1e-5)
    assert path.read_bytes() == b"\\documentclass{article}" * 100
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
