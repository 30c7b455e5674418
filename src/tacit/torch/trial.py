"""What can be found out before anything is spent: made-up records show faults in shapes and types as well as real ones.

A trial runs on copies of model and loss, with generators that are put back. Of the records it knows shapes and types
only, so that everything a trial says may be shown.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.errors import InvalidInput
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import LossFunction, Objective, Record, RecordLoss, first_line
from tacit.torch.records import Records, seeded

__all__ = ["check_optimizer", "try_evaluation", "try_step"]

Show = Callable[[Tensor, Tensor], object]
Fill = Callable[[Tensor], float]


def _share(part: Tensor) -> float:
    return 1 / max(part.shape[-1], 1) if part.is_floating_point() and part.ndim > 1 else 1


_FILLS: tuple[Fill, ...] = (lambda part: 0, lambda part: 1, _share)
"""Zeros, which are valid indices and labels; then, for models that look at values, ones, and shares of one."""


def check_optimizer(optimizer: Optimizer | None, model: nn.Module) -> None:
    """Refuse optimisers that cannot make anything of a noisy gradient of this model.

    Parameters that an optimiser leaves out stay as they are: a way of freezing them. One that holds none of them would
    spend the budget and train nothing.

    Args:
        optimizer: of the user, or None.
        model: to be trained.

    Raises:
        InvalidInput: if it is no optimiser, belongs to another model, or evaluates the loss itself.
    """
    if optimizer is None:
        return
    name = type(optimizer).__name__
    if isinstance(optimizer, type) or not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        raise InvalidInput(
            f"optimizer must be a torch optimiser, got {name}: e.g. torch.optim.Adam(model.parameters())"
        )
    if _wants_closure(optimizer):
        raise InvalidInput(
            f"{name} evaluates the loss several times in a step (its step needs a closure), but a step releases one "
            "noisy gradient: use an optimiser whose step() takes no argument, e.g. torch.optim.Adam"
        )
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:  # somebody's wrapper: nothing to look at
        return
    held = {id(p) for group in groups for p in group["params"]}
    if not any(id(p) in held for p in model.parameters() if p.requires_grad):
        raise InvalidInput(
            "the optimizer holds none of the model's trainable parameters, so nothing would be trained: make it with "
            "this model's parameters()"
        )


def _wants_closure(optimizer: Optimizer) -> bool:
    """Whether its class cannot step without one; schedulers wrap the step of the object."""
    try:
        _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return False
    either = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is inspect.Parameter.empty and p.kind not in either for p in parameters)


def try_step(
    model: nn.Module,
    loss_fn: LossFunction | RecordLoss,
    records: Records,
    *,
    chunk_size: int | None,
    vectorised: bool,
    mode: Callable[[nn.Module], object] | None = None,
) -> None:
    """Take the gradients of a chunk of made-up records, just as a step does.

    There is no trial if only reading a record would tell its shape (a dataset), or if the model cannot be copied.

    Args:
        model: stays as it is, buffers and attributes, too.
        loss_fn: its loss.
        records: whose shapes and types are looked at.
        chunk_size: as in the plan.
        vectorised: as in the plan.
        mode: sets the copy to the mode of training.

    Raises:
        InvalidInput: if model, loss and records do not fit together.
    """
    blank, failure = records.blank(), ""
    if blank is None:
        return
    how: dict[str, Any] = {"chunk_size": chunk_size, "vectorised": vectorised}
    for fill in _FILLS:
        copied = _copied(model, loss_fn)  # each time: a trial may leave traces in them
        if copied is None:
            return
        if mode is not None:
            mode(copied[0])
        objective = Objective(*copied)
        count = PerRecordGradients(objective, records, 1.0, **how).chunk
        try:
            with seeded(0, objective.device()):
                PerRecordGradients(objective, Records(_made_up(blank, count, fill)), 1.0, **how).rehearse()
        except InvalidInput as error:
            failure = str(error)  # the last one: the first may be about zeros only
        else:
            return
    raise InvalidInput(failure)


def try_evaluation(model: nn.Module, shown: Records, show: Show | None) -> None:
    """Call the model on made-up records of the evaluation data's shapes.

    Args:
        model: stays as it is.
        shown: public; a dataset's first item is read for its shapes.
        show: a metric of our own, or None: those of others are not called.

    Raises:
        InvalidInput: if the model or the metric fails on them.
    """
    if not len(shown):
        raise InvalidInput("evaluate_on holds no records: leave it out, or pass public data")
    blank = _first(shown)
    if len(blank) < 2:
        raise InvalidInput("evaluate_on must be (inputs…, target), e.g. a tuple of tensors: it has one part only")
    if show is not None and blank[-1].is_floating_point():
        raise InvalidInput("evaluate_on has a continuous target: say metrics={name: function}")
    like, failure = next(model.parameters()), ""
    for fill in _FILLS:
        copied = _copied(model, None)
        if copied is None:
            return
        made_up = _made_up(blank, min(2, len(shown)), fill)
        parts = [p.to(like) if p.is_floating_point() else p.to(like.device) for p in made_up]
        try:
            with torch.no_grad(), seeded(0, like.device):
                output = copied[0].eval()(*parts[:-1])
                if show is not None:
                    show(output, parts[-1])
        except Exception as error:
            failure = first_line(error)
        else:
            return
    wrong = "the model" if show is None else "the model or its accuracy"
    raise InvalidInput(
        f"{wrong} fails on evaluate_on: {failure}; pass (inputs…, target) of the same form as the training data"
        + ("" if show is None else ", or metrics={name: function} of your own")
    )


def _first(shown: Records) -> Record:
    blank = shown.blank()
    if blank is not None:
        return blank
    kind = ""
    try:
        with seeded(0):
            return shown.take([0])
    except InvalidInput:
        raise
    except Exception as error:
        kind = type(error).__name__
    raise InvalidInput(f"evaluate_on fails on its first record ({kind}): check its items")


def _copied(model: nn.Module, loss_fn: Any) -> tuple[nn.Module, Any] | None:
    """Both at once, because one may hold the other; None if they cannot be copied."""
    try:
        out: tuple[nn.Module, Any] = copy.deepcopy((model, loss_fn))
    except Exception:  # locks, generators, tensors inside a graph: no trial then
        return None
    return out


def _made_up(blank: Record, count: int, fill: Fill) -> Record:
    return tuple(part.new_full((count, *part.shape[1:]), fill(part)) for part in blank)
