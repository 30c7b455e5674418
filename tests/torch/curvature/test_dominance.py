"""ρ(H, Ĥ) against explicit matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import eigh
from torch import nn

from tacit.errors import InvalidInput
from tacit.torch.curvature import dominance, hessian, positive_part


def random_pair(seed: int, p: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((2, p, p))
    return A + A.T, B @ B.T + 0.1 * np.eye(p)


@pytest.mark.parametrize("seed", range(5))
def test_generalised_eigenvalue(seed: int) -> None:
    H, B = random_pair(seed)
    rho = dominance(H, B)
    assert rho == pytest.approx(eigh(H, B, eigvals_only=True)[-1])
    assert dominance(rho * B, B) == pytest.approx(rho)
    # Theorem 5.1: ρ is the least factor that makes Ĥ a bound
    assert np.linalg.eigvalsh(1.0001 * rho * B - H)[0] > 0 > np.linalg.eigvalsh(0.999 * rho * B - H)[0]


@pytest.mark.parametrize(
    ("H", "B", "rho"),
    [
        (np.diag([1.0, 0.0]), np.diag([2.0, 0.0]), 0.5),  # 0/0 = 0
        (np.diag([-1.0, 0.0]), np.diag([2.0, 0.0]), 0.0),  # the zero direction is the largest
        (np.diag([-1.0, -3.0]), np.diag([2.0, 0.0]), -0.5),
        (np.diag([1.0, 1e-3]), np.diag([2.0, 0.0]), math.inf),
        (np.array([[1.0, 0.5], [0.5, 0.0]]), np.diag([2.0, 0.0]), math.inf),  # coupled to a flat direction
        (np.array([[1.0, 0.5], [0.5, -1.0]]), np.diag([2.0, 0.0]), 0.625),  # the null part helps: 1 + 0.25
        (np.zeros((2, 2)), np.zeros((2, 2)), 0.0),
    ],
)
def test_null_directions(H, B, rho) -> None:
    assert dominance(H, B) == pytest.approx(rho)
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((2, 2)))
    assert dominance(Q @ H @ Q.T, Q @ B @ Q.T) == pytest.approx(rho)


@pytest.mark.parametrize("seed", range(3))
def test_the_supremum_is_approached_by_random_vectors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((4, 4)), rng.standard_normal((4, 2))
    H, B = A + A.T - 6 * np.eye(4), B @ B.T
    rho = dominance(H, B)
    v = rng.standard_normal((4, 200_000))
    assert ((v * (H @ v)).sum(0) / (v * (B @ v)).sum(0)).max() <= rho + 1e-9
    assert np.linalg.eigvalsh(H - (rho + 1e-6) * B)[-1] <= 1e-6


def test_refusals() -> None:
    I = np.eye(2)
    for H, B, message in [
        (I, -I, "positive_part"),
        (I, np.eye(3), "same parameters"),
        (np.ones(2), I, "square"),
        (np.array([[0.0, 1.0], [0.0, 0.0]]), I, "symmetric"),
        (np.nan * I, I, "finite"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            dominance(H, B)
    with pytest.raises(InvalidInput, match="not formed"):
        hessian(nn.Linear(80, 80), nn.MSELoss(), np.zeros((3, 80)), random_labels=True)


def test_logistic_regression_is_dominated_by_random_labels() -> None:
    """Section 5.2: at w = 0 the Hessian is ¼XᵀX/n, above that of every other w."""
    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(50, 4, generator=g), (torch.rand(50, 1, generator=g) > 0.5).float()
    model, zero = nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        zero.weight.zero_()
        model.weight.copy_(torch.randn(1, 4, generator=g))
    loss = nn.BCEWithLogitsLoss()
    H, H_hat = hessian(model, loss, (X, y)), hessian(zero, loss, X, classes=2, random_labels=True)
    assert np.allclose(H_hat, (X.T @ X).double().numpy() / 200, atol=1e-6)
    assert 0 < dominance(H, H_hat) <= 1
    assert dominance(H_hat, H) > 1


def test_positive_part() -> None:
    H, _ = random_pair(1)
    value = np.linalg.eigvalsh(positive_part(H))
    assert np.allclose(value, np.maximum(np.linalg.eigvalsh(H), 0))
    assert dominance(H, positive_part(H)) <= 1 + 1e-9
