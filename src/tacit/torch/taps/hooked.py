"""Per-record gradients from one ordinary pass over a batch: only for models that ``vmap`` cannot batch.

Records are *not* apart by construction here: a model that lets them meet would make the gradient of one record depend
on another. This way is taken only after a comparison with single records (``comparison``), and the certificate says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from tacit.errors import InvalidInput
from tacit.torch.objective import Objective, Parameters, Record, RecordLoss
from tacit.torch.taps.factors import Gradient, Rows, combined
from tacit.torch.taps.tapped import CallSite, Key, Known, known_layers, replaced, uses_by_parameter

__all__ = ["Hooked"]


class _Sites:
    """Inputs and outputs of the sites during one pass over a batch."""

    def __init__(self, count: int) -> None:
        self.inputs: dict[Key, Tensor] = {}
        self.outputs: dict[Key, Tensor] = {}
        self._versions: dict[Key, int] = {}
        self._count, self._calls = count, Counter[str]()

    def call(self, known: Known, *args: Any, **kwargs: Any) -> Any:
        """The layer's forward."""
        number = self._calls[known.name]
        self._calls[known.name] += 1
        return known.rule.forward(known.layer, CallSite(self, known.name, number), *args, **kwargs)

    def tapped(self, key: Key, before: Tensor, after: Tensor) -> Tensor:
        """The output, whose gradient will be asked for."""
        if len(before) == len(after) == 1 < self._count:  # the same for all records, such as places in a text
            before, after = (part.expand(self._count, *part.shape[1:]) for part in (before, after))
        if len(before) != self._count or len(after) != self._count:
            raise InvalidInput(f"{key[0]} does not see records along its first axis")
        self.see(key, before)
        self.outputs[key] = after if after.requires_grad else after.detach().requires_grad_()
        return self.outputs[key].clone()  # what comes next may write to it

    def see(self, key: Key, before: Tensor) -> None:
        """Another input of a site."""
        self.inputs[key], self._versions[key] = before, before._version

    def check(self) -> None:
        """Refuse inputs that were overwritten after they were read."""
        for key, before in self.inputs.items():
            if before._version != self._versions[key]:
                raise InvalidInput(f"the input of {key[0]} was overwritten after it was read")


class Hooked:
    """Gradients of chunks of records, from one pass over each, with the rules of layers.

    Args:
        objective: loss of a model; every trainable parameter must belong to a layer with a rule.

    Raises:
        InvalidInput: if one does not, or the loss calls the model itself.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._layers = known_layers(objective.model)
        ruled = {name for known in self._layers for name in known.names.values()}
        if isinstance(objective.loss_fn, RecordLoss) or ruled != set(objective.names):
            raise InvalidInput("a pass over a batch needs a rule for every layer, and loss_fn(output, target)")

    def gradients(self, at: Parameters, records: Record, reseed: Callable[[], None]) -> dict[str, Gradient]:
        """Per-record gradients by parameter name.

        Args:
            at: values of the trainable parameters.
            records: a chunk.
            reseed: called first.

        Returns:
            One gradient per parameter.
        """
        count, objective = len(records[0]), self._objective
        sites, state = _Sites(count), objective.all_names(objective.constants() | {k: v.clone() for k, v in at.items()})
        reseed()
        with torch.enable_grad(), replaced(self._layers, sites.call):
            output = functional_call(objective.model, state, records[:-1], tie_weights=False)
            sites.check()
            losses = [self._loss(output, records[-1], i, count) for i in range(count)]
        ends = list(sites.outputs.values())
        found = torch.autograd.grad(torch.stack(losses).sum(), ends, allow_unused=True)
        slopes = {
            key: (torch.zeros_like(end) if slope is None else slope)[:, None]
            for (key, end), slope in zip(sites.outputs.items(), found, strict=True)
        }
        uses = uses_by_parameter(self._layers, {key: a[:, None] for key, a in sites.inputs.items()}, slopes)
        none = {name: Rows(at[name].new_zeros(()).expand(count, *at[name].shape)) for name in objective.names}
        return none | {name: combined(some) for name, some in uses.items()}

    def _loss(self, output: Any, target: Tensor, i: int, count: int) -> Tensor:
        def one(part: Tensor) -> Tensor:
            return part[i : i + 1] if part.ndim and len(part) == count else part

        return self._objective.scalar(self._objective.loss_fn(tree_map_only(Tensor, one, output), target[i : i + 1]))  # type: ignore[operator]
