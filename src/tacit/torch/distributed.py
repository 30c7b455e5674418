"""Processes that share one batch (torch.distributed): each sums its records, the first one adds the noise, once."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import MechanismMismatch

__all__ = ["Team"]

_AGREE = 8  # numbers of a digest that are compared


class Team:
    """The processes of ``torch.distributed``, or this one alone.

    The leader (rank 0) owns the channel: batches, counts and the noise key never exist twice. At each step it tells the
    others which records to read, everybody sums a share, and what comes back is the noisy sum.

    Attributes:
        rank: of this process, 0 for the leader.
        size: how many there are.
    """

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1

    @property
    def leads(self) -> bool:
        """Whether this process owns the channel."""
        return self.rank == 0

    def share(self, index: NDArray[np.intp]) -> NDArray[np.intp]:
        """The leader's batch, dealt out: every size-th record, starting at the rank."""
        if self.size == 1:
            return index
        count = torch.tensor([len(index)])
        dist.broadcast(count, 0)
        told = torch.from_numpy(index.astype(np.int64)) if self.leads else torch.empty(int(count), dtype=torch.int64)
        if int(count):
            dist.broadcast(told, 0)
        return told.numpy()[self.rank :: self.size].astype(np.intp)

    def summed(self, part: Tensor) -> Tensor:
        """Σ over processes."""
        if self.size > 1:
            dist.all_reduce(part)
        return part

    def told(self, values: Tensor) -> Tensor:
        """The leader's values, everywhere."""
        if self.size > 1:
            dist.broadcast(values, 0)
        return values

    def agree(self, digest: bytes, what: str) -> None:
        """Refuse to start if a process holds something else than the leader.

        Args:
            digest: of what must be equal.
            what: for the message.

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
