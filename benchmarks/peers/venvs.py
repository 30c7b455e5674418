"""Other libraries live in environments of their own, made when first needed: TACIT_PEERS_DIR, else out/peers."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

__all__ = ["python_of", "run"]

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 900


def python_of(name: str) -> pathlib.Path | None:
    """The interpreter of an environment that holds ``<name>.txt``; None, with a message, if it cannot be made."""
    place = pathlib.Path(os.environ.get("TACIT_PEERS_DIR", HERE.parents[1] / "out" / "peers")) / name
    python, stamp = place / "bin" / "python", place / "installed"
    if stamp.exists() and stamp.read_text() == (HERE / f"{name}.txt").read_text():
        return python
    print(f"installing {name} into {os.path.relpath(place)}", file=sys.stderr, flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / f"{name}.txt")]
    try:
        for command in ([sys.executable, "-m", "venv", str(place)], install):
            subprocess.run(command, check=True, timeout=PATIENCE, stdout=sys.stderr)
    except (subprocess.SubprocessError, OSError) as failure:
        print(f"skipping {name}: {type(failure).__name__} while installing it", file=sys.stderr, flush=True)
        return None
    stamp.write_text((HERE / f"{name}.txt").read_text())
    return python


def run(name: str, script: str, *arguments: object) -> str | None:
    """What ``script`` (beside this file) prints under the peer's interpreter; None if there is no such peer."""
    python = python_of(name)
    if python is None:
        return None
    command = [str(python), str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        print(f"skipping {name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr, flush=True)
        return None
    return done.stdout
