"""Lines of Python per folder of the package, and of the folders beside it; those of 0.1 stand beside today's.

    python tools/lines.py                    a table: files and lines, before and now
    python tools/lines.py --json             today's numbers: {folder: [files, lines]}

Modules that lie directly in the package count as one folder, called ".".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tacit"
BESIDE = ("tests", "benchmarks", "examples", "tools")
BEFORE = Path(__file__).with_name("lines_0.1.json")

Count = tuple[int, int]
"""Files, lines."""


def count(files: list[Path]) -> Count:
    """How many files there are, and how many lines they hold."""
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def counts() -> dict[str, Count]:
    """Files and lines of each folder of the package (modules beside the folders: "."), its sum, and those beside it."""
    folders = sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__")
    found = {".": count(list(PACKAGE.glob("*.py")))}
    found |= {folder.name: count(list(folder.rglob("*.py"))) for folder in folders}
    found["src/tacit"] = count(list(PACKAGE.rglob("*.py")))
    return found | {name: count(list((ROOT / name).rglob("*.py"))) for name in BESIDE}


def render(now: dict[str, Count], before: dict[str, Count]) -> str:
    """A table with "before → now"; folders that exist on one side only are shown, too."""
    lines = [f"{'folder':16}{'files':>16}{'lines':>20}"]
    names = [*now, *(name for name in before if name not in now)]
    for name in sorted(names, key=lambda name: (name in BESIDE, name == "src/tacit", name)):
        (old_files, old_lines), (files, total) = before.get(name, (0, 0)), now.get(name, (0, 0))
        lines.append(f"{name:16}{f'{old_files} → {files}':>16}{f'{old_lines} → {total}':>20}")
    return "\n".join(lines)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print today's numbers as JSON")
    now = counts()
    if parser.parse_args().json:
        print(json.dumps(now, indent=2))
    else:
        print(render(now, json.loads(BEFORE.read_text())))


if __name__ == "__main__":
    main()
