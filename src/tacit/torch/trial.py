"""Dry runs on made-up records, which show faults in shapes and types before anything is charged.

A dry run uses copies of model and loss and restores the random generators. It uses only the shapes and types of the
records, so that its error messages are public.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput
from tacit.torch.calling import predicted, target_name
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import LossFunction, Objective, Record, RecordLoss, first_line
from tacit.torch.records import FILLS, Fill, Records, like_parameters, made_up, seeded, zeros
from tacit.torch.ways import Way

__all__ = ["Trial", "try_evaluation", "try_step"]

Metric = Callable[[Tensor, Tensor], object]
TRIED = 4
"""Most made-up records that a step is tried on."""


class Trial(NamedTuple):
    """What a dry run has found.

    Attributes:
        fill: the values of made-up records that the model can read.
        way: how its gradients are computed; None if nothing was tried.
    """

    fill: Fill = zeros
    way: Way | None = None


def try_step(
    model: nn.Module,
    loss_fn: LossFunction | RecordLoss,
    records: Records,
    *,
    chunk_size: int | None,
    vectorised: bool,
    mode: Callable[[nn.Module], object] | None = None,
    look: bool = False,
) -> Trial:
    """Compute the gradients of made-up records, as a step does, and choose the way by which they are computed.

    Nothing is tried if shapes are known only after a record is read. Later on, errors are not told any more, because
    they could be those of a record: this is where faults of the model are found.

    Args:
        model: not changed, nor its buffers and attributes, unless it cannot be copied.
        loss_fn: its loss.
        records: only their shapes and types are used.
        chunk_size: as in the plan.
        vectorised: as in the plan.
        mode: sets the copy of the model to training mode.
        look: whether items of a dataset may be read for their shapes: after the ledger is charged.

    Returns:
        The values of made-up records that the model can read, and the way.

    Raises:
        InvalidInput: if model, loss and records do not fit together, or records meet.
    """
    empty, failure = records.empty_like(look=look), ""
    if empty is None:
        return Trial()
    how: dict[str, Any] = {"chunk_size": chunk_size, "vectorised": vectorised}
    for fill in FILLS:
        copied = _copied(model, loss_fn) or (model, loss_fn)  # for every fill, because a failed trial may leave traces
        if mode is not None:
            mode(copied[0])
        objective = Objective(*copied)
        query = PerRecordGradients(objective, 1.0, **how)
        count = min(query.chunk, TRIED, max(len(records), 1))
        try:
            with seeded(0, objective.device()):
                query.dry_run(Records(made_up(empty, count, fill)))
        except InvalidInput as error:
            failure = str(error)  # the last one, because the first may be about zeros only
        else:
            return Trial(fill, query.way)
    raise InvalidInput(failure)


def try_evaluation(
    model: nn.Module, loss_fn: LossFunction | RecordLoss | None, shown: Records, metric: Metric | None
) -> None:
    """Call the model on made-up records of the evaluation data's shapes.

    Args:
        model: not changed.
        loss_fn: the user's, None for the model's own: it says how the model is called.
        shown: public; the first item of a dataset is read for its shapes.
        metric: the default metric, or None for the user's metrics, which are not called.

    Raises:
        InvalidInput: if the model or the metric fails.
    """
    if not len(shown):
        raise InvalidInput("evaluate_on holds no records: leave it out, or pass public data")
    empty = _first(shown)
    if len(empty) < 2:
        raise InvalidInput("evaluate_on must be (inputs…, target), e.g. a tuple of tensors: it has one part only")
    if metric is not None and _target(shown, empty).is_floating_point():
        raise InvalidInput("evaluate_on has a continuous target: say metrics={name: function}")
    like, failure = next(model.parameters()), ""
    for fill in FILLS:
        copied = _copied(model, None)
        if copied is None:
            return
        parts = like_parameters(made_up(empty, min(2, len(shown)), fill), like)
        try:
            with torch.no_grad(), seeded(0, like.device):
                output, target = predicted(copied[0].eval(), loss_fn, shown.names, parts)
                if metric is not None:
                    metric(output, target)
        except Exception as error:
            failure = first_line(error)
        else:
            return
    wrong = "the model" if metric is None else "the model or its accuracy"
    raise InvalidInput(
        f"{wrong} fails on evaluate_on: {failure}; pass (inputs…, target) of the same form as the training data"
        + ("" if metric is None else ", or metrics={name: function} of your own")
    )


def _target(shown: Records, parts: Record) -> Tensor:
    return parts[-1] if shown.names is None else parts[shown.names.index(target_name(shown.names))]


def _first(shown: Records) -> Record:
    """Tensors of the shapes of evaluation data; a dataset's first item, because these data are public."""
    empty = shown.empty_like()
    if empty is not None:
        return empty
    kind = ""
    try:
        with seeded(0):
            first = shown.take([0])
            shown.empty_like(look=True)
            return first
    except InvalidInput:
        raise
    except Exception as error:
        kind = type(error).__name__
    raise InvalidInput(f"evaluate_on fails on its first record ({kind}): check its items")


def _copied(model: nn.Module, loss_fn: Any) -> tuple[nn.Module, Any] | None:
    """Copies of both at once, because one may refer to the other; None if they cannot be copied."""
    try:
        out: tuple[nn.Module, Any] = copy.deepcopy((model, loss_fn))
    except Exception:  # e.g. locks, generators, tensors inside a graph
        return None
    return out
