"""What the documentation shows is what the code prints."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import papers
import pytest

import tacit
from tacit import estimators
from tacit.estimators.base import ESTIMATORS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
MODULES = sorted(
    module.name
    for package in (tacit, papers)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_some_docstrings_have_examples() -> None:
    found = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert found >= 10


NAMES = (
    "auditing",
    "block_networks",
    "curvature",
    "correlated_noise",
    "exact",
    "features",
    "federated",
    "final_model",
    "larger_than_memory",
    "ledger",
    "linear_models",
    "multiconvex",
    "nmf",
    "on_a_cluster",
    "preprocessing",
    "selection",
    "training",
)
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in NAMES)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_on_the_page(page: Path) -> None:
    if "import torch" in page.read_text() or "from torch" in page.read_text():
        pytest.importorskip("torch")
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0


def test_the_plan_in_the_readme_is_what_the_command_prints() -> None:
    command, shown = re.search(
        r"```console\n\$ (tacit plan .*?)\n```\n+```text\n(.*?)```", README.read_text(), re.S
    ).groups()
    arguments = command.replace("\\\n", " ").split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "tacit.cli", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    wanted = [line.rstrip() for line in shown.splitlines() if line.strip()]
    missing = [line for line in wanted if line not in printed]
    assert not missing


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in links(page.read_text()) if not (page.parent / link).exists()]
    assert not broken


def test_the_table_of_arithmetics_states_the_defaults() -> None:
    estimators.load_all()
    text = (ROOT / "docs" / "exact.md").read_text()
    rows = re.findall(r"^\| (exact|float) \| (.*?) \|", text, re.M)
    stated = {name: way for way, names in rows for name in re.findall(r"`(\w+)`", names)}
    known = {name: kind for name, kind in ESTIMATORS.items() if kind.__module__.startswith("tacit.")}
    defaults = {name: inspect.signature(kind).parameters["arithmetic"].default for name, kind in known.items()}
    for name in ("private_mean", "private_variance", "private_quantiles"):
        defaults[name] = inspect.signature(getattr(estimators, name)).parameters["arithmetic"].default
    assert defaults | {"PrivateTrainer": "float"} == stated


ERRATA = (ROOT / "docs" / "errata.md").read_text()


def test_errata_are_in_order_and_each_row_has_its_section() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \|.*\| `(tests/[\w/]+\.py)` \|$", ERRATA, re.M)
    assert all(link == name.lower() for name, link, _ in rows)
    names = [name for name, _, _ in rows]
    assert names == re.findall(r"^### (\w+)$", ERRATA, re.M)
    for letter, least in (("E", 21), ("T", 11), ("L", 12)):
        numbers = [int(name[1:]) for name in names if name[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= least
    assert max(map(len, ERRATA.splitlines())) <= 120


def test_errata_name_existing_tests() -> None:
    sections = re.split(r"^### \w+$", ERRATA, flags=re.M)[1:]
    assert sections
    for section in sections:
        (named,) = re.findall(r"^Tests: (.*?)\n(?:\n|$|\Z)", f"{section}\n", re.M | re.S)
        files = re.findall(r"`(tests/[\w/]+\.py)`\s\(([^)]*)\)", named)
        assert files, named
        for file, functions in files:
            source = (ROOT / file).read_text()
            for function in re.findall(r"`(\w+)`", functions):
                assert f"def {function}(" in source, f"{file}: {function}"
