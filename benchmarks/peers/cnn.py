"""The GroupNorm CNN of the NoiseCurve paper's Table 4a, and what both sides of a comparison measure with."""

from __future__ import annotations

import pathlib

import torch
from torch import nn

__all__ = ["cnn", "memory", "one_thread", "pictures", "reset_peak"]

GROUPS = 8
"""The paper does not say how many channels a group holds: 2, 4 and 8 here."""


def cnn(channels: int = 3, classes: int = 10, dense: int = 64) -> nn.Sequential:
    """Three convolutions, each normalised in groups, and two dense layers."""
    layers: list[nn.Module] = []
    for inside, outside, stride in ((channels, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(inside, outside, 3, stride, padding=1), nn.GroupNorm(GROUPS, outside), nn.ReLU()]
    head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, dense), nn.ReLU(), nn.Linear(dense, classes))
    return nn.Sequential(*layers, *head)


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random 32 × 32 colour pictures with random labels: as expensive as real ones."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, 32, 32, generator=draw), torch.randint(10, (count,), generator=draw)


def one_thread() -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)


def reset_peak() -> float:
    """Forget the peak so far (of imports, say); the resident megabytes that are left."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # the first one imports 800 modules, 100 MB
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def memory(base: float) -> float:
    """Peak resident megabytes above ``base`` since ``reset_peak``."""
    return _status("VmHWM") - base


def _status(field: str) -> float:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")
