"""Losses of several outputs: each clipped gradient is a gradient, of the stated length and smoothness."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.problem import OUTPUT_LOSSES, OneVsRest, OutputLoss, Softmax, SquaredOutputs

K = 4
LOSSES = [Softmax(K), Softmax(K, 0.7), Softmax(K, 0.3), Softmax(K, 0.05)]
LOSSES += [OneVsRest(K), OneVsRest(K, 0.6), OneVsRest(K, 0.2), SquaredOutputs(K, 0.5), SquaredOutputs(K, 10.0)]


def points(loss: OutputLoss, n: int, seed: int, scale: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, K)) * scale
    target = rng.normal(size=(n, K)) if isinstance(loss, SquaredOutputs) else rng.integers(K, size=n)
    return Z, target


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.clip}")
def test_it_is_the_gradient_of_its_value(loss):
    """In particular it has no circulation: that is what radially clipped softmax lacks (errata, E2)."""
    Z, target = points(loss, 200, 0)
    G = loss.gradient(Z.copy(), target)
    h = 1e-6
    for k in range(K):
        up, down = Z.copy(), Z.copy()
        up[:, k] += h
        down[:, k] -= h
        slope = (loss.value(up, target) - loss.value(down, target)) / (2 * h)
        np.testing.assert_allclose(G[:, k], slope, atol=3e-6)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.clip}")
def test_its_length_is_as_stated_and_reached(loss):
    lengths = []
    for scale in (0.1, 2.0, 50.0):
        Z, target = points(loss, 4000, 1, scale)
        lengths.append(np.linalg.norm(loss.gradient(Z, target), axis=1).max())
    extreme = np.full((1, K), 50.0)
    extreme[0, 0] = -50.0
    if isinstance(loss, SquaredOutputs):
        lengths.append(np.linalg.norm(loss.gradient(extreme, np.zeros((1, K)))))
    else:
        for Z in (extreme, np.array([[-60.0, 60.0, -60.0, -60.0]])):
            lengths.append(np.linalg.norm(loss.gradient(Z.copy(), np.array([0]))))
    assert max(lengths) <= loss.slope * (1 + 1e-12)
    assert max(lengths) >= 0.99 * loss.slope


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}-{loss.clip}")
def test_a_step_up_to_two_over_beta_expands_nothing(loss):
    worst, curve = 0.0, 0.0
    for scale in (0.3, 2.0, 6.0):
        Z, target = points(loss, 20_000, 2, scale)
        rng = np.random.default_rng(3)
        W = Z + rng.normal(size=Z.shape) * rng.choice([1e-4, 0.1, 3.0], size=(len(Z), 1))
        gZ, gW = loss.gradient(Z.copy(), target), loss.gradient(W.copy(), target)
        before = np.linalg.norm(Z - W, axis=1)
        after = np.linalg.norm((Z - W) - 2 / loss.curvature * (gZ - gW), axis=1)
        worst = max(worst, (after / before).max())
        curve = max(curve, (np.linalg.norm(gZ - gW, axis=1) / before).max())
    assert worst <= 1 + 1e-9
    assert curve >= 0.6 * loss.curvature  # the constant is not idle


def test_radial_clipping_of_softmax_expands():
    """Errata E2: K = 3, a step of 3.9 < 2/β expands by 8 %."""

    def radial(z: np.ndarray, C: float) -> np.ndarray:
        p = np.exp(z - z.max())
        p /= p.sum()
        g = p - np.array([1.0, 0.0, 0.0])
        return g * min(1.0, C / np.linalg.norm(g))

    def expansion(z: np.ndarray, C: float, step: float) -> float:
        J = np.stack([(radial(z + d, C) - radial(z - d, C)) / 2e-5 for d in 1e-5 * np.eye(3)], axis=1)
        return float(np.linalg.norm(np.eye(3) - step * J, 2))

    rng = np.random.default_rng(0)
    places = [(rng.normal(size=3) * 2, rng.uniform(0.05, 1.4)) for _ in range(4000)]
    assert max(expansion(z, C, 3.9) for z, C in places) == pytest.approx(1.084, abs=0.02)
    assert max(expansion(z, C, 1.0) for z, C in places) == pytest.approx(1.0099, abs=0.003)
    a = rng.normal(size=(20_000, 3)) * 2
    b = a + rng.normal(size=a.shape) * 1e-4
    y = np.zeros(len(a), int)
    for clip in (0.1, 0.5, 1.0):
        sound = Softmax(3, clip)
        after = (a - b) - 3.9 * (sound.gradient(a.copy(), y) - sound.gradient(b.copy(), y))
        assert (np.linalg.norm(after, axis=1) <= np.linalg.norm(a - b, axis=1) * (1 + 1e-9)).all()


def test_float32_stays_float32():
    for loss in LOSSES:
        Z, target = points(loss, 5, 0)
        assert loss.gradient(Z.astype(np.float32), target.astype(np.float32) if target.ndim == 2 else target).dtype == (
            np.float32
        )


@pytest.mark.parametrize(("kind", "clip"), [("softmax", 1.5), ("one-vs-rest", 2.0), ("squared", 0.0), ("softmax", -1)])
def test_bad_clips_are_refused(kind, clip):
    with pytest.raises(InvalidInput, match="clip"):
        OUTPUT_LOSSES[kind](3, clip)
