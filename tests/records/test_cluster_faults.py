"""Workers that are killed, stopped or full, and schedulers that go: the same bits, one charge, or a clear error."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.accounting import certify
from tacit.errors import ClusterError
from tacit.ledger import Ledger
from tacit.mechanism import Arithmetic, Mechanism
from tacit.records import InMemory, open_records
from tacit.records.cluster import Cluster
from tacit.release import open_session
from tacit.release.queries import GramSum

N, NAMES = 4000, ["x0", "x1"]
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.uniform(-1, 1, (N, 2)), columns=NAMES)
FRAME["y"] = (FRAME[NAMES] @ [2.0, -1.0] + RNG.normal(0, 0.5, N) > 0).astype(int)
FRAME["who"] = RNG.integers(0, 900, N)


def model(seed: int, **more: Any) -> tacit.DPLogisticRegression:
    options = {"epsilon": 1.0, "delta": 1e-6, "feature_bounds": (-1, 1), "classes": [0, 1], "random_state": seed}
    return tacit.DPLogisticRegression(**options, **more)


@contextmanager
def processes(workers: int) -> Iterator[tuple[Any, Any]]:
    """Workers that start quickly, as forks of a process that has imported everything."""
    options = {"threads_per_worker": 1, "memory_limit": "1 GB", "dashboard_address": ":0", "silence_logs": 50}
    distributed.utils.get_mp_context()
    distributed.utils._forkserver_preload_set = True
    multiprocessing.get_context("forkserver").set_forkserver_preload(["distributed", "tacit.estimators"])
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(n_workers=workers, processes=True, **options) as local,
        distributed.Client(local) as client,
    ):
        yield local, client


def some_worker(local: Any, turn: int) -> int:
    """The process of a worker that runs; waits for one that a nanny starts."""
    while True:
        found = [nanny.pid for nanny in local.workers.values() if getattr(nanny, "pid", None)]
        if found:
            return int(found[turn % len(found)])
        time.sleep(0.05)


def kill(local: Any, client: Any, turn: int) -> None:
    os.kill(some_worker(local, turn), signal.SIGKILL)


def stop(local: Any, client: Any, turn: int) -> None:
    """Paused for a second, in the middle of a pass."""
    pid = some_worker(local, turn)
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    threading.Timer(1.0, go_on).start()


def hog() -> None:
    """More than the memory limit of a worker, which its nanny then ends."""
    held = []
    while True:
        held.append(np.ones(5_000_000))
        time.sleep(0.01)


def fill(local: Any, client: Any, turn: int) -> None:
    addresses = list(client.scheduler_info(n_workers=-1)["workers"])
    client.run(hog, workers=[addresses[turn % len(addresses)]], wait=False)


def restart(local: Any, client: Any, turn: int) -> None:
    client.restart(wait_for_workers=False)


FAULTS: tuple[Callable[[Any, Any, int], None], ...] = (kill, stop, fill, restart)


@contextmanager
def faults(monkeypatch: Any, hurt: Callable[[int], None], every: int) -> Iterator[list[int]]:
    """A fault in every so-many-th pass, after its tasks were begun."""
    passes, done = 0, [0]
    results = Cluster.results

    def hurting(self: Cluster, begun: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes % every == 0:
            hurt(done[0])
            done[0] += 1
        return results(self, begun)

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "results", hurting)
        yield done


def test_killed_workers_change_no_bit(monkeypatch, tmp_path) -> None:
    """kill -9 in every tenth pass, of persons; the first ones while persons are counted and parts encoded."""
    expected = model(1).fit(FRAME[NAMES], FRAME["y"], groups=FRAME["who"])
    ledger = Ledger(tmp_path / "ledger", epsilon=5.0, delta=1e-5)
    with processes(2) as (local, client):
        records = open_records(dd.from_pandas(FRAME, npartitions=4), "y", "who")
        with faults(monkeypatch, lambda turn: kill(local, client, turn), 10) as done:
            found = model(1, ledger=ledger).fit(records)
    assert done[0] >= 2
    assert np.array_equal(found.coef_, expected.coef_)
    assert len(ledger.entries()) == 1


@contextmanager
def own_scheduler() -> Iterator[tuple[Any, Any]]:
    """A scheduler and a worker in processes of their own."""
    run = [sys.executable, "-m"]
    options = ["--port", "0", "--host", "127.0.0.1", "--dashboard-address", ":0", "--no-show"]
    scheduler = subprocess.Popen(
        [*run, "distributed.cli.dask_scheduler", *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert scheduler.stderr is not None
    address = next(found[0] for line in scheduler.stderr if (found := re.search(r"tcp://\S+", line)))
    reader = threading.Thread(target=scheduler.stderr.read, daemon=True)
    reader.start()
    worker = subprocess.Popen(
        [*run, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--dashboard-address", ":0"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        with distributed.Client(address) as client:
            client.wait_for_workers(1)
            yield scheduler, client
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
        reader.join()
        scheduler.stderr.close()


@pytest.mark.filterwarnings("ignore")  # of a client whose scheduler is gone
def test_a_scheduler_that_goes_away_is_told_and_its_session_goes_on_elsewhere(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "ledger", epsilon=5.0, delta=1e-5)
    certificate = certify(Mechanism(adjacency="zero-out", ratio=0.1, steps=4, arithmetic=Arithmetic.EXACT))
    query, frame = GramSum(1.0, with_target=True), FRAME[[*NAMES, "y"]]
    ask = lambda session: session.release(query, np.zeros(1))  # noqa: E731
    with open_session(certificate, InMemory(frame[NAMES].to_numpy(), frame["y"].to_numpy()), random_state=4) as session:
        expected = [ask(session) for _ in range(4)]
    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}), own_scheduler() as (scheduler, _):
        records = open_records(dd.from_pandas(frame, npartitions=3), "y")
        with open_session(certificate, records, ledger=ledger, random_state=4) as session:
            found = [ask(session), ask(session)]
            saved, entry = session.checkpoint(), session.entry
            scheduler.kill()
            with pytest.raises(ClusterError, match="scheduler went away"):
                ask(session)
            assert session.steps_left() == 2
    with processes(1):
        again = open_records(dd.from_pandas(frame, npartitions=2), "y")
        with open_session(certificate, again, ledger=ledger, resume=saved, entry=entry) as session:
            found += [ask(session), ask(session)]
    assert np.array_equal(found, expected)
    assert len(ledger.entries()) == 1


@pytest.mark.attack
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_twenty_fits_with_a_worker_killed_in_every_tenth_pass(workers: int, monkeypatch, tmp_path) -> None:
    ledger = Ledger(tmp_path / "ledger", epsilon=100.0, delta=1e-3)
    killed = 0
    with processes(workers) as (local, client):
        for seed in range(20):
            expected = model(seed).fit(FRAME[NAMES], FRAME["y"])
            records = open_records(dd.from_pandas(FRAME[[*NAMES, "y"]], npartitions=5), "y")
            with faults(monkeypatch, lambda turn: kill(local, client, turn), 10) as done:
                found = model(seed, ledger=ledger).fit(records)
            killed += done[0]
            assert np.array_equal(found.coef_, expected.coef_), seed
            assert len(ledger.entries()) == seed + 1
    print(f"{workers} workers, 20 fits, {killed} killed: 0 wrong, {len(ledger.entries()) - 20} spent twice")


@pytest.mark.attack
def test_a_hundred_faults(monkeypatch, tmp_path) -> None:
    """Killed, paused, out of memory, restarted, in turn: 0 wrong, 0 spent twice."""
    ledger = Ledger(tmp_path / "ledger", epsilon=1000.0, delta=1e-3)
    counted = fits = 0
    with processes(2) as (local, client):
        while counted < 100:
            before = counted
            expected = model(fits).fit(FRAME[NAMES], FRAME["y"], groups=FRAME["who"])
            records = open_records(dd.from_pandas(FRAME, npartitions=4), "y", "who")
            hurt = lambda turn: FAULTS[(before + turn) % 4](local, client, turn)  # noqa: B023, E731
            with faults(monkeypatch, hurt, 5) as done:
                found = model(fits, ledger=ledger).fit(records)
            counted, fits = counted + done[0], fits + 1
            assert np.array_equal(found.coef_, expected.coef_)
            assert len(ledger.entries()) == fits
    print(f"{counted} faults in {fits} fits: 0 wrong, {len(ledger.entries()) - fits} spent twice")
