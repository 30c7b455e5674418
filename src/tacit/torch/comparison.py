"""Which way to per-record gradients is right for a model: found out on made-up records, before anything is charged.

A way is compared with ``vmap``, which computes each record as a batch of its own; where ``vmap`` fails, with one
record at a time. Norms and weighted sums of every parameter must agree, at parameters that differ from the model's (a
layer that starts at zero would hide what lies behind it) and for records that differ from each other. Then some records
are exchanged: if the gradients of the others move, records meet, and the model is refused.

Nothing here reads a record, so errors may be told.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.errors import InvalidInput
from tacit.torch.objective import Objective, Record
from tacit.torch.records import seeded
from tacit.torch.taps.factors import Gradient
from tacit.torch.ways import Way, Ways

__all__ = ["choose", "varied"]

COUNT = 2
"""Number of records in a comparison: few, because their gradients are formed; the last one is exchanged."""
Sums = dict[str, tuple[Tensor, Tensor]]
"""By parameter, squared norms of records and a weighted sum."""
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 5e-2}
_FLOOR = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-3}
"""Part of the whole gradient below which a parameter's share is rounding."""
_SEED = 20_240_229


def choose(objective: Objective, like: Record, *, vectorised: bool = True, hooks: bool = True) -> Way:
    """The first way that agrees with another one.

    Args:
        objective: loss of a model; a copy is used, and a model that cannot be copied takes plain ``vmap``.
        like: records, of which only shapes and types are used.
        vectorised: False for one record at a time.
        hooks: whether one pass over a batch may be taken where ``vmap`` fails.

    Returns:
        The way.

    Raises:
        InvalidInput: if records meet.
    """
    duplicate = _duplicate(objective)
    with seeded(_SEED, objective.device()):
        if duplicate is None:
            return _unchecked(objective, vectorised)
        return _Comparison(duplicate, like, vectorised).chosen(hooks)


def _unchecked(objective: Objective, vectorised: bool) -> Way:
    """Ways that need no comparison: known layers only, or plain ``vmap``."""
    first = Ways(objective, vectorised=vectorised).first()
    return replace(first, formed=frozenset(objective.names)) if first.kind == "taps" else first


def _duplicate(objective: Objective) -> Objective | None:
    """A copy of model and loss, without dropout and at other parameters; None if they cannot be copied."""
    try:
        model, loss_fn = copy.deepcopy((objective.model, objective.loss_fn))
    except Exception:  # e.g. locks, generators, tensors inside a graph
        return None
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return Objective(model, loss_fn)


def varied(like: Record, count: int) -> Iterator[Record]:
    """Made-up records that differ from each other, in several kinds, as models may not read all of them.

    Args:
        like: shapes and types.
        count: how many records.

    Yields:
        Records; the last kind is the plainest.
    """
    for kind in ("normal", "uniform", "ones"):
        yield tuple(_made(part, count, kind) for part in like)


def _made(part: Tensor, count: int, kind: str) -> Tensor:
    shape = (count, *part.shape[1:])
    if part.is_floating_point():
        if kind == "normal":
            return torch.randn(shape, device=part.device).to(part.dtype)
        drawn = torch.rand(shape, device=part.device)
        drawn = drawn / drawn.sum(-1, keepdim=True) if kind == "ones" and part.ndim > 1 else drawn
        return drawn.to(part.dtype)
    if kind == "ones":
        return torch.ones(shape, dtype=part.dtype, device=part.device)
    out = torch.randint(0, 2, shape, device=part.device)
    out[..., 0] = 1  # a mask of zeros would leave nothing
    return out.to(part.dtype)


