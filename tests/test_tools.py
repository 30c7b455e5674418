"""The measuring tools run, count what they say, and notice what is over a limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

import hops  # noqa: E402
import lines  # noqa: E402


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, check=False)


def test_hops_of_one_flow() -> None:
    done = run("hops.py", "linear", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout).values()
    assert list(found) == list(hops.FIGURES)
    assert found["functions"] > found["files"] > found["folders"] > 1
    assert found["crossings"] > found["folders"]
    assert 3 < found["depth"] < found["functions"]


def test_figures_of_the_first_version_and_limits_are_those_of_the_flows() -> None:
    before = json.loads(hops.BEFORE.read_text())
    assert set(before) == set(hops.FLOWS)
    assert set(hops.LIMITS) <= set(hops.FLOWS)
    assert all(set(limits) <= set(hops.FIGURES) for limits in hops.LIMITS.values())


def test_what_is_over_its_limit_is_named() -> None:
    figures = dict.fromkeys(hops.FIGURES, 0)
    assert hops.over_limit("step", figures | {"files": 12}) == []
    assert hops.over_limit("step", figures | {"files": 13}) == ["step: 13 files, at most 12 are allowed"]


def test_lambdas_belong_to_their_function_and_calls_through_others_to_the_one_that_started_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hops, "PACKAGE", tmp_path)
    source = {
        "a/one.py": "def outer(inner):\n    return sorted([2, 1], key=lambda x: inner(x))\n",
        "b/two.py": "def inner(x):\n    return [y for y in (x for _ in range(2))][0]\n",
    }
    space: dict[str, dict[str, object]] = {}
    for name, text in source.items():
        path = tmp_path / name
        path.parent.mkdir()
        exec(compile(text, str(path), "exec"), space.setdefault(name, {}))
    trace = hops.Trace()
    hops.identify.cache_clear()
    with trace.recording():
        space["a/one.py"]["outer"](space["b/two.py"]["inner"])  # type: ignore[operator]
    hops.identify.cache_clear()
    assert [str(function) for function in trace.functions] == ["a/one.py:outer", "b/two.py:inner"]
    assert trace.figures() == {"functions": 2, "files": 2, "folders": 2, "crossings": 1, "depth": 2}


def test_lines_add_up() -> None:
    now = lines.counts()
    folders = [count for name, count in now.items() if name not in {"src/tacit", *lines.BESIDE}]
    assert tuple(map(sum, zip(*folders, strict=True))) == now["src/tacit"]
    assert "src/tacit" in lines.render(now, json.loads(lines.BEFORE.read_text()))
    done = run("lines.py")
    assert done.returncode == 0, done.stderr
    assert "38021 → " in done.stdout
