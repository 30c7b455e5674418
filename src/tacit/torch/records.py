"""The private records, and the processes that share the work of reading them.

Records are read by index only, and only by the registered sum (``gradients``). A record that cannot be read is left
out: an error that depends on one record would tell that it is there.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.torch.items import Collate, Item, Names, as_named, form_of, item_of, stacked, tensor_of
from tacit.torch.objective import Record
from tacit.torch.workers import Workers

__all__ = ["FILLS", "Fill", "Group", "Records", "Team", "like_parameters", "made_up", "reseed", "seeded", "zeros"]

Fill = Callable[[Tensor], float]
"""The value of the entries of a part of a made-up record."""

LOOKED_AT = 5
"""Number of a dataset's first items whose shapes are looked at; the shape that most of them have is tried."""
_READ = 256  # records read at once where all of them are read
_AGREE = 8  # leading bytes of a digest that are compared between processes


@dataclass(frozen=True)
class Group:
    """Records of one shape and type, with their places among those that were asked for.

    Attributes:
        places: increasing.
        records: one tensor per part, with a leading axis.
    """

    places: NDArray[np.intp]
    records: Record


class Records:
    """Records by number: tensors or arrays of one length, or a map-style dataset.

    Args:
        data: a tuple of tensors or arrays (inputs…, target), a dict of them (a tokenizer's output), a
            ``TensorDataset``, a list of tuples or dicts, one per record, or any dataset with ``len`` and ``[i]`` whose
            items are tuples, dicts or dataclasses. A ``DataLoader`` is refused, because it draws batches of its own.
        collate_fn: makes a batch of a list of items of a dataset; called with one item at a time, so that no record
            changes what is read of another.
        num_workers: how many processes read the items of a dataset; 0 reads in this process.

    Attributes:
        team: the processes that share the records.
        names: of the parts of a record, sorted; None if they have places only, or are not known yet.

    >>> import torch
    >>> data = Records((torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1])))
    >>> len(data), [part.shape for part in data.take([0, 2])]
    (3, [torch.Size([2, 2]), torch.Size([2])])
    """

    def __init__(self, data: object, *, collate_fn: Collate | None = None, num_workers: int = 0) -> None:
        if isinstance(data, DataLoader):
            raise MechanismMismatch(
                "a DataLoader draws its own batches, which no theorem covers: pass its .dataset (and its collate_fn=, "
                "num_workers=)"
            )
        if collate_fn is not None and not callable(collate_fn):
            raise InvalidInput("collate_fn must be a function of a list of items: collate_fn=my_function")
        workers = int(_validate.nonnegative(num_workers=num_workers))
        if isinstance(data, IterableDataset):
            raise InvalidInput("an iterable dataset cannot be sampled by record: use one with len() and [i]")
        self.team = Team()
        self._source = data
        self._tensors: Record | None = None
        self._dataset: Dataset[Any] | None = None
        self._digest: bytes | None = None
        self._usual: Item | None = None
        self._collate = collate_fn
        self._workers = Workers(self._item_or_none, workers) if workers else None
        self.names: Names = None
        named = as_named(data)
        if type(data) is TensorDataset:  # a subclass may compute its items
            self._tensors = data.tensors
        elif named is not None:
            self.names = tuple(sorted(named))
            self._tensors = tuple(tensor_of(named[name]) for name in self.names)
        elif isinstance(data, Tensor | np.ndarray):
            self._tensors = (tensor_of(data),)
        elif isinstance(data, list) and data and (collate_fn or all(isinstance(x, tuple | Mapping) for x in data)):
            items = [item_of(item, collate_fn) for item in data]
            self._tensors, self.names = stacked(items), items[0].names
        elif isinstance(data, tuple | list):
            self._tensors = tuple(tensor_of(part) for part in data)
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            self._dataset = cast("Dataset[Any]", data)
        else:
            raise InvalidInput(
                "data must be a tuple of tensors (inputs…, target), a dict of tensors, or a dataset with len() and [i]"
            )
        self._count = self._length()

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self)

    def total(self, query: Any, state: Any, members: NDArray[Any], grid: Any) -> NDArray[Any]:
        """A query's sum over the members; only a session calls this."""
        return np.asarray(query.total(self, state, members, grid))

    def add_up(self, query: Any, place: Any, members: NDArray[Any]) -> None:
        """Add a query's contributions to a sum in place; only a session calls this."""
        query.add_up(self, place.at, np.flatnonzero(members[0]), place.sums)

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

    def take(self, index: Sequence[int] | NDArray[np.intp]) -> Record:
        """Read and stack some records.

        Args:
            index: their numbers.

        Returns:
            One tensor per part of a record, with a leading axis.

        Raises:
            InvalidInput: if a dataset's items are not tensors or numbers, or differ in shape.
        """
        if self._tensors is not None:
            rows = torch.as_tensor(np.asarray(index))
            return tuple(part[rows] for part in self._tensors)
        assert self._dataset is not None
        # One by one: the types of a record must not depend on the others in its batch.
        return stacked([item_of(self._dataset[int(i)], self._collate) for i in index])

    def read(self, index: NDArray[np.intp], seeds: NDArray[np.int64]) -> list[Group]:
        """Read some records; those that cannot be read are in no group.

        Each item is read by itself, with random numbers of its own, so that no record can change what is read of
        another: neither its type nor its augmentation.

        Args:
            index: their numbers.
            seeds: of the global random generators, one for each.

        Returns:
            The records that could be read, by shape and type.
        """
        if self._tensors is not None:
            return [Group(np.arange(len(index)), self.take(index))]
        found: dict[object, list[tuple[int, Item]]] = {}
        for place, item in enumerate(self._items(index.tolist(), seeds.tolist())):
            if item is not None and item.names == self.names:
                found.setdefault(form_of(item), []).append((place, item))
        return [Group(np.array([p for p, _ in some]), stacked([r for _, r in some])) for some in found.values()]

    def _items(self, numbers: list[int], seeds: list[int]) -> list[Item | None]:
        if self._workers is None:
            return [self._item_or_none(number, seed) for number, seed in zip(numbers, seeds, strict=True)]
        arrays = self._workers.map(numbers, seeds)
        return arrays

    def _item_or_none(self, number: int, seed: int) -> Item | None:
        """An item, read with random numbers of its own."""
        assert self._dataset is not None
        reseed(seed)
        try:
            return item_of(self._dataset[number], self._collate)
        except Exception:  # whatever happens, it may depend on the record
            return None

    def empty_like(self, *, look: bool = False) -> Record | None:
        """Tensors without rows, of the records' shapes and types.

        Args:
            look: whether to read a few items of a dataset for their shapes, which are taken as public. The shape that
                most of them have counts, so that no single record decides.

        Returns:
            The tensors, or None if shapes are known only after a record is read.

        Raises:
            InvalidInput: if none of these items can be read.
        """
        tensors, source = self._tensors, self._dataset
        while type(source) is Subset:
            source = source.dataset
        if type(source) is TensorDataset:
            tensors = source.tensors
        if tensors is None and look and self._count:
            self._usual = self._usual or self._usual_item()
            tensors, self.names = self._usual.parts, self._usual.names
        return None if tensors is None else tuple(part.new_empty((0, *part.shape[1:])) for part in tensors)

    def _usual_item(self) -> Item:
        """Tensors without rows, of the shapes and types that most of the first items have."""
        count = min(LOOKED_AT, self._count)
        with seeded(0):
            items = [item for item in (self._item_or_none(i, 0) for i in range(count)) if item is not None]
        if not items:
            raise InvalidInput(
                f"none of the dataset's first {count} items can be used: each must be a tuple of tensors or numbers "
                "(inputs…, target), or a dict of them; look at data[0]"
            )
        (usual, often), *others = Counter(form_of(item) for item in items).most_common()
        if others and 2 * often <= len(items):
            self._tell_mixed(items)
        found = next(item for item in items if form_of(item) == usual)
        return Item(found.names, tuple(part[:0] for part in found.parts))

    def _tell_mixed(self, items: list[Item]) -> None:
        """Say that most items have no form in common: an error if they differ in more than the sizes of axes."""
        kinds = {(item.names, tuple((part.dtype, part.ndim) for part in item.parts)) for item in items}
        if len(kinds) > 1:
            raise InvalidInput(
                f"the dataset's first {len(items)} items differ in names, types or number of axes: make them alike, "
                "e.g. by collate_fn="
            )
        warnings.warn(
            f"the dataset's first {len(items)} items differ in shape: each shape is differentiated by itself, which is "
            "slow; pad them, e.g. padding='max_length'",
            stacklevel=2,
        )

    def fingerprint(self) -> bytes:
        """Digest of every record, **secret**: a checkpoint stores it to recognise its data. Computed once."""
        if self._digest is None:
            digest = hashlib.blake2b(f"{self._count}".encode(), digest_size=32)
            with seeded(0):  # so that datasets with random augmentation repeat themselves
                for first in range(0, self._count, _READ):
                    index = np.arange(first, min(first + _READ, self._count))
                    for group in self.read(index, index):
                        digest.update(group.places.tobytes())
                        for part in group.records:
                            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                            digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
            self._digest = digest.digest()
        return self._digest

    def is_same_data(self, data: object) -> bool:
        """Whether ``data`` holds these records in this order."""
        if data is self or data is self._source:
            return True
        other = data if isinstance(data, Records) else Records(data)
        return len(other) == len(self) and other.fingerprint() == self.fingerprint()


