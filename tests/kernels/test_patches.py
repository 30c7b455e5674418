"""Patches, folds and pooling against loops of numpy's own, and adjoints against inner products."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.kernels.patches import fold, pool, unfold, unpool
from tacit.kernels.rows import row_squares, scaled_with_constant

SHAPES = [((2, 5, 6), 3, 1, 0), ((1, 4, 4), 2, 2, 0), ((3, 5, 5), 5, 1, 2), ((1, 3, 7), 3, 3, 1), ((2, 2, 2), 4, 1, 1)]


def windows(pictures, kernel, stride, padding):
    """im2col by numpy's sliding windows."""
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    view = np.lib.stride_tricks.sliding_window_view(np.pad(pictures, around), (kernel, kernel), axis=(2, 3))
    view = view[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)
    return view.reshape(len(pictures), view.shape[1] * view.shape[2], -1)


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), SHAPES)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_patches_are_numpys_windows(shape, kernel, stride, padding, kind):
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(kind)
    out = unfold(x, kernel, stride, padding, 0.25)
    assert out.dtype == np.float64
    assert np.array_equal(out[:, :, :-1], windows(x, kernel, stride, padding))
    assert (out[:, :, -1] == 0.25).all()


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), SHAPES)
def test_folding_is_the_adjoint_of_unfolding(shape, kernel, stride, padding):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, *shape))
    there = unfold(x, kernel, stride, padding, 0.0)[:, :, :-1]
    r = rng.normal(size=there.shape)
    back = fold(r, *shape, kernel, stride, padding)
    assert back.shape == x.shape
    assert np.allclose((there * r).sum(axis=(1, 2)), (x * back).sum(axis=(1, 2, 3)))


@pytest.mark.parametrize(("shape", "k"), [((2, 4, 6), 2), ((1, 5, 7), 2), ((3, 3, 3), 3), ((1, 7, 5), 3)])
def test_pooling_leaves_out_what_does_not_fill_a_square(shape, k):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, *shape))
    c, h, w = shape[0], shape[1] // k, shape[2] // k
    whole = x[:, :, : h * k, : w * k].reshape(3, c, h, k, w, k)
    out = pool(x, k)
    assert np.allclose(out, whole.mean(axis=(3, 5)))
    r = rng.normal(size=out.shape)
    assert np.allclose((out * r).sum(axis=(1, 2, 3)), (x * unpool(r, *shape[1:], k)).sum(axis=(1, 2, 3)))


def test_a_record_is_treated_alone_to_the_bit():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(7, 2, 6, 6))
    columns = rng.normal(size=(7, 16, 18))
    for i in range(7):
        assert np.array_equal(pool(x, 2)[i], pool(x[i : i + 1], 2)[0])
        assert np.array_equal(fold(columns, 2, 6, 6, 3, 1, 0)[i], fold(columns[i : i + 1], 2, 6, 6, 3, 1, 0)[0])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("p", [1, 7, 8, 19])
def test_scaled_rows_with_a_constant(p, kind):
    rng = np.random.default_rng(4)
    x, factors = rng.normal(size=(5, p)).astype(kind), rng.random(5)
    out = scaled_with_constant(x, factors, -2.0)
    assert np.array_equal(out[:, :-1], x.astype(np.float64) * factors[:, None])
    assert (out[:, -1] == -2.0).all()
    assert np.allclose(row_squares(x), (x.astype(np.float64) ** 2).sum(axis=1))
