"""Nothing may be carried from one record to another: not in attributes of the model or the loss either.

``torch.func`` keeps parameters and buffers apart, but a module that writes to its own Python attributes (running means,
caches, counters) carries what it saw from one chunk of records to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tacit.errors import InvalidInput

__all__ = ["stateless"]

_SIZED = (list, dict, set, bytearray)
_DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Lists of its own parameters that PyTorch's recurrent layers make again when a parameter is set."""
Marks = list[tuple[str, dict[str, tuple[int, Any]]]]


def _mark(value: object) -> tuple[int, Any]:
    """Changes if an attribute is replaced, a tensor written to, or a container filled."""
    if isinstance(value, Tensor):
        return id(value), value._version
    return id(value), len(value) if isinstance(value, _SIZED) else None


def _parts(model: nn.Module, loss_fn: object) -> Iterator[tuple[str, object]]:
    yield from (("model." + name if name else "the model", module) for name, module in model.named_modules())
    if isinstance(loss_fn, nn.Module):
        yield from (("loss_fn." + name if name else "loss_fn", module) for name, module in loss_fn.named_modules())
    elif hasattr(loss_fn, "__dict__"):
        yield "loss_fn", loss_fn


def _marks(model: nn.Module, loss_fn: object) -> Marks:
    out = []
    for name, part in _parts(model, loss_fn):
        own = vars(part)
        inner = itertools.chain(own.items(), own.get("_buffers", {}).items(), own.get("_parameters", {}).items())
        derived = _DERIVED if isinstance(part, nn.RNNBase) else ()
        out.append((name, {key: _mark(value) for key, value in inner if key not in derived}))
    return out


@contextmanager
def stateless(model: nn.Module, loss_fn: object) -> Iterator[None]:
    """Refuse what was computed inside if the model or the loss kept anything of it.

    Attributes, buffers and parameters of every module are compared: replaced, written to in place, or grown. What a
    module hides elsewhere (globals, closures, entries of nested containers) is not seen: that no record meets another
    there is the user's word.

    Args:
        model: the model.
        loss_fn: its loss.

    Yields:
        Nothing.

    Raises:
        InvalidInput: naming the module that keeps state.
    """
    before = _marks(model, loss_fn)
    yield
    after = _marks(model, loss_fn)
    for (name, old), (_, new) in zip(before, after, strict=False):
        if old != new:
            changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            raise InvalidInput(
                f"{name} keeps state between calls ({', '.join(changed)}): records would meet there; remove it, or if "
                "it is a cache of shapes only, call the model once on a made-up batch before training"
            )
