"""Features made when they are needed: a table that is wide, but never whole."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.inputs.tables import shape_of

__all__ = ["Streamed"]


class Streamed:
    """The rows of ``model.transform(X)``, made batch by batch: memory for ``batch`` rows, whatever n.

    Iterating yields the blocks in order; indexing with a slice, a mask or row numbers makes those rows only, which is
    what a solver with random batches needs. A sparse X is made dense batch by batch.

    *Formal guarantee.* The rows equal those of one big ``transform`` if each is a function of its own record (see
    ``row_local``): to the bit for maps of ours, up to the last bits for functions of yours.

    *Assumptions.* ``model`` is fitted, and its ``transform`` treats each record by itself.

    Args:
        model: a fitted feature map or Pipeline.
        X: (n, p).
        batch: rows per block.

    >>> import numpy as np
    >>> from tacit.maps import RandomFourier
    >>> X = np.arange(10.0).reshape(5, 2)
    >>> wide = Streamed(RandomFourier(1000).fit(X), X, batch=2)
    >>> wide.shape, [len(block) for block in wide], wide[[4, 0]].shape
    ((5, 1000), [2, 2, 1], (2, 1000))
    """

    def __init__(self, model: Any, X: Any, batch: int = 1024) -> None:
        self.model = model
        self.X = X.tocsr() if hasattr(X, "tocsr") else X if hasattr(X, "shape") else np.asarray(X)
        self.batch = _validate.positive_int(batch=batch)
        if len(shape_of(self.X)) != 2 or 0 in shape_of(self.X):
            raise InvalidInput(f"X must be a table with at least one record and column, got shape {shape_of(self.X)}")
        probe = self[:1]
        self.shape = (int(shape_of(self.X)[0]), int(probe.shape[1]))
        self.dtype = probe.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for start in range(0, len(self), self.batch):
            yield self[start : start + self.batch]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, numbers.Integral):
            return np.asarray(self[[int(rows)]][0])
        chosen = _safe_indexing(self.X, np.asarray(rows) if isinstance(rows, list) else rows)
        return np.asarray(self.model.transform(chosen.toarray() if hasattr(chosen, "toarray") else chosen))
