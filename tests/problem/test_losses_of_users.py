"""Losses that users write: what Tacit cannot check about them is declared by the certificate, not enforced by name."""

from __future__ import annotations

import numpy as np

from tacit.errors import NotCovered, TacitError
from tacit.estimators import DPGeneralizedLinear
from tacit.mechanism import Evidence
from tacit.problem import Design, Logistic, Loss
from tacit.run.sums import LinearGradient


class Wiggly(Logistic):
    """Not convex, with slopes' derivative 50 instead of ¼."""

    def derivative(self, z):
        return np.sin(50 * z)


class Scaled(Loss):
    """A robust loss in units of the residuals' median: the natural mistake."""

    name, margin, curvature, slope = "scaled", False, 1.0, 1.0

    def value(self, z):
        return np.abs(z)

    def derivative(self, z):
        return np.clip(z / np.maximum(np.median(np.abs(z), axis=0), 1e-12), -1, 1)


def _vouched(certificate):
    declared = any(a.evidence is Evidence.DECLARED for a in certificate.assumptions)
    return declared or any(mark.startswith("declared") for mark in certificate.marks)


def test_a_subclass_of_a_convex_loss_is_not_convex_by_name():
    """isinstance(loss, CONVEX) passes subclasses; the last-iterate theorem is then 'checked' for a non-convex loss."""
    rng = np.random.default_rng(0)
    model = DPGeneralizedLinear(
        Wiggly(), epsilon=1.0, delta=1e-6, feature_bounds=(-1, 1), classes=[0, 1], view="final_model"
    )
    try:
        model.fit(rng.uniform(-1, 1, (500, 2)), rng.integers(0, 2, 500))
    except NotCovered:
        return
    assert _vouched(model.certificate_)


def test_the_step_of_a_subclassed_loss_is_no_contraction():
    """What goes wrong: the certified smoothness is ¼R², the real one 50R²."""
    total = LinearGradient(Design(np.ones((1, 1))), np.zeros(1), Wiggly(), 10.0, row_norm=1.0)
    if total.smoothness is None:
        return
    near = [total.total(np.array([[v]]), np.ones((1, 1), bool))[0, 0] for v in (0.0, 1e-3)]
    assert abs(near[1] - near[0]) <= total.smoothness * 1e-3 * (1 + 1e-9)


def test_a_loss_cannot_carry_one_record_into_the_slopes_of_others():
    """'Nothing else is trusted: contributions are clipped whatever the derivative returns' (problem/losses.py)."""
    n = 101
    X, y = np.ones((n, 1)), np.full(n, 1.0)
    y[51:] = 1e-3
    y2 = y.copy()
    y2[0] = 1e-3  # the only record that differs: 51 against 50 moves the median
    pair = []
    for target in (y, y2):
        try:
            total = LinearGradient(Design(X), target, Scaled(), 1.0)
        except TacitError:
            return
        pair.append(total.total(np.zeros((1, 1)), np.ones((1, n), bool)))
    moved = float(np.linalg.norm(pair[0] - pair[1]))
    model = DPGeneralizedLinear(
        Scaled(), epsilon=1.0, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 1), solver="gradient", max_passes=2
    ).fit(X, y)
    assert moved <= total.diameter or _vouched(model.certificate_), f"one record moved the sum by {moved}"
