"""The features of a record are its own, to the bit: whoever stands beside it, before it or not at all.

Behind a map something may jump (a gate, a threshold), and then a last bit is another contribution: with ordinary
products 200 records on the edge of a gate moved a sum by 43 to 131 times its sensitivity when one of them changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn import preprocessing as sk
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.pipeline import make_pipeline

from tacit.kernels.exact import grid_product
from tacit.maps import BoundsScaler, Deskew, Hog, Join, NormScaler, RandomFourier, RandomRelu, ReluGates, image_features


def general() -> Iterator[Any]:
    """Maps of any records."""
    yield RandomFourier(64, gamma=0.1)
    yield RandomFourier(130, gamma=3.0, orthogonal=True)
    yield RandomRelu(65)
    yield ReluGates(5)
    yield NormScaler()
    yield NormScaler(how="normalise")
    yield BoundsScaler((-1, 1))
    yield sk.Normalizer()
    yield sk.Normalizer("l1")
    yield sk.Binarizer(threshold=0.1)
    yield make_pipeline(sk.PolynomialFeatures(2), RandomFourier(32, gamma=0.01), ReluGates(3))
    yield make_pipeline(sk.PolynomialFeatures(2), RandomRelu(16), AdditiveChi2Sampler(sample_interval=0.5))
    yield Join([("a", NormScaler()), ("b", RandomRelu(33))], weights={"b": 0.3})


def pictures(side: int) -> Iterator[Any]:
    """Maps of pictures."""
    for root in (False, True):
        yield Hog((side, side), (-1, 1), root=root)
    yield Deskew((side, side), (-1, 1))
    yield Deskew((side, side), (-1, 1), spread=(0.2, 0.2))
    yield image_features((side, side), (-1, 1), deskew=True, n_features=100)


def cases() -> Iterator[Any]:
    for p in (3, 8, 20):
        yield from (pytest.param(p, made, id=f"{p}-{i}-{type(made).__name__}") for i, made in enumerate(general()))
    for side in (8, 28):
        named = enumerate(pictures(side))
        yield from (pytest.param(side**2, made, id=f"{side}²-{i}-{type(made).__name__}") for i, made in named)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("p", "model"), list(cases()))
def test_a_row_is_the_same_in_any_company(p, model, kind):
    rng = np.random.default_rng(p)
    X = rng.normal(size=(67, p)).astype(kind)
    X[:20] *= 1e-3
    model.fit(X[:1])
    together = model.transform(X)
    for size in (1, 2, 7):
        apart = [model.transform(X[i : i + size]) for i in range(0, len(X), size)]
        assert np.array_equal(together, np.concatenate(apart))
    assert np.array_equal(together[1:], model.transform(X[1:]))
    order = rng.permutation(len(X))
    assert np.array_equal(together[order], model.transform(X[order]))
    assert np.array_equal(together, model.transform(np.tile(X, (9, 1)))[-len(X) :])


@pytest.mark.parametrize("model", [NormScaler(), NormScaler(how="normalise"), RandomRelu(9000)])
def test_wide_rows_as_well(model):
    """A library's sum over more than 8192 entries is cut into other pieces where a row stands alone."""
    X = np.random.default_rng(0).normal(size=(5, 9001))
    together = model.fit(X[:1]).transform(X)
    assert np.array_equal(together, np.concatenate([model.transform(X[i : i + 1]) for i in range(5)]))


@pytest.mark.parametrize("p", [1, 5, 784, 20_000])
@pytest.mark.parametrize(("bits", "accurate"), [(20, 2.0**-18), (40, 2.0**-38)])
def test_products_are_as_accurate_as_they_say(p, bits, accurate):
    """Each entry of x is off by at most 2^−bits of the largest one, W not at all."""
    rng = np.random.default_rng(p)
    X = rng.normal(size=(9, p)) * np.logspace(-8, 8, 9)[:, None]
    W = np.rint(rng.normal(size=(6, p)) * 2**20) / 2**20
    wide = X.astype(np.longdouble) @ W.T.astype(np.longdouble)
    error = np.abs(grid_product(X, W, 2.0**-20, bits) - wide)
    allowed = accurate * np.abs(X).max(axis=1)[:, None] * np.abs(W).sum(axis=1)
    assert (error <= allowed + 2.0**-52 * np.abs(wide)).all()
