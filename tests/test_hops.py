"""The hops that docs/architecture.md lists are those of a real run, in the order in which they are first reached."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import hops  # noqa: E402

PAGE = (ROOT / "docs" / "architecture.md").read_text()
LISTED = {
    name: re.findall(r"`([\w/]+\.py:[\w.]+)`", text)
    for name, text in re.findall(r"^\*\*(\w+)\*\*: (.*?)(?=^\*\*|^## )", PAGE, flags=re.M | re.S)
}


def out_of_place(listed: list[str], ran: list[str]) -> list[str]:
    """What is listed and did not run, or was first reached before what is listed in front of it."""
    found, last = [], -1
    for hop in listed:
        at = ran.index(hop) if hop in ran else -1
        if at <= last:
            found.append(hop)
        last = max(last, at)
    return found


def test_the_page_lists_every_flow_that_is_measured_but_the_charged_one() -> None:
    assert {*LISTED, "charged"} == set(hops.FLOWS)
    assert all(len(listed) >= 5 for listed in LISTED.values())


@pytest.mark.parametrize("name", LISTED)
def test_the_hops_of_the_page_are_those_of_a_run(name: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", sys.argv)
    ran = [str(function) for function in hops.measure(name).functions]
    assert out_of_place(LISTED[name], ran) == []


def test_a_hop_that_is_missing_or_comes_too_early_is_noticed() -> None:
    ran = ["a.py:f", "b.py:g", "c.py:h"]
    assert out_of_place(["a.py:f", "c.py:h"], ran) == []
    assert out_of_place(["a.py:f", "d.py:i", "c.py:h"], ran) == ["d.py:i"]
    assert out_of_place(["c.py:h", "b.py:g"], ran) == ["b.py:g"]
