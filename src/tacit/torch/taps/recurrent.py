"""The rule of recurrent layers, which are computed step by step with one matrix for inputs and one for hidden states.

PyTorch's fused kernels of LSTM and GRU are not batched by ``vmap`` (a loop over records, or an error).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence

from tacit.torch.taps.factors import Factors, Gradient, Rows
from tacit.torch.taps.rules import Site, Tap, positions, register_tap

__all__ = ["RecurrentTap"]

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]


def _lstm(gi: Tensor, gh: Tensor, state: State) -> State:
    i, f, g, o = (gi + gh).chunk(4, dim=-1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(gi: Tensor, gh: Tensor, state: State) -> State:
    (ri, zi, ni), (rh, zh, nh) = gi.chunk(3, dim=-1), gh.chunk(3, dim=-1)
    z = (zi + zh).sigmoid()
    n = (ni + (ri + rh).sigmoid() * nh).tanh()
    return ((1 - z) * n + z * state[0],)


def _tanh(gi: Tensor, gh: Tensor, state: State) -> State:
    return ((gi + gh).tanh(),)


def _relu(gi: Tensor, gh: Tensor, state: State) -> State:
    return ((gi + gh).relu(),)


@register_tap(nn.LSTM, nn.GRU, nn.RNN)
class RecurrentTap(Tap):
    """Gates from inputs and hidden states; the same matrices at every step."""

    def parameters(self, layer: nn.Module) -> tuple[str, ...]:
        """All of them."""
        return tuple(name for name, _ in layer.named_parameters())

    def fits(self, layer: nn.Module) -> bool:
        """Without a projection of the output."""
        return cast("nn.RNNBase", layer).proj_size == 0

    def forward(self, layer: nn.Module, site: Site, *args: Any, **kwargs: Any) -> Any:
        """As the layer computes it, step by step."""
        return _run(cast("nn.RNNBase", layer), site, *args, **kwargs)

    def gradients(self, layer: nn.Module, name: str, a: Tensor, d: Tensor) -> dict[str, Gradient]:
        """Of the matrix d and a as factors, of the bias Σ_t d_t."""
        left = positions(d)
        return {f"weight_{name}": Factors(left, positions(a)), f"bias_{name}": Rows(left.sum(1))}


def _run(layer: nn.RNNBase, site: Site, inputs: Tensor | PackedSequence, hx: Any = None) -> tuple[Tensor, Any]:
    if isinstance(inputs, PackedSequence):
        raise NotImplementedError("packed sequences have no rule")
    batched, several = inputs.ndim == 3, isinstance(layer, nn.LSTM)
    x = inputs if batched else inputs.unsqueeze(0 if layer.batch_first else 1)
    x = x if layer.batch_first else x.transpose(0, 1)  # records, steps, features
    given = () if hx is None else (hx if several else (hx,))
    given = tuple(part if batched else part.unsqueeze(1) for part in given)
    last: list[State] = []
    for number in range(layer.num_layers):
        sides = []
        for side in range(2 if layer.bidirectional else 1):
            none = x.new_zeros(len(x), layer.hidden_size)
            begin = tuple(part[len(last)] for part in given) or (none,) * (2 if several else 1)
            out, end = _direction(layer, site, x, begin, f"l{number}{'_reverse' * side}")
            sides.append(out)
            last.append(end)
        x = sides[0] if len(sides) == 1 else torch.cat(sides, dim=-1)
        if number + 1 < layer.num_layers:
            x = dropout(x, layer.dropout, layer.training)
    ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    if not batched:
        x, ends = x[0], tuple(end[:, 0] for end in ends)
    elif not layer.batch_first:
        x = x.transpose(0, 1)
    return x, ends if several else ends[0]


def _direction(layer: nn.RNNBase, site: Site, x: Tensor, state: State, name: str) -> tuple[Tensor, State]:
    """Outputs of all steps and the last state of one direction of one layer."""
    kind = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu}
    cell: Cell = kind[layer.mode]
    own = {part: getattr(layer, f"{part}_{name}", None) for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    gates = site(x, linear(x, own["weight_ih"], own["bias_ih"]), f"ih_{name}")  # type: ignore[arg-type]
    added = site(x, torch.zeros_like(gates), f"hh_{name}")  # its gradient is that of the hidden states' gates
    steps = range(x.shape[1])
    before, after = [], []
    for t in reversed(steps) if name.endswith("_reverse") else steps:
        hidden = linear(state[0], own["weight_hh"], own["bias_hh"]) + added[:, t]  # type: ignore[arg-type]
        before.append(state[0])
        state = cell(gates[:, t], hidden, state)
        after.append(state[0])
    if name.endswith("_reverse"):
        before.reverse()
        after.reverse()
    site.see(torch.stack(before, dim=1), f"hh_{name}")
    return torch.stack(after, dim=1), state
