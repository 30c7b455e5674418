"""Kinds of data that are not tables in memory: what each is called, and the way from it to a fit.

Types are told by the name of the class and of the library that it comes from, so that no library is imported for it.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NamedTuple

from tacit.errors import InvalidInput

__all__ = ["FOREIGN", "Foreign", "check_in_memory", "foreign_kind", "refused_source", "type_names"]


class Foreign(NamedTuple):
    """A kind of data.

    Attributes:
        what: it is called.
        way: the way out; None for what ``tacit.open_records`` opens.
    """

    what: str
    way: str | None = None


_EXPORT = "write it to a folder of Parquet files ({}), and open that folder"
FOREIGN: dict[tuple[str, str], Foreign] = {
    # what open_records opens
    ("polars", "LazyFrame"): Foreign("a Polars LazyFrame"),
    ("duckdb", "DuckDBPyRelation"): Foreign("a DuckDB relation"),
    ("_duckdb", "DuckDBPyRelation"): Foreign("a DuckDB relation"),
    ("pyarrow", "Dataset"): Foreign("a pyarrow Dataset"),
    ("pyarrow", "RecordBatchReader"): Foreign("a pyarrow RecordBatchReader"),
    ("pyarrow", "Table"): Foreign("a pyarrow Table"),
    ("pyarrow", "RecordBatch"): Foreign("a pyarrow RecordBatch"),
    ("dask", "DataFrame"): Foreign("a Dask DataFrame"),
    ("dask", "Array"): Foreign("a Dask array"),
    ("dask", "Bag"): Foreign("a Dask bag"),
    # what is elsewhere
    ("dask", "Series"): Foreign("a Dask Series, one column", "pass the frame, and name the target in it"),
    ("pyspark", "DataFrame"): Foreign("a Spark DataFrame", _EXPORT.format("frame.write.parquet(folder)")),
    ("ray", "Dataset"): Foreign("a Ray Dataset", _EXPORT.format("dataset.write_parquet(folder)")),
    ("cudf", "DataFrame"): Foreign("a cuDF DataFrame", "pass frame.to_arrow()"),
    ("cupy", "ndarray"): Foreign("a CuPy array", "pass array.get()"),
    ("modin", "DataFrame"): Foreign("a Modin DataFrame", _EXPORT.format("frame.to_parquet(file)")),
    ("vaex", "DataFrame"): Foreign("a Vaex DataFrame", _EXPORT.format("frame.export_many(folder)")),
    ("ibis", "Table"): Foreign("an Ibis table", "pass table.to_pyarrow_batches()"),
    ("narwhals", "DataFrame"): Foreign("a Narwhals DataFrame", "pass frame.to_native()"),
    ("narwhals", "LazyFrame"): Foreign("a Narwhals LazyFrame", "pass frame.to_native()"),
    ("datasets", "Dataset"): Foreign("a Hugging Face dataset", "pass dataset.data.table, a pyarrow Table"),
    ("datasets", "DatasetDict"): Foreign("a dictionary of Hugging Face datasets", "pass one of its datasets"),
    ("datasets", "IterableDataset"): Foreign("a streamed Hugging Face dataset", _EXPORT.format("to_parquet")),
    ("torch", "Tensor"): Foreign("a torch Tensor", "pass tensor.numpy()"),
    ("torch", "DataLoader"): Foreign("a torch DataLoader", "train with tacit.torch, or pass the arrays behind it"),
    ("torch", "Dataset"): Foreign("a torch Dataset", "train with tacit.torch, or pass the arrays behind it"),
    ("tensorflow", "Tensor"): Foreign("a TensorFlow tensor", "pass tensor.numpy()"),
    ("jaxlib", "ArrayImpl"): Foreign("a JAX array", "pass numpy.asarray(array)"),
    ("xarray", "Dataset"): Foreign("an xarray Dataset", "pass dataset.to_dataframe(), one row per record"),
    ("xarray", "DataArray"): Foreign("an xarray DataArray", "pass array.to_numpy(), of two dimensions"),
    ("h5py", "Dataset"): Foreign("an HDF5 dataset", "copy it into a numpy memory map, and open that"),
    ("h5py", "File"): Foreign("an HDF5 file", "copy the dataset in it into a numpy memory map, and open that"),
    ("zarr", "Array"): Foreign("a Zarr array", "copy it into a numpy memory map, and open that"),
    ("sqlite3", "Connection"): Foreign(
        "a connection to SQLite", "pass duckdb.sql(\"select * from sqlite_scan('file.db', 'table')\")"
    ),
    ("sqlite3", "Cursor"): Foreign("a cursor of SQLite", "pass a table: pandas.read_sql(query, connection)"),
    ("sqlalchemy", "Engine"): Foreign("an SQLAlchemy engine", "pass a table: pandas.read_sql(query, engine)"),
    ("sqlalchemy", "Connection"): Foreign("an SQLAlchemy connection", "pass a table: pandas.read_sql(query, …)"),
    ("duckdb", "DuckDBPyConnection"): Foreign("a connection to DuckDB", "pass a relation: connection.table(name)"),
    ("_duckdb", "DuckDBPyConnection"): Foreign("a connection to DuckDB", "pass a relation: connection.table(name)"),
    ("pandas", "Series"): Foreign("a pandas Series, one column", "pass the frame, and name the target in it"),
    ("pandas", "DataFrameGroupBy"): Foreign("a grouped pandas DataFrame", "pass the frame itself"),
    ("pandas", "TextFileReader"): Foreign("a reader of pandas", "pass the path of its file"),
    ("polars", "Series"): Foreign("a Polars Series, one column", "pass the frame, and name the target in it"),
    ("polars", "Expr"): Foreign("a Polars expression", "pass a frame: frame.select(expression)"),
    ("polars", "GroupBy"): Foreign("a grouped Polars DataFrame", "pass the frame itself"),
    ("polars", "LazyGroupBy"): Foreign("a grouped Polars LazyFrame", "pass the frame itself"),
    ("pyarrow", "ParquetFile"): Foreign("an open Parquet file", "pass its path"),
    ("pyarrow", "Scanner"): Foreign("a pyarrow Scanner", "pass scanner.to_reader()"),
    ("pyarrow", "Schema"): Foreign("a pyarrow schema, which has no rows", "pass the table"),
    ("pyarrow", "ChunkedArray"): Foreign("a column of pyarrow", "pass the table, and name the target in it"),
    ("pyarrow", "Array"): Foreign("a column of pyarrow", "pass the table, and name the target in it"),
    ("scipy", "_spbase"): Foreign("a sparse matrix, which is in memory already", "pass it to fit(X, y)"),
    ("numpy", "MaskedArray"): Foreign("a masked array, whose mask would be ignored", "pass array.filled(value)"),
    ("numpy", "NpzFile"): Foreign("an archive of numpy arrays", "pass one of its arrays"),
    ("_io", "_IOBase"): Foreign("an open file", "pass its path"),
    ("builtins", "list"): Foreign("a list", "pass numpy.asarray(rows), or fit(X, y) as it is"),
    ("builtins", "tuple"): Foreign("a tuple", "pass one table, and name the target in it"),
    ("builtins", "dict"): Foreign("a dictionary", "pass pandas.DataFrame(columns)"),
    ("builtins", "generator"): Foreign("a generator", "pass pyarrow.RecordBatchReader.from_batches(schema, batches)"),
    ("builtins", "bytes"): Foreign("bytes", "pass the path of a file"),
    ("builtins", "NoneType"): Foreign("None", "pass a table"),
}
"""Kinds of data by library and class."""


def type_names(data: Any) -> list[tuple[str, str]]:
    """(library, class) of an object's type and of its bases, the nearest first."""
    return [(cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(data).__mro__]


def foreign_kind(data: Any) -> Foreign | None:
    """The kind of something that is no table in memory; None for what looks like one."""
    return next((FOREIGN[name] for name in type_names(data) if name in FOREIGN), None)


def refused_source(data: Any) -> str:
    """What to say about a source that ``open_records`` does not open."""
    kind = foreign_kind(data)
    if kind is None or kind.way is None:
        name = f"{type(data).__module__}.{type(data).__qualname__}"
        return (
            f"source is a {name}, which open_records does not read: pass a path, a data frame, a pyarrow Table or "
            "RecordBatchReader, a numpy array, or anything with __arrow_c_stream__"
        )
    return f"source is {kind.what}, which open_records does not read: {kind.way}"


_LISTS = ("builtins", "numpy", "scipy", "pandas")
"""Libraries whose tables validation knows: it has its own words for the rest of theirs."""


def check_in_memory(name: str, data: Any) -> None:
    """Refuse what is no table in memory, and say how to get from there to a fit; no value is read.

    Args:
        name: of the argument.
        data: what the user passed.

    Raises:
        InvalidInput: if it is a path, a query, a dataset, or in the hands of another engine.
    """
    if isinstance(data, PurePath) or (isinstance(data, str) and name == "X"):
        raise InvalidInput(f"{name} is a path: open it first, fit(tacit.open_records(path, target=…))")
    names = [pair for pair in type_names(data) if pair in FOREIGN]
    if not names or names[0][0] in _LISTS or names[0] in (("pyarrow", "Table"), ("torch", "Tensor")):
        return
    kind = FOREIGN[names[0]]
    way = "open it first, fit(tacit.open_records(…, target=…))" if kind.way is None else kind.way
    raise InvalidInput(f"{name} is {kind.what}, which is no table in memory: {way}")
