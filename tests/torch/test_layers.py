"""The fast way through chains of layers is the slow way, and is taken only where records stay apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from summing import Summed
from torch import nn

from tacit.torch import ways as module
from tacit.torch.layers import RECORD_LOCAL, RULES, chain_of
from tacit.torch.objective import Objective
from tacit.torch.records import Records

G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(7, 3, 8, 8, generator=G, dtype=torch.float64)
ROWS = torch.randn(7, 6, generator=G, dtype=torch.float64)
SERIES = torch.randn(7, 3, 12, generator=G, dtype=torch.float64)
TOKENS = torch.randn(7, 5, 6, generator=G, dtype=torch.float64)
VOLUMES = torch.randn(7, 2, 4, 4, 4, generator=G, dtype=torch.float64)

CHAINS = {
    "mlp": (ROWS, lambda: [nn.Linear(6, 9), nn.ReLU(inplace=True), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 3)]),
    "no bias": (ROWS, lambda: [nn.Linear(6, 4, bias=False), nn.GELU(), nn.Linear(4, 3)]),
    "first normalised": (ROWS, lambda: [nn.LayerNorm(6), nn.Linear(6, 3)]),
    "group norm of rows": (ROWS, lambda: [nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.SiLU(), nn.Linear(8, 3)]),
    "cnn": (
        IMAGES,
        lambda: [
            *(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False), nn.ELU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)),
        ],
    ),
    "series": (SERIES, lambda: [nn.Conv1d(3, 5, 3), nn.LeakyReLU(), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(25, 3)]),
    "volumes": (
        VOLUMES,
        lambda: [nn.Conv3d(2, 3, 2), nn.Softplus(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 3)],
    ),
    "tokens": (
        TOKENS,
        lambda: [nn.Linear(6, 4), nn.LayerNorm((5, 4)), nn.Tanh(), nn.Linear(4, 4), nn.Flatten(), nn.Linear(20, 3)],
    ),
    "layer norm of tokens": (TOKENS, lambda: [nn.LayerNorm(6), nn.Linear(6, 2), nn.Flatten(), nn.Linear(10, 3)]),
    "not affine": (ROWS, lambda: [nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 3)]),
    "nested": (ROWS, lambda: [nn.Sequential(nn.Linear(6, 5), nn.Sigmoid()), nn.Sequential(nn.Linear(5, 3))]),
}  # fmt: skip


def gradients(model: nn.Module, X: torch.Tensor, *, chain: bool, chunk: int = 3, C: float = 0.3) -> np.ndarray:
    y = torch.randint(0, 3, (7,), generator=torch.Generator().manual_seed(1))
    objective = Objective(model, nn.CrossEntropyLoss())
    total = Summed(objective, Records((X, y)), C, chunk_size=chunk)
    assert chain_of(model) is not None
    theta = objective.flatten(objective.trainable()).numpy()[None]
    with pytest.MonkeyPatch.context() as patch:
        if not chain:
            patch.setattr(module, "chain_of", lambda model: None)
        each = total.contributions(theta, np.arange(7))[0]
        return np.concatenate([total.total(theta, np.ones((1, 7), bool))[0], each.ravel()])


@pytest.mark.parametrize("name", CHAINS)
def test_both_ways_agree(name):
    torch.manual_seed(0)
    X, layers = CHAINS[name]
    model = nn.Sequential(*layers()).double()
    fast, slow = gradients(model, X, chain=True), gradients(model, X, chain=False)
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)


def test_frozen_layers_and_single_parameters_are_left_out():
    torch.manual_seed(0)
    X, layers = CHAINS["cnn"]
    model = nn.Sequential(*layers()).double()
    model[0].weight.requires_grad_(False)
    model[4].weight.requires_grad_(False)
    fast, slow = gradients(model, X, chain=True), gradients(model, X, chain=False)
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)


def test_every_rule_is_exercised():
    seen = {type(m) for X, layers in CHAINS.values() for m in nn.Sequential(*layers()).modules()}
    assert set(RULES) <= seen


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_one_bad_record_stays_alone(bad):
    torch.manual_seed(0)
    X, layers = CHAINS["cnn"]
    X = X.clone()
    X[2] = bad
    model = nn.Sequential(*layers()).double()
    y = torch.zeros(7, dtype=torch.int64)
    objective = Objective(model, nn.CrossEntropyLoss())
    total = Summed(objective, Records((X, y)), 0.3, chunk_size=4)
    theta = objective.flatten(objective.trainable()).numpy()[None]
    mask = np.ones((1, 7), bool)
    everybody = total.total(theta, mask)
    mask[0, 2] = False
    others = total.total(theta, mask)
    assert np.isfinite(everybody).all()
    assert np.linalg.norm(everybody - others) <= 0.3


class Mixing(nn.Linear):
    """A linear layer that looks at the whole batch: exactly what must not be trusted."""

    def forward(self, x):
        return super().forward(x - x.mean(dim=0))


def hooked() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.register_forward_hook(lambda module, inputs, output: output - output.mean(dim=0))
    return layer


def tied() -> nn.Module:
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    "model",
    [
        Mixing(6, 3),
        nn.Sequential(Mixing(6, 3)),
        hooked(),
        nn.Sequential(nn.Linear(6, 3), hooked()),
        tied(),
        nn.Sequential(nn.Linear(6, 3), nn.Softmax(dim=0)),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
        nn.Sequential(nn.Conv2d(3, 3, 3, groups=3)),
        nn.Sequential(nn.Conv2d(3, 3, 3, padding="same")),
        nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")),
        nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 3)),
        nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 3)),
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
    ],
    ids=lambda m: str(type(m).__name__),
)
def test_anything_else_takes_the_safe_way(model):
    assert chain_of(model) is None


def test_mixing_layers_do_not_mix_on_the_safe_way():
    torch.manual_seed(0)
    model = nn.Sequential(Mixing(6, 3)).double()
    objective = Objective(model, nn.CrossEntropyLoss())
    theta = objective.flatten(objective.trainable()).numpy()[None]
    y = torch.zeros(7, dtype=torch.int64)
    total = Summed(objective, Records((ROWS, y)), 0.3)
    alone = sum(total.total(theta, np.arange(7)[None] == i) for i in range(7))
    np.testing.assert_allclose(total.total(theta, np.ones((1, 7), bool)), alone, rtol=1e-9)


def test_a_chunk_is_never_taken_for_the_channels_of_one_image():
    """Images without a channel axis: a chunk of 16 would look like one image of 16 channels."""
    torch.manual_seed(0)
    X = torch.randn(16, 6, 6, dtype=torch.float64)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(16, 3)).double()
    wide = nn.Sequential(nn.Conv2d(16, 2, 3), nn.Flatten(0), nn.Linear(32, 3)).double()
    assert chain_of(wide) is None
    assert chain_of(model).gradients(dict(model.named_parameters()), X, lambda out: out) is None


def test_dropout_masks_differ_between_records():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).double()
    objective = Objective(model, nn.CrossEntropyLoss())
    total = Summed(objective, Records((torch.ones(7, 6).double(), torch.zeros(7).long())), 1.0)
    rows = total.contributions(objective.flatten(objective.trainable()).numpy()[None], np.arange(7))[0]
    assert len({tuple(np.abs(r) > 0) for r in rows}) > 2


def test_the_lists_do_not_overlap():
    assert not set(RECORD_LOCAL) & set(RULES)
