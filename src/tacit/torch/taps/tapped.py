"""Per-record gradients of any module that ``torch.func.vmap`` can batch, mostly without forming them.

Inside of ``vmap``, zeros ("taps") are added to the outputs of known layers, and the loss is differentiated with respect
to these zeros and to the parameters of all other layers. The gradients of known layers follow from the layers' inputs
and the gradients of the zeros, by the rules of ``taps.rules``. Each record is computed as a batch of its own, so that
records stay apart by construction, whatever the model does.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.torch.objective import Objective, Parameters, Record
from tacit.torch.taps.factors import Gradient, Rows, combined
from tacit.torch.taps.rules import Tap, rule_for

__all__ = ["CallSite", "Known", "Tapped", "known_layers", "uses_by_parameter", "without_fused_attention"]

_ATTEMPTS, _MOST_FORMS = 8, 16
"""How often a chunk may meet new shapes; and how many shapes of records have their taps kept."""
Key = tuple[str, int, str]
"""A site: name of the layer, number of the call, name within the layer."""


@dataclass(frozen=True)
class Known:
    """A layer whose gradients follow from a rule.

    Attributes:
        name: of the module.
        layer: the module.
        rule: its rule.
        names: from the rule's names of parameters to those of the objective; trainable ones only.
    """

    name: str
    layer: nn.Module
    rule: Tap
    names: dict[str, str]


def known_layers(model: nn.Module, formed: Collection[str] = ()) -> list[Known]:
    """The layers with a rule and something to train, as far as their parameters need not be formed.

    A parameter of several layers is left to the rules only if all of these have one.

    Args:
        model: any module.
        formed: names of parameters whose gradients must be formed.

    Returns:
        The layers, in the model's order.
    """
    first = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    found, inside = [], set[int]()
    for name, layer in model.named_modules():
        rule = None if id(layer) in inside else rule_for(layer)
        if rule is not None:
            inside.update(id(child) for child in layer.modules())
            own = {key: first[id(p)] for key, p in layer.named_parameters() if id(p) in first}
            found.append(Known(name, layer, rule, own))
    return _closed(found, owners, first, set(formed))


def _closed(found: list[Known], owners: Counter[int], first: dict[int, str], formed: set[str]) -> list[Known]:
    """Without the layers that share a parameter with an unknown layer, or with one that is left out."""
    held = Counter(first[id(p)] for k in found for p in k.layer.parameters() if id(p) in first)
    formed |= {first[i] for i, count in owners.items() if i in first and held[first[i]] < count}
    while True:
        left_out = [k for k in found if formed.intersection(k.names.values())]
        if not left_out:
            return [k for k in found if k.names]
        found = [k for k in found if k not in left_out]
        formed.update(name for k in left_out for name in k.names.values())


@dataclass(frozen=True)
class _Form:
    """What a tap must look like: for one record."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Sites(Protocol):
    """What is done at the sites of a pass."""

    def tapped(self, key: Key, before: Tensor, after: Tensor) -> Tensor:
        """The output, tapped."""

    def see(self, key: Key, before: Tensor) -> None:
        """Another input of a site."""


@dataclass(frozen=True)
class CallSite:
    """The sites of one call of a layer.

    Attributes:
        sites: of the pass.
        layer: name of the layer.
        number: of the call.
    """

    sites: Sites
    layer: str
    number: int

    def __call__(self, before: Tensor, after: Tensor, name: str = "") -> Tensor:
        """The output, tapped."""
        return self.sites.tapped((self.layer, self.number, name), before, after)

    def see(self, before: Tensor, name: str = "") -> None:
        """Another input of a site."""
        self.sites.see((self.layer, self.number, name), before)


class _Missing(Exception):
    """A site without a tap was met: its shape is known now."""


class _Book:
    """What is seen at the sites during one pass.

    Attributes:
        seen: inputs of the sites.
        wanted: sites that had no tap of their output's shape.
    """

    def __init__(self) -> None:
        self.seen: dict[Key, Tensor] = {}
        self.wanted: dict[Key, _Form] = {}
        self._taps: dict[Key, Tensor] = {}
        self._calls = Counter[str]()

    def begin(self, taps: dict[Key, Tensor]) -> None:
        """Before each pass."""
        self._taps = taps
        self._calls.clear()

    def call(self, known: Known, *args: Any, **kwargs: Any) -> Any:
        """The layer's forward."""
        number = self._calls[known.name]
        self._calls[known.name] += 1
        return known.rule.forward(known.layer, CallSite(self, known.name, number), *args, **kwargs)

    def tapped(self, key: Key, before: Tensor, after: Tensor) -> Tensor:
        """The output, plus its tap."""
        tap = self._taps.get(key)
        if tap is None or tap.shape != after.shape or tap.dtype != after.dtype:
            self.wanted[key] = _Form(after.shape, after.dtype, after.device)
            return after
        self.seen[key] = before
        return after + tap

    def see(self, key: Key, before: Tensor) -> None:
        """Another input of a site."""
        self.seen[key] = before


