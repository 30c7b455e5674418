"""Records anywhere: the same bits of a model from every source, and what is refused, lost or left in memory."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from scipy.special import expit

import tacit
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators import DPQuantileScaler, private_mean, private_quantiles, private_variance
from tacit.ledger import Ledger
from tacit.records import Streamed, open_records

N, P = 20_000, 4
NAMES = [f"x{j}" for j in range(P)]


def table(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-1.2, 1.2, (n, P)), columns=NAMES)
    score = frame.to_numpy() @ [2.0, -1.0, 0.5, 0.0]
    frame["y"] = score + rng.normal(0, 0.2, n)
    frame["label"] = np.where(rng.random(n) < expit(3 * score), "yes", "no")
    frame["place"] = rng.choice(["north", "south"], n)
    return frame


FRAME = table()
PUBLIC = {"epsilon": 1.0, "delta": 1e-6, "feature_bounds": (-1, 1), "random_state": 3}


def logistic(**more) -> tacit.DPLogisticRegression:
    return tacit.DPLogisticRegression(**PUBLIC, classes=["no", "yes"], **more)


def ridge(**more) -> tacit.DPRidge:
    return tacit.DPRidge(**PUBLIC, target_bounds=(-3, 3), **more)


def parquet(folder: Path, files: int, frame: pd.DataFrame = FRAME) -> Path:
    folder.mkdir()
    for k, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"part-{k:03}.parquet", index=False, row_group_size=977)
    return folder


def sources(folder: Path, frame: pd.DataFrame = FRAME) -> dict[str, object]:
    shuffled = frame.sample(frac=1, random_state=1)
    for name, one in (("all.csv", frame), ("shuffled.csv", shuffled)):
        one.to_csv(folder / name, index=False)
    with gzip.open(folder / "all.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    (folder / "lazy").mkdir()
    pl.from_pandas(frame).write_parquet(folder / "lazy" / "one.parquet")
    connection = duckdb.connect()
    connection.register("people", arrow)
    return {
        "parquet 1": parquet(folder / "p1", 1, frame),
        "parquet 7": str(parquet(folder / "p7", 7, shuffled)),
        "parquet 64": parquet(folder / "p64", 64, frame),
        "pandas": shuffled,
        "table": arrow,
        "batch": arrow.combine_chunks().to_batches()[0],
        "dataset": pads.dataset(folder / "p7"),
        "reader": arrow.to_reader(max_chunksize=333),
        "polars": pl.from_pandas(frame),
        "lazy": pl.scan_parquet(folder / "lazy" / "one.parquet"),
        "lazy csv": pl.scan_csv(folder / "shuffled.csv"),
        "duckdb": connection.sql("select * from people"),
        "duckdb file": duckdb.sql(f"select * from '{folder}/lazy/one.parquet' order by x0"),
    }


FITS = {
    "logistic": (logistic, "label", lambda model: np.append(model.coef_, model.intercept_)),
    "ridge": (ridge, "y", lambda model: np.append(model.coef_, model.intercept_)),
}


@pytest.mark.parametrize("fit", FITS)
def test_the_same_bits_from_everywhere(fit: str, tmp_path) -> None:
    make, target, numbers = FITS[fit]
    X, y = FRAME[NAMES].to_numpy(), FRAME[target].to_numpy()
    expected = numbers(make().fit(X, y))
    order = np.random.default_rng(5).permutation(N)
    assert np.array_equal(numbers(make().fit(X[order], y[order])), expected)
    schema = {"features": {name: {"bounds": [-1, 1]} for name in NAMES}}
    found = {}
    for name, source in sources(tmp_path).items():
        found[name] = open_records(source, target, schema=schema)
    files = {"csv": "all.csv", "gzip": "all.csv.gz", "shuffled csv": "shuffled.csv"}
    for name, file in files.items():
        found[name] = open_records(tmp_path / file, target, schema=schema)
    if target == "y":
        values = FRAME[[*NAMES, "y"]].to_numpy()
        np.save(tmp_path / "values.npy", values)
        found["array"] = open_records(values, P)
        found["memory map"] = open_records(np.load(tmp_path / "values.npy", mmap_mode="r"), P)
    for name, records in found.items():
        assert np.array_equal(numbers(make().fit(records)), expected), name


@pytest.mark.parametrize("fit", FITS)
def test_the_copy_changes_nothing(fit: str, tmp_path, caplog) -> None:
    make, target, numbers = FITS[fit]
    folder = parquet(tmp_path / "data", 3, FRAME[[*NAMES, target]])
    expected = numbers(make().fit(open_records(folder, target, scratch=False)))
    for options in ({"scratch": True}, {"memory": 0}, {"memory": "200 kB", "scratch": tmp_path}):
        assert np.array_equal(numbers(make().fit(open_records(folder, target, **options))), expected)
    assert len([one for one in caplog.records if "scratch file" in one.message]) == 2


def test_float32_stays_float32(tmp_path) -> None:
    X, y = FRAME[NAMES].to_numpy(np.float32), FRAME["y"].to_numpy()
    expected = ridge().fit(X, y).coef_
    frame = FRAME[[*NAMES, "y"]].astype(dict.fromkeys(NAMES, np.float32))
    records = open_records(parquet(tmp_path / "narrow", 2, frame), "y")
    assert records.header.dtype == np.float32
    assert np.array_equal(ridge().fit(records).coef_, expected)


ONE_RELEASE = {
    "scaler": lambda X: tacit.DPStandardScaler(1.0, 1e-6, (-1, 1), random_state=1).fit(X).mean_,
    "quantiles": lambda X: DPQuantileScaler(1.0, 1e-6, (-1, 1), random_state=1).fit(X).quantiles_,
    "mean": lambda X: private_mean(X, (-1, 1), epsilon=1, delta=1e-6, random_state=1)[0],
    "variance": lambda X: private_variance(X, (-1, 1), epsilon=1, delta=1e-6, random_state=1)[0],
    "q": lambda X: private_quantiles(X, [0.2, 0.7], (-1, 1), epsilon=1, delta=1e-6, random_state=1)[0],
    "counted": lambda X: (
        tacit.DPStandardScaler(1.0, 1e-6, (-1, 1), adjacency="add-remove", random_state=1).fit(X).mean_
    ),
}


@pytest.mark.parametrize("name", ONE_RELEASE)
def test_scalers_and_statistics_too(name: str, tmp_path) -> None:
    folder = parquet(tmp_path / "data", 5, FRAME[NAMES])
    assert np.array_equal(ONE_RELEASE[name](open_records(folder)), ONE_RELEASE[name](FRAME[NAMES]))


@pytest.mark.parametrize("solver", ["metric", "sgd", "statistics", "constant"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_every_solver_that_reads_sums(solver: str, adjacency: str, tmp_path) -> None:
    make = ridge if solver == "statistics" else logistic
    target = "y" if solver == "statistics" else "label"

    model = make(solver=solver, adjacency=adjacency)
    try:
        expected = model.fit(FRAME[NAMES].to_numpy(), FRAME[target].to_numpy()).coef_
    except NotCovered:
        pytest.skip("not under this relation")
    records = open_records(parquet(tmp_path / "data", 4, FRAME[[*NAMES, target]]), target)
    assert np.array_equal(make(solver=solver, adjacency=adjacency).fit(records).coef_, expected)


@pytest.mark.parametrize(("view", "arithmetic"), [("final_model", "float"), ("all_iterates", "exact")])
def test_batches_are_fetched_from_the_copy_by_place(view: str, arithmetic: str, tmp_path) -> None:
    options = {"epsilon": 2, "delta": 1e-6, "feature_norm": 2.0, "classes": ["no", "yes"], "epochs": 2}
    options |= {"batch_size": 500, "random_state": 0, "view": view, "arithmetic": arithmetic}
    expected = tacit.DPSoftmaxRegression(**options).fit(FRAME[NAMES].to_numpy(), FRAME["label"].to_numpy())
    folder = parquet(tmp_path / "data", 4, FRAME[[*NAMES, "label"]])
    for memory in (0, "1 GB"):
        model = tacit.DPSoftmaxRegression(**options).fit(open_records(folder, "label", memory=memory))
        assert np.array_equal(model.coef_, expected.coef_)
    with pytest.raises(InvalidInput, match="scratch=True"):
        tacit.DPSoftmaxRegression(**options).fit(open_records(folder, "label", scratch=False))


def test_coordinate_descent_where_the_copy_stays_in_memory(tmp_path) -> None:
    rows = broken(40)
    folder = parquet(tmp_path / "data", 2, rows[[*NAMES, "label"]])
    model = logistic(solver="coordinate", max_passes=2)
    kept = rows["label"].isin(["no", "yes"]) & np.isfinite(rows[NAMES]).all(axis=1)
    expected = model.fit(FRAME[NAMES].to_numpy(), FRAME["label"].to_numpy()).coef_
    whole = parquet(tmp_path / "whole", 2, FRAME[[*NAMES, "label"]])
    assert np.array_equal(model.fit(open_records(whole, "label")).coef_, expected)
    options = {**PUBLIC, "epsilon": 1e9, "classes": ["no", "yes"], "solver": "coordinate", "max_passes": 2}
    found = tacit.DPLogisticRegression(**options).fit(open_records(folder, "label")).coef_
    less = tacit.DPLogisticRegression(**options).fit(rows[NAMES][kept].to_numpy(), rows["label"][kept].to_numpy())
    np.testing.assert_allclose(found, less.coef_, atol=0.02)
    with pytest.raises(NotCovered, match="solver='coordinate'"):
        model.fit(open_records(whole, "label", memory=1000))


def test_predictions_are_streamed(tmp_path) -> None:
    folder = parquet(tmp_path / "data", 3)
    frame = FRAME[NAMES]
    schema = {"features": {name: {"bounds": [-1, 1]} for name in NAMES}}
    model = logistic().fit(open_records(folder, "label", schema=schema))
    for records in (open_records(folder, schema=schema), open_records(folder, "label", schema=schema)):
        assert np.array_equal(model.predict(records), model.predict(frame))
        np.testing.assert_allclose(model.predict_proba(records), model.predict_proba(frame), rtol=1e-12)
    assert model.feature_names_in_.tolist() == NAMES
    regression = ridge().fit(open_records(FRAME[[*NAMES, "y"]], "y"))
    np.testing.assert_allclose(regression.predict(open_records(frame)), regression.predict(frame), rtol=1e-12)
    softmax = tacit.DPSoftmaxRegression(epsilon=1, delta=1e-6, feature_norm=1.0, classes=["no", "yes"], epochs=1)
    softmax.fit(open_records(FRAME[[*NAMES, "label"]], "label", scratch=True))
    np.testing.assert_allclose(softmax.predict_proba(open_records(frame)), softmax.predict_proba(frame), rtol=1e-6)
    with pytest.raises(InvalidInput, match="other features"):
        model.predict(open_records(frame[NAMES[::-1]]))
    with pytest.raises(InvalidInput, match="have 3 features"):
        model.predict(open_records(frame[NAMES[:3]]))
    with pytest.raises(InvalidInput, match="missing values"):
        model.predict(open_records(frame.assign(x0=np.nan)))


# -- rows that count as nothing -----------------------------------------------------------------------------------


def broken(rows: int) -> pd.DataFrame:
    """The first rows are faulty, each in another way."""
    frame = FRAME.copy()
    for i in range(rows):
        column, value = [("x0", np.nan), ("x1", np.inf), ("label", "SECRET"), ("label", None)][i % 4]
        frame.loc[i, column] = value
    return frame


def test_faulty_rows_count_as_nothing_and_nobody_is_told(tmp_path, recwarn) -> None:
    """As if they were not there, but for the number of records, which is public."""
    kept = [*NAMES, "label"]
    folder = parquet(tmp_path / "data", 2, broken(400)[kept])
    found = tacit.DPStandardScaler(1e9, 1e-6, (-1, 1), random_state=1).fit(
        open_records(folder, "label", schema={"features": {name: {"bounds": [-1, 1]} for name in NAMES}})
    )
    rows = FRAME[NAMES].to_numpy()
    lost = np.isin(np.arange(N), [i for i in range(400) if i % 4 < 2])
    expected = np.clip(rows, -1, 1)[~lost].sum(axis=0) / N
    assert found.mean_ == pytest.approx(expected, abs=1e-4)
    model = logistic().fit(open_records(folder, "label"))
    assert not any("SECRET" in note for note in model.notes_)
    assert not recwarn.list


def test_a_faulty_row_is_within_the_declared_sensitivity() -> None:
    """A row that counts as nothing contributes 0, which may be farther from a record than records are apart."""
    from tacit.mechanism import Mechanism
    from tacit.release.channel import sensitivity
    from tacit.release.queries import HistogramSum

    query = HistogramSum((*[np.array([0.0, 1.0])] * 9, np.array([0.0, 1.0, 2.0])))
    mechanism = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
    assert query.diameter < query.bound <= sensitivity(mechanism, query)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_fault_in_a_value_is_charged_and_silent(kind: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    schema = {"features": {name: {"bounds": [-1, 1]} for name in NAMES}, "target": {"classes": ["no", "yes"]}}
    frame = broken(8).astype({"x0": object})
    frame.loc[9, "x0"] = "SECRET"
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    if kind == "parquet":
        path = parquet(tmp_path / "data", 1, broken(8))
    ledger = Ledger(tmp_path / "ledger", epsilon=5.0, delta=1e-5)
    model = tacit.DPLogisticRegression(**PUBLIC, ledger=ledger).fit(open_records(path, "label", schema=schema))
    assert len(ledger.entries()) == 1
    assert np.isfinite(model.coef_).all()
    assert model.classes_.tolist() == ["no", "yes"]


# -- what types and names tell ------------------------------------------------------------------------------------


SCHEMA = {"features": {"x0": {"bounds": [-1, 1]}, "place": {"categories": ["north", "south"]}}}
REFUSED_COLUMNS = {
    "no target": ({"target": "z"}, "no column 'z'"),
    "no person": ({"person": "z"}, "no column 'z'"),
    "a column missing": (
        {"schema": {"features": {"x9": {"bounds": [0, 1]}, "x0": {"bounds": [0, 1]}}}},
        "no column 'x9'",
    ),
    "words as numbers": ({"schema": {"features": {"place": {"bounds": [0, 1]}}}}, "stored as words"),
    "numbers as words": ({"schema": {"features": {"x0": {"categories": ["a"]}}}}, "stored as numbers"),
    "dates": ({"schema": {"features": {"when": {"bounds": [0, 1]}}}}, "stored as (timestamp|date)"),
    "target is a feature": ({"target": "x0", "schema": SCHEMA}, "'x0' is also among the features"),
    "a target of dates": ({"target": "when"}, "stored as (timestamp|date)"),
    "classes of another type": (
        {"target": "y", "schema": {**SCHEMA, "target": {"classes": ["a", "b"]}}},
        "stored as numbers",
    ),
    "bounds of words": ({"target": "label", "schema": {**SCHEMA, "target": {"bounds": [0, 1]}}}, "stored as words"),
    "memory": ({"memory": "much"}, "memory must be"),
    "scratch": ({"scratch": "/nowhere/at/all"}, "does not exist"),
    "a schema of another kind": ({"schema": 3}, "schema must be"),
    "a column by chance": ({"target": 1.5}, "target must be the name"),
}


@pytest.mark.parametrize("name", REFUSED_COLUMNS)
@pytest.mark.parametrize("place", ["pandas", "parquet", "polars"])
def test_columns_are_checked_by_names_and_types(name: str, place: str, tmp_path) -> None:
    options, words = REFUSED_COLUMNS[name]
    frame = FRAME.iloc[:50].assign(when=pd.Timestamp("2020-01-01"))
    source = {"pandas": lambda: frame, "polars": lambda: pl.from_pandas(frame)}.get(
        place, lambda: parquet(tmp_path / "data", 1, frame)
    )()
    with pytest.raises(InvalidInput) as info:
        open_records(source, **options)
    assert re.search(words, str(info.value)), info.value
    assert "\n" not in str(info.value)


def fits() -> dict[str, tuple]:
    numbers = FRAME[[*NAMES, "y"]].iloc[:300]
    words = FRAME[[*NAMES, "label"]].iloc[:300]
    return {
        "y beside": (lambda: ridge().fit(open_records(numbers, "y"), numbers["y"]), "target="),
        "groups beside": (lambda: ridge().fit(open_records(numbers, "y"), groups=numbers["y"]), "person="),
        "no target": (lambda: ridge().fit(open_records(numbers)), "no target"),
        "words": (lambda: ridge().fit(open_records(words, "label")), "holds words"),
        "no classes": (lambda: tacit.DPLogisticRegression(**PUBLIC).fit(open_records(words, "label")), "classes is"),
        "classes of another kind": (lambda: logistic().fit(open_records(numbers, "y")), "stored as numbers"),
        "coordinates": (lambda: ridge(solver="coordinate").fit(open_records(numbers, "y")), "solver='coordinate'"),
        "blocks": (lambda: tacit.DPNMF(2, epsilon=1, delta=1e-5).fit(open_records(numbers)), "in memory"),
        "a path": (lambda: ridge().fit("data.csv", None), "open_records"),
        "a query": (lambda: ridge().fit(duckdb.sql("select 1 a"), None), "open_records"),
        "a lazy frame": (lambda: ridge().fit(pl.LazyFrame({"a": [1]}), None), "open_records"),
        "opened twice": (lambda: open_records(open_records(numbers)), "open already"),
        "empty": (lambda: ridge().fit(open_records(numbers.iloc[:0], "y")), "no records"),
    }


@pytest.mark.parametrize("name", fits())
def test_what_a_fit_refuses_before_it_is_charged(name: str, monkeypatch) -> None:
    def charged(*_: object, **__: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr("tacit.estimators.base.open_session", charged)
    act, words = fits()[name]
    with pytest.raises((InvalidInput, NotCovered), match=words):
        act()


def test_a_stream_is_read_once_and_says_so() -> None:
    arrow = pa.Table.from_pandas(FRAME[[*NAMES, "y"]], preserve_index=False)
    with pytest.raises(InvalidInput, match="read once"):
        open_records(arrow.to_reader(), "y", scratch=False)
    records = open_records(arrow.to_reader(), "y")
    assert records.n == N
    np.testing.assert_allclose(
        ridge().fit(records).predict(records), ridge().fit(FRAME[NAMES], FRAME["y"]).predict(FRAME[NAMES]), rtol=1e-12
    )


def test_a_stream_of_labels_is_read_for_one_list_of_classes() -> None:
    arrow = pa.Table.from_pandas(FRAME[[*NAMES, "label"]], preserve_index=False)
    records = open_records(arrow.to_reader(), "label")
    model = logistic().fit(records)
    assert np.array_equal(model.predict(records), model.predict(FRAME[NAMES]))
    with pytest.raises(InvalidInput, match="open the data again"):
        tacit.DPLogisticRegression(**PUBLIC, classes=["no", "yes", "perhaps"]).fit(records)


def test_categories_are_encoded_by_the_schema(tmp_path) -> None:
    schema = {"features": {"x0": {"bounds": [-1, 1]}, "place": {"categories": ["south", "north"]}}}
    X = np.column_stack([FRAME["x0"], FRAME["place"] == "south", FRAME["place"] == "north"]).astype(float)
    bounds = ([-1, 0, 0], [1, 1, 1])
    model = tacit.DPRidge(epsilon=1, delta=1e-6, feature_bounds=bounds, target_bounds=(-3, 3), random_state=3)
    expected = model.fit(X, FRAME["y"]).coef_
    for source in (FRAME, pl.from_pandas(FRAME), FRAME.astype({"place": "category"}), parquet(tmp_path / "d", 3)):
        records = open_records(source, "y", schema=schema)
        assert np.array_equal(model.fit(records).coef_, expected)
    assert model.feature_names_in_.tolist() == ["x0", "place=south", "place=north"]


# -- the copy -------------------------------------------------------------------------------------------------


def test_nobody_else_can_open_the_copy_and_it_has_no_name(tmp_path) -> None:
    records = open_records(parquet(tmp_path / "data", 2, FRAME[NAMES]), memory=0, scratch=tmp_path)
    before = set(os.listdir(tmp_path))
    private_mean(records, (-1, 1), epsilon=1, delta=1e-6)
    assert set(os.listdir(tmp_path)) == before
    (_, copied) = records._store._copy
    assert copied.on_disk
    status = os.fstat(copied._file.fileno())
    assert (status.st_mode & 0o777, status.st_nlink) == (0o600, 0)


def test_the_copy_is_gone_after_a_crash(tmp_path) -> None:
    np.save(tmp_path / "values.npy", FRAME[NAMES].to_numpy())
    (tmp_path / "scratch").mkdir()
    code = """