class _ShortTypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a result is in bfloat16 or float16."""

    met: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.met = self.met or (isinstance(out, Tensor) and out.dtype in (torch.bfloat16, torch.float16))
        return out


class _Comparison:
    """Ways of one objective at made-up parameters and records.

    Args:
        objective: a copy.
        like: shapes and types of records.
        vectorised: False for one record at a time.
    """

    def __init__(self, objective: Objective, like: Record, vectorised: bool) -> None:
        self._ways = Ways(objective, vectorised=vectorised)
        self._at = objective.trainable()
        for value in self._at.values():
            _move(value)
        self._kinds, self._like = list(varied(like, COUNT)), like
        self._records: Record = self._kinds[-1]
        self._short = False

    def chosen(self, hooks: bool) -> Way:
        """The first way that agrees with the reference."""
        objective = self._ways.objective
        plain = Way("taps", frozenset(objective.names))
        reference = plain if self._ways.vectorised else Way("alone")
        right = self._first_readable(reference)
        if right is None and self._ways.vectorised:
            reference = Way("alone")
            right = self._first_readable(reference)
            if right is None:  # nothing could be compared
                return plain
            found = self._agreed([Way("taps"), Way("hooks")] if hooks else [Way("taps")], right)
            if found is None:
                raise InvalidInput(
                    "vmap cannot batch this model or loss over records, and one pass over a batch lets records meet: "
                    "pass vectorised=False (one record at a time)"
                )
            return self._apart(found)
        if right is None:
            return reference
        self._short = self._computes_in_short_types()
        if not self._ways.vectorised:
            return self._apart(reference)
        first = self._ways.first()
        ways = [first] if first.kind == "chain" else []
        return self._apart(self._agreed([*ways, Way("taps")], right) or replace(plain, checked=True))

    def _computes_in_short_types(self) -> bool:
        """Whether results are in bfloat16 or float16 (mixed precision), whose rounding differs from way to way."""
        seen = _ShortTypes()  # type: ignore[no-untyped-call]
        with torch.no_grad(), seen:
            try:
                self._ways.objective.loss(self._at, tuple(part[:1] for part in self._records))
            except Exception:  # it is told elsewhere
                return False
        return seen.met

    def _first_readable(self, way: Way) -> Sums | None:
        """Sums over the first kind of made-up records that the model can read."""
        for records in self._kinds:
            self._records = records
            found = self._tried(way)
            sums = None if found is None else self._sums(found)
            if sums is not None and all(bool(torch.isfinite(squares).all()) for squares, _ in sums.values()):
                return sums
        return None

    def _tried(self, way: Way, records: Record | None = None) -> dict[str, Gradient] | None:
        try:
            return self._ways.gradients(way, self._at, self._records if records is None else records, _SEED)
        except Exception:  # the caller tries another way
            return None

    def _agreed(self, ways: list[Way], expected: Sums) -> Way | None:
        """The first way that agrees; of a wrong one, the parameters that differ are formed."""
        for way in ways:
            for _ in range(3):
                found = self._tried(way)
                if found is None:
                    break
                held = sum(g.held for g in found.values())
                wrong = self._wrong(self._sums(found), expected)
                if not wrong:
                    return replace(way, checked=True, held=held)
                if way.kind != "taps" or wrong <= way.formed:
                    break
                way = replace(way, formed=way.formed | wrong)
        return None

    def _sums(self, gradients: dict[str, Gradient], half: bool = False) -> Sums:
        """By parameter, squared norms, and a sum in which each record counts differently."""
        weights = torch.linspace(0.5, 1.5, COUNT, dtype=torch.float64, device=self._ways.objective.device())
        keep = torch.arange(COUNT, device=weights.device) < COUNT // 2 if half else None
        out = {}
        for name, g in gradients.items():
            squares = g.squares()
            value = self._at[name]
            total = torch.zeros_like(value, dtype=torch.promote_types(value.dtype, torch.float32))
            g.add_to(total, weights, keep)
            out[name] = squares[: COUNT // 2 if half else COUNT], total
        return out

    def _wrong(self, found: Sums, expected: Sums) -> frozenset[str]:
        """The parameters whose norms or sums differ."""
        whole = float(torch.stack([total.double().norm() for _, total in expected.values()]).norm())
        longest = float(torch.stack([squares.sum() for squares, _ in expected.values()]).sum())
        names = set()
        for name, (squares, total) in expected.items():
            kind = torch.bfloat16 if self._short else total.dtype
            tolerance, floor = _TOLERANCE[kind], _FLOOR[kind]
            off = float((found[name][1] - total).double().norm())
            stretched = (found[name][0] - squares).abs() > 2 * tolerance * squares + floor * longest
            if not off <= tolerance * float(total.double().norm()) + floor * whole or bool(stretched.any()):
                names.add(name)
        return frozenset(names)

    def _half(self, way: Way, records: Record) -> Sums | None:
        """Sums over the records that are never exchanged."""
        found = self._tried(way, records)
        return None if found is None else self._sums(found, half=True)

    def _apart(self, way: Way) -> Way:
        """The way, if exchanging some records leaves the gradients of the others as they are.

        Args:
            way: agreed upon.

        Returns:
            The same way.

        Raises:
            InvalidInput: if records meet.
        """
        other = tuple(part.clone() for part in self._records)
        for part, fresh in zip(other, self._kinds[1 if self._records is self._kinds[0] else 0], strict=True):
            part[COUNT // 2 :] = fresh[COUNT // 2 :]
        expected, after, again = (self._half(way, records) for records in (self._records, other, self._records))
        if expected is None:
            return way  # nothing to compare with
        same = again is not None and not self._wrong(again, expected)
        if not same or (after is not None and self._wrong(after, expected)):
            raise InvalidInput(
                "records meet: the gradients of made-up records changed when others beside or before them were "
                "exchanged; remove what the model or loss_fn carries from one record to the next (globals, closures, "
                "running values)"
            )
        return way


def _move(value: Tensor) -> None:
    """Take a parameter to a place beside the model's, away from zero."""
    size = float(value.abs().mean()) if value.numel() else 0.0
    value.add_(torch.randn_like(value), alpha=0.2 * (size or 0.05))
