"""What is trained: the loss of records as a pure function of a model's parameters, and what models may not do.

Everything that differentiates a model (per-record gradients, Hessian-vector products) goes through ``Objective``, so
that modules whose records influence each other are refused in one place.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from tacit.errors import InvalidInput

__all__ = [
    "LossFunction",
    "Objective",
    "Parameters",
    "Record",
    "RecordLoss",
    "check_model",
    "check_optimizer",
    "first_line",
    "stateless",
]

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


def first_line(error: BaseException) -> str:
    """The message of an exception in one line; only for exceptions that cannot contain a record."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), "")[:300] or type(error).__name__


class Objective:
    """loss_fn(model(inputs), target) as a function of the trainable parameters.

    Frozen parameters (``requires_grad=False``) and buffers are constants. The model is not changed.

    Args:
        model: any module that does not mix records.
        loss_fn: ``loss_fn(output, target)`` as in PyTorch, or a ``RecordLoss``.

    Attributes:
        names: names of the trainable parameters, in the model's order.
        shapes: their shapes.
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
        """The current trainable parameters, detached."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def constants(self) -> Parameters:
        """Frozen parameters and buffers, detached."""
        frozen = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
        return frozen | {name: b.detach() for name, b in self.model.named_buffers()}

    def loss(self, trainable: Parameters, records: Record, constants: Parameters | None = None) -> Tensor:
        """The loss of a batch of records (leading axis) at the given values of the trainable parameters.

        Args:
            trainable: values by name.
            records: tensors with one leading axis; the last one is the target.
            constants: frozen parameters and buffers, if not those of the model itself.

        Returns:
            A scalar.

        Raises:
            InvalidInput: if a record has no target, or the loss is not one number.
        """
        state = self.all_names((self.constants() if constants is None else constants) | trainable)

        def call(*inputs: Tensor, **named: Tensor) -> Tensor:
            # Names are complete: functional_call's own search for tied weights fails for modules that occur twice.
            output: Tensor = functional_call(self.model, state, inputs, named, tie_weights=False)
            return output

        if isinstance(self.loss_fn, RecordLoss):
            return self.scalar(self.loss_fn.function(call, *records))
        if len(records) < 2:
            raise InvalidInput("a record must be (inputs…, target): for other records wrap the loss in RecordLoss")
        return self.scalar(self.loss_fn(call(*records[:-1]), records[-1]))

    def all_names(self, tensors: Parameters) -> Parameters:
        """The same tensors under every name: a tied parameter is listed once, but used in several places."""
        first: dict[int, str] = {}
        out: Parameters = {}
        for prefix, module in self.model.named_modules():  # every module once
            for key, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    out[name] = tensors[first.setdefault(id(value), name)]
        return out

    @staticmethod
    def scalar(value: Tensor) -> Tensor:
        """The value of a loss function without axes.

        Args:
            value: what loss_fn returned.

        Returns:
            A scalar.

        Raises:
            InvalidInput: if it is not one number.
        """
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InvalidInput("loss_fn must return one number for a batch: use reduction='mean'")
        return value.reshape(())

    def flatten(self, tensors: Parameters) -> Tensor:
        """One vector of all numbers, in the order of ``names``."""
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def theta(self) -> NDArray[Any]:
        """The trainable parameters as a vector of NumPy's, in at least float32."""
        flat = self.flatten(self.trainable())
        out: NDArray[Any] = flat.to(torch.promote_types(flat.dtype, torch.float32)).cpu().numpy()
        return out

    def unflatten(self, vector: Tensor) -> Parameters:
        """The parts of a vector, by name, as views."""
        parts = torch.split(vector, [shape.numel() for shape in self.shapes])
        return {name: part.view(shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)}

    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(iter(self.trainable().values())).device


# -- checks -------------------------------------------------------------------------------------------------


