from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tacit.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parent))  # file_helpers


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def ledger(tmp_path):
    """A ledger with the given limits."""
    return lambda epsilon, delta=1e-5: Ledger(tmp_path / "study.ledger", epsilon=epsilon, delta=delta)


class Watched:
    """A table that shows its shape, and remembers whether its values were read."""

    def __init__(self, values: np.ndarray) -> None:
        self._values, self.touched = values, False
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __array__(self, dtype=None, copy=None):
        self.touched = True
        return np.array(self._values, dtype=dtype)

    def __getitem__(self, index):
        self.touched = True
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)


@pytest.fixture
def watched():
    return lambda *shape: Watched(np.random.default_rng(0).uniform(-1, 1, size=shape))
