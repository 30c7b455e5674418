from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.ledger import Ledger


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[..., Ledger]:
    """A ledger with the given limits."""
    return lambda epsilon, delta=1e-5: Ledger(tmp_path / "study.ledger", epsilon=epsilon, delta=delta)


class Watched:
    """A table that shows its shape, and remembers whether anybody looked at its values."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self._values, self.touched = values, False
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self.touched = True
        return np.array(self._values, dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        self.touched = True
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)


@pytest.fixture
def watched() -> Callable[..., Watched]:
    """A watched table of the given shape."""

    def table(*shape: int) -> Watched:
        return Watched(np.random.default_rng(0).uniform(-1, 1, size=shape))

    return table
