"""The contract of every loss: whoever defines one gets these tests."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.kernels import coordinate as kernel
from tacit.problem import LOSSES, Gamma, Huber, Logistic, Loss, Squared
from tacit.release.queries.coordinates import COMPILED

NAMES = sorted(name for name, cls in LOSSES.items() if cls.__module__.startswith("tacit."))


def grid(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    low, high = loss.target_range
    targets = np.array([-1.0, 1.0]) if loss.labels else np.linspace(low, high, 9)
    f, y = np.meshgrid(np.linspace(-6, 6, 4001), targets, indexing="ij")
    return f, y


@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_is_that_of_the_value(name):
    loss = LOSSES[name]()
    f, y = grid(loss)
    h = 1e-6
    numeric = (loss.value(f + h, y) - loss.value(f - h, y)) / (2 * h)
    np.testing.assert_allclose(loss.derivative(f, y), numeric, atol=2e-5 * max(1.0, loss.curvature))


@pytest.mark.parametrize("name", NAMES)
def test_slope_and_curvature_are_bounds_and_a_convex_loss_is_convex(name):
    loss = LOSSES[name]()
    f, y = grid(loss)
    slope = loss.derivative(f, y)
    bend = np.diff(slope, axis=0) / np.diff(f, axis=0)
    assert np.abs(slope).max() <= loss.slope * (1 + 1e-9)
    assert bend.max() <= loss.curvature * (1 + 1e-6)
    assert bend.max() >= 0.9 * loss.curvature  # and not far above what is reached
    if loss.convex:
        assert bend.min() >= -1e-9
    second = loss.second(f, y)
    if second is not None:
        inside = np.abs(np.diff(bend, axis=0)).max(axis=1) < 0.01 * loss.curvature
        inside &= np.convolve(~inside, np.ones(5), "same") == 0  # away from corners
        middle = (second[1:-1] + second[:-2] + second[2:]) / 3
        np.testing.assert_allclose(middle[inside], bend[1:][inside], atol=0.02 * loss.curvature)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"smoothed-hinge"}))  # its constant is a rule of thumb
def test_the_constant_is_the_best_one_and_the_expansion_is_its_model(name):
    """For targets of two values in several shares: the mean slope at the constant vanishes."""
    loss = Huber(3.0) if name == "huber" else LOSSES[name]()
    low, high = loss.target_range
    for share in (0.2, 0.5, 0.7):
        y = np.where(np.arange(1000) < 1000 * share, high, low)
        f = np.full(1000, loss.constant(float(y.mean())))
        slope = loss.derivative(f, y).mean()
        assert abs(slope) < 1e-9
        h, gain = loss.expansion(float(y.mean()))
        assert 0 < h <= loss.curvature * (1 + 1e-12)
        assert gain > 0


@pytest.mark.parametrize("name", NAMES)
def test_units(name):
    """A rescaled loss is the same loss of numbers measured in other units."""
    loss = LOSSES[name]()
    f, y = grid(loss)
    other = loss.rescaled(2.5)
    if not loss.equivariant or loss.labels:
        assert other is loss or name == "logistic" or loss.labels
        return
    np.testing.assert_allclose(other.derivative(f / 2.5, y / 2.5), loss.derivative(f, y) / 2.5, atol=1e-12)
    np.testing.assert_allclose(other.value(f / 2.5, y / 2.5), loss.value(f, y) / 2.5**2, atol=1e-12)
    assert other.curvature == loss.curvature
    assert other.slope == pytest.approx(loss.slope / 2.5)


@pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.__name__)
def test_compiled_code_is_the_loss(cls):
    loss = cls()
    f, y = grid(loss)
    z = (f * y if loss.labels else f - y).ravel()
    found = kernel.derivative(z, COMPILED[cls], float(getattr(loss, "parameter", 0.0))).reshape(f.shape)
    expected = loss.derivative(f, y)
    np.testing.assert_allclose(found * y if loss.labels else found, expected, rtol=1e-9, atol=1e-12)


def test_a_name_is_given_once():
    with pytest.raises(InvalidInput, match="exists already"):

        class Mine(Loss):
            name = "squared"
            curvature = slope = 1.0

            def value(self, f, y):
                return f

            def derivative(self, f, y):
                return f


def test_a_subclass_is_not_registered_under_its_parents_name():
    class Steeper(Logistic):
        def derivative(self, f, y):
            return 2 * super().derivative(f, y)

    assert LOSSES["logistic"] is Logistic
    assert type(Steeper()) not in COMPILED


def test_gamma_takes_its_constants_from_the_bounds():
    loss = Gamma.for_targets(0.5, 8.0)
    assert loss.target_range == pytest.approx((0.25, 4.0))
    assert loss.curvature == pytest.approx(16.0)
    assert Squared().rescaled(3.0) == Squared()
