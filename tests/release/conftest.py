"""Sessions for tests: opened by the one function there is, and closed when the test ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.accounting import Certificate
from tacit.records import InMemory, Records
from tacit.release import Session, open_session

sys.path.insert(0, str(Path(__file__).parent))  # lattice_attack


@pytest.fixture(autouse=True)
def _state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def opened() -> Iterator[Callable[..., Session]]:
    """A session over an array (or records), without a ``with``."""
    with ExitStack() as stack:

        def enter(certificate: Certificate, table: Any, y: Any = None, **options: Any) -> Session:
            records = table if isinstance(table, Records) else InMemory(np.asarray(table, np.float64), y)
            return stack.enter_context(open_session(certificate, records, **options))

        yield enter
