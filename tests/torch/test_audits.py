"""The trainer attacked through the code that users call, and bugs planted in it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tacit.audit import audit_gdp
from tacit.noise import Strategy, square_root
from tacit.release import channel as channel_module
from tacit.torch import TrainingPlan
from tacit.torch import gradients as gradients_module
from tacit.torch.in_place import InPlace

N = 200
STEPS = 2
SIGMA = 0.8


class Offset(nn.Module):
    """θ, whatever the input: the gradient of the loss below is the record itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return x * self.w


def product(output, target):
    return (output * 0 + output).sum() + 0 * target.sum()


def sampler(value: float, bands: int, adjacency: str, sigma: float = SIGMA):
    """Scores of runs on the records (value, 0, 0, 0): a matched filter over the whole stream of releases."""
    data = torch.tensor([[value], [0.0], [0.0], [0.0]], dtype=torch.float64), torch.zeros(4)
    strategy = Strategy(square_root(STEPS, bands))
    C = strategy.to_dense()
    seeds = itertools.count(round(1e6 * (value + 10)))  # an audit of what is right fails once in a while: not at random

    def score() -> float:
        plan = TrainingPlan(
            4, noise_multiplier=sigma, delta=1e-4, batch_size=4 // bands, steps=STEPS, learning_rate=1.0,
            strategy=strategy if bands > 1 else "dpsgd", adjacency=adjacency, random_state=next(seeds),
        )  # fmt: skip
        model, seen = Offset(), [0.0]
        for batch in plan.batches(data):
            plan.step(model, product, batch)
            seen.append(float(model.w.detach()))
        sums = -np.diff(seen) * plan.batch_size
        white = C @ sums  # C·G + Z: the record adds Σ_{k∈its steps} C[:, k]
        return float(sum(C[:, k] @ white for k in range(STEPS)))

    return lambda k: np.array([score() for _ in range(k)])


def verdict(bands: int, adjacency: str, loud: float = 1.0):
    other = 0.0 if adjacency == "zero-out" else -loud
    here, there = sampler(loud, bands, adjacency), sampler(other, bands, adjacency)
    plan = TrainingPlan(
        4, noise_multiplier=SIGMA, delta=1e-4, batch_size=4 // bands, steps=STEPS,
        strategy=Strategy(square_root(STEPS, bands)) if bands > 1 else "dpsgd", adjacency=adjacency,
    )  # fmt: skip
    return audit_gdp(here, there, N).verdict(plan.certificate)


@pytest.mark.parametrize(("bands", "adjacency"), [(2, "zero-out"), (2, "replace-one"), (1, "replace-one")])
def test_training_stays_below_its_certificate(bands, adjacency):
    assert not verdict(bands, adjacency).violated


def test_noise_too_small_is_caught(monkeypatch):
    right = channel_module.noise_std
    monkeypatch.setattr(channel_module, "noise_std", lambda *a: 0.5 * right(*a))
    assert verdict(2, "replace-one").violated


def test_clipping_switched_off_is_caught(monkeypatch):
    monkeypatch.setattr(gradients_module, "_SHRINK", dict.fromkeys(gradients_module._SHRINK, 10.0))
    assert verdict(1, "replace-one", loud=5.0).violated


def test_noise_that_is_added_to_the_mean_is_caught(monkeypatch):
    """Dividing the sum but not the noise's scale: σ shrinks by the batch size."""
    right = InPlace.add_noise

    def mean_first(self, sigma, *how):
        right(self, sigma / 4, *how)

    monkeypatch.setattr(InPlace, "add_noise", mean_first)
    assert verdict(1, "replace-one").violated


def test_the_same_row_of_noise_twice_is_caught(monkeypatch):
    """A stream that forgets to advance repeats its noise, and differences of releases are bare."""
    right, keys = InPlace.add_noise, list[bytes]()

    def stuck(self, sigma, key, *how):
        keys.append(key)
        right(self, sigma, keys[-1 - (len(keys) + 1) % 2], *how)

    monkeypatch.setattr(InPlace, "add_noise", stuck)

    def bare(value: float):
        data = torch.tensor([[value], [0.0], [0.0], [0.0]], dtype=torch.float64), torch.zeros(4)
        seeds = itertools.count(round(1e6 * (value + 1)))

        def score() -> float:
            plan = TrainingPlan(
                4, noise_multiplier=SIGMA, delta=1e-4, batch_size=2, steps=2, strategy="dpsgd", random_state=next(seeds)
            )
            model, seen = Offset(), [0.0]
            for batch in plan.batches(data):
                plan.step(model, product, batch)
                seen.append(float(model.w.detach()))
            return abs(float(np.diff(np.diff(seen))[0]))

        return lambda k: np.array([score() for _ in range(k)])

    plan = TrainingPlan(4, noise_multiplier=SIGMA, delta=1e-4, batch_size=2, steps=2, strategy="dpsgd")
    assert audit_gdp(bare(1.0), bare(0.0), N).verdict(plan.certificate).violated
