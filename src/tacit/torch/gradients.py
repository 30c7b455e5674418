"""The registered sum of PyTorch models: per-record gradients, each clipped to norm C, in chunks of records."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.lattice import lattice_total
from tacit.release import Example, Query, register
from tacit.release.query import Grid
from tacit.torch.layers import Gradient, Rows, chain_of
from tacit.torch.objective import Objective, Parameters, Record, RecordLoss, check_model, first_line, stateless
from tacit.torch.records import Records, like_parameters

__all__ = ["CHUNK", "PerRecordGradients", "chunk_for", "is_record_local"]

Array = NDArray[Any]
Mask = NDArray[np.bool_]
CHUNK = 64
"""Most records whose gradients vmap computes at once: more is not faster on a CPU."""
CHAIN_CHUNK = 24
"""Most records in one pass through a chain of layers: more takes more memory and saves hardly any time."""
LINEAR_CHUNK = 512
"""Most records in one pass through a chain of linear layers, whose gradients are never formed."""
_HELD = 64_000_000  # most numbers in the gradients of a chunk
_HELD_EXACT = 16_000_000  # in exact arithmetic all of them are formed, in float64
_SHRINK = 1 - 2.0**-20
"""Gradients are clipped to C times this factor, so that rounding to float32 cannot make them longer than C."""


def chunk_for(size: int, most: int = CHUNK) -> int:
    """Size of a chunk whose gradients fit into memory: 64 records, or fewer for large models."""
    return max(1, min(most, _HELD // max(size, 1)))


def exact_chunk(size: int) -> int:
    """Size of a chunk in exact arithmetic, where every gradient is formed."""
    return max(1, min(CHUNK, _HELD_EXACT // max(size, 1)))


def default_chunk(model: nn.Module, size: int, *, vectorised: bool = True) -> int:
    """Number of records that are differentiated at once, unless the user chooses it.

    Args:
        model: a chain of layers needs less memory than vmap.
        size: number of trainable parameters.
        vectorised: False for one record at a time.

    Returns:
        The size of a chunk.
    """
    chain = chain_of(model) if vectorised else None
    if chain is None:
        return chunk_for(size) if vectorised else 1
    return LINEAR_CHUNK if chain.is_linear else chunk_for(size, CHAIN_CHUNK)


def is_record_local(model: nn.Module, loss_fn: object) -> bool:
    """Whether only PyTorch's own layers and losses run, none of which can carry values between records."""
    return type(loss_fn).__module__ == "torch.nn.modules.loss" and chain_of(model) is not None


