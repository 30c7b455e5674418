"""The registered sum of PyTorch models: per-record gradients, each clipped to norm C, in chunks of records."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.lattice import lattice_total
from tacit.release import Example, Query, register
from tacit.release.query import Grid
from tacit.torch.chunks import CHUNK, chunk_for, default_chunk, exact_chunk, spans
from tacit.torch.comparison import choose
from tacit.torch.in_place import InPlace
from tacit.torch.layers import chain_of
from tacit.torch.objective import Objective, Parameters, Record, check_model, first_line, stateless
from tacit.torch.records import Fill, Records, like_parameters, made_up, seeded, zeros
from tacit.torch.taps.factors import Gradient
from tacit.torch.ways import Way, Ways, copied, signature

__all__ = ["CHUNK", "PerRecordGradients", "chunk_for", "exact_chunk", "is_record_local"]

Array = NDArray[Any]
Mask = NDArray[np.bool_]
_SHRINK = {torch.float64: 1 - 2.0**-20, torch.float32: 1 - 2.0**-17}
"""Gradients are clipped to C times this factor, so that rounding cannot make them longer than C."""


_NO_TRANSFORM = ("saved tensor hooks", "setup_context")
"""Words of errors of torch.func about what it cannot differentiate."""


def is_record_local(model: nn.Module, loss_fn: object) -> bool:
    """Whether only PyTorch's own layers and losses run, none of which can carry values between records."""
    return type(loss_fn).__module__ == "torch.nn.modules.loss" and chain_of(model) is not None


