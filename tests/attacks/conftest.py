"""The standing attacker: see ``attacking.py`` for what it can do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # attacking, leaking


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
