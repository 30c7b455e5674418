"""The examples run, and say what they should."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def output_of(name: str, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_loop():
    out = output_of("own_loop.py")
    assert "the same parameters to the bit" in out
    assert float(out.split("last iterate: accuracy ")[1].split()[0]) > 0.7


def test_train_cnn_on_digits():
    out = output_of("train_cnn.py", "--epochs", "3")
    lines = {line.split()[0]: float(line.split()[2]) for line in out.splitlines() if " accuracy " in line}
    assert set(lines) == {"dpsgd", "bandmf", "noisecurve"}
    assert min(lines.values()) > 0.75
    assert "curvature of the public images" in out
