from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# The helpers are also run as a script by child processes, so they are a module of their own.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of its own for every test, outside its tmp_path; removed at the end by pytest."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("TACIT_STATE_DIR", str(folder))
    return folder


@pytest.fixture
def forget(state_dir: Path) -> Callable[[], None]:
    """Make the per-user anchors disappear, as on another machine."""
    return lambda: shutil.rmtree(state_dir / "anchors", ignore_errors=True)
