"""Files and folders: Parquet, and CSV, gzipped or not. No message holds a value, or a name that might be a value."""

from __future__ import annotations

import contextlib
import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TextIO

from tacit.errors import InvalidInput
from tacit.records.sources.arrow import ArrowSource, arrow_fields, pyarrow
from tacit.records.sources.base import BATCH, Column, Field, Source, source

__all__ = ["CsvSource", "ParquetSource", "open_path"]

_CONVERT = "convert it to Parquet or CSV first"
_FORMATS = {
    b"PK\x03\x04": "a spreadsheet or an archive: save it as CSV (or Parquet) first",
    b"\xd0\xcf\x11\xe0": "a spreadsheet or an archive: save it as CSV (or Parquet) first",
    b"BZh": "a spreadsheet or an archive: save it as CSV (or Parquet) first",
    b"\xfd7zX": "a spreadsheet or an archive: save it as CSV (or Parquet) first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it first",
    b"ARROW1": "an Arrow IPC (Feather) file: open pyarrow.dataset.dataset(path, format='feather') instead",
    b"ORC": "an ORC file: open pyarrow.dataset.dataset(path, format='orc') instead",
    b"Obj\x01": f"an Avro file: {_CONVERT}",
    b"\x89HDF": f"an HDF5 file: {_CONVERT}",
    b"\x93NUMPY": "an array of numpy: open numpy.load(path, mmap_mode='r') instead",
    b"SQLite format 3": "a database of SQLite: open duckdb.sql(\"select * from sqlite_scan(path, 'table')\") instead",
    b"\x80\x04": f"a pickle, which is a program rather than a table: {_CONVERT}",
    b"\x80\x05": f"a pickle, which is a program rather than a table: {_CONVERT}",
    b"%PDF": "a PDF document: find the table that it was made from",
    b"\x89PNG": "a picture: turn pictures into a table of numbers first",
    b"\xff\xd8\xff": "a picture: turn pictures into a table of numbers first",
}
"""How other files begin, and the way out."""
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