@contextmanager
def replaced(layers: list[Known], call: Callable[..., Any]) -> Iterator[None]:
    """Let ``call(known, …)`` run in place of the layers' ``forward``; hooks of the layers still run."""
    try:
        for known in layers:
            vars(known.layer)["forward"] = functools.partial(call, known)
        with without_fused_attention():
            yield
    finally:
        for known in layers:
            vars(known.layer).pop("forward", None)


@contextmanager
def without_fused_attention() -> Iterator[None]:
    """Transformer layers call their parts, in which rules take place; and attention is one that ``vmap`` can batch."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Tapped:
    """Gradients of chunks of records, from one pass of ``vmap`` over each.

    Args:
        objective: loss of a model.
        formed: names of parameters whose gradients are formed whatever the rules say; all of them is plain ``vmap``.
    """

    def __init__(self, objective: Objective, formed: Collection[str] = ()) -> None:
        self._objective = objective
        self._layers = known_layers(objective.model, formed)
        ruled = {name for known in self._layers for name in known.names.values()}
        self.formed = [name for name in objective.names if name not in ruled]
        self._taps: dict[object, dict[Key, Tensor]] = {}

    def gradients(self, at: Parameters, records: Record, reseed: Callable[[], None]) -> dict[str, Gradient]:
        """Per-record gradients by parameter name.

        Args:
            at: values of the trainable parameters.
            records: a chunk.
            reseed: called before each attempt, so that an attempt that meets new shapes leaves no trace.

        Returns:
            One gradient per parameter.

        Raises:
            RuntimeError: if shapes inside of the model change from call to call.
        """
        form = tuple((part.dtype, part.shape[1:]) for part in records)
        if len(self._taps) >= _MOST_FORMS:
            self._taps.clear()
        taps = self._taps.setdefault(form, {})
        rest = {name: at[name] for name in self.formed}
        for _ in range(_ATTEMPTS):
            book = _Book()
            reseed()
            try:
                with replaced(self._layers, book.call):
                    slopes, formed, seen = self._differentiated(at, rest, taps, book, records)
            except _Missing:
                taps |= {key: torch.zeros(f.shape, dtype=f.dtype, device=f.device) for key, f in book.wanted.items()}
                continue
            uses = uses_by_parameter(self._layers, seen, slopes)
            return {name: Rows(value) for name, value in formed.items()} | self._complete(uses, records, at)
        raise RuntimeError("the shapes inside of the model change from call to call")

    def _differentiated(
        self, at: Parameters, rest: Parameters, taps: dict[Key, Tensor], book: _Book, records: Record
    ) -> tuple[dict[Key, Tensor], Parameters, dict[Key, Tensor]]:
        constants = self._objective.constants()

        def loss(free: tuple[dict[Key, Tensor], Parameters], record: Record) -> tuple[Tensor, dict[Key, Tensor]]:
            book.begin(free[0])
            value = self._objective.loss(at | free[1], tuple(part[None] for part in record), constants)
            if book.wanted:
                raise _Missing
            return value, dict(book.seen)

        apart = functools.partial(vmap, in_dims=(None, 0), randomness="different")
        if not taps and not rest:  # nothing to differentiate yet
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the model warns about comes again
                apart(loss)((taps, rest), records)
            return {}, {}, {}
        (slopes, formed), seen = apart(grad(loss, has_aux=True))((taps, rest), records)
        return {key: slopes[key] for key in seen}, formed, seen

    def _complete(self, uses: dict[str, list[Gradient]], records: Record, at: Parameters) -> dict[str, Gradient]:
        """With zeros for the parameters of layers that were not called."""
        out: dict[str, Gradient] = {}
        for known in self._layers:
            for name in known.names.values():
                if name not in out:
                    found = uses.get(name)
                    none = at[name].new_zeros(()).expand(len(records[0]), *at[name].shape)
                    out[name] = combined(found) if found else Rows(none)
        return out


def uses_by_parameter(
    layers: list[Known], seen: dict[Key, Tensor], slopes: dict[Key, Tensor]
) -> dict[str, list[Gradient]]:
    """The gradients of each use of each parameter.

    Args:
        layers: the known layers.
        seen: inputs of the sites; emptied.
        slopes: gradients of their outputs; emptied.

    Returns:
        By parameter name.
    """
    by_name = {known.name: known for known in layers}
    out: dict[str, list[Gradient]] = {}
    for key in list(seen):
        known = by_name[key[0]]
        a, d = seen.pop(key).detach(), slopes.pop(key)
        found = known.rule.gradients(known.layer, key[2], _wide(a), _wide(d))
        for own, gradient in found.items():
            if own in known.names:
                out.setdefault(known.names[own], []).append(gradient)
    return out


def _wide(values: Tensor) -> Tensor:
    """At least float32: norms of shorter types would be far off."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
