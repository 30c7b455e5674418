"""Rules of layers: which gradients follow from the input of a layer and the gradient of its output.

``@register_tap(MyLayer)`` adds the rule of a layer of one's own, by its exact type. Every rule is compared with
``torch.func`` on made-up records before a run is charged, so a wrong rule is found, not used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit.torch.taps.factors import Factors, Gradient, Looked, Rows

__all__ = ["RULES", "Site", "Tap", "register_tap", "rule_for"]


class Site(Protocol):
    """Where a layer's output is tapped: ``site(input, output)`` returns the output; several sites have names."""

    def __call__(self, before: Tensor, after: Tensor, name: str = "") -> Tensor:
        """The output, with a tap on it."""

    def see(self, before: Tensor, name: str = "") -> None:
        """Take another input for a site of this call: one that is known only later."""


class Tap(ABC):
    """The rule of one type of layer.

    The default ``forward`` runs the layer and taps its output. A layer that computes with several matrices overrides
    it, and taps the output of each by a name.
    """

    def parameters(self, layer: nn.Module) -> tuple[str, ...]:
        """Names of the layer's parameters that the rule knows; the layer must hold no others."""
        return ("weight", "bias")

    def fits(self, layer: nn.Module) -> bool:
        """Whether the rule holds for this layer's settings."""
        return True

    def forward(self, layer: nn.Module, site: Site, *args: Any, **kwargs: Any) -> Any:
        """The layer's output, tapped."""
        before = args[0] if args else kwargs["input"]
        return site(before, type(layer).forward(layer, *args, **kwargs))

    @abstractmethod
    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Per-record gradients by the names of parameters.

        Args:
            layer: with its settings; its parameters may be read, but not the input of the call.
            name: of the site.
            a: what the site was given, for a batch of one record, with a leading axis of records before it.
            d: the gradient of what the site returned, with the same leading axis.

        Returns:
            The gradients of this use; a parameter without one has none.
        """


RULES: dict[type[nn.Module], Tap] = {}
"""The rule of each known layer, by exact type."""

Rule = TypeVar("Rule", bound=type[Tap])


def register_tap(*layers: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Add the rule of some types of layers (a class decorator).

    Args:
        layers: exact types; a subclass has no rule, because it may compute something else.

    Returns:
        The decorator.
    """

    def add(rule: Rule) -> Rule:
        for layer in layers:
            RULES[layer] = rule()
        return rule

    return add


NAMED: dict[str, Tap] = {}
"""Rules of layers of libraries that need not be installed, by the full name of the type."""


def rule_for(layer: nn.Module) -> Tap | None:
    """The rule of a layer whose parameters and settings it knows, or None."""
    kind = type(layer)
    rule = RULES.get(kind) or NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
    if rule is None or "forward" in vars(layer) or not rule.fits(layer):
        return None
    known = set(rule.parameters(layer))
    return rule if known.issuperset(name for name, _ in layer.named_parameters()) else None


def positions(values: Tensor, axes: int = 1) -> Tensor:
    """(records, positions, the last axes as one)."""
    return values.reshape(len(values), -1, values.shape[-axes:].numel())


def _by_matrix(d: Tensor, a: Tensor) -> dict[str, Gradient]:
    return {"weight": Factors(d, a), "bias": Rows(d.sum(1))}


@register_tap(nn.Linear, nn.modules.linear.NonDynamicallyQuantizableLinear)
class LinearTap(Tap):
    """W ↦ W·a + b at each position."""

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Of the matrix d and a as factors, of the bias Σ_t d_t."""
        return _by_matrix(positions(d), positions(a))


class TransposedLinearTap(Tap):
    """x ↦ x·W + b at each position."""

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Of the matrix a and d as factors, of the bias Σ_t d_t."""
        left = positions(d)
        return {"weight": Factors(positions(a), left), "bias": Rows(left.sum(1))}


NAMED["transformers.pytorch_utils.Conv1D"] = TransposedLinearTap()


@register_tap(nn.Embedding)
class EmbeddingTap(Tap):
    """A table whose rows are looked up."""

    def fits(self, layer: nn.Module) -> bool:
        """Not if looking up changes the table, or scales gradients by how often an id occurs."""
        layer = cast("nn.Embedding", layer)
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Those of the outputs, at the ids; none at padding."""
        layer = cast("nn.Embedding", layer)
        ids, left = a.reshape(len(a), -1), positions(d)
        if layer.padding_idx is not None:
            left = left * (ids != layer.padding_idx)[..., None]
        return {"weight": Looked(ids, left, layer.num_embeddings)}


@register_tap(nn.EmbeddingBag)
class BagTap(Tap):
    """The sum or mean of looked-up rows, one bag for each record."""

    def fits(self, layer: nn.Module) -> bool:
        """Sums and means without padding."""
        layer = cast("nn.EmbeddingBag", layer)
        plain = layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
        return plain and layer.mode in ("sum", "mean") and layer.padding_idx is None

    def forward(self, layer: nn.Module, site: Site, *args: Any, **kwargs: Any) -> Any:
        """Looked up and added; bags are rows of ids."""
        layer = cast("nn.EmbeddingBag", layer)
        ids = args[0] if args else kwargs["input"]
        if len(args) > 1 or len(kwargs) > (not args) or ids.ndim != 2:
            raise NotImplementedError("bags with offsets or weights have no rule")
        rows = functional.embedding(ids, layer.weight)
        return site(ids, rows.sum(1) if layer.mode == "sum" else rows.mean(1))

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Every id of a bag has the bag's d, or its share."""
        layer = cast("nn.EmbeddingBag", layer)
        length = a.shape[-1]
        left = d if layer.mode == "sum" else d / length
        left = left[..., None, :].expand(*left.shape[:-1], length, left.shape[-1])
        return {"weight": Looked(a.reshape(len(a), -1), positions(left), layer.num_embeddings)}


