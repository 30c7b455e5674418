"""The registered sum of PyTorch: per-record gradients, each clipped to norm C, in chunks of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.run import ClippedSum, register
from tacit.torch.distributed import Team
from tacit.torch.layers import Gradient, Rows, chain_of
from tacit.torch.objective import Objective, Parameters, Record, RecordLoss, check_model, first_line
from tacit.torch.records import Records
from tacit.torch.stateless import stateless

__all__ = ["CHUNK", "PerRecordGradients", "chunk_for"]

Array = NDArray[Any]
Mask = NDArray[np.bool_]
CHUNK = 64
"""Records whose gradients vmap holds at once, at most: more is not faster on a CPU."""
CHAIN_CHUNK = 24
"""Records in one pass through a chain of layers: more takes more memory and hardly less time."""
LINEAR_CHUNK = 512
"""Records in one pass through a chain of linear layers, whose gradients are never formed."""
_HELD = 64_000_000  # numbers in the gradients of a chunk
_SHRINK = 1 - 2.0**-20
"""Clipped gradients are this much shorter than C, so that rounding to float32 cannot make them longer."""


def chunk_for(size: int, most: int = CHUNK) -> int:
    """A chunk whose gradients fit into memory: 64 records, or fewer if each is long."""
    return max(1, min(most, _HELD // max(size, 1)))


def default_chunk(model: nn.Module, size: int, *, vectorised: bool = True) -> int:
    """How many records at once, if the user does not say.

    Args:
        model: a chain of layers needs less memory than vmap.
        size: trainable numbers.
        vectorised: False for one record at a time.

    Returns:
        The chunk.
    """
    chain = chain_of(model) if vectorised else None
    if chain is None:
        return chunk_for(size) if vectorised else 1
    return LINEAR_CHUNK if chain.is_linear else chunk_for(size, CHAIN_CHUNK)


@register("per-record-gradients")
class PerRecordGradients(ClippedSum):
    """Σ over a batch of ∇ℓ(θ; record)·min(1, C/‖∇ℓ‖): one record's gradient never depends on another record.

    Gradients come from ``torch.func`` (vmap over grad) in chunks, or from one pass for plain chains of layers
    (``layers``); norms and sums are taken in float64. A gradient that is not finite counts as zero: it must not poison
    the sum, and the sum must not tell.

    Args:
        objective: loss of a model.
        records: the private records.
        bound: C.
        chunk_size: how many gradients are held at once; the sum does not depend on it (but for rounding).
        vectorised: False for modules that vmap cannot batch: one backward pass per record.
        team: the processes that share the batch; None for one.
    """

    def __init__(
        self,
        objective: Objective,
        records: Records,
        bound: float,
        *,
        chunk_size: int | None = None,
        vectorised: bool = True,
        team: Team | None = None,
    ) -> None:
        self.bound = _validate.positive(bound=bound)
        self.records, self.size = len(records), objective.size
        self._objective, self._data, self._team = objective, records, team or Team()
        self._vectorised = vectorised
        if chunk_size is None:
            chunk_size = default_chunk(objective.model, self.size, vectorised=vectorised)
        self._chunk = min(_validate.positive_int(chunk_size=chunk_size), max(self.records, 1))

    @property
    def keeps_apart(self) -> bool:
        """Whether PyTorch's own layers and losses alone are run: then no code of others can carry records along."""
        ours = type(self._objective.loss_fn).__module__ == "torch.nn.modules.loss"
        return ours and chain_of(self._objective.model) is not None

    def contributions(self, state: Array, index: NDArray[np.intp]) -> NDArray[np.float64]:
        """Unclipped gradients, (replicas, len(index), size)."""
        rows = []
        for theta in state:
            at = self._parameters(theta)
            parts = []
            for chunk in self._chunks(len(index)):
                found = torch.cat([g.rows() for g in self._gradients(at, index[chunk])], dim=1)
                parts.append(found[: len(index[chunk])].double())
            rows.append(torch.cat(parts).cpu().numpy())
        return np.stack(rows)

    def total(self, state: Array, batch: Mask) -> NDArray[np.float64]:
        """Σ of the clipped gradients of each replica's batch, (replicas, size)."""
        return np.stack([self._one(theta, np.flatnonzero(mask)) for theta, mask in zip(state, batch, strict=True)])

    def _one(self, theta: Array, index: NDArray[np.intp]) -> NDArray[np.float64]:
        check_model(self._objective.model)  # again: modes may have changed
        at = self._parameters(theta)
        share = self._team.share(index)
        out = torch.zeros(self.size, dtype=torch.float64, device=self._objective.device())
        for chunk in self._chunks(len(share)):
            gradients = self._gradients(at, share[chunk])
            out += self._clipped(gradients, len(share[chunk]))
        return self._team.summed(out.cpu()).numpy()

    def follow(self, theta: Array) -> None:
        """This process's share of a sum that another process asked for."""
        self._one(theta, np.empty(0, np.intp))

    @property
    def chunk(self) -> int:
        """How many records are differentiated at once."""
        return self._chunk

    def rehearse(self) -> None:
        """Differentiate a chunk, for the faults that shows and nothing else: for sums over made-up records."""
        self._gradients(_copied(self._objective.trainable()), np.arange(self._chunk), made_up=True)

    def _chunks(self, count: int) -> Iterator[slice]:
        return (slice(first, first + self._chunk) for first in range(0, count, self._chunk))

    def _parameters(self, theta: Array) -> Parameters:
        like = self._objective.trainable()
        parts = self._objective.unflatten(torch.from_numpy(np.ascontiguousarray(theta)))
        return {name: part.to(like[name]) for name, part in parts.items()}

    def _moved(self, records: Record) -> Record:
        """On the model's device, and floats of the model's type: data in float64 are no reason to fail."""
        like = next(iter(self._objective.trainable().values()))
        return tuple(part.to(like) if part.is_floating_point() else part.to(like.device) for part in records)

    def _gradients(self, at: Parameters, index: NDArray[np.intp], *, made_up: bool = False) -> list[Gradient]:
        """Per-record gradients, parameter by parameter, of a full chunk: rows beyond ``index`` are made up.

        Padding keeps the shape of every product the same, so that what is computed for a record does not depend on how
        many others were read with it (but for the last bits where its place in the chunk matters).

        Args:
            at: parameters.
            index: records, at most a chunk.
            made_up: whether what they do to the model may be shown.

        Returns:
            One gradient for each parameter.

        Raises:
            InvalidInput: if the model, the loss or the dataset fails, in words that hold no record.
        """
        records: Record | None = None
        try:
            records = self._padded(self._moved(self._data.take(index)))
            with stateless(self._objective.model, self._objective.loss_fn):
                return self._found(at, records)
        except InvalidInput:
            raise
        except Exception as error:  # whatever it is, it may hold a value of a record
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
            found = {name: Rows(torch.stack([g[name] for g in each])) for name in self._objective.names}
        return [found[name] for name in self._objective.names]

    def _padded(self, records: Record) -> Record:
        missing = self._chunk - len(records[0])
        if missing <= 0:
            return records
        return tuple(torch.cat([part, part.new_zeros((missing, *part.shape[1:]))]) for part in records)

    def _reason(self, at: Parameters, records: Record | None, kind: str, batching: bool) -> str:
        """What may be said about a failure: what happens to made-up records of the same shapes."""
        if records is None:
            return f"the dataset fails on a record ({kind}): check its items"
        if batching and self._vectorised:
            return "vmap cannot batch this model or loss over records: pass vectorised=False (one record at a time)"
        said = "try it on a made-up batch to see why"
        try:
            self._alone(at, tuple(part[0] for part in records))
        except Exception as error:
            said = f"{first_line(error)}; make them fit the shapes and types of the records"
        return f"the model or loss_fn fails on the records: {said}"

    def _alone(self, at: Parameters, record: Record) -> Parameters:
        """The gradient of one record, with copies of everything: some modules write to what they read."""
        constants = _copied(self._objective.constants())
        batch = tuple(part[None] for part in record)
        out: Parameters = grad(lambda p: self._objective.loss(p, batch, constants))(_copied(at))
        return out

    def _loss(self, at: Parameters, record: Record) -> Tensor:
        """The loss of one record by itself."""
        return self._objective.loss(at, tuple(part[None] for part in record))

    def _layered(self, at: Parameters, records: Record) -> dict[str, Gradient] | None:
        """From one pass over the chunk, if the model is a chain of layers that treat records alone."""
        loss_fn = self._objective.loss_fn
        if not self._vectorised or len(records) != 2 or isinstance(loss_fn, RecordLoss):
            return None
        chain = chain_of(self._objective.model)  # each time: hooks and layers may have changed
        if chain is None:
            return None
        inputs, target = records

        def slope(outputs: Tensor) -> Tensor:
            one = grad(lambda output, goal: self._objective.scalar(loss_fn(output[None], goal[None])))
            out: Tensor = vmap(one, randomness="different")(outputs, target)
            return out

        return chain.gradients(self._objective.constants() | at, inputs, slope)

    def _clipped(self, gradients: list[Gradient], count: int) -> Tensor:
        """Σ over the first ``count`` rows, each scaled down to C; those that are not finite are left out."""
        norm = torch.stack([g.squares() for g in gradients]).sum(0).sqrt_()
        keep = torch.isfinite(norm)
        keep[count:] = False
        scale = torch.where(norm > self.bound * _SHRINK, self.bound * _SHRINK / norm, 1.0)
        return torch.cat([g.weighted(scale, None if keep.all() else keep) for g in gradients])

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[PerRecordGradients, PerRecordGradients, Array]:
        """Neighbours under a small network in float64, with gradients of all lengths and opposite directions."""
        X, y = rng.normal(size=(records, 3)), rng.normal(size=(records, 1)) * rng.choice([0.01, 30], size=(records, 1))
        X2, y2 = X.copy(), y.copy()
        y[0] = 40.0
        X2[0], y2[0] = (X[0], -y[0]) if rng.random() < 0.5 else (rng.normal(size=3), rng.normal(size=1) * 50)
        plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        model = plain if rng.random() < 0.5 else _Through(plain)  # either way of _gradients
        objective = Objective(model, nn.MSELoss())
        sides = [Records((torch.from_numpy(a), torch.from_numpy(b))) for a, b in ((X, y), (X2, y2))]
        here, there = (cls(objective, side, 0.8, chunk_size=2) for side in sides)
        return here, there, rng.normal(size=(1, objective.size)) * 0.3


class _Through(nn.Module):
    """A module that is no chain of layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """As inner."""
        out: Tensor = self.inner(x)
        return out


def _copied(at: Parameters) -> Parameters:
    """Copies: some modules change parameters in place (``nn.Embedding(max_norm=…)``)."""
    return {name: value.clone() for name, value in at.items()}
