"""How a model is called with a record: by place or by name, with a loss function or its own loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from tacit.errors import InvalidInput
from tacit.torch.items import Names
from tacit.torch.objective import LossFunction, Record, RecordLoss

__all__ = ["TARGETS", "ModelLoss", "bound_loss", "predicted"]

TARGETS = ("labels", "label", "targets", "target", "y")
"""Names of the entry that a loss function compares the output with: the first one that is there."""


class ModelLoss(RecordLoss):
    """The loss of records that have names, or of a model that computes its own.

    Args:
        names: of a record's parts; None if they have places only.
        own: the user's loss function; None for the model's own loss.
        accepted: the names that the model's ``forward`` takes; None if it takes any.
    """

    names: Names
    of: LossFunction | RecordLoss | None
    accepted: frozenset[str] | None

    def __init__(self, names: Names, own: LossFunction | RecordLoss | None, accepted: frozenset[str] | None) -> None:
        for name, value in (("names", names), ("of", own), ("accepted", accepted)):
            object.__setattr__(self, name, value)

    @property
    def function(self) -> LossFunction:
        """``function(model, *record) -> loss``."""
        return self._loss

    def _loss(self, call: Callable[..., Any], *parts: Tensor) -> Tensor:
        if self.names is None:
            return _own_loss(call(*parts))
        named = dict(zip(self.names, parts, strict=True))
        if isinstance(self.of, RecordLoss):
            return self.of.function(call, **named)
        if self.of is None:
            return _own_loss(call(**self._inputs(named)))
        target = target_name(self.names)
        goal = named.pop(target)
        return self.of(_logits(call(**self._inputs(named))), goal)

    def predict(self, model: nn.Module, parts: Record) -> tuple[Any, Tensor]:
        """The model's output for evaluation, and what it is compared with."""
        if self.names is None:
            return _logits(model(*parts)), parts[-1]
        named = dict(zip(self.names, parts, strict=True))
        target = target_name(self.names)
        inputs = named if self.of is None else {name: part for name, part in named.items() if name != target}
        return _logits(model(**self._inputs(inputs))), named[target]

    def _inputs(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The entries that the model takes; "label" for one that expects "labels", as data sets and models have it."""
        accepted = self.accepted
        if accepted is None:
            return dict(named)
        out = {name: part for name, part in named.items() if name in accepted}
        if "label" in named and "label" not in accepted and "labels" in accepted and "labels" not in named:
            out["labels"] = named["label"]
        return out


def bound_loss(model: nn.Module, loss_fn: LossFunction | RecordLoss | None, names: Names) -> LossFunction | RecordLoss:
    """The loss as ``Objective`` takes it: of records by place.

    Args:
        model: whose ``forward`` says what it takes.
        loss_fn: the user's; None for the model's own.
        names: of the records' parts.

    Returns:
        ``loss_fn`` itself for records by place, else a loss that calls the model by names.

    Raises:
        InvalidInput: if the entry that a loss function needs as target has none of the usual names.
    """
    if loss_fn is not None and names is None:
        return loss_fn
    if loss_fn is not None and not isinstance(loss_fn, RecordLoss) and names is not None:
        target_name(names)
    return ModelLoss(names, loss_fn, _accepted(model))


def target_name(names: tuple[str, ...]) -> str:
    """The name of the entry that outputs are compared with.

    Args:
        names: of a record's parts.

    Returns:
        The first of ``TARGETS`` that is among them.

    Raises:
        InvalidInput: if none is.
    """
    for name in TARGETS:
        if name in names:
            return name
    raise InvalidInput(
        f"none of the entries {', '.join(names)} is a target: name it 'labels', or pass loss_fn=None for a model that "
        "computes its own loss"
    )


def predicted(model: nn.Module, loss_fn: LossFunction | RecordLoss | None, names: Names, parts: Record) -> Any:
    """(output, target) of some records for metrics.

    Args:
        model: in evaluation mode.
        loss_fn: the user's; None for the model's own.
        names: of the records' parts.
        parts: tensors with a leading axis.

    Returns:
        The output (its ``logits`` if it has some) and the target.
    """
    if names is None and loss_fn is not None:
        return _logits(model(*parts[:-1])), parts[-1]
    return ModelLoss(names, loss_fn, _accepted(model)).predict(model, parts)


def _accepted(model: nn.Module) -> frozenset[str] | None:
    """The names that ``forward`` takes, None if it takes any."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def _own_loss(output: Any) -> Tensor:
    loss = _field(output, "loss")
    if isinstance(loss, Tensor):
        return loss
    if isinstance(output, Tensor) and output.numel() == 1:
        return output
    raise InvalidInput(
        "the model's output has no loss: pass loss_fn, or a model whose output has .loss (records must hold its labels)"
    )


def _logits(output: Any) -> Any:
    """The ``logits`` of an output that has some."""
    if isinstance(output, Tensor):
        return output
    found = _field(output, "logits")
    return output if found is None else found


def _field(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
