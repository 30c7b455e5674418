"""DP-SGD steps per second and memory, against Opacus in all its modes: the GroupNorm CNN on 32 × 32 pictures.

Real steps (sampling, per-record gradients, clipping, noise, update), expected batch 500, one thread each, every repeat
a new process, libraries turn by turn so that a busy machine slows all of them; ratios are of CPU seconds, which other
processes disturb less. Memory is the peak above imports, model and data. ``hooks/64`` and ``ew/64`` run under Opacus's
BatchMemoryManager, at most 64 pictures at once. Each repeat is appended to ``results/throughput.jsonl``; those of the
present code are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
from peers import venvs
from run import record, recorded, table
from timing import version

HERE = pathlib.Path(__file__).resolve().parent
RECORDS, BATCH, PASSES, REPEATS = 5000, 500, 1, 3
MODES = ("hooks", "functorch", "ew", "ghost", "hooks/64", "ew/64")
TARGETS = {"speed": 1.0, "memory": 0.6}

Cell = dict[str, object]


def worker() -> None:
    """Our own steps; prints what ``opacus_cnn.py`` prints."""
    import torch
    from peers.cnn import cnn, memory, one_thread, pictures, reset_peak

    from tacit.torch import TrainingPlan

    one_thread()
    torch.manual_seed(0)
    data, model, loss = pictures(RECORDS), cnn(), torch.nn.CrossEntropyLoss()
    base = reset_peak()
    steps = RECORDS // BATCH
    common: dict[str, Any] = {"delta": 1e-5, "batch_size": BATCH, "strategy": "dpsgd", "noise_multiplier": 1.0}
    plan = TrainingPlan(RECORDS, steps=steps * (1 + PASSES), **common)
    turns, times = plan.batches(data), []
    for _ in range(1 + PASSES):  # the first one warms up
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            plan.step(model, loss, next(turns))
        used = time.perf_counter() - start, time.process_time() - cpu
        times.append([value / RECORDS for value in used])  # batch sizes are secret: the expected number
    print(json.dumps({"times": times[1:], "memory": memory(base), "torch": torch.__version__}))


def one(library: str) -> Cell | None:
    """One repeat in a new process: seconds per RECORDS pictures and megabytes."""
    if library == "tacit":
        command = [sys.executable, str(HERE / "throughput.py"), "--worker"]
        out = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    else:
        mode = library.removeprefix("opacus ")
        found = venvs.run("opacus", "opacus_cnn.py", mode, RECORDS, BATCH, PASSES)
        if found is None:
            return None
        out = found
    line = json.loads(out.splitlines()[-1])
    wall, cpu = (RECORDS * value for value in np.array(line["times"]).mean(axis=0))
    return {"library": library, "seconds": wall, "cpu": cpu, "megabytes": line["memory"], "torch": line["torch"]}


def summary(cells: list[Cell]) -> list[Cell]:
    """Medians by library, and their ratios to Opacus's fastest mode."""
    rows: list[Cell] = []
    for library in dict.fromkeys(str(cell["library"]) for cell in cells):
        mine = [cell for cell in cells if cell["library"] == library]
        middle = {key: float(np.median([float(str(c[key])) for c in mine])) for key in ("seconds", "cpu", "megabytes")}
        rows.append({"library": library, **middle, "repeats": len(mine)})
    others = [row for row in rows if row["library"] != "tacit"]
    if others:
        best = min(others, key=lambda row: float(str(row["cpu"])))
        for row in rows:
            row["speed"] = float(str(best["cpu"])) / float(str(row["cpu"]))
            row["memory"] = float(str(row["megabytes"])) / float(str(best["megabytes"]))
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", help="run our own steps in this process (used by itself)")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--again", action="store_true", help="make all repeats again")
    options = parser.parse_args(arguments)
    if options.worker:
        worker()
        return 0
    stamp = version()
    done = [] if options.again else [cell for cell in recorded("throughput") if cell["version"] == stamp]
    for repeat in range(options.repeats):
        for library in ("tacit", *(f"opacus {mode}" for mode in MODES)):
            if any(cell["library"] == library and cell["repeat"] == repeat for cell in done):
                continue
            cell = one(library)
            if cell is not None:
                line = {**cell, "repeat": repeat, "version": stamp}
                record("throughput", [line])
                print(json.dumps(line), flush=True)
                done.append(line)
    title = f"seconds per {RECORDS} pictures; speed and memory relative to Opacus's fastest mode (targets {TARGETS})"
    table(title, summary(done))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
