"""Records on a cluster of Dask: the same bits as an array, in few tasks, of which nothing shows a record."""

from __future__ import annotations

import logging
import os
import pickle
import re
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.accounting import certify
from tacit.errors import ClusterError, InvalidInput, MechanismMismatch, NotCovered
from tacit.estimators import DPQuantileScaler, private_mean
from tacit.ledger import Ledger
from tacit.maps import RowMap
from tacit.mechanism import Arithmetic, Mechanism, Poisson
from tacit.records import InMemory, open_records
from tacit.records.cluster import Cluster, Sealed
from tacit.records.clustered import Clustered
from tacit.records.workers import Members, answer, encode, held_tags, owners_of
from tacit.release import open_session
from tacit.release.queries import GramSum

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Dask's own calls of pandas
]
N, NAMES = 9_000, ["x0", "x1", "x2"]
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.uniform(-1.2, 1.2, (N, 3)), columns=NAMES)
FRAME["y"] = FRAME[NAMES] @ [2.0, -1.0, 0.5] + RNG.normal(0, 0.2, N)
FRAME["label"] = np.where(FRAME["y"] > 0, "yes", "no")
FRAME["who"] = RNG.integers(0, 2500, N) ** 2
PUBLIC = {"epsilon": 1.0, "delta": 1e-6, "feature_bounds": (-1, 1), "random_state": 3}


def ridge(**more: Any) -> tacit.DPRidge:
    return tacit.DPRidge(**PUBLIC, target_bounds=(-3, 3), **more)


def logistic(**more: Any) -> tacit.DPLogisticRegression:
    return tacit.DPLogisticRegression(**PUBLIC, classes=["no", "yes"], **more)


def files(folder: Path, frame: pd.DataFrame, count: int = 5) -> list[Path]:
    folder.mkdir()
    out = []
    for k, rows in enumerate(np.array_split(np.arange(len(frame)), count)):
        out.append(folder / f"part-{k}.parquet")
        frame.iloc[rows].to_parquet(out[-1], index=False, row_group_size=500)
    return out


def rows_between(first: int, last: int) -> pd.DataFrame:
    return FRAME[[*NAMES, "y"]].iloc[first:last]


def forms(folder: Path) -> dict[str, Any]:
    frame = FRAME[[*NAMES, "y"]]
    paths = files(folder / "files", frame)
    lazy = dd.from_pandas(frame, npartitions=7, sort=False)
    return {
        "frame": lazy,
        "one partition": lazy.repartition(npartitions=1),
        "empty partitions": dd.from_map(rows_between, [0, 0, 3000, 3000], [0, 3000, 3000, N], meta=frame.iloc[:0]),
        "derived": lazy.assign(x0=lazy["x0"] * 1.0),
        "persisted": lazy.persist(),
        "parquet": dd.read_parquet(folder / "files"),
        "paths": paths,
        "bag": db.from_sequence(list(map(str, paths)), npartitions=2),
        "array": da.from_array(frame.to_numpy(), chunks=(1300, 3)),
    }


def test_the_same_bits_from_every_kind_of_table(tmp_path) -> None:
    expected = ridge().fit(FRAME[NAMES], FRAME["y"])
    for name, source in forms(tmp_path).items():
        records = open_records(source, 3 if name == "array" else "y")
        assert isinstance(records, Clustered)
        model = ridge().fit(records)
        assert np.array_equal(model.coef_, expected.coef_), name
        assert model.certificate_.digest == expected.certificate_.digest
    np.testing.assert_allclose(model.predict(records), expected.predict(FRAME[NAMES]), rtol=1e-12)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_same_bits_from_any_number_of_workers(workers: int) -> None:
    expected = logistic().fit(FRAME[NAMES], FRAME["label"])
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=workers, **options) as local, distributed.Client(local):
        lazy = dd.from_pandas(FRAME[[*NAMES, "label"]].sample(frac=1, random_state=1), npartitions=9, sort=False)
        model = logistic().fit(open_records(lazy, "label"))
    assert np.array_equal(model.coef_, expected.coef_)
    assert np.array_equal(model.intercept_, expected.intercept_)


@pytest.mark.parametrize("options", [{}, {"weighting": "rows", "max_rows": 3}], ids=["person", "rows"])
def test_persons_across_partitions(options: dict) -> None:
    expected = ridge(**options).fit(FRAME[NAMES], FRAME["y"], groups=FRAME["who"])
    kept = FRAME[[*NAMES, "y", "who"]]
    for frame in (kept, kept.assign(who=kept["who"].map("person {}".format))):
        records = open_records(dd.from_pandas(frame, npartitions=7, sort=False), "y", "who")
        model = ridge(**options).fit(records)
        assert np.array_equal(model.coef_, expected.coef_) or frame is not kept
        assert model.certificate_.unit == "person"
        assert model.certificate_.digest == expected.certificate_.digest
    again = ridge(**options).fit(FRAME[NAMES], FRAME["y"], groups=frame["who"])
    assert np.array_equal(model.coef_, again.coef_)


