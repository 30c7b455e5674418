"""Draw the papers' figures with our bounds beside theirs: ``python benchmarks/figures.py [folder]``.

Writes one PNG per figure, and the README's plan, to docs/figures/ (or the folder given) and prints one JSON line each
with the largest ours/published ratio and the last point of the first curve: ours, and as published (no guarantee of
ours; for the README's plan, ε that DP-MBCD would print for row c). Exits with 1 if ours exceeds a published bound
anywhere.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from papers.figures import FIGURES, Comparison, Series
from papers.published import published_epsilon
from run import parser

from tacit.report.curves import draw_plan, with_curves
from tacit.report.plan import make_report
from tacit.report.settings import Settings

TOLERANCE = 1e-9
README = Settings(n=60000, batch=1000, epochs=400, sigma=15.0, delta=1e-5, lr=0.1, l2=1e-3, smoothness=0.5)


def readme_plan() -> tuple[Comparison, Any]:
    """The plan of the README, and its last-iterate row against DP-MBCD's recursion."""
    report = with_curves(make_report(README))
    (ours,) = [curve for curve in report.curves if curve.row.method.id == "cyclic-final"]
    runs = [ours.row.method.make(README.replace(epochs=epochs)) for epochs in ours.epochs]
    published = np.array([published_epsilon(run, README.checked_delta) for run in runs])
    series = Series("plan", np.array(ours.epochs), np.array(ours.epsilon), published)
    return Comparison("plan", (series,)), draw_plan(report)


def main() -> int:
    default = Path(__file__).resolve().parent.parent / "docs" / "figures"
    arguments = parser(__doc__)
    arguments.add_argument("folder", nargs="?", type=Path, default=default)
    folder = arguments.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    worst = 0.0
    makers = {name: lambda pair=pair: (pair[0](), pair[1]()) for name, pair in FIGURES.items()}
    for name, make in {**makers, "plan": readme_plan}.items():
        start = time.perf_counter()
        data, figure = make()
        figure.savefig(folder / f"{name}.png", dpi=150)
        worst = max(worst, data.max_ratio)
        line = {
            "figure": name,
            "max_ratio": data.max_ratio,
            "min_ratio": data.min_ratio,
            "ours": float(data.series[0].ours[-1]),
            "published": float(data.series[0].published[-1]),
            "seconds": round(time.perf_counter() - start, 2),
            "file": f"{name}.png",
        }
        print(json.dumps(line), flush=True)
    return int(not worst <= 1 + TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
