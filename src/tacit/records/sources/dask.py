"""Tables in the hands of Dask: frames, arrays, and bags or lists of paths. Their parts stay where they are."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

import numpy as np

from tacit.errors import InvalidInput
from tacit.records.cluster import Block, Cluster, blocks_of
from tacit.records.sources.arrays import ArraySource, PandasSource
from tacit.records.sources.base import Column, Field, Source, source

__all__ = ["DaskArray", "DaskSource"]


class DaskSource(Source):
    """A table whose parts are on a cluster.

    Attributes:
        cluster: where it is.
    """

    cluster: Cluster

    @abstractmethod
    def blocks(self, wanted: Sequence[str]) -> list[Block]:
        """Its parts in their order, with these columns at least."""

    def groups(self, wanted: Sequence[str]) -> list[list[Block]]:
        """Parts that follow each other, as many lists of them as there are threads: tasks are few and large."""
        blocks = self.blocks(wanted)
        cuts = np.linspace(0, len(blocks), min(self.cluster.threads, len(blocks)) + 1).round().astype(int)
        return [blocks[first:last] for first, last in itertools.pairwise(cuts)]

    def count(self) -> int:
        """By a task for each part."""
        from tacit.records.workers import count_rows

        return sum(map(sum, self.cluster.run(count_rows, self.groups([self.fields[0].name]))))

    def batches(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """One part at a time is fetched, the next is computed meanwhile: for predictions, which end up here."""
        from tacit.records.workers import block_columns

        blocks, columns = self.blocks(wanted), [list(wanted)]
        ahead = self.cluster.start(block_columns, [[blocks[0]]], columns)
        for k in range(len(blocks)):
            this = ahead
            ahead = self.cluster.start(block_columns, [[blocks[k + 1]]], columns) if k + 1 < len(blocks) else []
            yield from self.cluster.results(this)[0]


@source(("dask", "DataFrame"))
class DaskFrame(DaskSource):
    """A Dask DataFrame of pandas frames."""

    what = "a Dask DataFrame"

    def __init__(self, frame: Any, separator: str = ",") -> None:
        self.cluster, self._frame = Cluster("source is a Dask DataFrame"), frame
        if type(frame._meta).__module__.partition(".")[0] != "pandas":
            raise InvalidInput("source is a Dask DataFrame that is not one of pandas frames: call to_backend('pandas')")
        self.fields = PandasSource(frame._meta).fields

    def blocks(self, wanted: Sequence[str]) -> list[Block]:
        """Partitions; columns that nobody wants are not read where Dask can leave them out."""
        names = [name for name in self._frame.columns if str(name) in wanted]
        return blocks_of(self._frame[names], self.cluster)


@source(("dask", "Array"))
class DaskArray(DaskSource):
    """A Dask array of two dimensions; columns are called by their numbers."""

    what = "a Dask array"
    named: ClassVar[bool] = False

    def __init__(self, X: Any, separator: str = ",") -> None:
        self.cluster = Cluster("source is a Dask array")
        if X.ndim != 2 or not isinstance(X._meta, np.ndarray) or np.isnan(X.shape[1]):
            raise InvalidInput("source is a Dask array of another kind: pass one of two dimensions, of numpy arrays")
        self._X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
        self.fields = ArraySource(np.empty((0, int(X.shape[1])), X.dtype)).fields

    def blocks(self, wanted: Sequence[str]) -> list[Block]:
        """Chunks of rows, with all columns: they are called by their places."""
        return blocks_of(self._X, self.cluster)


@source(("dask", "Bag"))
class DaskPaths(DaskSource):
    """A bag of paths, which workers read: Parquet files, or others that ``open_records`` reads from a path."""

    what = "a Dask bag"

    def __init__(self, bag: Any, separator: str = ",") -> None:
        from tacit.records.workers import fields_of

        self.cluster, self._bag = Cluster("source is a Dask bag"), bag
        found = [one for some in self.cluster.run(fields_of, self.groups([])) for one in some]
        if not found:
            raise InvalidInput("source is a Dask bag without paths: name Parquet files in it")
        self.fields: tuple[Field, ...] = found[0][1]
        kinds = {field.name: field.kind for field in self.fields}
        for name, fields in found:
            if {field.name: field.kind for field in fields} != kinds:
                raise InvalidInput(f"{name} has other columns, or types, than {found[0][0]}: put it elsewhere")

    def blocks(self, wanted: Sequence[str]) -> list[Block]:
        """Partitions of the bag."""
        return blocks_of(self._bag, self.cluster)


@source(("builtins", "list"))
def open_list(paths: Any, separator: str = ",") -> DaskPaths:
    """A list of paths, which workers of the cluster read.

    Args:
        paths: of files that every worker can reach.
        separator: not used.

    Returns:
        The source.

    Raises:
        InvalidInput: if it holds anything else, or no cluster is connected.
    """
    if not paths or not all(isinstance(one, str | PurePath) for one in paths):
        raise InvalidInput(
            "source is a list, which open_records does not read: pass numpy.asarray(rows), or fit(X, y) as it is"
        )
    Cluster("source is a list of paths, which workers of a cluster read")
    from dask import bag

    return DaskPaths(bag.from_sequence([str(one) for one in paths], npartitions=len(paths)))
