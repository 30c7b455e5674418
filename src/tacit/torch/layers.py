"""Per-record gradients of plain chains of layers, from one pass over a whole chunk of records.

``torch.func`` separates records by construction, whatever a model does, at about twice the cost of a batch gradient.
Many models are ``nn.Sequential`` chains of layers that act on each record by itself. For those, one batched pass gives
the input a and the output gradient d of every layer, and the gradient of record i is a formula in (a_i, d_i):

- linear: W ↦ d_i a_iᵀ. Rank one: norm ‖d_i‖‖a_i‖, weighted sum DᵀΛA; it is never formed (Goodfellow 2015);
- convolution: the gradient of one image, for all images at once as a convolution with as many groups as images;
- group and layer norm: Σ over positions of d_i·x̂_i.

Only the exact types of the tables below are known to treat each record by itself, without hooks, and with a record axis
where the layer expects one. Every other model is differentiated by ``torch.func``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear
from torch.nn.modules import module as torch_module

__all__ = ["Chain", "Gradient", "Outer", "Rows", "chain_of"]

_SMALL = 4_000_000  # most numbers that are kept in float64 between norm and sum


class Gradient(Protocol):
    """The gradients of some records with respect to one parameter."""

    def squares(self) -> Tensor:
        """Squared norms in float64, (records,)."""

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """Σ_i weights_i·gradient_i, flat, float64; records that are not kept count as zeros, in their places."""

    def rows(self) -> Tensor:
        """All gradients, (records, size)."""


def _zeroed(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Rows in float64, zeros in place of those that are not kept.

    Zero times NaN is NaN, so weights of zero would not do; and a product of fewer rows rounds the others differently.

    Returns:
        As many rows.
    """
    return rows.double() if keep is None else torch.where(keep[:, None], rows.double(), 0.0)


def _norms(rows: Tensor) -> Tensor:
    out: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return out


class Rows:
    """Gradients that are stored, one row per record."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.flatten(1).double() if values.numel() <= _SMALL else values.flatten(1)

    def squares(self) -> Tensor:
        """Squared norms."""
        return _norms(self._values).square_()

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """Weighted sum."""
        return weights @ _zeroed(self._values, keep)

    def rows(self) -> Tensor:
        """All gradients."""
        return self._values


@dataclass(frozen=True)
class Outer:
    """Rank-one gradients d_i a_iᵀ, never formed.

    Attributes:
        left: d, (records, out).
        right: a, (records, in).
    """

    left: Tensor
    right: Tensor

    def squares(self) -> Tensor:
        """‖d_i‖²‖a_i‖²."""
        return (_norms(self.left) * _norms(self.right)).square_()

    def weighted(self, weights: Tensor, keep: Tensor | None) -> Tensor:
        """DᵀΛA."""
        left, right = _zeroed(self.left, keep), _zeroed(self.right, keep)
        return ((weights[:, None] * left).T @ right).reshape(-1)

    def rows(self) -> Tensor:
        """All gradients, formed."""
        return torch.einsum("io,ij->ioj", self.left, self.right).flatten(1)


# -- layers with parameters ---------------------------------------------------------------------------------


def _linear(layer: nn.Module, a: Tensor, d: Tensor) -> tuple[Gradient, Gradient]:
    if a.ndim == 2:
        return Outer(d, a), Rows(d)
    a, d = a.flatten(1, -2), d.flatten(1, -2)
    return Rows(torch.bmm(d.transpose(1, 2), a)), Rows(d.sum(dim=1))


def _convolution(layer: nn.Module, a: Tensor, d: Tensor) -> tuple[Gradient, Gradient]:
    """Uses one group per record, so that PyTorch's weight gradient separates them."""
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    m, out = d.shape[:2]
    like = layer.weight.detach().new_empty(()).expand(m * out, *layer.weight.shape[1:])  # only its shape is read
    _, weight, _ = torch.ops.aten.convolution_backward(
        d.reshape(1, m * out, *d.shape[2:]),
        a.reshape(1, m * a.shape[1], *a.shape[2:]),
        like,
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        False,
        [0] * (a.ndim - 2),
        m,
        [False, True, False],
    )
    return Rows(weight.reshape(m, -1)), Rows(d.flatten(2).sum(dim=2))


def _group_norm(layer: nn.Module, a: Tensor, d: Tensor) -> tuple[Gradient, Gradient]:
    assert isinstance(layer, nn.GroupNorm)
    scaled = d * torch.group_norm(a, layer.num_groups, None, None, layer.eps)
    over = tuple(range(2, a.ndim))
    return (Rows(scaled.sum(dim=over)), Rows(d.sum(dim=over))) if over else (Rows(scaled), Rows(d))


def _layer_norm(layer: nn.Module, a: Tensor, d: Tensor) -> tuple[Gradient, Gradient]:
    assert isinstance(layer, nn.LayerNorm)
    scaled = d * layer_norm(a, layer.normalized_shape, eps=layer.eps)
    over = tuple(range(1, a.ndim - len(layer.normalized_shape)))
    return (Rows(scaled.sum(dim=over)), Rows(d.sum(dim=over))) if over else (Rows(scaled), Rows(d))


def _plain_convolution(layer: nn.Module) -> bool:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


Rule = Callable[[nn.Module, Tensor, Tensor], tuple[Gradient, Gradient]]
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


RULES: dict[type[nn.Module], tuple[Run, Rule]] = {
    nn.Linear: (_run_linear, _linear),
    nn.Conv1d: (_run_convolution, _convolution),
    nn.Conv2d: (_run_convolution, _convolution),
    nn.Conv3d: (_run_convolution, _convolution),
    nn.GroupNorm: (_run_group_norm, _group_norm),
    nn.LayerNorm: (_run_layer_norm, _layer_norm),
}
"""For each layer, its function, and the gradients of (weight, bias) from its input and output gradient."""
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
    rule: Rule | None

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
    run, rule = RULES.get(type(module), (None, None))
    if rule is None and type(module) not in RECORD_LOCAL:
        return False
    if rule is _convolution and not _plain_convolution(module):
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
        return all(link.rule in (None, _linear) for link in self._links)

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
            out[f"{link.name}weight"], out[f"{link.name}bias"] = link.rule(link.layer, befores.pop(), slopes.pop())
        return out


def _out_of_place(layer: nn.Module) -> nn.Module:
    """The same layer, which does not overwrite its input: gradients are computed from it."""
    if not getattr(layer, "inplace", False):
        return layer
    plain = copy.copy(layer)
    plain.inplace = False  # type: ignore[assignment]
    return plain