import os, signal, sys
import numpy as np
from tacit import open_records
from tacit.estimators import private_mean
records = open_records(np.load(sys.argv[1], mmap_mode="r"), scratch=sys.argv[2], memory=0)
private_mean(records, (-1, 1), epsilon=1, delta=1e-6)
assert records._store._copy[1].on_disk
os.kill(os.getpid(), signal.SIGKILL)
"""
    arguments = [sys.executable, "-c", code, str(tmp_path / "values.npy"), str(tmp_path / "scratch")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert "scratch file" in done.stderr
    assert not list((tmp_path / "scratch").iterdir())


def test_what_is_derived_from_a_part_goes_with_it() -> None:
    records = open_records(FRAME[NAMES])
    kept = [part._kept for part in records.parts()]
    assert len(kept) > 2
    for part in records.parts():
        part.kept("norms", lambda: 1)
    assert all(not part._kept for part in records.parts())


def test_the_number_of_records_is_counted_without_a_look_at_values(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tacit.records.encoding.Encoder.__call__", lambda *_: pytest.fail("a value was read"))
    for source in sources(tmp_path).values():
        if not isinstance(source, pa.RecordBatchReader):
            assert open_records(source, "y").n == N
    schema = {"features": {name: {"bounds": [-1, 1]} for name in NAMES}}
    assert open_records(tmp_path / "all.csv.gz", "y", schema=schema).n == N


def test_progress_tells_shares_of_passes_only() -> None:
    from tacit.estimators.progress import watching

    seen: list[tuple[int, int]] = []
    model = ridge()
    with watching(model, lambda done, total: seen.append((done, total))):
        model.fit(open_records(FRAME[[*NAMES, "y"]], "y", scratch=True))
    done = [one for one, _ in seen]
    (total,) = {total for _, total in seen}
    assert done == sorted(done)
    assert done[-1] == total
    assert total % 1000 == 0
    assert len(done) > 30


def test_a_table_that_changes_between_passes_is_noticed(tmp_path) -> None:
    folder = parquet(tmp_path / "data", 2, FRAME[NAMES])
    records = open_records(folder, scratch=False)
    assert records.n == N
    (folder / "part-001.parquet").unlink()
    pq.write_table(pa.Table.from_pandas(FRAME[NAMES].iloc[:10]), folder / "part-001.parquet")
    with pytest.raises(InvalidInput, match="has changed"):
        private_mean(records, (-1, 1), epsilon=1, delta=1e-6)


def test_what_opens_is_a_place_of_records() -> None:
    assert isinstance(open_records(FRAME[NAMES]), Streamed)
