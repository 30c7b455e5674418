"""Hessian-vector products against dense autograd and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from tacit.errors import InvalidInput
from tacit.torch.curvature import HessianProduct, dense_hessian
from tacit.torch.objective import Objective, RecordLoss

torch.set_num_threads(1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(model: nn.Module) -> nn.Module:
    g = seeded(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return model.double()


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
    "cnn": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
    "layernorm": lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Softplus(), nn.Linear(4, 3, bias=False)),
    "attention": lambda: Attention(),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(len(x), 3, 2)
        return self.head(self.mix(y, y, y, need_weights=False)[0].mean(1))


def batch(n: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    g = seeded(2)
    return torch.randn(n, 6, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g)


def autograd_hessian(model: nn.Module, X: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    objective = Objective(model, nn.CrossEntropyLoss())

    def loss(flat: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return nn.functional.cross_entropy(functional_call(model, objective.unflatten(flat), (X,)), y)

    return hessian(loss, objective.flatten(objective.trainable())).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_dense_hessian_is_that_of_autograd(name: str) -> None:
    model, (X, y) = drawn(MODELS[name]()), batch()
    H = dense_hessian(HessianProduct(Objective(model, nn.CrossEntropyLoss()), (X, y), chunk_size=4))
    assert np.allclose(H, autograd_hessian(model, X, y), atol=1e-10)
    assert np.abs(H).max() > 1e-3


def test_product_is_the_finite_difference_of_gradients() -> None:
    model, records = drawn(MODELS["mlp"]()), batch()
    objective = Objective(model, nn.CrossEntropyLoss())
    v = torch.randn(objective.size, generator=seeded(3), dtype=torch.float64)

    def gradient(shift: float) -> torch.Tensor:
        flat = (objective.flatten(objective.trainable()) + shift * v).requires_grad_()
        return torch.autograd.grad(objective.loss(objective.unflatten(flat), records), flat)[0]

    difference = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    assert torch.allclose(HessianProduct(objective, records)(v), difference, atol=1e-8)


@pytest.mark.parametrize("memory", [0, 5000, 2**30])
@pytest.mark.parametrize("chunk_size", [1, 5, 13, 100])
def test_chunks_and_kept_graphs_do_not_matter(chunk_size: int, memory: int) -> None:
    objective, records = Objective(drawn(MODELS["cnn"]()), nn.CrossEntropyLoss()), batch()
    v = torch.randn(objective.size, generator=seeded(3), dtype=torch.float64)
    want = HessianProduct(objective, records, chunk_size=13, memory=0)(v)
    product = HessianProduct(objective, records, chunk_size=chunk_size, memory=memory)
    for _ in range(3):
        assert torch.allclose(product(v), want, atol=1e-12)
    assert product.calls == 3


def test_a_summed_loss_is_divided_by_the_number_of_records() -> None:
    model, records = drawn(MODELS["mlp"]()), batch()
    v = torch.randn(Objective(model, nn.CrossEntropyLoss()).size, generator=seeded(3), dtype=torch.float64)
    mean, total = (
        HessianProduct(Objective(model, nn.CrossEntropyLoss(reduction=r)), records, chunk_size=5)(v)
        for r in ("mean", "sum")
    )
    assert torch.allclose(mean, total, atol=1e-12)


def test_frozen_parameters_do_not_count() -> None:
    model, (X, y) = drawn(MODELS["mlp"]()), batch()
    full = autograd_hessian(model, X, y)
    model[0].weight.requires_grad_(False)
    H = dense_hessian(HessianProduct(Objective(model, nn.CrossEntropyLoss()), (X, y)))
    assert np.allclose(H, full[30:, 30:], atol=1e-10)


def test_linear_and_unused_parameters_have_no_curvature() -> None:
    model = drawn(nn.Linear(6, 1))
    linear = RecordLoss(lambda call, x: call(x).mean())
    H = dense_hessian(HessianProduct(Objective(model, linear), (batch()[0],)))
    assert not H.any()


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: nn.functional.cross_entropy(out @ out.T, torch.arange(len(out))),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)),
        lambda out, y: nn.functional.cross_entropy(out - out.mean(0), y),
    ],
    ids=["contrastive", "class weights", "centred"],
)
def test_losses_over_a_batch_are_refused(loss) -> None:
    with pytest.raises(InvalidInput, match="neither the mean nor the sum"):
        HessianProduct(Objective(drawn(MODELS["mlp"]()), loss), batch())


def test_wrong_shapes_and_infinite_losses_are_refused() -> None:
    model, (X, y) = drawn(MODELS["mlp"]()), batch()
    with pytest.raises(InvalidInput, match="do not take records of shapes"):
        HessianProduct(Objective(model, nn.CrossEntropyLoss()), (X[:, :3], y))
    with pytest.raises(InvalidInput, match="not finite"):
        HessianProduct(Objective(model, lambda out, y: (out / 0).mean()), (X, y))
    with pytest.raises(InvalidInput, match="chunk_size"):
        HessianProduct(Objective(model, nn.CrossEntropyLoss()), (X, y), chunk_size=0)