@source(("builtins", "str"), ("pathlib", "PurePath"))
def open_path(path: str | Path, separator: str = ",") -> Source:
    """A file, or a folder of files of one kind; the content decides, not the name.

    Args:
        path: of the file or folder.
        separator: between the fields of a CSV file.

    Returns:
        The source.

    Raises:
        InvalidInput: if it is of another kind, or the separator is not one character.
    """
    if len(separator) != 1 or separator in '"\r\n':
        raise InvalidInput("separator must be one character, such as ',', ';' or a tab")
    if _URL.match(str(path)):
        raise InvalidInput("source is an address on a network: open pyarrow.dataset.dataset(address) instead")
    place = Path(path)
    files = _files_in(place) if place.is_dir() else [place]
    kinds = {_is_parquet(file) for file in files}
    if len(kinds) > 1:
        raise InvalidInput(f"{place} holds both Parquet files and others: put each kind into a folder of its own")
    return ParquetSource(place, files) if kinds == {True} else CsvSource(place, files, separator)


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder, and of those below it, sorted; hidden ones and logs (_SUCCESS) are left out."""
    below = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    files = [one for one in below if not any(part[0] in "._" for part in one.relative_to(folder).parts)]
    if not files:
        raise InvalidInput(f"{folder} is a folder without files: name one of Parquet or CSV files")
    if any("=" in part for part in files[0].relative_to(folder).parts[:-1]):
        raise InvalidInput(
            f"{folder} keeps columns in the names of its folders: open "
            "pyarrow.dataset.dataset(folder, partitioning='hive') instead"
        )
    return files


def _is_parquet(file: Path) -> bool:
    """Whether it is one; refuses what is neither Parquet nor text."""
    with file.open("rb") as stream:
        head = stream.read(16)
    if head[:4] == b"PAR1":
        return True
    for start, what in _FORMATS.items():
        if head.startswith(start):
            raise InvalidInput(f"{file} is {what}")
    return False


# -- Parquet ----------------------------------------------------------------------------------------------------


class ParquetSource(ArrowSource):
    """Parquet files, one after another in the order of their names.

    Args:
        path: of the file, or of the folder.
        files: that lie there.
    """

    slow: ClassVar[bool] = True

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.what, self._files = str(path), tuple(files)
        self._arrow = pyarrow(f"{path} is a Parquet file" if len(files) == 1 else f"{path} holds Parquet files")
        self.fields = self._fields(files[0])
        kinds = {field.name: field.kind for field in self.fields}
        self._count = 0
        for file in files:
            with self._readable(file):
                meta = self._arrow.parquet.read_metadata(file)
            self._count += meta.num_rows
            if {field.name: field.kind for field in self._fields(file)} != kinds:
                raise InvalidInput(f"{file} has other columns, or types, than {files[0].name}: put it elsewhere")

    def _fields(self, file: Path) -> tuple[Field, ...]:
        with self._readable(file):
            schema = self._arrow.parquet.read_schema(file)
        found = arrow_fields(schema)
        return tuple(field for field in found if not re.fullmatch(r"__index_level_\d+__", field.name))

    def count(self) -> int:
        """From the files' metadata."""
        return self._count

    def _arrow_batches(self, wanted: Sequence[str]) -> Iterator[Any]:
        for path in self._files:
            with self._readable(path):
                # Pages are read as they are needed: row groups may be as large as the table.
                file = self._arrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 18)
                batches = file.iter_batches(batch_size=BATCH, columns=list(wanted))
            while True:
                with self._readable(path):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch

    @contextlib.contextmanager
    def _readable(self, path: Path) -> Iterator[None]:
        """The faults of the reader may quote the file: ours do not."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (self._arrow.ArrowException, OSError):
            raise InvalidInput(f"{path} is not a Parquet file that can be read: write it again") from None


# -- CSV ----------------------------------------------------------------------------------------------------


class CsvSource(Source):
    """CSV files, one after another in the order of their names.

    Args:
        path: of the file, or of the folder.
        files: that lie there.
        separator: between fields.
    """

    slow: ClassVar[bool] = True

    def __init__(self, path: Path, files: Sequence[Path], separator: str) -> None:
        self.what, self._files, self._separator = str(path), tuple(files), separator
        names = self._header(files[0])
        self.fields = tuple(Field(name, "text", "text") for name in names)
        for file in files[1:]:
            if self._header(file) != names:
                raise InvalidInput(f"{file} has another header than {files[0].name}: put it elsewhere")

    def _header(self, file: Path) -> list[str]:
        header = next(self._rows(file), None)
        if header is None:
            raise InvalidInput(f"{file} is empty: the first line must name the columns")
        if len(header) == 1:
            for other, name in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
                if other in header[0] and other != self._separator:
                    raise InvalidInput(f"{file} seems to be separated by {name}: add --separator {_shown(other)}")
        return [name.strip() for name in header]

    def count(self) -> int:
        """By a pass over all lines."""
        return sum(len(rows) for file in self._files for rows in self._batches_of(file))

    def batches(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """Fields as text."""
        names = [field.name for field in self.fields]
        places = [names.index(name) for name in wanted]
        for file in self._files:
            for rows in self._batches_of(file):
                yield {name: [row[place] for row in rows] for name, place in zip(wanted, places, strict=True)}

    def _batches_of(self, file: Path) -> Iterator[list[list[str]]]:
        rows = self._rows(file)
        next(rows)
        width = len(self.fields)
        while batch := list(islice(rows, BATCH)):
            if any(len(row) != width for row in batch):
                raise InvalidInput(
                    f"{file} has lines with more or fewer fields than its header: put text that holds the separator "
                    'into "quotes", and leave no field out'
                )
            yield batch

    def _rows(self, path: Path) -> Iterator[list[str]]:
        """Lines as fields; blank lines are left out."""
        try:
            with _opened(path) as file:
                yield from filter(None, csv.reader(file, delimiter=self._separator, skipinitialspace=True, strict=True))
        except UnicodeDecodeError:
            raise InvalidInput(f"{path} is not UTF-8 text: save it as UTF-8 (in a spreadsheet: CSV UTF-8)") from None
        except csv.Error:
            raise InvalidInput(
                f'{path} is not a CSV file that can be read: a field has an unmatched " or is very long'
            ) from None
        except (EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            raise InvalidInput(f"{path} is {_FORMATS[b'BZh']}") from None


def _opened(path: Path) -> TextIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _shown(separator: str) -> str:
    return "$'\\t'" if separator == "\t" else f"'{separator}'"
