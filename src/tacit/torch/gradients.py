"""The registered sum of PyTorch models: per-record gradients, each clipped to norm C, in chunks of records."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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
from tacit.torch.records import Fill, Records, like_parameters, made_up, reseed, seeded, zeros

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
    (``layers``); norms and sums are computed in float64. On a grid every gradient is formed, clipped, rounded toward
    zero, and added as integers.

    A record that cannot be read, for which the model or the loss raises, or whose gradient is not finite, counts as
    zero, and the sum of the others keeps its bits. Otherwise one record could destroy the sum or end the run, and
    either would reveal it. Faults of the model itself are shown by ``dry_run``.

    Args:
        objective: loss of a model.
        bound: C.
        chunk_size: number of gradients that are computed at once; it affects the sum by rounding only.
        vectorised: False for modules that vmap cannot batch: one backward pass per record.
        fill: the values of made-up records, which stand in places without a record; the model must be able to read it.

    Attributes:
        objective: as above.
        chunk: number of records that are differentiated at once.
    """

    def __init__(
        self,
        objective: Objective,
        bound: float,
        *,
        chunk_size: int | None = None,
        vectorised: bool = True,
        fill: Fill = zeros,
    ) -> None:
        self.bound = _validate.positive(bound=bound)
        self.size, self.objective, self._vectorised, self._fill = objective.size, objective, vectorised, fill
        if chunk_size is None:
            chunk_size = default_chunk(objective.model, self.size, vectorised=vectorised)
        self.chunk = _validate.positive_int(chunk_size=chunk_size)

    def contributions(self, rows: Records, state: Array) -> NDArray[np.float64]:  # type: ignore[override]
        """Unclipped gradients, (replicas, records, size)."""
        out = np.zeros((len(state), len(rows), self.size))
        for replica, theta in enumerate(state):
            with _apart(self.objective.device()):
                for piece in self._pieces(rows, self._parameters(theta), np.arange(len(rows))):
                    found = torch.cat([g.rows() for g in piece.gradients], dim=1).double().cpu().numpy()
                    places = np.flatnonzero(piece.members.cpu().numpy())
                    out[replica, piece.first + places] = found[places]
        return out

    def total(  # type: ignore[override]
        self, rows: Records, state: Array, members: Mask, grid: Grid | None = None
    ) -> Array:
        """Σ of the clipped gradients of each replica's members, (replicas, size): float64, or integers on a grid."""
        unit = 0.0 if grid is None else grid.unit
        pairs = zip(state, members, strict=True)
        return np.stack([self._one(rows, theta, np.flatnonzero(mask), unit) for theta, mask in pairs])

    def norms(
        self, rows: Records, theta: Array, index: NDArray[np.intp]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
        """Norms of unclipped gradients at one θ, in chunks; records that fail are left out.

        Args:
            rows: the records.
            theta: where.
            index: which of them.

        Yields:
            Places in ``index``, and the norms of the records there.
        """
        check_model(self.objective.model)
        with _apart(self.objective.device()):
            for piece in self._pieces(rows, self._parameters(theta), index):
                norm = torch.stack([g.squares() for g in piece.gradients]).sum(0).sqrt_()
                places = np.flatnonzero(piece.members.cpu().numpy())
                yield piece.first + places, norm.double().cpu().numpy()[places]

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
        with _apart(self.objective.device()):
            for piece in self._pieces(rows, at, share):
                out += add(piece)
        return np.asarray(team.summed(out.cpu()).numpy())

    def dry_run(self, rows: Records) -> None:
        """Differentiate one chunk of made-up records and discard the result: shows faults of model and loss.

        Args:
            rows: made-up records, so that the message may tell about them.

        Raises:
            InvalidInput: if the model or the loss fails.
        """
        at, like = _copied(self.objective.trainable()), next(iter(self.objective.trainable().values()))
        records = like_parameters(rows.take(np.arange(min(self.chunk, len(rows)))), like)
        try:
            with stateless(self.objective.model, self.objective.loss_fn):
                self._found(at, records)
        except InvalidInput:
            raise
        except Exception as error:
            batching = "vmap" in str(error)
        else:
            return
        raise InvalidInput(self._reason(at, records, batching))

    def _parameters(self, theta: Array) -> Parameters:
        like = self.objective.trainable()
        parts = self.objective.unflatten(torch.from_numpy(np.ascontiguousarray(theta)))
        return {name: part.to(like[name]) for name, part in parts.items()}

    # -- gradients of a chunk -----------------------------------------------------------------------------------

    def _pieces(self, rows: Records, at: Parameters, index: NDArray[np.intp]) -> Iterator[_Piece]:
        """The gradients, chunk by chunk; a chunk is one piece, unless its records differ in shape or cannot be batched.

        Every chunk has random numbers of its own, so that a record that fails half way does not change what dropout
        does to others.

        Yields:
            Pieces, in the order of the records.
        """
        size = min(self.chunk, max(len(rows), 1))
        like = next(iter(self.objective.trainable().values()))
        seeds = torch.randint(2**62, (len(index),)).numpy()
        for first in range(0, len(index), size):
            own = slice(first, first + size)
            for group in rows.read(index[own], seeds[own]):
                records = self._placed(like_parameters(group.records, like), group.places, size)
                for piece in self._differentiated(at, records, group.places, int(seeds[first])):
                    yield piece._replace(first=first + piece.first)

    def _placed(self, records: Record, places: NDArray[np.intp], size: int) -> Record:
        """A full chunk with records in their places and made-up ones in the others.

        What is computed for a record then does not depend on how many others were read with it (except for the last
        bits, where its place in the chunk matters).

        Returns:
            ``size`` records.
        """
        if len(places) == size:
            return records
        at = torch.from_numpy(places)
        padding = made_up(records, size, self._fill)
        return tuple(p.index_copy(0, at.to(p.device), part) for p, part in zip(padding, records, strict=True))

    def _differentiated(self, at: Parameters, records: Record, places: NDArray[np.intp], seed: int) -> Iterator[_Piece]:
        """Gradients of the records at ``places``, without those that fail.

        A record fails if it fails by itself. It is replaced by a made-up one, and the chunk is differentiated again in
        the same shape. If this fails, too (made-up records fail at these parameters, or a record fails in company
        only), every record is differentiated by itself. Whatever happens, no error is told: it could be a record's.

        Yields:
            One piece, or one for each record.
        """
        size, found = len(records[0]), self._tried(at, records, seed)
        if found is None:
            places = np.array([i for i in places if self._tried(at, _row(records, i), seed) is not None], np.intp)
            good = tuple(part[torch.from_numpy(places).to(part.device)] for part in records)
            found = self._tried(at, self._placed(good, places, size), seed) if len(places) else None
        if found is not None:
            members = torch.zeros(size, dtype=torch.bool)
            members[torch.from_numpy(places)] = True
            yield _Piece(found, members.to(self.objective.device()))
            return
        for i in places:
            found = self._tried(at, _row(records, i), seed)
            if found is not None:
                yield _Piece(found, torch.ones(1, dtype=torch.bool, device=self.objective.device()), int(i))

    def _tried(self, at: Parameters, records: Record, seed: int) -> list[Gradient] | None:
        """Gradients of a chunk, None if the model or the loss raises."""
        reseed(seed, self.objective.device())
        with stateless(self.objective.model, self.objective.loss_fn):
            try:
                return self._found(at, records)
            except Exception:  # any error may be a record's: neither its message nor its kind is public
                return None

    def _found(self, at: Parameters, records: Record) -> list[Gradient]:
        found = self._layered(at, records)
        if found is None and self._vectorised:
            rows = vmap(grad(self._loss), in_dims=(None, 0), randomness="different")(at, records)
            found = {name: Rows(values) for name, values in rows.items()}
        if found is None:
            seeds = torch.randint(2**62, (len(records[0]),)).tolist()
            each = [self._alone(at, tuple(part[i] for part in records), seed) for i, seed in enumerate(seeds)]
            found = {name: Rows(torch.stack([g[name] for g in each])) for name in self.objective.names}
        return [found[name] for name in self.objective.names]

    def _reason(self, at: Parameters, records: Record, batching: bool) -> str:
        """The reason of a failure with made-up records."""
        if batching and self._vectorised:
            return "vmap cannot batch this model or loss over records: pass vectorised=False (one record at a time)"
        reason = "try it on a made-up batch to see why"
        try:
            self._alone(at, tuple(part[0] for part in records))
        except Exception as error:
            reason = f"{first_line(error)}; make them fit the shapes and types of the records"
        return f"the model or loss_fn fails on the records: {reason}"

    def _alone(self, at: Parameters, record: Record, seed: int | None = None) -> Parameters:
        """The gradient of one record, from copies, because some modules write to their parameters and buffers."""
        if seed is not None:
            reseed(seed, self.objective.device())
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

    def _clipped(self, piece: _Piece) -> Tensor:
        """Σ over members, each scaled down to norm C; gradients that are not finite are left out."""
        gradients = piece.gradients
        norm = torch.stack([g.squares() for g in gradients]).sum(0).sqrt_()
        keep = torch.isfinite(norm) & piece.members
        scale = torch.where(norm > self.bound * _SHRINK, self.bound * _SHRINK / norm, 1.0)
        return torch.cat([g.weighted(scale, None if keep.all() else keep) for g in gradients])

    def _truncated(self, piece: _Piece, unit: float) -> Tensor:
        """Σ over members, each clipped and rounded toward zero to multiples of the unit: integers."""
        rows = torch.cat([g.rows() for g in piece.gradients], dim=1).double().cpu().numpy()
        total = lattice_total(np.ascontiguousarray(rows)[None], piece.members.cpu().numpy()[None], self.bound, unit)
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


class _Piece(NamedTuple):
    """Gradients of neighbouring places, one entry per parameter.

    Attributes:
        gradients: each with a row per place.
        members: which of the places hold a record that counts.
        first: the first place.
    """

    gradients: list[Gradient]
    members: Tensor
    first: int = 0


@contextmanager
def _apart(device: torch.device) -> Iterator[None]:
    """Keep what the records' computations do to random generators, and what they warn about, from being seen.

    A warning is an output that may depend on a record; a dry run shows those of the model.

    Args:
        device: on which PyTorch draws.

    Yields:
        Nothing.
    """
    seed = int(torch.randint(2**62, ()))
    with seeded(seed, device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _row(records: Record, place: int) -> Record:
    return tuple(part[place : place + 1] for part in records)


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
