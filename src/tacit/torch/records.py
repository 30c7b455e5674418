"""Private records in whatever form PyTorch people hold them; read by index only, by the registered sum."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from tacit._entries import check_entries
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.torch.objective import Record

__all__ = ["Records", "seeded"]

_READ = 256  # records at a time, where all of them are read


class Records:
    """Records by number: tensors or arrays of one length, or a map-style dataset.

    Args:
        data: a tuple of tensors or arrays (inputs…, target), a ``TensorDataset``, a list of tuples (inputs…, target),
            one per record, or any dataset with ``len`` and ``[i]``; a ``DataLoader`` is refused because it draws
            batches of its own.

    >>> import torch
    >>> data = Records((torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1])))
    >>> len(data), [part.shape for part in data.take([0, 2])]
    (3, [torch.Size([2, 2]), torch.Size([2])])
    """

    def __init__(self, data: object) -> None:
        if isinstance(data, DataLoader):
            raise MechanismMismatch("a DataLoader draws its own batches, which no theorem covers: pass its .dataset")
        if isinstance(data, IterableDataset):
            raise InvalidInput("an iterable dataset cannot be sampled by record: use one with len() and [i]")
        self._source = data
        self._tensors: Record | None = None
        self._dataset: Dataset[Any] | None = None
        if type(data) is TensorDataset:  # a subclass may do more when an item is asked for
            self._tensors = data.tensors
        elif isinstance(data, Tensor | np.ndarray):
            self._tensors = (_tensor(data),)
        elif isinstance(data, list) and data and all(isinstance(item, tuple) for item in data):
            self._tensors = _stacked([_item(item) for item in data])
        elif isinstance(data, tuple | list):
            self._tensors = tuple(_tensor(part) for part in data)
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            self._dataset = cast("Dataset[Any]", data)
        else:
            raise InvalidInput("data must be a tuple of tensors (inputs…, target) or a dataset with len() and [i]")
        self._count = self._length()

    def _length(self) -> int:
        if self._dataset is not None:
            return len(self._dataset)  # type: ignore[arg-type]
        if not self._tensors or any(part.ndim == 0 for part in self._tensors):
            raise InvalidInput("data holds no records: pass tensors with one row per record")
        if len({len(part) for part in self._tensors}) > 1:
            raise InvalidInput("the parts of data differ in length: each must have one row per record")
        return len(self._tensors[0])

    def __len__(self) -> int:
        return self._count

    def wraps(self, data: object) -> bool:
        """Whether these records were made from this very object."""
        return data is self._source

    def take(self, index: Sequence[int] | NDArray[np.intp]) -> Record:
        """These records, stacked.

        Args:
            index: their numbers.

        Returns:
            One tensor per part of a record, with a leading axis.

        Raises:
            InvalidInput: if a dataset's items are no tensors or numbers, or not alike.
        """
        if self._tensors is not None:
            rows = torch.as_tensor(np.asarray(index))
            return tuple(part[rows] for part in self._tensors)
        assert self._dataset is not None
        # each by itself: a batch must not decide on types
        return _stacked([_item(self._dataset[int(i)]) for i in index])

    def blank(self) -> Record | None:
        """No records, but of their shapes and types; None if only reading a record could tell them.

        Returns:
            Tensors without rows.
        """
        tensors, source = self._tensors, self._dataset
        while type(source) is Subset:
            source = source.dataset
        if type(source) is TensorDataset:
            tensors = source.tensors
        return None if tensors is None else tuple(part.new_empty((0, *part.shape[1:])) for part in tensors)

    def fingerprint(self) -> bytes:
        """A digest of every record, **secret**: a checkpoint remembers which data it belongs to."""
        digest = hashlib.blake2b(f"{self._count}".encode(), digest_size=32)
        with seeded(0):  # datasets that draw (augmentation) draw the same each time
            for first in range(0, self._count, _READ):
                for part in self.take(np.arange(first, min(first + _READ, self._count))):
                    digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                    digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.digest()


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """The generators of PyTorch, NumPy and Python at a seed, and afterwards where they were.

    Args:
        seed: for all of them.
        device: where else PyTorch draws.

    Yields:
        Nothing.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    kind = "cpu" if device is None else device.type
    elsewhere = kind != "cpu"
    with torch.random.fork_rng(devices=None if elsewhere else [], device_type=kind if elsewhere else "cuda"):
        if elsewhere:
            torch.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a stack trace for other devices
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def _item(item: object) -> Record:
    """One item of a dataset as tensors with a leading axis of one."""
    check_entries("data", item, each=False)
    try:
        batch = default_collate([item])
    except TypeError:
        batch = None
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise InvalidInput("the dataset's items must be tuples of tensors or numbers: (inputs…, target)")
    return parts


def _stacked(items: list[Record]) -> Record:
    if len({tuple((part.dtype, part.shape) for part in item) for item in items}) > 1:
        raise InvalidInput("the dataset's items differ in shape or type: make them alike (padding, one dtype)")
    return tuple(torch.cat(parts) for parts in zip(*items, strict=True))


def _tensor(part: object) -> Tensor:
    """A tensor of one part of the records; arrays of floats become the default type, as PyTorch's models expect."""
    if isinstance(part, Tensor):
        return part
    check_entries("data", part, each=False)
    try:
        array = np.asarray(part)
    except Exception:  # what it says may hold a value
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            "data must hold numbers, one row of the same shape per record: encode text and categories before training, "
            "and pass a tuple (inputs…, target) of tensors, or a list of such tuples, one per record"
        )
    out = torch.from_numpy(np.ascontiguousarray(array))
    return out.to(torch.get_default_dtype()) if array.dtype.kind == "f" else out