@register_tap(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionTap(Tap):
    """A convolution; one group for each record lets PyTorch's weight gradient separate them."""

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """The gradients of all records, formed."""
        layer = cast("nn.Conv2d", layer)
        axes = layer.weight.ndim - 1
        a, d = _pictures(a, axes), _pictures(d, axes)
        weight = _convolved(layer, a.flatten(0, 1), d.flatten(0, 1)).view(*a.shape[:2], -1)
        return {"weight": Rows(weight.sum(1)), "bias": Rows(d.flatten(3).sum((1, 3)))}


def _pictures(values: Tensor, axes: int) -> Tensor:
    """(records, pictures, channels, …): a picture may have come without an axis of pictures."""
    return values if values.ndim == axes + 2 else values[:, None]


def _convolved(layer: nn.Conv2d, a: Tensor, d: Tensor) -> Tensor:
    """The weight gradient of each picture, flat."""
    padding: Any = layer.padding
    if layer.padding_mode != "zeros":
        a = functional.pad(a, layer._reversed_padding_repeated_twice, layer.padding_mode)
        padding = [0] * (a.ndim - 2)
    elif isinstance(padding, str):
        a = functional.pad(a, layer._reversed_padding_repeated_twice)
        padding = [0] * (a.ndim - 2)
    m, out = d.shape[:2]
    like = layer.weight.detach().new_empty(()).expand(m * out, *layer.weight.shape[1:])  # only its shape is read
    images, slopes = a.reshape(1, m * a.shape[1], *a.shape[2:]), d.reshape(1, m * out, *d.shape[2:])
    how = (layer.stride, padding, layer.dilation, False, [0] * (a.ndim - 2), m * layer.groups, [False, True, False])
    weight: Tensor = torch.ops.aten.convolution_backward(slopes, images, like, None, *how)[1]
    return weight.reshape(m, -1)


@register_tap(nn.LayerNorm, nn.RMSNorm)
class LastAxesNormTap(Tap):
    """An affine map, number by number, after a normalisation over the last axes."""

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Σ over positions of d·x̂, and of d."""
        layer = cast("nn.LayerNorm", layer)
        shape = list(layer.normalized_shape)
        norm = functional.rms_norm if isinstance(layer, nn.RMSNorm) else functional.layer_norm
        scaled = d * norm(a, shape, eps=layer.eps)
        return {"weight": Rows(positions(scaled, len(shape)).sum(1)), "bias": Rows(positions(d, len(shape)).sum(1))}


def _by_channel(normed: Tensor, d: Tensor) -> dict[str, Gradient]:
    """Σ over pictures and positions of d·x̂, and of d, for (records, pictures, channels, …)."""
    return {"weight": Rows(_over_positions(d * normed)), "bias": Rows(_over_positions(d))}


def _over_positions(values: Tensor) -> Tensor:
    return values.flatten(3).sum((1, 3)) if values.ndim > 3 else values.sum(1)


@register_tap(nn.GroupNorm)
class GroupNormTap(Tap):
    """An affine map by channel, after a normalisation over groups of channels."""

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Σ over positions of d·x̂, and of d."""
        layer = cast("nn.GroupNorm", layer)
        normed = functional.group_norm(a.flatten(0, 1), layer.num_groups, eps=layer.eps)
        return _by_channel(normed.view_as(a), d)


@register_tap(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormTap(Tap):
    """An affine map by channel, after a normalisation of each channel."""

    def fits(self, layer: nn.Module) -> bool:
        """By the record's own statistics."""
        return not cast("nn.InstanceNorm2d", layer).track_running_stats

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Σ over positions of d·x̂, and of d."""
        axes = 2 if isinstance(layer, nn.InstanceNorm1d) else 3 if isinstance(layer, nn.InstanceNorm2d) else 4
        a, d = _pictures(a, axes), _pictures(d, axes)
        normed = functional.instance_norm(a.flatten(0, 1), eps=cast("nn.InstanceNorm2d", layer).eps)
        return _by_channel(normed.view_as(a), d)


@register_tap(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class PublicNormTap(Tap):
    """Batch normalisation by public statistics (in ``eval`` mode): an affine map by channel."""

    def fits(self, layer: nn.Module) -> bool:
        """With running statistics that stay as they are."""
        layer = cast("nn.BatchNorm2d", layer)
        return not layer.training and layer.running_mean is not None and layer.running_var is not None

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Σ over positions of d·x̂, and of d."""
        layer = cast("nn.BatchNorm2d", layer)
        normed = functional.batch_norm(a.flatten(0, 1), layer.running_mean, layer.running_var, eps=layer.eps)
        return _by_channel(normed.view_as(a), d)
