"""Which folder may import which: data flows one way."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tacit
from tacit import errors

SRC = Path(__file__).parent.parent / "src" / "tacit"
ORDER = (
    "errors",
    "_validate",
    "_digits",
    "_files",
    "_page",
    "_codec",
    "_registry",
    "kernels",
    "problem",
    "noise",
    "mechanism",
    "accounting",
    "ledger",
    "inputs",
    "maps",
    "records",
    "release",
    "solvers",
    "estimators",
    "federation",
    "tables",
    "torch",
    "audit",
    "report",
    "cli",
)
MODULES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module or ""]
            if node.module == "tacit":
                names = [f"tacit.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("tacit.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_each_folder_imports_only_those_before_it(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    assert here in ORDER, f"{here} has no place in the order of rooms"
    allowed = set(ORDER[: ORDER.index(here) + 1])
    assert imported_rooms(path) <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_only_the_torch_folder_imports_torch(path: Path) -> None:
    if room(path) == "torch":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name == "torch" or name.startswith("torch.") for name in names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_what_papers_print_stays_outside(path: Path) -> None:
    """Formulas that no certificate rests on are in benchmarks/papers, and nothing here imports them."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.split(".")[0] in {"papers", "benchmarks"} for name in names)


def test_a_certificate_answers_with_guarantees_only() -> None:
    """Every public name of a certificate: a method that returns an ε which no theorem guarantees is not among them."""
    numbers = {"epsilon", "delta", "mu"}
    words = {"adjacency", "arithmetic", "assumptions", "describe", "digest", "marks", "plan"}
    words |= {"theorem", "theorems", "unit", "view", "group_epsilon"}
    makers = {"from_json", "marked", "to_dict", "to_html", "to_json"}
    assert {name for name in dir(tacit.Certificate) if not name.startswith("_")} == numbers | words | makers


def test_the_rule_would_notice_a_reversed_arrow(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from tacit.release import Channel\nimport tacit.audit.gdp\nfrom tacit import ledger\n")
    assert imported_rooms(bad) == {"release", "audit", "ledger"}


def test_importing_tacit_is_light() -> None:
    code = (
        "import sys, tacit; print([m for m in ('numpy', 'numba', 'matplotlib', 'dp_accounting') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_type_checkers_see_what_is_loaded_on_first_use() -> None:
    (block,) = [node for node in ast.parse((SRC / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # exported on purpose, also where nothing is exported by the way
            seen[alias.name] = node.module
    assert seen == tacit._HOMES


def test_every_name_at_the_top_exists_where_it_is_said_to_live() -> None:
    for name, home in tacit._HOMES.items():
        module = importlib.import_module(home)
        assert getattr(tacit, name) is getattr(module, name)
        assert name in module.__all__, f"{home} does not offer {name}"
    assert set(tacit.__all__) == {*tacit._HOMES, "__version__"}
    assert set(tacit.__all__) <= set(dir(tacit))
    with pytest.raises(AttributeError, match="no attribute 'DPNothing'"):
        tacit.DPNothing


def test_every_error_is_at_the_top() -> None:
    assert set(errors.__all__) <= set(tacit._HOMES)


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((SRC.parent.parent / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/tacit/__init__.py"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_modules_stay_small(path: Path) -> None:
    assert path.read_text().count("\n") <= 450
