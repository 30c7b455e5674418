"""Draw the papers' figures with our bounds beside theirs: ``python benchmarks/figures.py [folder]``.

Writes one PNG per figure to docs/figures/ (or the folder given) and prints one JSON line with the largest
ours/published ratio. Exits with 1 if ours exceeds a published bound anywhere.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tacit.report.figures import FIGURES

TOLERANCE = 1e-9


def main() -> int:
    default = Path(__file__).resolve().parent.parent / "docs" / "figures"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    worst = 0.0
    for name, (compare, draw) in FIGURES.items():
        start = time.perf_counter()
        data = compare()
        draw().savefig(folder / f"{name}.png", dpi=150)
        worst = max(worst, data.max_ratio)
        line = {
            "figure": name,
            "max_ratio": data.max_ratio,
            "min_ratio": data.min_ratio,
            "seconds": round(time.perf_counter() - start, 2),
            "file": str(folder / f"{name}.png"),
        }
        print(json.dumps(line), flush=True)
    return int(not worst <= 1 + TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