def test_batches_of_persons() -> None:
    options = {"epsilon": 2, "delta": 1e-6, "feature_norm": 2.0, "classes": [0, 1], "epochs": 1, "batch_size": 800}
    options |= {"random_state": 0, "view": "all_iterates", "arithmetic": "exact"}
    frame = FRAME[[*NAMES, "who"]].assign(y=(FRAME["y"] > 0).astype(int))
    expected = tacit.DPSoftmaxRegression(**options).fit(frame[NAMES], frame["y"], groups=frame["who"])
    records = open_records(dd.from_pandas(frame, npartitions=5, sort=False), "y", "who")
    assert np.array_equal(tacit.DPSoftmaxRegression(**options).fit(records).coef_, expected.coef_)


def test_a_row_without_an_id_counts_as_nothing() -> None:
    frame = FRAME[[*NAMES, "who"]].astype({"who": float})
    frame.loc[:99, "who"] = np.nan
    options = {"epsilon": 1e9, "delta": 1e-6, "random_state": 1}
    found, _ = private_mean(open_records(dd.from_pandas(frame, npartitions=4), person="who"), (-1, 1), **options)
    kept = frame.iloc[100:]
    expected, _ = private_mean(kept[NAMES], (-1, 1), groups=kept["who"], **options)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("rate", [0.3, 0.002])
@pytest.mark.parametrize("arithmetic", list(Arithmetic))
def test_random_batches(arithmetic: Arithmetic, rate: float) -> None:
    """Each task gets its own members; in floating point, sums are the same but for the order of additions."""
    m = Mechanism(adjacency="zero-out", ratio=1.0, steps=3, arithmetic=arithmetic, sampling=Poisson(rate))
    lazy = dd.from_pandas(FRAME[[*NAMES, "y"]], npartitions=7)
    answers = []
    for records in (open_records(lazy, "y"), InMemory(FRAME[NAMES].to_numpy(), FRAME["y"].to_numpy())):
        with open_session(certify(m), records, random_state=3) as session:
            answers.append([session.release(GramSum(1.0, with_target=True), np.zeros(1)) for _ in range(3)])
    if arithmetic is Arithmetic.EXACT:
        assert np.array_equal(*answers)
    else:  # noise is named after the sum, to the bit
        assert np.shape(answers[0]) == np.shape(answers[1])


def test_float_sums_are_added_in_the_order_of_partitions() -> None:
    query, state = GramSum(1.0, with_target=True), np.zeros((1, 1))
    everybody = np.broadcast_to(np.True_, (1, N))
    expected = InMemory(FRAME[NAMES].to_numpy(), FRAME["y"].to_numpy()).total(query, state, everybody, None)
    found = []
    for threads in (1, 2, 5):
        records = open_records(dd.from_pandas(FRAME[[*NAMES, "y"]], npartitions=7), "y")
        records._source.cluster.threads = threads
        found.append(records.total(query, state, everybody, None))
    np.testing.assert_allclose(found[0], expected, rtol=1e-10)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_members_travel_as_bits_or_places() -> None:
    for rate in (0.0, 0.001, 0.4, 1.0):
        members = np.random.default_rng(1).random((2, 5000)) < rate
        sent = Members.of(members)
        assert np.array_equal(sent.table(), members)
        assert len(pickle.dumps(sent)) < 2000
    assert Members.of(np.zeros((1, 0), bool)).table().shape == (1, 0)


SCALERS = {
    "scaler": lambda X: tacit.DPStandardScaler(1.0, 1e-6, (-1, 1), random_state=1).fit(X).mean_,
    "quantiles": lambda X: DPQuantileScaler(1.0, 1e-6, (-1, 1), random_state=1).fit(X).quantiles_,
    "counted": lambda X: (
        tacit.DPStandardScaler(1.0, 1e-6, (-1, 1), adjacency="add-remove", random_state=1).fit(X).mean_
    ),
}


@pytest.mark.parametrize("name", SCALERS)
def test_scalers_too(name: str) -> None:
    found = SCALERS[name](open_records(dd.from_pandas(FRAME[NAMES], npartitions=4)))
    assert np.array_equal(found, SCALERS[name](FRAME[NAMES]))


def test_float32_stays_float32() -> None:
    X, y = FRAME[NAMES].to_numpy(np.float32), FRAME["y"].to_numpy()
    frame = FRAME[[*NAMES, "y"]].astype(dict.fromkeys(NAMES, np.float32))
    records = open_records(dd.from_pandas(frame, npartitions=3), "y")
    assert records.header.dtype == records.first().X.dtype == np.float32
    assert np.array_equal(ridge().fit(records).coef_, ridge().fit(X, y).coef_)


