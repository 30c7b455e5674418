"""A copy of the model, pre-trained on public inputs with random labels (NoiseCurve, section 5.1).

Random labels push the model towards predicting the prior for everything, where activations are least saturated and the
curvature is largest: for logistic regression the Hessian there provably dominates all others (section 5.2).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.torch.curvature.records import public_records
from tacit.torch.objective import LossFunction, Objective, Record, RecordLoss, first_line

__all__ = ["Prepared", "prepare", "pretrain", "random_targets"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A pre-trained copy of the model and the public records at which the curvature is measured.

    Attributes:
        objective: the loss of a copy of the model, in evaluation mode, at the pre-trained parameters.
        records: public, (inputs…, target).
    """

    objective: Objective
    records: Record


def prepare(
    model: nn.Module,
    loss_fn: LossFunction | RecordLoss,
    data: object,
    *,
    classes: int | None,
    random_labels: bool,
    pretrain_epochs: int,
    learning_rate: float,
    random_state: int,
) -> Prepared:
    """Copy, label and pre-train; the arguments are those of ``hessian_spectrum``.

    Dropout is switched off, also in pre-training, because a random function has no single Hessian.

    Args:
        model: any module that does not mix records; not changed.
        loss_fn: as in ``Objective``.
        data: public.
        classes: number of classes, or None for regression.
        random_labels: whether labels are drawn, whatever ``data`` holds.
        pretrain_epochs: passes over the data, 0 for none.
        learning_rate: of Adam.
        random_state: seed of labels and batches.

    Returns:
        The copy with its records.

    Raises:
        InvalidInput: if labels are missing, or the model does not take the records.
    """
    Objective(model, loss_fn)  # checks the training modes before the copy is set to evaluation
    objective = Objective(copy.deepcopy(model).eval(), loss_fn)
    inputs, labels = public_records(data, objective)
    generator = torch.Generator().manual_seed(random_state)
    if random_labels:
        records = (*inputs, random_targets(objective, inputs, labels, classes, generator))
    elif labels is None and not isinstance(loss_fn, RecordLoss):
        raise InvalidInput("data holds no labels: pass (inputs, labels), or random_labels=True")
    else:
        records = inputs if labels is None else (*inputs, _like_parameters(labels, objective))
    pretrain(objective, records, pretrain_epochs, generator, learning_rate=learning_rate)
    return Prepared(objective, records)


def _like_parameters(labels: Tensor, objective: Objective) -> Tensor:
    like = next(iter(objective.trainable().values()))
    return labels.to(like.dtype) if labels.is_floating_point() else labels


def random_targets(
    objective: Objective, inputs: Record, labels: Tensor | None, classes: int | None, generator: torch.Generator
) -> Tensor:
    """Uniform classes, or standard normal numbers for regression, in the first form that the loss accepts.

    Args:
        objective: model and loss.
        inputs: public.
        labels: if given, drawn labels have their shape and dtype; their values are not used.
        classes: 2 or more, or None for regression.
        generator: the source.

    Returns:
        Targets, one per record.

    Raises:
        InvalidInput: if the loss accepts none, or looks like a classification without ``classes``.
    """
    n = len(inputs[0])
    if classes is not None and _validate.positive_int(classes=classes) < 2:
        raise InvalidInput("classes must be at least 2, or None for regression")
    shapes = [labels.shape] if labels is not None else _output_shapes(objective, inputs)
    reason = "no form of target fits"
    for shape, dtype in _forms(shapes, labels, classes, objective):
        if classes is None:
            target = torch.randn(n, *shape[1:], generator=generator, dtype=torch.float64).to(dtype)
        else:
            target = torch.randint(classes, (n, *shape[1:]), generator=generator).to(dtype)
        target = target.to(inputs[0].device)
        few = target[:2] if classes is None else torch.full_like(target[:2], classes - 1)  # the last class must fit too
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # a broadcast target is a wrong target
                objective.loss(objective.trainable(), (*(x[:2] for x in inputs), few))
        except (RuntimeError, ValueError, TypeError, IndexError, UserWarning) as error:
            reason = first_line(error)
            continue
        if classes is None and _linear_in_target(objective, inputs, target):
            break
        return target
    if classes is None:
        raise InvalidInput(
            f"the loss takes no normal targets, as a regression would ({reason}): for a classification give classes="
        )
    raise InvalidInput(
        f"the loss does not take labels 0…{classes - 1} here ({reason}): pass (inputs, labels) to show their form"
    )


