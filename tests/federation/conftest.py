from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ledgers of tests leave their anchors here."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("TACIT_STATE_DIR", str(folder))
    return folder
