"""Scripts of the benchmarks and the examples explain themselves, and do not start a run that nobody asked for."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")])
EVERY = """
import contextlib, io, json, runpy, sys, warnings
warnings.simplefilter("ignore")
for script, argument in json.load(sys.stdin):
    sys.argv, sys.path[0] = [script, argument], script.rpartition("/")[0]
    out, code, missing = io.StringIO(), "it went on", None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code
        except ModuleNotFoundError as error:
            missing = error.name
    print(json.dumps([script, argument, code, missing, out.getvalue()]), flush=True)
"""
"""One process for all of them: most of the time is spent on imports."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int | str, str | None, str]]:
    place = tmp_path_factory.mktemp("place")
    asked = [(str(script), argument) for script in SCRIPTS for argument in ("--help", "--nonsense")]
    done = subprocess.run(
        [sys.executable, "-c", EVERY],
        input=json.dumps(asked),
        cwd=place,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {(script, argument): (code, missing, out) for script, argument, code, missing, out in lines}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_help_is_the_docstring_and_what_is_unknown_is_refused(script: Path, answers) -> None:
    code, missing, text = answers[str(script), "--help"]
    if missing == "torch":
        pytest.skip("needs torch")
    words = ast.get_docstring(ast.parse(script.read_text())).split("\n\n")[0]
    assert code == 0
    assert text.startswith("usage: ")
    assert " ".join(words.split()) in " ".join(text.split())
    code, _, text = answers[str(script), "--nonsense"]
    assert code == 2
    assert "unrecognized arguments: --nonsense" in text


def test_an_unknown_benchmark_is_named() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "run.py", "acounting"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no benchmark is called acounting: choose from accounting, audits" in done.stderr
    assert not (ROOT / "benchmarks" / "results" / "acounting.jsonl").exists()
