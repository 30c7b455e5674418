"""The loss of some records as a function of a model's trainable parameters, free of side effects.

Everything that differentiates a model (per-record gradients, Hessian-vector products) goes through ``Objective``: a
module whose records influence each other is refused in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from tacit.errors import InvalidInput

__all__ = ["LossFunction", "Objective", "Record", "RecordLoss", "check_model", "first_line"]

Record = tuple[Tensor, ...]
Parameters = dict[str, Tensor]
LossFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class RecordLoss:
    """A loss that calls the model itself, for records that are not (inputs…, target).

    Attributes:
        function: ``function(model, *record) -> loss``, every part of the record with a leading axis of one record;
            ``model`` is called like the module.
    """

    function: LossFunction


def first_line(error: Exception) -> str:
    """What an exception says, in one line: only for exceptions that saw no record."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return said[:300] or type(error).__name__


def check_model(model: nn.Module) -> None:
    """Refuse modules whose records influence each other: the gradient of one record would then hold the others.

    Args:
        model: any module.

    Raises:
        InvalidInput: if it is not a module, has nothing to train, normalises over a batch, or has no shapes yet.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False)))):
            raise InvalidInput(
                f"{name or 'the model'} is lazy ({type(module).__name__}), its parameters have no shapes yet: run the "
                "model once on a batch of zeros first, e.g. model(torch.zeros(1, …))"
            )
        mixes = isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats)
        tracks = isinstance(module, _InstanceNorm) and module.training and module.track_running_stats
        if mixes or tracks:
            raise InvalidInput(
                f"{name or 'the model'} is a {type(module).__name__}: it mixes the records of a batch, so no record's "
                "share can be clipped; use nn.GroupNorm or nn.LayerNorm (or .eval() it, if its statistics are public)"
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise InvalidInput("no parameter of the model requires a gradient: there is nothing to train")
    if any(p.is_complex() for p in model.parameters()):
        raise InvalidInput("the model has complex parameters: only real ones are supported")


class Objective:
    """loss_fn(model(inputs), target) as a function of the trainable parameters.

    Frozen parameters (``requires_grad=False``) and buffers are constants. The model is not changed.

    Args:
        model: any module that does not mix records.
        loss_fn: ``loss_fn(output, target)`` as in PyTorch, or a ``RecordLoss``.

    Attributes:
        names: of the trainable parameters, in the model's order.
        shapes: of them.
        size: how many numbers they hold.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction | RecordLoss) -> None:
        check_model(model)
        if not (callable(loss_fn) or isinstance(loss_fn, RecordLoss)):
            raise InvalidInput("loss_fn must be callable as loss_fn(output, target), or a RecordLoss")
        self.model, self.loss_fn = model, loss_fn
        trainable = self.trainable()
        self.names = list(trainable)
        self.shapes = [p.shape for p in trainable.values()]
        self.size = sum(shape.numel() for shape in self.shapes)

    def trainable(self) -> Parameters:
        """The trainable parameters as they stand, detached."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def constants(self) -> Parameters:
        """Frozen parameters and buffers, detached."""
        frozen = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
        return frozen | {name: b.detach() for name, b in self.model.named_buffers()}

    def _everywhere(self, tensors: Parameters) -> Parameters:
        """Tied tensors under each of their names, but one name for each place that holds one."""
        first: dict[int, str] = {}
        out: Parameters = {}
        for prefix, module in self.model.named_modules():  # every module once
            for key, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    out[name] = tensors[first.setdefault(id(value), name)]
        return out

    def loss(self, trainable: Parameters, records: Record, constants: Parameters | None = None) -> Tensor:
        """The loss of a batch of records (leading axis), at other values of the trainable parameters.

        Args:
            trainable: by name.
            records: tensors with one leading axis; the last one is the target.
            constants: frozen parameters and buffers, if not those of the model itself.

        Returns:
            A scalar.

        Raises:
            InvalidInput: if a record has no target, or the loss is not one number.
        """
        state = self._everywhere((self.constants() if constants is None else constants) | trainable)

        def call(*inputs: Tensor) -> Tensor:
            # Names are complete: functional_call's own search for tied weights spoils modules that occur twice.
            output: Tensor = functional_call(self.model, state, inputs, tie_weights=False)
            return output

        if isinstance(self.loss_fn, RecordLoss):
            value = self.loss_fn.function(call, *records)
        else:
            if len(records) < 2:
                raise InvalidInput("a record must be (inputs…, target): for other records wrap the loss in RecordLoss")
            value = self.loss_fn(call(*records[:-1]), records[-1])
        return self.scalar(value)

    @staticmethod
    def scalar(value: Tensor) -> Tensor:
        """A loss as a scalar.

        Args:
            value: what loss_fn returned.

        Returns:
            Without axes.

        Raises:
            InvalidInput: if it is not one number.
        """
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InvalidInput("loss_fn must return one number for a batch: use reduction='mean'")
        return value.reshape(())

    def flatten(self, tensors: Parameters) -> Tensor:
        """One vector of all numbers, in the order of ``names``."""
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> Parameters:
        """The parts of a vector, by name, as views."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)}

    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(iter(self.trainable().values())).device