# -- tasks ----------------------------------------------------------------------------------------------------


def watched(monkeypatch) -> list[tuple[Any, list[str]]]:
    """Which tasks are begun, with their keys."""
    seen: list[tuple[Any, list[str]]] = []
    start = Cluster.start

    def starting(self: Cluster, task: Any, *columns: Any) -> list[Any]:
        begun = start(self, task, *columns)
        seen.append((task, [one.key for one in begun]))
        return begun

    monkeypatch.setattr(Cluster, "start", starting)
    return seen


def test_parts_are_encoded_once_and_a_pass_is_one_task_for_each_thread(monkeypatch) -> None:
    seen = watched(monkeypatch)
    records = open_records(dd.from_pandas(FRAME[[*NAMES, "label", "who"]], npartitions=9), "label", "who")
    logistic().fit(records)
    tasks = [task for task, _ in seen]
    assert [tasks.count(task) for task in (encode, held_tags, owners_of)] == [1, 1, 1]
    assert tasks.count(answer) > 20
    assert {len(keys) for _, keys in seen} == {2}
    keys = [key for _, some in seen for key in some]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"tacit-[0-9a-f]{32}-\d", key) for key in keys)


def test_what_is_derived_from_rows_stays_on_the_workers(monkeypatch) -> None:
    made: list[int] = []
    from tacit.records import rows

    integers = rows.Integers.__init__
    monkeypatch.setattr(rows.Integers, "__init__", lambda self, X: (made.append(len(X)), integers(self, X))[1])
    logistic().fit(open_records(dd.from_pandas(FRAME[[*NAMES, "label"]], npartitions=4), "label"))
    assert 0 < sum(made) <= 3 * N  # once for each view, not in every pass


def test_the_keys_of_noise_stay_here_and_what_is_sent_is_sealed(monkeypatch) -> None:
    sent: list[Any] = []
    seal = Sealed.__init__
    monkeypatch.setattr(Sealed, "__init__", lambda self, value: (sent.append(value), seal(self, value))[1])
    kept = FRAME[[*NAMES, "y", "who"]]
    certificate = certify(Mechanism(adjacency="zero-out", ratio=1.0, steps=2, arithmetic="exact", unit="person"))
    records = open_records(dd.from_pandas(kept, npartitions=3), "y", "who").of_persons()
    with open_session(certificate, records) as session:
        session.release(GramSum(1.0, with_target=True), np.zeros(1))
        key = session.checkpoint().key
    everything = pickle.dumps([seal_bytes(one) for one in sent])
    assert key not in everything
    assert repr(Sealed(np.array([12345.678]))) == "Sealed"


def seal_bytes(value: Any) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(value)


# -- what is refused, and what fails ----------------------------------------------------------------------------


def test_without_a_cluster_the_line_to_write_is_told(monkeypatch) -> None:
    def nobody() -> None:
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "default_client", nobody)
    for source in (dd.from_pandas(FRAME, npartitions=2), da.ones((9, 2)), db.from_sequence(["a"]), ["a.parquet"]):
        with pytest.raises(InvalidInput, match=r"client = distributed\.Client\(\)"):
            open_records(source)


def test_what_a_cluster_cannot_do_is_refused_before_a_charge(monkeypatch) -> None:
    monkeypatch.setattr("tacit.estimators.base.open_session", lambda *_, **__: pytest.fail("a session was opened"))
    lazy = dd.from_pandas(FRAME[[*NAMES, "y"]], npartitions=2)
    with pytest.raises(NotCovered, match="all rows must be in memory"):
        ridge(solver="coordinate").fit(open_records(lazy, "y"))
    with pytest.raises(InvalidInput, match="in memory"):
        tacit.DPNMF(2, epsilon=1, delta=1e-5).fit(open_records(lazy))
    with pytest.raises(InvalidInput, match="scratch has no effect"):
        open_records(lazy, "y", scratch=True)
    with pytest.raises(InvalidInput, match="open_records"):
        ridge().fit(lazy, None)
    with pytest.raises(InvalidInput, match="no column 'z'"):
        open_records(lazy, "z")
    schema = {"features": {"label": {"bounds": [0, 1]}}}
    with pytest.raises(InvalidInput, match="stored as words"):
        open_records(dd.from_pandas(FRAME, npartitions=2), "y", schema=schema)
    cube = da.ones((9, 2, 2))
    with pytest.raises(InvalidInput, match="of another kind"):
        open_records(cube)
    with pytest.raises(InvalidInput, match="one column"):
        open_records(lazy["y"])
    with pytest.raises(InvalidInput, match="no records"):
        ridge().fit(open_records(lazy[lazy["y"] > 99], "y"))
    bag = db.from_sequence([{"SECRET": 1}])
    with pytest.raises(InvalidInput, match="a dictionary"):
        open_records(bag)


