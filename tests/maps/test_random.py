"""What the random maps approximate."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.maps import NormScaler, RandomFourier, RandomRelu, ReluGates
from tacit.maps.fourier import orthogonal_rows

X = np.random.default_rng(0).normal(size=(25, 6))


def gaussian(X, gamma):
    return np.exp(-gamma * ((X[:, None] - X[None]) ** 2).sum(axis=2))


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("gamma", [0.02, 0.1, 0.5])
def test_fourier_features_approximate_the_gaussian_kernel(gamma, orthogonal):
    Z = RandomFourier(20_000, gamma=gamma, orthogonal=orthogonal).fit_transform(X)
    error = np.abs(Z @ Z.T - gaussian(X, gamma)).max()
    assert error < 0.04  # 4 standard errors
    assert np.abs(Z @ Z.T - gaussian(X, 2 * gamma)).max() > 0.1  # and not another one
    assert np.abs(Z @ Z.T - gaussian(X, gamma / 2)).max() > 0.1


def test_orthogonal_frequencies_err_less():
    def error(orthogonal):
        wanted = gaussian(X, 0.05)
        maps = [RandomFourier(24, gamma=0.05, seed=s, orthogonal=orthogonal).fit_transform(X) for s in range(40)]
        return np.mean([((Z @ Z.T - wanted) ** 2).mean() for Z in maps])

    assert error(True) < 0.8 * error(False)


def test_orthogonal_rows_are_orthogonal_in_groups():
    W = orthogonal_rows(0, 14, 6)
    assert W.shape == (14, 6)
    for group in (W[:6], W[6:12], W[12:]):
        product = group @ group.T
        np.testing.assert_allclose(product - np.diag(np.diag(product)), 0, atol=1e-4)
    lengths = np.linalg.norm(orthogonal_rows(1, 3000, 6), axis=1) ** 2
    assert abs(lengths.mean() - 6) < 0.3  # χ² with 6 degrees of freedom
    assert abs(lengths.var() - 12) < 2


def test_relu_features_approximate_the_arc_cosine_kernel():
    unit = NormScaler(0.5, how="normalise").fit_transform(X)  # short enough that nothing is scaled down
    Z = RandomRelu(20_000, bias=1.0, norm=3.0).fit_transform(unit)
    lifted = np.column_stack([unit, np.ones(len(unit))])
    lengths = np.linalg.norm(lifted, axis=1)
    cosine = np.clip(lifted @ lifted.T / np.outer(lengths, lengths), -1, 1)
    angle = np.arccos(cosine)
    wanted = np.outer(lengths, lengths) * (np.sin(angle) + (np.pi - angle) * cosine) / np.pi
    np.testing.assert_allclose(Z @ Z.T, 9 / 2 * wanted, atol=0.2)


def test_relu_features_are_one_layer():
    model = RandomRelu(7, bias=0.3, norm=1e6)
    Z = model.fit_transform(X)
    by_hand = np.maximum(X @ model.weights_.T + 0.3 * model.biases_, 0) * 1e6 * np.sqrt(2 / 7 / 1.09)
    long = np.linalg.norm(by_hand, axis=1) > 1e6
    np.testing.assert_allclose(Z[~long], by_hand[~long], rtol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(Z[long], axis=1), 1e6, rtol=1e-9)
    assert long.any()
    assert (~long).any()


def test_gates_copy_the_record_where_they_are_open():
    model = ReluGates(4, gate_seed=2, norm=100.0)
    Z = model.fit_transform(X).reshape(25, 4, 6)
    mask = X @ model.gates_.T >= 0
    np.testing.assert_array_equal(model.active(X), mask)
    assert 0.3 < mask.mean() < 0.7
    np.testing.assert_allclose(Z, mask[:, :, None] * X[:, None, :] / 2, rtol=1e-12)


def test_a_mask_and_two_products_replace_the_wide_features():
    model = ReluGates(8, norm=1.0)
    unit = NormScaler().fit_transform(X)
    V = np.random.default_rng(1).normal(size=(8, 6, 3))
    wide = model.fit_transform(unit) @ V.reshape(48, 3)
    scores = (unit @ V.transpose(1, 0, 2).reshape(6, 24)).reshape(25, 8, 3)
    np.testing.assert_allclose((model.active(unit)[:, :, None] * scores).sum(axis=1) / np.sqrt(8), wide, atol=1e-12)


def test_a_zero_record_opens_every_gate_and_stays_zero():
    model = ReluGates(3).fit(X)
    assert model.active(np.zeros((1, 6))).all()
    assert not model.transform(np.zeros((1, 6))).any()
