"""Figure 1 of DP-MBCD from the runner's own schedules: ``python benchmarks/block_figures.py [folder]``.

Writes ``dp_mbcd_figure_1_runner.png`` to out/ (or the folder given) and prints one JSON line per schedule: the Rényi
loss at α = 10 and ε at δ = 1e-5 after 20 epochs, by the certificate and as the paper would print them: no guarantee.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from papers.runner import SCHEDULES, figure_1_runner, runner_series
from run import parser

NAME = "dp_mbcd_figure_1_runner.png"


def main() -> int:
    default = Path(__file__).resolve().parent.parent / "out"
    arguments = parser(__doc__)
    arguments.add_argument("folder", nargs="?", type=Path, default=default)
    folder = arguments.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for label in SCHEDULES:
        begin = time.perf_counter()
        series = runner_series(label)
        line = {
            "figure": f"dp_mbcd_figure_1, {label}",
            "certified": float(series.certified[-1]),
            "published": float(series.published[-1]),
            "certified_epsilon": float(series.certified_epsilon[-1]),
            "published_epsilon": float(series.published_epsilon[-1]),
            "seconds": round(time.perf_counter() - begin, 2),
            "file": NAME,
        }
        print(json.dumps(line), flush=True)
    figure_1_runner().savefig(folder / NAME, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