def _output_shapes(objective: Objective, inputs: Record) -> list[torch.Size]:
    """One label per record, one per output position, one per output number: as cross-entropies want them."""
    n = len(inputs[0])
    try:
        with torch.no_grad():
            output = objective.model(*(x[:2] for x in inputs))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InvalidInput(f"the model does not take the inputs: {first_line(error)}") from None
    own = output.shape[1:] if isinstance(output, Tensor) else torch.Size()
    return [torch.Size((n,)), torch.Size((n, *own[1:])), torch.Size((n, *own))]


def _forms(
    shapes: list[torch.Size], labels: Tensor | None, classes: int | None, objective: Objective
) -> Iterator[tuple[torch.Size, torch.dtype]]:
    floating = next(iter(objective.trainable().values())).dtype
    if labels is not None:
        if classes is None and not labels.is_floating_point():
            raise InvalidInput("the labels are whole numbers: give classes= (their values are not read)")
        yield shapes[0], floating if labels.is_floating_point() else labels.dtype
    elif classes is None:
        yield shapes[-1], floating
    else:
        yield shapes[0], torch.long
        yield shapes[1], torch.long
        if classes == 2:  # binary cross-entropy wants numbers
            yield shapes[-1], floating


def _linear_in_target(objective: Objective, inputs: Record, target: Tensor) -> bool:
    """Cross-entropies take any numbers as soft labels, and are linear in them; regression losses are not."""
    few, t = tuple(x[:2] for x in inputs), target[:2]
    with torch.no_grad():
        plus, minus, zero = (float(objective.loss(objective.trainable(), (*few, s * t))) for s in (1, -1, 0))
    return abs(plus + minus - 2 * zero) <= 1e-5 * (abs(plus) + abs(minus) + abs(zero))


def pretrain(
    objective: Objective, records: Record, epochs: int, generator: torch.Generator, *, learning_rate: float = 1e-3
) -> None:
    """Adam on shuffled batches of 64; changes the objective's own model (a copy of the user's).

    Args:
        objective: model and loss.
        records: public.
        epochs: passes; 0 does nothing.
        generator: of the order.
        learning_rate: of Adam.

    Raises:
        InvalidInput: if the parameters are no longer finite.
    """
    if isinstance(epochs, bool) or int(epochs) != epochs or epochs < 0:
        raise InvalidInput(f"pretrain_epochs must be a whole number, zero or more, got {epochs!r}")
    rate = _validate.positive(learning_rate=learning_rate)
    leaves = {name: p.clone().requires_grad_() for name, p in objective.trainable().items()}
    optimizer = torch.optim.Adam(list(leaves.values()), lr=rate)
    n = len(records[0])
    for _ in range(int(epochs)):
        for batch in torch.split(torch.randperm(n, generator=generator), 64):
            index = batch.to(records[0].device)
            optimizer.zero_grad()
            with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                loss = objective.loss(leaves, tuple(part[index] for part in records))
                torch.autograd.backward(loss, inputs=list(leaves.values()))
            optimizer.step()
    if not all(bool(torch.isfinite(p).all()) for p in leaves.values()):
        raise InvalidInput("pre-training diverged: scale the inputs, or lower learning_rate")
    with torch.no_grad():
        for name, p in objective.model.named_parameters():
            if name in leaves:
                p.copy_(leaves[name])