class Team:
    """The processes of ``torch.distributed``, or this one alone.

    The leader (rank 0) draws batches, counts releases and adds the noise; none of these exist twice. At each step it
    tells the others which records to read, every process sums its share, and all receive the noisy sum.

    Attributes:
        rank: number of this process, 0 for the leader.
        size: number of processes.
    """

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1

    @property
    def is_leader(self) -> bool:
        """Whether this process releases and adds the noise."""
        return self.rank == 0

    def share(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """This process's share of the leader's batch: every size-th record, starting at its rank."""
        if self.size == 1:
            return index
        count = torch.tensor([len(index)])
        dist.broadcast(count, 0)
        batch = torch.empty(int(count), dtype=torch.int64)
        if self.is_leader:
            batch = torch.from_numpy(index.astype(np.int64))
        if int(count):
            dist.broadcast(batch, 0)
        return batch.numpy()[self.rank :: self.size].astype(np.intp)

    def summed(self, part: Tensor) -> Tensor:
        """Σ over processes."""
        if self.size > 1:
            dist.all_reduce(part)
        return part

    def broadcast(self, values: Tensor) -> Tensor:
        """The leader's values, written into ``values`` of every process."""
        if self.size > 1:
            dist.broadcast(values, 0)
        return values

    def agree(self, digest: bytes, what: str) -> None:
        """Refuse to start if a process has other settings or data than the leader.

        Args:
            digest: of what must be equal.
            what: its name, for the message.

        Raises:
            MechanismMismatch: in every process, if one differs.
        """
        if self.size == 1:
            return
        mine = torch.tensor(list(digest[:_AGREE]), dtype=torch.int64)
        low, high = mine.clone(), mine.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        if not torch.equal(low, high):
            raise MechanismMismatch(f"the processes hold different {what}: give each of them the same")


def zeros(part: Tensor) -> float:
    """Zero, a valid index and label."""
    return 0


def _one(part: Tensor) -> float:
    return 1


def _share(part: Tensor) -> float:
    return 1 / max(part.shape[-1], 1) if part.is_floating_point() and part.ndim > 1 else 1


FILLS: tuple[Fill, ...] = (zeros, _one, _share)
"""Zeros; then, for models that look at values, ones, and shares of one."""


def made_up(like: Record, count: int, fill: Fill) -> Record:
    """Made-up records.

    Args:
        like: tensors whose shapes (without the leading axis) and types are taken.
        count: how many.
        fill: the value of each part.

    Returns:
        One tensor per part.
    """
    return tuple(part.new_full((count, *part.shape[1:]), fill(part)) for part in like)


def like_parameters(records: Record, parameter: Tensor) -> Record:
    """Records on the device of a parameter, floating-point parts in its type: float64 data must not fail."""
    return tuple(p.to(parameter) if p.is_floating_point() else p.to(parameter.device) for p in records)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of PyTorch, NumPy and Python, and restore them afterwards.

    Args:
        seed: for all of them.
        device: another device on which PyTorch draws.

    Yields:
        Nothing.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    kind = "cpu" if device is None else device.type
    elsewhere = kind != "cpu"
    with torch.random.fork_rng(devices=None if elsewhere else [], device_type=kind if elsewhere else "cuda"):
        reseed(seed, device)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Seed the global generators again, inside ``seeded``, which restores them."""
    if device is not None and device.type != "cpu":
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a stack trace for other devices
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
