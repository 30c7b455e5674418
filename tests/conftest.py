"""Settings of every test run: threads, which tests are slow, and the results of ``make attack``."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

# The workers of pytest-xdist keep every core busy. Libraries for matrices would start a thread per core in each of
# them, and those wait for each other: an audit of 4000 small fits then takes a minute instead of ten seconds. Children
# inherit this; it must be set before NumPy or PyTorch is imported.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

HERE = Path(__file__).parent
SLOW = HERE / "slow.txt"
"""Names of the test functions that took more than SECONDS together; ``pytest --update-slow`` writes it."""
SECONDS = 0.5
ESSENTIAL = {"test_architecture.py", "test_contract.py", "test_errata.py", "test_oracles.py", "test_replay.py"}
"""Run while typing, however long they take."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let products of matrices use two threads: how they cut a product then depends on the number of its rows."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(2):
        yield


@pytest.fixture(scope="session", autouse=True)
def _state_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A state directory for this run: folders of tests come again under the same names, and ledgers remember theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-slow", action="store_true", help=f"rewrite {SLOW.name} from the times of this run")
    parser.addoption(
        "--results", type=Path, help="skip tests that passed here with the same code, and record the others"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # reports reach the process that started the workers
    if config.getoption("--update-slow"):
        config.pluginmanager.register(_Times())
    if path := config.getoption("--results"):
        config.pluginmanager.register(_Results(path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = set(SLOW.read_text().split())
    for item in items:
        if _function(item.nodeid) in slow and item.path.name not in ESSENTIAL:
            item.add_marker(pytest.mark.slow)
    if path := config.getoption("--results"):
        done = _passed(path)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0].rpartition("::")[2]


class _Times:
    """Seconds of each test function, all its cases and fixtures together."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_function(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        names = sorted(name for name, seconds in self._seconds.items() if seconds > SECONDS)
        SLOW.write_text("".join(f"{name}\n" for name in names))


class _Results:
    """One line of JSON for each test that passed: its name, the properties that it recorded, and the code's version."""

    def __init__(self, path: Path) -> None:
        self._path, self._version = path, _version()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            line = {
                "test": report.nodeid,
                "code": self._version,
                "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
                "seconds": round(report.duration, 1),
                **dict(report.user_properties),
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _passed(path: Path) -> set[str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["test"] for line in map(json.loads, lines) if line["code"] == _version()}


def _version() -> str:
    """A digest of the package and the tests."""
    files = sorted([*(HERE.parent / "src").rglob("*.py"), *HERE.rglob("*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:10]
