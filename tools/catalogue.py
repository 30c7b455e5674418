"""Everything that registers itself, as a page: ``docs/catalogue.md`` is what this prints.

    python tools/catalogue.py                write the page
    python tools/catalogue.py --check        say what is missing on it, and change nothing

A row is the name of a class and the first line of its docstring, so that whoever defines a class has its row.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tacit import estimators, maps
from tacit._codec import registered
from tacit.accounting import theorems
from tacit.estimators.base import ESTIMATORS
from tacit.maps import ROW_MAPS
from tacit.mechanism import Sampling
from tacit.problem import LOSSES, PENALTIES
from tacit.records import PLACES
from tacit.release import PROBLEMS, QUERIES, queries
from tacit.solvers import SOLVERS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "catalogue.md"
HEAD = """# Catalogue

Everything that registers itself by being defined ([how to add one](../CONTRIBUTING.md)). `python tools/catalogue.py`
writes this page from the classes themselves.
"""
assert queries  # imported so that every query is registered


def first_line(cls: type[Any]) -> str:
    """The first line of the class's own docstring."""
    lines = (cls.__doc__ or "").strip().splitlines()
    if not lines or lines[0].startswith(f"{cls.__name__}("):  # what a dataclass writes by itself
        sys.exit(f"{cls.__name__} has no docstring: its first line is the row of the class in docs/catalogue.md")
    return lines[0].replace("|", "\\|").strip()


def ours(classes: Iterable[type[Any]]) -> list[type[Any]]:
    """Classes of Tacit's that can be made."""
    return [cls for cls in classes if cls.__module__.startswith("tacit.") and not inspect.isabstract(cls)]


def table(title: str, name: str, classes: Iterable[type[Any]], named: Callable[[type[Any]], str]) -> str:
    """One section: a row per class, sorted."""
    rows = sorted(f"| `{named(cls)}` | {first_line(cls)} |" for cls in ours(classes))
    return f"\n## {title}\n\n| {name} | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def shell(cls: type[Any]) -> str:
    """The name of an estimator, with its name in the shell."""
    return cls.__name__ if cls.shell_name is None else f"{cls.__name__}` · `--model {cls.shell_name}"


def page() -> str:
    """The whole page."""
    estimators.load_all()
    maps.load_all()
    samplings = [cls for cls in registered().values() if issubclass(cls, Sampling)]
    stated = (theorem for theorem in theorems() if type(theorem).__module__.startswith("tacit."))
    rows = [f"| `{theorem.id}` | {theorem.name} ({theorem.reference}): {theorem.view} |" for theorem in stated]
    kinds: list[tuple[str, str, Iterable[type[Any]], Callable[[type[Any]], str]]] = [
        ("Estimators", "class, and its name in the shell", ESTIMATORS.values(), shell),
        ("Losses", "`loss=`", LOSSES.values(), lambda cls: str(cls.name)),
        ("Penalties", "class", PENALTIES.values(), lambda cls: cls.__name__),
        ("Solvers", "`solver=`", SOLVERS.values(), lambda cls: str(cls.name)),
        ("Row maps", "class", ROW_MAPS.values(), lambda cls: cls.__name__),
        ("Samplings", "class", samplings, lambda cls: cls.__name__),
        ("Queries", "name", QUERIES.values(), lambda cls: str(cls.name)),
        ("Block problems", "class", PROBLEMS.values(), lambda cls: cls.__name__),
        ("Places of records", "class", PLACES.values(), lambda cls: cls.__name__),
    ]
    statements = "\n## Theorems\n\n| id | what it is, and about what |\n|---|---|\n" + "\n".join(rows) + "\n"
    return HEAD + "".join(table(*kind) for kind in kinds) + statements


def main() -> None:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description="Write docs/catalogue.md from everything that registers itself.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not up to date")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
        return
    there = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    missing = [line for line in wanted.splitlines() if line not in there]
    if wanted.splitlines() != there:
        odd = missing[0] if missing else "a row that nothing defines"
        sys.exit(f"docs/catalogue.md is not up to date ({odd}): run python tools/catalogue.py")


if __name__ == "__main__":
    main()
