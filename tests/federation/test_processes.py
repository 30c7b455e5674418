"""Nodes as processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from tacit import Ledger
from tacit.errors import InvalidInput
from tacit.federation import FactorNode, FederatedNMF, LinkLost, local_nodes

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "federated_nmf.py"


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def maker(path: pathlib.Path, n: int, **terms: Any) -> Any:
    np.save(path, np.random.default_rng(n).poisson(1.0, (n, 6)))
    return partial(FactorNode, partial(np.load, path), **{"delta": 1e-6, "row_norm": 6.0, **terms})


def test_separate_processes_load_their_rows_and_pay_for_themselves(tmp_path: pathlib.Path) -> None:
    ledger = Ledger(tmp_path / "a.ledger", epsilon=3.0, delta=1e-5)
    makers = [
        maker(tmp_path / "a.npy", 200, epsilon=1.0, ledger=ledger),
        maker(tmp_path / "b.npy", 300, epsilon=2.0),
    ]
    with local_nodes(makers) as links:
        running = [process for process in multiprocessing.active_children() if "Loky" not in process.name]
        assert len({os.getpid(), *(process.pid for process in running)}) == 3
        model = FederatedNMF(2, epochs=5, timeout=60).fit(links)
    assert all(not process.is_alive() for process in running)
    assert all(process.exitcode == 0 for process in running)
    assert model.components_.shape == (2, 6)
    assert [round(c.epsilon(1e-6), 3) for c in model.certificates_] == [1.0, 2.0]
    (entry,) = ledger.entries()
    assert entry.mu == pytest.approx(model.certificates_[0].mu)


def test_a_node_that_cannot_load_its_rows_is_lost_and_named(tmp_path: pathlib.Path) -> None:
    missing = partial(FactorNode, partial(np.load, tmp_path / "no.npy"), epsilon=1.0, delta=1e-6, row_norm=6.0)
    lost = pytest.raises(LinkLost, match=r"node 0 of 1 was lost.*see its own log.*nothing was spent")
    with local_nodes([missing]) as links, lost:
        FederatedNMF(2, epochs=5, timeout=60).fit(links)
    assert [process for process in multiprocessing.active_children() if "Loky" not in process.name] == []


def test_there_must_be_somebody() -> None:
    with pytest.raises(InvalidInput, match="at least one"), local_nodes([]):
        pass


def test_the_example_runs() -> None:
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "node 2: ε = 2" in done.stdout
    assert sorted(line.split()[-1] for line in done.stdout.splitlines() if line.startswith("taste")) == [
        "tea",
        "tool",
        "toy",
    ]
