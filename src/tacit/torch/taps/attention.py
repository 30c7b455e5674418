"""The rule of ``nn.MultiheadAttention``, which computes with its matrices itself."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from tacit.torch.taps.factors import Factors, Gradient, Rows
from tacit.torch.taps.rules import Site, Tap, positions, register_tap

__all__ = ["AttentionTap"]

_PARTS = ("query", "key", "value")


@register_tap(nn.MultiheadAttention)
class AttentionTap(Tap):
    """Projections of query, key and value by one matrix in three parts, attention, and an output projection."""

    def parameters(self, layer: nn.Module) -> tuple[str, ...]:
        """Of the projections in and out."""
        return ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")

    def fits(self, layer: nn.Module) -> bool:
        """Equal widths, no extra keys."""
        layer = cast("nn.MultiheadAttention", layer)
        return layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn

    def forward(self, layer: nn.Module, site: Site, *args: Any, **kwargs: Any) -> Any:
        """As ``nn.MultiheadAttention`` computes it, without fused kernels."""
        return _attended(cast("nn.MultiheadAttention", layer), site, *args, **kwargs)

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Of a third of the matrix, its other rows being zero; of the whole for self-attention."""
        left, right = positions(d), positions(a)
        if name == "out":
            return {"out_proj.weight": Factors(left, right), "out_proj.bias": Rows(left.sum(1))}
        if name in _PARTS:
            width, part = left.shape[2], _PARTS.index(name)
            left = torch.nn.functional.pad(left, (part * width, (2 - part) * width))
        return {"in_proj_weight": Factors(left, right), "in_proj_bias": Rows(left.sum(1))}


def _attended(
    layer: nn.MultiheadAttention,
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Outputs and, if they are needed, attention weights; the arguments are those of the layer."""
    batched, itself = query.ndim == 3, query is key and key is value
    shaped = [_records_first(x, batched, layer.batch_first) for x in (query, key, value)]
    q, k, v = (_by_head(x, layer.num_heads) for x in _projected(layer, site, shaped, itself))
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
    scores = scores + _mask(attn_mask, key_padding_mask, scores) if _given(attn_mask, key_padding_mask) else scores
    weights = dropout(scores.softmax(-1), layer.dropout, layer.training)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    out = site(mixed, linear(mixed, layer.out_proj.weight, layer.out_proj.bias), "out")
    if not batched:
        out = out[0]
    elif not layer.batch_first:
        out = out.transpose(0, 1)
    if not need_weights:
        return out, None
    weights = weights.mean(1) if average_attn_weights else weights
    return out, weights if batched else weights[0]


def _given(*masks: Tensor | None) -> bool:
    return any(mask is not None for mask in masks)


def _records_first(x: Tensor, batched: bool, batch_first: bool) -> Tensor:
    if not batched:
        return x[None]
    return x if batch_first else x.transpose(0, 1)


def _projected(layer: nn.MultiheadAttention, site: Site, shaped: list[Tensor], itself: bool) -> list[Tensor]:
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    if itself:
        return list(site(shaped[0], linear(shaped[0], weight, bias), "all").chunk(3, dim=-1))
    weights = weight.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    each = zip(_PARTS, shaped, weights, biases, strict=True)
    return [site(x, linear(x, w, b), name) for name, x, w, b in each]


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def _mask(attn_mask: Tensor | None, padding: Tensor | None, scores: Tensor) -> Tensor:
    """What is added to the scores, (records, heads or 1, …)."""
    total = scores.new_zeros(())
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.reshape(-1, scores.shape[1], *attn_mask.shape[1:])
        total = total + _added(attn_mask, scores)
    if padding is not None:
        padding = padding if padding.ndim == 2 else padding[None]
        total = total + _added(padding[:, None, None, :], scores)
    return total


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)