@register("per-record-gradients")
class PerRecordGradients(Query):
    """Σ over a batch of ∇ℓ(θ; record)·min(1, C/‖∇ℓ‖): a record's gradient never depends on another record.

    Gradients come from ``torch.func`` (vmap over grad) in chunks, or from one batched pass for plain chains of layers
    (``layers``); norms and sums are computed in float64. A gradient that is not finite counts as zero: otherwise one
    record could destroy the sum, and the sum would reveal it. On a grid every gradient is formed, clipped, rounded
    toward zero, and added as integers.

    Args:
        objective: loss of a model.
        bound: C.
        chunk_size: number of gradients that are computed at once; it affects the sum by rounding only.
        vectorised: False for modules that vmap cannot batch: one backward pass per record.

    Attributes:
        objective: as above.
        chunk: number of records that are differentiated at once.
    """

    def __init__(
        self, objective: Objective, bound: float, *, chunk_size: int | None = None, vectorised: bool = True
    ) -> None:
        self.bound = _validate.positive(bound=bound)
        self.size, self.objective, self._vectorised = objective.size, objective, vectorised
        if chunk_size is None:
            chunk_size = default_chunk(objective.model, self.size, vectorised=vectorised)
        self.chunk = _validate.positive_int(chunk_size=chunk_size)

    def contributions(self, rows: Records, state: Array) -> NDArray[np.float64]:  # type: ignore[override]
        """Unclipped gradients, (replicas, records, size)."""
        out, index = [], np.arange(len(rows))
        for theta in state:
            at = self._parameters(theta)
            parts = []
            for chunk in self._chunks(len(index), len(rows)):
                found = torch.cat([g.rows() for g in self._gradients(rows, at, index[chunk])], dim=1)
                parts.append(found[: len(index[chunk])].double())
            out.append(torch.cat(parts).cpu().numpy())
        return np.stack(out)

    def total(  # type: ignore[override]
        self, rows: Records, state: Array, members: Mask, grid: Grid | None = None
    ) -> Array:
        """Σ of the clipped gradients of each replica's members, (replicas, size): float64, or integers on a grid."""
        unit = 0.0 if grid is None else grid.unit
        pairs = zip(state, members, strict=True)
        return np.stack([self._one(rows, theta, np.flatnonzero(mask), unit) for theta, mask in pairs])

    def contribute(self, rows: Records, theta: Array) -> None:
        """Add this process's share to a sum that the leader of its team computes."""
        self._one(rows, theta, np.empty(0, np.intp), 0.0)

    def _one(self, rows: Records, theta: Array, index: NDArray[np.intp], unit: float) -> Array:
        """The sum at one θ, in units of the leader's grid; in floating point if the unit is zero."""
        check_model(self.objective.model)  # again, because modes may have changed
        at, team = self._parameters(theta), rows.team
        unit = float(team.broadcast(torch.tensor([unit], dtype=torch.float64)))
        share = team.share(index)
        add = self._clipped if unit == 0 else functools.partial(self._truncated, unit=unit)
        kind = torch.float64 if unit == 0 else torch.int64
        out = torch.zeros(self.size, dtype=kind, device=self.objective.device() if unit == 0 else "cpu")
        for chunk in self._chunks(len(share), len(rows)):
            gradients = self._gradients(rows, at, share[chunk])
            out += add(gradients, len(share[chunk]))
        return np.asarray(team.summed(out.cpu()).numpy())

    def dry_run(self, rows: Records) -> None:
        """Differentiate one chunk and discard the result: shows faults of model and loss on made-up records."""
        index = np.arange(min(self.chunk, len(rows)))
        self._gradients(rows, _copied(self.objective.trainable()), index, made_up=True)

    def _chunks(self, count: int, records: int) -> Iterator[slice]:
        size = min(self.chunk, max(records, 1))
        return (slice(first, first + size) for first in range(0, count, size))

    def _parameters(self, theta: Array) -> Parameters:
        like = self.objective.trainable()
        parts = self.objective.unflatten(torch.from_numpy(np.ascontiguousarray(theta)))
        return {name: part.to(like[name]) for name, part in parts.items()}

    # -- gradients of a chunk -----------------------------------------------------------------------------------

    def _gradients(
        self, rows: Records, at: Parameters, index: NDArray[np.intp], *, made_up: bool = False
    ) -> list[Gradient]:
        """Per-record gradients of a full chunk, one entry per parameter; rows beyond ``index`` are padding.

        Padding gives every product the same shape, so that what is computed for a record does not depend on how many
        others were read with it (except for the last bits, where its place in the chunk matters).

        Args:
            rows: the private records.
            at: parameters.
            index: numbers of the records, at most a chunk.
            made_up: whether an error message may describe what happened, because the records are not private.

        Returns:
            One gradient for each parameter.

        Raises:
            InvalidInput: if the model, the loss or the dataset fails; the message contains nothing of a record.
        """
        records: Record | None = None
        like = next(iter(self.objective.trainable().values()))
        try:
            records = self._padded(like_parameters(rows.take(index), like), len(rows))
            with stateless(self.objective.model, self.objective.loss_fn):
                return self._found(at, records)
        except InvalidInput:
            raise
        except Exception as error:  # any message may contain a value of a record
            kind, batching = type(error).__name__, "vmap" in str(error)
        if records is not None and not made_up:
            records = tuple(torch.zeros_like(part[:1]) for part in records)
        raise InvalidInput(self._reason(at, records, kind, batching))

    def _found(self, at: Parameters, records: Record) -> list[Gradient]:
        found = self._layered(at, records)
        if found is None and self._vectorised:
            rows = vmap(grad(self._loss), in_dims=(None, 0), randomness="different")(at, records)
            found = {name: Rows(values) for name, values in rows.items()}
        if found is None:
            count = len(records[0])
            each = [self._alone(at, tuple(part[i] for part in records)) for i in range(count)]
            found = {name: Rows(torch.stack([g[name] for g in each])) for name in self.objective.names}
        return [found[name] for name in self.objective.names]

    def _padded(self, records: Record, available: int) -> Record:
        missing = min(self.chunk, max(available, 1)) - len(records[0])
        if missing <= 0:
            return records
        return tuple(torch.cat([part, part.new_zeros((missing, *part.shape[1:]))]) for part in records)

    def _reason(self, at: Parameters, records: Record | None, kind: str, batching: bool) -> str:
        """The public reason of a failure: what happens with made-up records of the same shapes."""
        if records is None:
            return f"the dataset fails on a record ({kind}): check its items"
        if batching and self._vectorised:
            return "vmap cannot batch this model or loss over records: pass vectorised=False (one record at a time)"
        reason = "try it on a made-up batch to see why"
        try:
            self._alone(at, tuple(part[0] for part in records))
        except Exception as error:
            reason = f"{first_line(error)}; make them fit the shapes and types of the records"
        return f"the model or loss_fn fails on the records: {reason}"

    def _alone(self, at: Parameters, record: Record) -> Parameters:
        """The gradient of one record, from copies, because some modules write to their parameters and buffers."""
        constants = _copied(self.objective.constants())
        batch = tuple(part[None] for part in record)
        out: Parameters = grad(lambda p: self.objective.loss(p, batch, constants))(_copied(at))
        return out

    def _loss(self, at: Parameters, record: Record) -> Tensor:
        """The loss of one record by itself."""
        return self.objective.loss(at, tuple(part[None] for part in record))

    def _layered(self, at: Parameters, records: Record) -> dict[str, Gradient] | None:
        """Gradients from one batched pass, if the model is a chain of layers that treat each record by itself."""
        loss_fn = self.objective.loss_fn
        if not self._vectorised or len(records) != 2 or isinstance(loss_fn, RecordLoss):
            return None
        chain = chain_of(self.objective.model)  # at every call, because hooks and layers may have changed
        if chain is None:
            return None
        inputs, target = records

        def slope(outputs: Tensor) -> Tensor:
            one = grad(lambda output, goal: self.objective.scalar(loss_fn(output[None], goal[None])))
            out: Tensor = vmap(one, randomness="different")(outputs, target)
            return out

        return chain.gradients(self.objective.constants() | at, inputs, slope)

    def _clipped(self, gradients: list[Gradient], count: int) -> Tensor:
        """Σ over the first ``count`` rows, each scaled down to norm C; rows that are not finite are left out."""
        norm = torch.stack([g.squares() for g in gradients]).sum(0).sqrt_()
        keep = torch.isfinite(norm)
        keep[count:] = False
        scale = torch.where(norm > self.bound * _SHRINK, self.bound * _SHRINK / norm, 1.0)
        return torch.cat([g.weighted(scale, None if keep.all() else keep) for g in gradients])

    def _truncated(self, gradients: list[Gradient], count: int, unit: float) -> Tensor:
        """Σ over the first ``count`` rows, each clipped and rounded toward zero to multiples of the unit: integers."""
        rows = torch.cat([g.rows() for g in gradients], dim=1)[:count].double().cpu().numpy()
        total = lattice_total(np.ascontiguousarray(rows)[None], np.ones((1, count), bool), self.bound, unit)
        return torch.from_numpy(total[0])

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Neighbours under a small network in float64, with gradients of many lengths and opposite directions."""
        X, y = rng.normal(size=(records, 3)), rng.normal(size=(records, 1)) * rng.choice([0.01, 30], size=(records, 1))
        X2, y2 = X.copy(), y.copy()
        y[0] = 40.0
        X2[0], y2[0] = (X[0], -y[0]) if rng.random() < 0.5 else (rng.normal(size=3), rng.normal(size=1) * 50)
        plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        model = plain if rng.random() < 0.5 else _Through(plain)  # covers both ways to compute gradients
        objective = Objective(model, nn.MSELoss())
        here, there = (Records((torch.from_numpy(a), torch.from_numpy(b))) for a, b in ((X, y), (X2, y2)))
        state = rng.normal(size=(1, objective.size)) * 0.3
        return Example(cls(objective, 0.8, chunk_size=2), here, there, state)  # type: ignore[arg-type]


class _Through(nn.Module):
    """A module that is not a chain of layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Output of ``inner``."""
        out: Tensor = self.inner(x)
        return out


def _copied(at: Parameters) -> Parameters:
    """Copies, because some modules change parameters in place (``nn.Embedding(max_norm=…)``)."""
    return {name: value.clone() for name, value in at.items()}