def test_files_of_other_types_are_refused(tmp_path) -> None:
    paths = files(tmp_path / "a", FRAME[NAMES], 1) + files(tmp_path / "b", FRAME[["x0", "label"]], 1)
    with pytest.raises(InvalidInput, match="has other columns, or types"):
        open_records(paths)


class _Failing(RowMap):
    """A public map that fails for one record, and quotes it."""

    def __call__(self, X: Any) -> Any:
        if (np.asarray(X) > 1.1999).any():
            raise ValueError(f"SECRET {X}")
        return X

    def range(self, before: Any) -> Any:
        return before

    @classmethod
    def example(cls, rng: np.random.Generator) -> Any:
        return cls(), rng.normal(size=(5, 3))


def quoting(frame: pd.DataFrame) -> pd.DataFrame:
    if len(frame) and (frame["x0"] > 1.19).any():
        raise ValueError(f"SECRET {frame}")
    return frame


def test_an_error_on_a_worker_quotes_no_record_anywhere(caplog, capfd, cluster) -> None:
    lazy = dd.from_pandas(FRAME[NAMES], npartitions=3)
    m = certify(Mechanism(adjacency="zero-out", ratio=1.0, steps=1))
    with caplog.at_level(logging.DEBUG), open_session(m, open_records(lazy)) as session:
        with pytest.raises(ClusterError, match="ValueError") as caught:
            session.through(_Failing()).release(GramSum(1.0, with_target=False), np.zeros(1))
        assert session.steps_left() == 1
    read = lazy.map_partitions(quoting, meta=FRAME[NAMES].iloc[:0])
    with caplog.at_level(logging.DEBUG), pytest.raises(ClusterError, match="ValueError") as again:
        private_mean(open_records(read), (-1, 1), epsilon=1, delta=1e-6)
    for error in (caught.value, again.value):
        assert "SECRET" not in repr((error, error.__cause__, error.__context__))
        assert error.__cause__ is None
    out = capfd.readouterr()
    stories = cluster.run_on_scheduler(lambda dask_scheduler: str(list(dask_scheduler.transition_log)))
    told = [out.out, out.err, caplog.text, stories, *map(str, cluster.get_worker_logs().values())]
    assert not any("SECRET" in text for text in told)


def test_rows_that_change_between_passes_are_noticed() -> None:
    """A graph that is not repeatable: after a fault it would give another table."""

    def changing(frame: pd.DataFrame) -> pd.DataFrame:
        return frame + int.from_bytes(os.urandom(4))

    lazy = dd.from_pandas(FRAME[NAMES], npartitions=2).map_partitions(changing, meta=FRAME[NAMES].iloc[:0])
    query, everybody = GramSum(1.0, with_target=False), np.broadcast_to(np.True_, (1, N))
    records = open_records(lazy)
    records.total(query, np.zeros((1, 1)), everybody, None)
    records._shared.forget()
    with pytest.raises(ClusterError, match="held other rows"):
        records.total(query, np.zeros((1, 1)), everybody, None)


def test_persons_are_not_fetched() -> None:
    records = open_records(dd.from_pandas(FRAME[[*NAMES, "who"]], npartitions=2), person="who").of_persons()
    with pytest.raises(MechanismMismatch, match="stay on their workers"):
        records.parts()
    with pytest.raises(MechanismMismatch, match="numbers persons secretly"):
        records.total(GramSum(1.0, with_target=False), np.zeros((1, 1)), np.ones((1, records.n), bool), None)


def test_a_scheduler_that_forgets_is_asked_again_and_the_fit_is_charged_once(tmp_path, monkeypatch) -> None:
    """All that workers held is gone in every tenth pass; it is encoded again, from the source."""
    from concurrent.futures import CancelledError

    expected = logistic().fit(FRAME[NAMES], FRAME["label"])
    ledger = Ledger(tmp_path / "ledger", epsilon=5.0, delta=1e-5)
    records = open_records(dd.from_pandas(FRAME[[*NAMES, "label"]], npartitions=4), "label")
    client, passes = records._source.cluster._client, 0
    gather = type(client).gather

    def forgetting(self: Any, futures: Any, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes % 10 == 5:
            self.cancel(records._shared._held, force=True)
            raise CancelledError
        return gather(self, futures, **options)

    monkeypatch.setattr(type(client), "gather", forgetting)
    model = logistic(ledger=ledger).fit(records)
    assert passes > 20
    assert np.array_equal(model.coef_, expected.coef_)
    assert len(ledger.entries()) == 1


def test_dask_is_not_imported_before_it_is_needed() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tacit.estimators; print([m for m in ('dask', 'distributed', 'cloudpickle') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "dask" not in out.stdout
    assert dask is not None