def check_model(model: nn.Module) -> None:
    """Refuse modules whose records influence each other: the gradient of one record would depend on the others.

    Args:
        model: any module.

    Raises:
        InvalidInput: if it is not a module, has nothing to train, normalises over a batch, or has no shapes yet.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        if _is_compiled(module):
            raise InvalidInput(
                f"{name or 'the model'} is compiled by torch.compile, of which nothing would run where records are "
                "kept apart: pass the module as it was before (model._orig_mod), and compile it for evaluation only"
            )
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


def _is_compiled(module: nn.Module) -> bool:
    """Whether ``torch.compile(module)`` or ``module.compile()`` was called."""
    kind = type(module)
    wrapped = kind.__module__.startswith("torch._dynamo") and kind.__name__ == "OptimizedModule"
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None


def check_optimizer(optimizer: Optimizer | None, model: nn.Module) -> None:
    """Refuse optimisers that cannot use a noisy gradient of this model.

    Parameters that an optimiser leaves out stay as they are, which is a way to freeze them. An optimiser that holds
    none of them would spend the budget and train nothing.

    Args:
        optimizer: the user's optimiser, or None.
        model: the model to be trained.

    Raises:
        InvalidInput: if it is not an optimiser, belongs to another model, or evaluates the loss itself.
    """
    if optimizer is None:
        return
    name = type(optimizer).__name__
    if isinstance(optimizer, type) or not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        raise InvalidInput(
            f"optimizer must be a torch optimiser, got {name}: e.g. torch.optim.Adam(model.parameters())"
        )
    if _needs_closure(optimizer):
        raise InvalidInput(
            f"{name} evaluates the loss several times in a step (its step needs a closure), but a step releases one "
            "noisy gradient: use an optimiser whose step() takes no argument, e.g. torch.optim.Adam"
        )
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:  # a wrapper of another library, which cannot be inspected
        return
    held = {id(p) for group in groups for p in group["params"]}
    if not any(id(p) in held for p in model.parameters() if p.requires_grad):
        raise InvalidInput(
            "the optimizer holds none of the model's trainable parameters, so nothing would be trained: make it with "
            "this model's parameters()"
        )


def _needs_closure(optimizer: Optimizer) -> bool:
    """Whether its class cannot step without an argument (schedulers replace the step of the object)."""
    try:
        _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return False
    either = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is inspect.Parameter.empty and p.kind not in either for p in parameters)


@contextmanager
def stateless(model: nn.Module, loss_fn: object) -> Iterator[None]:
    """Raise afterwards if the model or the loss kept anything of what was computed inside.

    ``torch.func`` treats parameters and buffers as arguments, but a module that writes to its own Python attributes
    (running means, caches, counters) would carry values from one chunk of records to the next. Attributes, buffers and
    parameters of every module are compared: replaced, written to in place, or grown. What a module hides elsewhere
    (globals, closures, entries of nested containers) is not seen; that no records meet there, the user declares.

    Args:
        model: the model.
        loss_fn: its loss.

    Yields:
        Nothing.

    Raises:
        InvalidInput: naming the module that keeps state.
    """
    before = _states(model, loss_fn)
    yield
    after = _states(model, loss_fn)
    for (name, old), (_, new) in zip(before, after, strict=False):
        if old != new:
            changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
            raise InvalidInput(
                f"{name} keeps state between calls ({', '.join(changed)}): records would meet there; remove it, or if "
                "it is a cache of shapes only, call the model once on a made-up batch before training"
            )


_SIZED = (list, dict, set, bytearray)
_DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Lists of its own parameters that PyTorch's recurrent layers make again when a parameter is set."""


def _states(model: nn.Module, loss_fn: object) -> list[tuple[str, dict[str, tuple[int, Any]]]]:
    """For each module the state of its attributes, buffers and parameters."""
    out = []
    for name, part in _modules(model, loss_fn):
        own = vars(part)
        inner = itertools.chain(own.items(), own.get("_buffers", {}).items(), own.get("_parameters", {}).items())
        derived = _DERIVED if isinstance(part, nn.RNNBase) else ()
        out.append((name, {key: _state(value) for key, value in inner if key not in derived}))
    return out


def _modules(model: nn.Module, loss_fn: object) -> Iterator[tuple[str, object]]:
    yield from (("model." + name if name else "the model", module) for name, module in model.named_modules())
    loss_fn = getattr(loss_fn, "of", loss_fn)  # a loss of records with names holds the user's
    if isinstance(loss_fn, nn.Module):
        yield from (("loss_fn." + name if name else "loss_fn", module) for name, module in loss_fn.named_modules())
    elif hasattr(loss_fn, "__dict__"):
        yield "loss_fn", loss_fn


def _state(value: object) -> tuple[int, Any]:
    """Changes if an attribute is replaced, a tensor is written to, or a container grows."""
    if isinstance(value, Tensor):
        return id(value), value._version
    return id(value), len(value) if isinstance(value, _SIZED) else None
