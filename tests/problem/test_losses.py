"""The contract of every loss: whoever defines one gets these tests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from contracts import made, nothing_escapes, ours, told

from tacit._codec import decode, encode, is_described
from tacit.errors import InvalidInput
from tacit.kernels import coordinate as kernel
from tacit.problem import LOSSES, Gamma, Huber, Logistic, Loss, Squared
from tacit.release.queries.coordinates import COMPILED

NAMES = ours(LOSSES)


def loss_of(name: str) -> Loss:
    cls = LOSSES[name]
    return made(cls, cls, "give every field a default, so that the contract tests can make one without arguments")


def states_its_constant(name: str) -> bool:
    """Whether the best constant is known: that of a smoothed hinge, or of a loss that says nothing, is a rule."""
    return LOSSES[name].constant is not Loss.constant or name in {"squared", "huber"}


def grid(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    low, high = loss.target_range
    targets = np.array([-1.0, 1.0]) if loss.labels else np.linspace(low, high, 9)
    f, y = np.meshgrid(np.linspace(-6, 6, 4001), targets, indexing="ij")
    return f, y


@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_is_that_of_the_value(name):
    loss = loss_of(name)
    f, y = grid(loss)
    h = 1e-6
    numeric = (loss.value(f + h, y) - loss.value(f - h, y)) / (2 * h)
    off = np.abs(loss.derivative(f, y) - numeric)
    at = np.unravel_index(np.argmax(off), off.shape)
    told(
        (off <= 2e-5 * max(1.0, loss.curvature) + 1e-7 * np.abs(numeric)).all(),
        f"derivative(f, y) of {type(loss).__name__} is not that of its value(f, y): at f = {f[at]:g}, y = {y[at]:g} it "
        f"says {loss.derivative(f, y)[at]:g}, and differences of values say {numeric[at]:g}",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_record_meets_no_other_in_a_derivative(name):
    """Certificates rest on it: a mean or a median of the residuals would spread one record over all others."""
    loss = loss_of(name)
    f, y = (part.ravel()[::500] for part in grid(loss))
    alone = np.array([loss.derivative(f[[i]], y[[i]])[0] for i in range(len(f))])
    told(
        np.array_equal(loss.derivative(f, y), alone),
        f"derivative(f, y) of {type(loss).__name__} looks at several records: entry i must be a function of f[i] and "
        "y[i] alone",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_saved_with_its_model(name):
    loss = loss_of(name)
    kind = type(loss).__name__
    told(is_described(loss), f'{kind} has no name in files: put @described("{kind}") above @dataclass(frozen=True)')
    assert decode(json.loads(json.dumps(encode(loss)))) == loss


@pytest.mark.parametrize("name", NAMES)
def test_slope_and_curvature_are_bounds_and_a_convex_loss_is_convex(name):
    loss = loss_of(name)
    f, y = grid(loss)
    slope, kind = loss.derivative(f, y), type(loss).__name__
    bend = np.diff(slope, axis=0) / np.diff(f, axis=0)
    told(
        np.abs(slope).max() <= loss.slope * (1 + 1e-9),
        f"{kind} states slope = {loss.slope:g}, and its derivative reaches ±{np.abs(slope).max():g}: state sup |φ′|",
    )
    told(
        0.9 * loss.curvature <= bend.max() <= loss.curvature * (1 + 1e-6),
        f"{kind} states curvature = {loss.curvature:g}, and its derivative rises by {bend.max():g}: state sup φ″",
    )
    told(
        not loss.convex or bend.min() >= -1e-9,
        f"{kind} says convex = True, and its derivative falls by {-bend.min():g}: leave it out",
    )
    second = loss.second(f, y)
    if second is not None:
        inside = np.abs(np.diff(bend, axis=0)).max(axis=1) < 0.01 * loss.curvature
        inside &= np.convolve(~inside, np.ones(5), "same") == 0  # away from corners
        middle = (second[1:-1] + second[:-2] + second[2:]) / 3
        np.testing.assert_allclose(middle[inside], bend[1:][inside], atol=0.02 * loss.curvature)


@pytest.mark.parametrize("name", [name for name in NAMES if states_its_constant(name)])
def test_the_constant_is_the_best_one_and_the_expansion_is_its_model(name):
    """For targets of two values in several shares: the mean slope at the constant vanishes."""
    loss = Huber(3.0) if name == "huber" else loss_of(name)
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
    loss = loss_of(name)
    f, y = grid(loss)
    other = loss.rescaled(2.5)
    if not loss.equivariant or loss.labels:
        assert other is loss or loss.labels
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
    assert not Steeper().convex
    assert Steeper().second(0.0, 1.0) is None


class _Firm(Huber):
    """Half of Huber's slopes."""

    def derivative(self, f, y):
        return 0.5 * super().derivative(f, y)


def test_a_subclass_keeps_its_derivative_in_other_units():
    """Version 0.1 measured it in other units by making a plain Huber of it, whose compiled code then ran."""
    loss, f, y = _Firm(0.4), np.linspace(-2, 2, 9), np.zeros(9)
    other = loss.rescaled(2.0)
    assert type(other) not in COMPILED
    np.testing.assert_allclose(other.derivative(f / 2, y), loss.derivative(f, y) / 2)


def test_every_loss_gets_these_tests():
    nothing_escapes(Loss, set(LOSSES.values()), "give it a name of its own, name = 'log-cosh'")


@pytest.mark.parametrize("word", ["name", "curvature", "slope"])
def test_a_loss_without_words_is_refused_when_it_is_defined(word):
    body = {"name": "test-wordless", "curvature": 1.0, "slope": 1.0, "__module__": __name__}
    with pytest.raises(InvalidInput, match=f"the loss Wordless states no {word}: write e.g. {word} = "):
        type("Wordless", (Loss,), {key: value for key, value in body.items() if key != word})
    assert "test-wordless" not in LOSSES


def test_gamma_takes_its_constants_from_the_bounds():
    loss = Gamma.for_targets(0.5, 8.0)
    assert loss.target_range == pytest.approx((0.25, 4.0))
    assert loss.curvature == pytest.approx(16.0)
    assert Squared().rescaled(3.0) == Squared()
