"""What is no table: each is refused by its name, with the way from it to a fit, in one line and without a value."""

from __future__ import annotations

import io
import sqlite3
import zipfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse

import tacit
from tacit.errors import InvalidInput
from tacit.inputs.foreign import FOREIGN
from tacit.records import open_records

FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": ["SECRET", "x"], "y": [0.0, 1.0]})


def elsewhere(module: str, name: str) -> object:
    """An object of a library that is not installed here."""
    return type(name, (), {"__module__": module})()


OBJECTS = {
    "Dask Series": (elsewhere("dask.dataframe.dask_expr._collection", "Series"), "pass the frame"),
    "Spark DataFrame": (elsewhere("pyspark.sql.dataframe", "DataFrame"), "write.parquet"),
    "Ray Dataset": (elsewhere("ray.data.dataset", "Dataset"), "write_parquet"),
    "cuDF DataFrame": (elsewhere("cudf.core.dataframe", "DataFrame"), "to_arrow"),
    "CuPy array": (elsewhere("cupy._core.core", "ndarray"), "array.get()"),
    "Modin DataFrame": (elsewhere("modin.pandas.dataframe", "DataFrame"), "to_parquet"),
    "Vaex DataFrame": (elsewhere("vaex.dataframe", "DataFrame"), "export"),
    "Ibis table": (elsewhere("ibis.expr.types.relations", "Table"), "to_pyarrow_batches"),
    "Hugging Face dataset": (elsewhere("datasets.arrow_dataset", "Dataset"), "data.table"),
    "streamed Hugging Face": (elsewhere("datasets.iterable_dataset", "IterableDataset"), "to_parquet"),
    "TensorFlow tensor": (elsewhere("tensorflow.python.framework.ops", "Tensor"), "numpy()"),
    "JAX array": (elsewhere("jaxlib._jax", "ArrayImpl"), "numpy.asarray"),
    "xarray Dataset": (elsewhere("xarray.core.dataset", "Dataset"), "to_dataframe"),
    "HDF5 dataset": (elsewhere("h5py._hl.dataset", "Dataset"), "memory map"),
    "Zarr array": (elsewhere("zarr.core.array", "Array"), "memory map"),
    "SQLAlchemy engine": (elsewhere("sqlalchemy.engine.base", "Engine"), "read_sql"),
    "connection to SQLite": (sqlite3.connect(":memory:"), "sqlite_scan"),
    "connection to DuckDB": (duckdb.connect(), "connection.table"),
    "torch Tensor": (torch.zeros(3, 2), "tensor.numpy()"),
    "torch DataLoader": (torch.utils.data.DataLoader([1]), "tacit.torch"),
    "torch Dataset": (torch.utils.data.TensorDataset(torch.zeros(2)), "tacit.torch"),
    "pandas Series": (FRAME["a"], "pass the frame"),
    "grouped pandas DataFrame": (FRAME.groupby("b"), "the frame itself"),
    "Polars Series": (pl.Series([1.0]), "pass the frame"),
    "Polars expression": (pl.col("a"), "frame.select"),
    "grouped Polars LazyFrame": (pl.LazyFrame({"a": [1]}).group_by("a"), "the frame itself"),
    "column of pyarrow": (pa.chunked_array([[1.0]]), "pass the table"),
    "pyarrow schema": (pa.schema([]), "pass the table"),
    "sparse matrix": (sparse.csr_array(np.eye(2)), "fit(X, y)"),
    "masked array": (np.ma.masked_array(np.eye(2)), "filled"),
    "array of records": (np.zeros(2, [("a", float)]), "DataFrame"),
    "numpy array of 3 dimensions": (np.zeros((2, 2, 2)), "one of two"),
    "numpy array of type complex128": (np.zeros((2, 2), complex), "numbers"),
    "numpy array of type <U6": (np.array([["SECRET"]]), "numbers"),
    "open file": (io.BytesIO(b"SECRET"), "its path"),
    "a list": ([[1.0, 2.0]], "asarray"),
    "a tuple": (([1.0], [2.0]), "one table"),
    "a dictionary": ({"a": [1.0]}, "DataFrame"),
    "a generator": ((one for one in ["SECRET"]), "RecordBatchReader"),
    "bytes": (b"SECRET", "path"),
    "None": (None, "table"),
    "builtins.int": (3, "pass a path"),
    "builtins.object": (object(), "pass a path"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_source_of_another_type_names_itself_and_the_way_out(name: str) -> None:
    source, way = OBJECTS[name]
    with pytest.raises(InvalidInput) as info:
        open_records(source)
    message = str(info.value)
    assert name in message
    assert way in message
    assert "\n" not in message
    assert "SECRET" not in message


def spoiled(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files and folders that are no tables."""

    def made(name: str, content: bytes | str) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    with zipfile.ZipFile(folder / "table.xlsx", "w") as archive:
        archive.writestr("SECRET", "SECRET")
    pa.feather.write_feather(pa.table({"a": [1.0]}), folder / "table.feather")
    np.save(folder / "table.npy", np.zeros((2, 2)))
    database = sqlite3.connect(folder / "table.db")
    database.execute("create table people (a)")
    database.commit()
    database.close()
    for name in ("empty", "mixed", "hive", "uneven", "headers"):
        (folder / name).mkdir()
    pq.write_table(pa.table({"a": [1.0]}), folder / "mixed" / "one.parquet")
    made("mixed/two.csv", "a\n1\n")
    (folder / "hive" / "year=2020").mkdir()
    pq.write_table(pa.table({"a": [1.0]}), folder / "hive" / "year=2020" / "one.parquet")
    pq.write_table(pa.table({"a": [1.0]}), folder / "uneven" / "1.parquet")
    pq.write_table(pa.table({"a": ["SECRET"]}), folder / "uneven" / "2.parquet")
    made("headers/1.csv", "a,b\n1,2\n")
    made("headers/2.csv", "SECRET,b\n1,2\n")
    return {
        "spreadsheet": (folder / "table.xlsx", "save it as CSV"),
        "Feather": (folder / "table.feather", "pyarrow.dataset"),
        "array of numpy": (folder / "table.npy", "numpy.load"),
        "SQLite": (folder / "table.db", "sqlite_scan"),
        "HDF5": (made("a.h5", b"\x89HDF\r\n\x1a\nSECRET"), "convert it"),
        "ORC": (made("a.orc", b"ORCSECRET"), "pyarrow.dataset"),
        "Avro": (made("a.avro", b"Obj\x01SECRET"), "convert it"),
        "pickle": (made("a.pkl", b"\x80\x05SECRET"), "convert it"),
        "PDF": (made("a.pdf", b"%PDF-SECRET"), "made from"),
        "picture": (made("a.png", b"\x89PNGSECRET"), "table of numbers"),
        "zstd": (made("a.csv.zst", b"\x28\xb5\x2f\xfdSECRET"), "unpack it"),
        "archive": (made("a.csv.gz", b"\x1f\x8b\x08SECRET"), "save it as CSV"),
        "not a Parquet file": (made("a.parquet", b"PAR1SECRET"), "write it again"),
        "not UTF-8": (made("a.csv", "a,b\n1,Ä\n".encode("utf-16")), "save it as UTF-8"),
        "is empty": (made("b.csv", ""), "must name the columns"),
        "text, which states no types": (made("c.csv", "a,b\nSECRET,2\n"), "schema="),
        "folder without files": (folder / "empty", "Parquet or CSV"),
        "both Parquet files and others": (folder / "mixed", "folder of its own"),
        "names of its folders": (folder / "hive", "partitioning='hive'"),
        "other columns, or types": (folder / "uneven", "put it elsewhere"),
        "another header": (folder / "headers", "put it elsewhere"),
    }


def test_files_of_other_kinds_too(tmp_path) -> None:
    for name, (path, way) in spoiled(tmp_path).items():
        with pytest.raises(InvalidInput) as info:
            open_records(path)
        message = str(info.value)
        assert name in message, message
        assert way in message, message
        assert "\n" not in message
        assert "SECRET" not in message
    with pytest.raises(InvalidInput, match="address on a network"):
        open_records("s3://bucket/table.parquet")
    with pytest.raises(FileNotFoundError):
        open_records(tmp_path / "nowhere.csv")


LATER = [one for one, kind in FOREIGN.items() if one[0] not in ("builtins", "numpy", "scipy", "pandas")]


@pytest.mark.parametrize("library", sorted({library for library, _ in LATER} - {"torch", "_io", "sqlite3"}))
def test_fit_says_what_it_was_given_instead_of_a_table(library: str) -> None:
    for module, name in LATER:
        if module != library or (module, name) == ("pyarrow", "Table"):
            continue
        with pytest.raises(InvalidInput, match="which is no table in memory: "):
            tacit.DPStandardScaler(1.0, 1e-6, (0, 1)).fit(elsewhere(module, name))


def test_fit_points_paths_and_queries_to_open_records() -> None:
    for source in ("people.csv", Path("people"), pl.LazyFrame({"a": [1]}), duckdb.sql("select 1 as a")):
        with pytest.raises(InvalidInput, match="open it first"):
            tacit.DPStandardScaler(1.0, 1e-6, (0, 1)).fit(source)
        with pytest.raises(InvalidInput, match="open it first"):
            tacit.DPRidge(epsilon=1, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 1)).fit(source, [1.0])
