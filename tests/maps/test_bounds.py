"""Public bounds as a map: how far it reaches, and the way back."""

from __future__ import annotations

import numpy as np

from tacit.maps import FeatureBounds

LOW, HIGH = np.array([-2.0, 0.0, 3.0]), np.array([4.0, 1.0, 3.0])
X = np.array([[-2.0, 0.0, 3.0], [4.0, 1.0, 3.0], [99.0, -99.0, 0.0], [1.5, 0.25, 7.0]])


def test_any_bounds_become_the_unit_box_and_lead_back():
    box = FeatureBounds.centred(LOW, HIGH)
    np.testing.assert_allclose(box(X), [[-1, -1, 0], [1, 1, 0], [1, -1, 0], [1 / 6, -0.5, 0]])
    np.testing.assert_allclose(box.inverse(box(X)), np.clip(X, LOW, HIGH))


def test_a_map_reaches_as_far_as_it_says():
    near = FeatureBounds(LOW, HIGH, np.array([1.0, 0.5, 3.0]), np.array([0.1, 1.0, 1.0]), reach=2.0)
    np.testing.assert_allclose(near(X)[:, 0], [-2, 2, 2, 2])
    np.testing.assert_allclose(near.range().high, [2, 0.5, 0])
    np.testing.assert_allclose(near.inverse(near(X))[:, 0], [0.8, 1.2, 1.2, 1.2])