@register("per-record-gradients")
class PerRecordGradients(Query):
    """Σ over a batch of ∇ℓ(θ; record)·min(1, C/‖∇ℓ‖): a record's gradient never depends on another record.

    Gradients are computed in chunks, in one of several ways (``ways``), which a trial on made-up records chooses. Sums
    are made in the parameters' type. On a grid every gradient is formed, clipped, rounded toward zero, and added as
    integers.

    A record that cannot be read, for which the model or the loss raises, or whose gradient is not finite, counts as
    zero, and the sum of the others keeps its bits. Otherwise one record could destroy the sum or end the run, and
    either would reveal it. Faults of the model itself are shown by ``dry_run``.

    Args:
        objective: loss of a model.
        bound: C.
        chunk_size: number of gradients that are computed at once; it affects the sum by rounding only.
        vectorised: False for modules that vmap cannot batch: one backward pass per record.
        fill: the values of made-up records, which stand in places without a record; the model must be able to read it.
        way: how gradients are computed, if a trial has chosen it already.
        expected: number of records in a batch, which chunks are fitted to if their size is not given.

    Attributes:
        objective: as above.
        way: as above; None before the first trial.
    """

    def __init__(
        self,
        objective: Objective,
        bound: float,
        *,
        chunk_size: int | None = None,
        vectorised: bool = True,
        fill: Fill = zeros,
        way: Way | None = None,
        expected: float | None = None,
    ) -> None:
        self.bound = _validate.positive(bound=bound)
        self.size, self.objective, self._vectorised, self._fill = objective.size, objective, vectorised, fill
        self._chunk = None if chunk_size is None else _validate.positive_int(chunk_size=chunk_size)
        self._ways, self._expected = Ways(objective, vectorised=vectorised), expected
        self._chosen: dict[object, Way] = {}
        self.way = way
        if way is not None:
            self._chosen[signature(objective.model)] = way

    @property
    def chunk(self) -> int:
        """Number of records that are differentiated at once."""
        way = self.way or self._ways.first()
        return self._chunk or default_chunk(self.objective.model, self.size, way)

    @property
    def sum_type(self) -> torch.dtype:
        """The type of sums: that of the parameters, at least float32."""
        types = (p.dtype for p in self.objective.trainable().values())
        return functools.reduce(torch.promote_types, types, torch.float32)

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

    def place(self) -> InPlace:
        """Room for a sum at the parameters as they are now."""
        return InPlace(self.objective.trainable(), self.size, self.sum_type, self.objective.device())

    def contribute(self, rows: Records, theta: Array) -> None:
        """Add this process's share to a sum that the leader of its team computes."""
        self._one(rows, theta, np.empty(0, np.intp), 0.0)

    def _one(self, rows: Records, theta: Array, index: NDArray[np.intp], unit: float) -> Array:
        """The sum at one θ, in units of the leader's grid; in floating point if the unit is zero."""
        at, team = self._parameters(theta), rows.team
        unit = float(team.broadcast(torch.tensor([unit], dtype=torch.float64)))
        if unit == 0:
            out = torch.zeros(self.size, dtype=self.sum_type, device=self.objective.device())
            self.add_up(rows, at, index, out)
            return np.asarray(out.cpu().double().numpy())
        out = torch.zeros(self.size, dtype=torch.int64)
        self._over_pieces(rows, at, team.share(index), lambda piece: out.add_(self._truncated(piece, unit)))
        return np.asarray(team.summed(out).numpy())

    def add_up(self, rows: Records, at: Parameters, index: NDArray[np.intp], out: Tensor) -> None:
        """Σ of clipped gradients over the whole team, added to a vector in place.

        Args:
            rows: the records.
            at: values of the trainable parameters.
            index: the leader's batch.
            out: (size,), of ``sum_type``, on the model's device.
        """
        parts = self.objective.unflatten(out)
        self._over_pieces(rows, at, rows.team.share(index), lambda piece: self._add_clipped(piece, parts))
        rows.team.summed(out)

    def _over_pieces(
        self, rows: Records, at: Parameters, index: NDArray[np.intp], add: Callable[[_Piece], object]
    ) -> None:
        check_model(self.objective.model)  # again, because modes may have changed
        with _apart(self.objective.device()):
            for piece in self._pieces(rows, at, index):
                add(piece)

    def dry_run(self, rows: Records) -> None:
        """Differentiate made-up records and discard the result: shows faults of model and loss, and chooses the way.

        Args:
            rows: made-up records, so that the message may tell about them.

        Raises:
            InvalidInput: if the model or the loss fails.
        """
        at = copied(self.objective.trainable())
        like = next(iter(at.values()))
        records = like_parameters(rows.take(np.arange(len(rows))), like)
        batching = False
        try:
            with seeded(0, like.device), stateless(self.objective.model, self.objective.loss_fn):
                self._ways.gradients(self.way or self._ways.first(), at, records, 0)
        except InvalidInput:
            raise
        except Exception as error:
            batching = "vmap" in str(error) and not any(words in str(error) for words in _NO_TRANSFORM)
            if not batching or not self._vectorised:
                raise InvalidInput(self._reason(at, records, False, str(error))) from None
        way = self._choose(records) if self.way is None else self.way
        if batching and way.kind != "hooks":
            raise InvalidInput(self._reason(at, records, batching))

    def _choose(self, like: Record) -> Way:
        """The way for the model as it is now."""
        self.way = choose(self.objective, like, vectorised=self._vectorised)
        self._chosen[signature(self.objective.model)] = self.way
        return self.way

    def _way_now(self) -> Way | None:
        """The way that was chosen for the model as it is now; None if its layers, hooks or modes have changed."""
        return self._chosen.get(signature(self.objective.model))

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
        if not len(index):
            return
        like = next(iter(self.objective.trainable().values()))
        seeds = torch.randint(2**62, (len(index),)).numpy()
        expected = self._expected if self._chunk is None else None
        for first, end, size in spans(len(index), min(self.chunk, max(len(rows), 1)), expected):
            own = slice(first, end)
            for group in rows.read(index[own], seeds[own]):
                records = self._placed(like_parameters(group.records, like), group.places, size)
                if self._way_now() is None:
                    self._choose(records)  # of which only shapes and types are used
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
        with stateless(self.objective.model, self.objective.loss_fn):
            try:
                found = self._ways.gradients(self._way_now() or self._ways.first(), at, records, seed)
                return [found[name] for name in self.objective.names]
            except Exception:  # any error may be a record's: neither its message nor its kind is public
                return None

    def _reason(self, at: Parameters, records: Record, batching: bool, failure: str = "") -> str:
        """The reason of a failure with made-up records."""
        if batching and self._vectorised:
            return "vmap cannot batch this model or loss over records: pass vectorised=False (one record at a time)"
        reason = "try it on a made-up batch to see why"
        if any(words in failure for words in _NO_TRANSFORM):
            return (
                "torch.func cannot differentiate this model record by record: take out activation checkpointing "
                "(chunk_size bounds the same memory) and autograd functions without setup_context"
            )
        try:
            self._ways.alone(at, tuple(part[0] for part in records))
        except Exception as error:
            reason = f"{first_line(error)}; make them fit the shapes and types of the records"
        return f"the model or loss_fn fails on the records: {reason}"

    def _add_clipped(self, piece: _Piece, parts: Parameters) -> None:
        """Add the members' gradients, each scaled down to norm C; gradients that are not finite are left out."""
        with torch.no_grad():
            gradients = piece.gradients
            norm = torch.stack([g.squares() for g in gradients]).sum(0).sqrt_()
            finite = torch.isfinite(norm)
            most = self.bound * _SHRINK[self.sum_type]
            scale = torch.where(norm > most, most / norm, 1.0)
            weights = torch.where(finite & piece.members, scale, 0.0)
            keep = None if finite.all() else finite
            for name in reversed(self.objective.names):  # freeing what is no longer needed
                gradients.pop().add_to(parts[name], weights, keep)

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
