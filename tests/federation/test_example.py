"""The example: three processes that load their rows, pay for themselves and answer over mutual TLS."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "federated_nmf.py"


def test_the_example_runs() -> None:
    command = [sys.executable, str(EXAMPLE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "shop2: ε = 2 for each record; spent: ε = " in done.stdout
    assert sorted(line.split()[-1] for line in done.stdout.splitlines() if line.startswith("taste")) == [
        "tea",
        "tool",
        "toy",
    ]
