"""Tables of Arrow: pyarrow's own, Polars, DuckDB, and whatever hands out Arrow's C stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tacit.errors import InvalidInput
from tacit.records.sources.base import BATCH, Coded, Column, Field, Source, source

__all__ = ["ArrowSource", "arrow_column", "arrow_fields", "pyarrow"]


def pyarrow(what: str) -> Any:
    """The library, imported when it is first needed.

    Args:
        what: needs it, for the message.

    Returns:
        The module.

    Raises:
        InvalidInput: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet  # noqa: F401 - an attribute of the library from here on
    except ImportError:
        raise InvalidInput(
            f"{what}, and pyarrow is not installed: pip install 'tacit-dp[tables]', or save the table as CSV"
        ) from None
    return pyarrow


def arrow_fields(schema: Any) -> tuple[Field, ...]:
    """What a schema of Arrow states."""
    return tuple(_field(field.name, field.type) for field in schema)


def _field(name: str, kind: Any) -> Field:
    types = pyarrow("the table is one of Arrow").types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if any(test(inner) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        known = types.is_integer(inner) or types.is_floating(inner)
        return Field(name, "number", inner.to_pandas_dtype().__name__ if known else "float64")
    if types.is_boolean(inner):
        return Field(name, "truth", "bool")
    words = (types.is_string, types.is_large_string, types.is_string_view)
    return Field(name, "word" if any(test(inner) for test in words) else "other", str(inner))


def arrow_column(array: Any) -> Column:
    """A column of a batch, as queries' encoders want it."""
    arrow = pyarrow("the table is one of Arrow")
    types, kind = arrow.types, array.type
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_integer(inner) or types.is_floating(inner) or types.is_decimal(inner) or types.is_null(inner):
        plain = array.dictionary_decode() if types.is_dictionary(kind) else array
        if array.null_count or not (types.is_integer(inner) or types.is_floating(inner)):
            plain = plain.cast(arrow.float32() if types.is_float32(inner) else arrow.float64(), safe=False)
        return np.asarray(plain.to_numpy(zero_copy_only=False))
    if types.is_boolean(inner):
        plain = array.dictionary_decode() if types.is_dictionary(kind) else array
        if plain.null_count == 0:
            return np.asarray(plain.to_numpy(zero_copy_only=False), bool)
        return np.asarray(plain.cast(arrow.uint8()).cast(arrow.float64()).to_numpy(zero_copy_only=False))
    coded = array if types.is_dictionary(kind) else array.dictionary_encode()
    index = coded.indices.cast(arrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    words = ["" if word is None else str(word) for word in coded.dictionary.to_pylist()]
    return Coded(words, np.asarray(index, np.intp))


class ArrowSource(Source):
    """A table of which batches come as Arrow's record batches."""

    @abstractmethod
    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        """Record batches of these columns, of any size."""

    def batches(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """Batches cut to at most ``BATCH`` rows."""
        for batch in self._arrow_batches(wanted):
            for first in range(0, batch.num_rows, BATCH):
                part = batch.slice(first, BATCH)
                yield {name: arrow_column(part.column(part.schema.get_field_index(name))) for name in wanted}


@source(("pyarrow", "Table"))
class TableSource(ArrowSource):
    """A pyarrow Table, in memory or mapped."""

    what = "a pyarrow Table"

    def __init__(self, table: Any, separator: str = ",") -> None:
        self._table, self.fields = table, arrow_fields(table.schema)

    def count(self) -> int:
        """Of the table."""
        return int(self._table.num_rows)

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        yield from self._table.select(list(wanted)).to_batches(max_chunksize=BATCH)


@source(("pyarrow", "RecordBatch"))
class BatchSource(TableSource):
    """A single record batch of pyarrow."""

    what = "a pyarrow RecordBatch"

    def __init__(self, batch: Any, separator: str = ",") -> None:
        super().__init__(pyarrow(self.what).Table.from_batches([batch]))


@source(("pyarrow", "Dataset"))
class DatasetSource(ArrowSource):
    """A pyarrow Dataset: files on any disk or store that it knows."""

    what = "a pyarrow Dataset"
    slow: ClassVar[bool] = True

    def __init__(self, dataset: Any, separator: str = ",") -> None:
        self._dataset, self.fields = dataset, arrow_fields(dataset.schema)

    def count(self) -> int:
        """From the files' metadata, where they have some."""
        return int(self._dataset.count_rows())

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        """In the order of files; what is read ahead is bounded."""
        yield from self._dataset.to_batches(
            columns=list(wanted), batch_size=BATCH, batch_readahead=2, fragment_readahead=1
        )


@source(("pyarrow", "RecordBatchReader"), ("", "__arrow_c_stream__"))
class StreamSource(ArrowSource):
    """A stream of record batches, which can be read once: it is copied when it is opened."""

    what = "a stream of Arrow"
    once: ClassVar[bool] = True

    def __init__(self, data: Any, separator: str = ",") -> None:
        reader = pyarrow(f"source is a {type(data).__name__}").RecordBatchReader
        self._reader = data if isinstance(data, reader) else reader.from_stream(data)
        self.fields = arrow_fields(self._reader.schema)

    def count(self) -> int:
        """Not known before it is read."""
        raise NotImplementedError

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        yield from self._reader


@source(("polars", "DataFrame"))
class PolarsSource(ArrowSource):
    """A Polars DataFrame."""

    what = "a Polars DataFrame"

    def __init__(self, frame: Any, separator: str = ",") -> None:
        pyarrow("source is a Polars DataFrame")
        self._frame, self.fields = frame, arrow_fields(frame.clear().to_arrow().schema)

    def count(self) -> int:
        """Of the frame."""
        return int(self._frame.height)

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        frame = self._frame.select(list(wanted))
        for first in range(0, frame.height, BATCH):
            yield from frame.slice(first, BATCH).to_arrow().to_batches()


@source(("polars", "LazyFrame"))
class LazySource(ArrowSource):
    """A Polars LazyFrame: a query that runs in every pass, batch by batch."""

    what = "a Polars LazyFrame"
    slow: ClassVar[bool] = True

    def __init__(self, frame: Any, separator: str = ",") -> None:
        pyarrow("source is a Polars LazyFrame")
        import polars

        self._frame, self._length = frame, polars.len()
        self.fields = arrow_fields(polars.DataFrame(schema=frame.collect_schema()).to_arrow().schema)

    def count(self) -> int:
        """By a query."""
        return int(self._frame.select(self._length).collect(engine="streaming").item())

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        for frame in self._frame.select(list(wanted)).collect_batches(chunk_size=BATCH, maintain_order=True):
            yield from frame.to_arrow().to_batches()


@source(("duckdb", "DuckDBPyRelation"), ("_duckdb", "DuckDBPyRelation"))
class DuckSource(ArrowSource):
    """A DuckDB relation: a query that runs in every pass, batch by batch."""

    what = "a DuckDB relation"
    slow: ClassVar[bool] = True

    def __init__(self, relation: Any, separator: str = ",") -> None:
        pyarrow("source is a DuckDB relation")
        self._relation = relation
        self.fields = arrow_fields(relation.limit(0).to_arrow_table().schema)

    def count(self) -> int:
        """By a query."""
        return int(self._relation.aggregate("count(*)").fetchall()[0][0])

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in wanted)
        yield from self._relation.project(quoted).to_arrow_reader(BATCH)
