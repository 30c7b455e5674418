"""The ways to per-record gradients of a model, and the one that is taken.

- ``chain``: one batched pass through a chain of PyTorch's own layers (``layers``);
- ``taps``: zeros on the outputs of known layers inside of ``vmap`` (``taps.tapped``); all other parameters, or those
  for which a rule was found wrong, are differentiated by ``vmap`` itself. With no known layer this is plain ``vmap``;
- ``hooks``: one ordinary pass over a batch (``taps.hooked``), for models that ``vmap`` cannot batch;
- ``alone``: one record at a time.

A way is chosen by a trial on made-up records (``comparison``), before anything is charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from tacit.torch.layers import chain_of
from tacit.torch.objective import Objective, Parameters, Record, RecordLoss
from tacit.torch.records import reseed
from tacit.torch.taps.factors import Gradient, Rows
from tacit.torch.taps.hooked import Hooked
from tacit.torch.taps.tapped import Tapped

__all__ = ["KINDS", "Way", "Ways", "copied", "signature"]

KINDS = ("chain", "taps", "hooks", "alone")


@dataclass(frozen=True)
class Way:
    """How gradients are computed.

    Attributes:
        kind: one of ``KINDS``.
        formed: names of parameters whose gradients are formed in spite of a rule.
        checked: whether sums were compared with those of another way.
        held: how many numbers are kept for each record of a chunk, 0 if unknown.
    """

    kind: str
    formed: frozenset[str] = frozenset()
    checked: bool = False
    held: int = 0


def signature(model: nn.Module) -> object:
    """What a way depends on: types and modes of modules, hooks, patched methods, and which parameters are trained."""
    first: dict[int, str] = {}
    out = []
    for name, module in model.named_modules(remove_duplicate=False):
        own = vars(module)
        hooks = len(own["_forward_hooks"]) + len(own["_forward_pre_hooks"])
        parameters = [
            (key, first.setdefault(id(p), f"{name}.{key}"), p.requires_grad, p.dtype)
            for key, p in module._parameters.items()
            if p is not None
        ]
        out.append((name, type(module), module.training, hooks, "forward" in own, tuple(parameters)))
    return tuple(out)


class Ways:
    """Per-record gradients of one objective, each way made when it is first taken.

    Args:
        objective: loss of a model.
        vectorised: False for one record at a time.
    """

    def __init__(self, objective: Objective, *, vectorised: bool = True) -> None:
        self.objective, self.vectorised = objective, vectorised
        self._made: dict[object, Any] = {}

    def first(self) -> Way:
        """The way that is tried first."""
        if not self.vectorised:
            return Way("alone")
        separate = not isinstance(self.objective.loss_fn, RecordLoss)
        return Way("chain" if separate and chain_of(self.objective.model) is not None else "taps")

    def gradients(self, way: Way, at: Parameters, records: Record, seed: int) -> dict[str, Gradient]:
        """Per-record gradients by parameter name.

        Args:
            way: how.
            at: values of the trainable parameters.
            records: a chunk.
            seed: of the global generators.

        Returns:
            One gradient per trainable parameter.
        """
        device = self.objective.device()

        def again() -> None:
            reseed(seed, device)

        again()
        if way.kind == "alone":
            return self._one_by_one(at, records)
        if way.kind == "chain":
            found = self._layered(at, records)
            if found is not None:
                return found
            way = Way("taps")
        modules = tuple(map(id, self.objective.model.modules()))  # a layer may have been exchanged for one of its type
        key = way.kind, way.formed, signature(self.objective.model), modules
        if key not in self._made:
            made = Hooked(self.objective) if way.kind == "hooks" else Tapped(self.objective, way.formed)
            self._made = {key: made}
        return self._made[key].gradients(at, records, again)  # type: ignore[no-any-return]

    def alone(self, at: Parameters, record: Record, seed: int | None = None) -> Parameters:
        """The gradient of one record, from copies, because some modules write to their parameters and buffers.

        Args:
            at: values of the trainable parameters.
            record: without an axis of records.
            seed: of the global generators, or None to leave them.

        Returns:
            By parameter name.
        """
        if seed is not None:
            reseed(seed, self.objective.device())
        constants = copied(self.objective.constants())
        batch = tuple(part[None] for part in record)
        out: Parameters = grad(lambda p: self.objective.loss(p, batch, constants))(copied(at))
        return out

    def _one_by_one(self, at: Parameters, records: Record) -> dict[str, Gradient]:
        seeds = torch.randint(2**62, (len(records[0]),)).tolist()
        each = [self.alone(at, tuple(part[i] for part in records), seed) for i, seed in enumerate(seeds)]
        return {name: Rows(torch.stack([g[name] for g in each])) for name in self.objective.names}

    def _layered(self, at: Parameters, records: Record) -> dict[str, Gradient] | None:
        """From one batched pass, if the model still is a chain of layers that treat each record by itself."""
        loss_fn = self.objective.loss_fn
        if len(records) != 2 or isinstance(loss_fn, RecordLoss):
            return None
        chain = chain_of(self.objective.model)  # at every call, because hooks and layers may have changed
        if chain is None:
            return None
        inputs, target = records

        def slope(outputs: Tensor) -> Tensor:
            if _is_plain_cross_entropy(loss_fn, outputs, target):
                logits = outputs.detach().requires_grad_()
                smoothing: float = vars(loss_fn)["label_smoothing"]
                total = cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
                return torch.autograd.grad(total, logits)[0]
            one = grad(lambda output, goal: self.objective.scalar(loss_fn(output[None], goal[None])))
            out: Tensor = vmap(one, randomness="different")(outputs, target)
            return out

        found = chain.gradients(self.objective.constants() | at, inputs, slope)
        return None if found is None else {name: found[name] for name in self.objective.names}


def _is_plain_cross_entropy(loss_fn: Any, outputs: Tensor, target: Tensor) -> bool:
    """Whether each record adds its own term to the sum: then one pass gives the slopes of all."""
    plain = type(loss_fn) is nn.CrossEntropyLoss and loss_fn.weight is None and "forward" not in vars(loss_fn)
    return plain and outputs.ndim == 2 and target.ndim == 1


def copied(at: Parameters) -> Parameters:
    """Copies, because some modules change parameters in place (``nn.Embedding(max_norm=…)``)."""
    return {name: value.clone() for name, value in at.items()}
