"""Per-record gradients of plain chains of layers, from one pass over a whole chunk of records.

``torch.func`` separates records by construction, whatever a model does, with a cost for every operation. Many models
are ``nn.Sequential`` chains of layers that act on each record by itself. For those, one batched pass gives the input a
and the output gradient d of every layer, and the gradient of record i is a formula in (a_i, d_i): the layer's rule.

Only the exact types of the tables below are known to treat each record by itself, without hooks, and with a record axis
where the layer expects one. Every other model is differentiated by ``torch.func``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear
from torch.nn.modules import module as torch_module

from tacit.torch.taps.factors import Gradient
from tacit.torch.taps.rules import Tap, rule_for

__all__ = ["RECORD_LOCAL", "RULES", "Chain", "chain_of"]


def _plain_convolution(layer: nn.Module) -> bool:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


Run = Callable[[nn.Module, Tensor, Tensor | None, Tensor | None], Tensor]


def _run_linear(layer: nn.Module, h: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    assert weight is not None
    return linear(h, weight, bias)


def _run_convolution(layer: nn.Module, h: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    assert weight is not None
    assert not isinstance(layer.padding, str)
    return torch.convolution(h, weight, bias, layer.stride, layer.padding, layer.dilation, False, [0] * (h.ndim - 2), 1)


def _run_group_norm(layer: nn.Module, h: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    assert isinstance(layer, nn.GroupNorm)
    return torch.group_norm(h, layer.num_groups, weight, bias, layer.eps)


def _run_layer_norm(layer: nn.Module, h: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    assert isinstance(layer, nn.LayerNorm)
    return layer_norm(h, layer.normalized_shape, weight, bias, layer.eps)


RULES: dict[type[nn.Module], Run] = {
    nn.Linear: _run_linear,
    nn.Conv1d: _run_convolution,
    nn.Conv2d: _run_convolution,
    nn.Conv3d: _run_convolution,
    nn.GroupNorm: _run_group_norm,
    nn.LayerNorm: _run_layer_norm,
}
"""The function of each layer with parameters; its gradients follow from the layer's rule (``taps.rules``)."""
RECORD_LOCAL: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Dropout, nn.Flatten),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
"""Layers without parameters that act on each record by itself."""


def _record_axis(layer: nn.Module, a: Tensor) -> bool:
    """Whether the layer treats axis 0 as records (a Conv2d that is given three axes takes the first for channels)."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return a.ndim == layer.weight.ndim
    if isinstance(layer, nn.LayerNorm):
        return a.ndim > len(layer.normalized_shape)
    return a.ndim >= 2


# -- the chain ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Link:
    name: str
    layer: nn.Module
    run: Run | None
    rule: Tap | None

    def forward(self, at: dict[str, Tensor], h: Tensor) -> Tensor:
        """The layer's output. Modules are not *called*, so that hooks and patched instances have no effect."""
        if self.run is not None:
            return self.run(self.layer, h, at.get(f"{self.name}weight"), at.get(f"{self.name}bias"))
        out: Tensor = type(self.layer).forward(_out_of_place(self.layer), h)
        return out


def chain_of(model: nn.Module) -> Chain | None:
    """The model as a chain of known layers, or None if it is something else."""
    links: list[_Link] = []
    if _global_hooks() or not _collect(model, "", links):
        return None
    parameters = [id(p) for link in links for p in link.layer.parameters()]
    return Chain(links) if len(set(parameters)) == len(parameters) else None


def _global_hooks() -> bool:
    names = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
    return any(getattr(torch_module, name, None) for name in names)


def _collect(module: nn.Module, name: str, links: list[_Link]) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks) or "forward" in vars(module) or "__call__" in vars(module):
        return False
    if type(module) is nn.Sequential:  # a module may occur twice, and named_children() would list it once
        inside = [(key, child) for key, child in module._modules.items() if child is not None]
        return not module._parameters and all(_collect(child, f"{name}{key}.", links) for key, child in inside)
    run = RULES.get(type(module))
    rule = None if run is None else rule_for(module)
    if rule is None and type(module) not in RECORD_LOCAL:
        return False
    if run is _run_convolution and not _plain_convolution(module):
        return False
    if isinstance(module, nn.Flatten) and module.start_dim < 1:
        return False
    if isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d) and module.return_indices:
        return False
    if not any(p is not None for p in module._parameters.values()):
        rule = None
    links.append(_Link(name, module, run, rule))
    return True


class Chain:
    """Layers in order, each of which treats records by themselves."""

    def __init__(self, links: list[_Link]) -> None:
        self._links = links

    @property
    def is_linear(self) -> bool:
        """Whether its only parameters are those of linear layers."""
        return all(link.rule is None or type(link.layer) is nn.Linear for link in self._links)

    def gradients(
        self, at: dict[str, Tensor], inputs: Tensor, output_gradient: Callable[[Tensor], Tensor]
    ) -> dict[str, Gradient] | None:
        """Per-record gradients by parameter name.

        Args:
            at: values of all parameters.
            inputs: (records, …).
            output_gradient: from outputs to the gradient of each record's loss with respect to its own output.

        Returns:
            The gradients, or None if a layer does not treat the first axis as records.
        """
        links, befores, ends = [], [], []
        h = inputs
        with torch.enable_grad():
            for link in self._links:
                if not _record_axis(link.layer, h):
                    return None
                before, h = h, link.forward(at, h)
                if link.rule is not None:
                    h = h if h.requires_grad else h.requires_grad_()
                    links.append(link)
                    befores.append(before.detach())
                    ends.append(h)
        slopes = list(torch.autograd.grad(h, ends, output_gradient(h.detach())))
        del h, before, ends
        out: dict[str, Gradient] = {}
        while links:  # from the last layer back, freeing what is no longer needed
            link = links.pop()
            assert link.rule is not None
            found = link.rule.gradients(link.layer, "", befores.pop()[:, None], slopes.pop()[:, None])
            out.update((f"{link.name}{key}", gradient) for key, gradient in found.items())
        return out


def _out_of_place(layer: nn.Module) -> nn.Module:
    """The same layer, which does not overwrite its input: gradients are computed from it."""
    if not getattr(layer, "inplace", False):
        return layer
    plain = copy.copy(layer)
    plain.inplace = False  # type: ignore[assignment]
    return plain
