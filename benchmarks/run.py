"""All benchmarks: one JSON line per cell, then one table per benchmark; ratios within one run.

``make bench`` runs everything; ``python benchmarks/run.py accounting`` one of them. Lines are appended to
``benchmarks/results/<name>.jsonl`` with the date and the machine's core count. Long benchmarks record each cell as it
finishes, skip those that are there already, and print their own tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ACCUMULATE = (
    "coordinate",
    "untuned",
    "timing",
    "fit_cost",
    "defaults",
    "throughput",
    "training",
    "final_model",
    "nmf",
    "block_networks",
    "persons",
    "defaults_torch",
)
ONCE = (
    "accounting",
    "audits",
    "bits",
    "ledger",
    "figures",
    "block_figures",
    "kernels",
    "correlated_noise",
    "exact_noise",
    "quadratic",
    "sketches",
    "steps",
    "planning",
    "exact_cost",
    "exact_chains",
    "exact_blocks",
    "federation",
    "records",
    "per_record",
)
ALL = (*ONCE, *ACCUMULATE)
"""What ``make bench`` runs; ``features`` is run when it is asked for."""
KNOWN = (*ALL, "features")


def parser(docstring: str | None) -> argparse.ArgumentParser:
    """Of every script here: ``--help`` prints its docstring, and what a script does not know is refused."""
    return argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)


def record(name: str, cells: list[dict[str, object]]) -> None:
    stamp = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    path = HERE / "results" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as out:
        for cell in cells:
            out.write(json.dumps({**stamp, **cell}) + "\n")


def recorded(name: str) -> list[dict[str, object]]:
    """All lines of former runs."""
    path = HERE / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(name: str, cells: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = list(dict.fromkeys(key for cell in cells for key in cell))
    view = Table(title=name)
    for column in columns:
        view.add_column(column)
    for cell in cells:
        view.add_row(*(_shown(cell.get(column, "")) for column in columns))
    Console(width=120).print(view)


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: list[str]) -> int:
    known = parser(__doc__)
    known.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(KNOWN)}; all but features if missing")
    names = known.parse_args(arguments).names
    if unknown := sorted(set(names) - set(KNOWN)):
        known.error(f"no benchmark is called {', '.join(unknown)}: choose from {', '.join(KNOWN)}")
    worst = 0
    for name in names or ALL:
        if name in ACCUMULATE:
            worst = max(worst, subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode)
            continue
        done = subprocess.run([sys.executable, HERE / f"{name}.py"], stdout=subprocess.PIPE, text=True, check=False)
        cells = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        record(name, cells)
        table(name, cells)
        worst = max(worst, done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
