"""Counterexamples to claims 1 and 4: losses of the user's own are trusted, though the certificate says enforced."""

import numpy as np

from tacit.errors import NotCovered, TacitError
from tacit.estimators import DPGeneralizedLinear
from tacit.mechanism import Evidence
from tacit.problem import Logistic, Loss
from tacit.records import Rows
from tacit.release.queries import LossGradient


class Wiggly(Logistic):
    """Not convex, with slopes' derivative 50 instead of ¼."""

    def derivative(self, f, y):
        return np.sin(50 * f)


class Scaled(Loss):
    """A robust loss in units of the residuals' median: the natural mistake."""

    name, curvature, slope = "scaled", 1.0, 1.0

    def value(self, f, y):
        return np.abs(f - y)

    def derivative(self, f, y):
        z = f - y
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
    assert LossGradient(Logistic(), 10.0, 1.0).smoothness == 0.25
    assert LossGradient(Wiggly(), 10.0, 1.0).smoothness is None  # what its parent declared is not about this derivative


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
            total = LossGradient(Scaled(), 1.0)
        except TacitError:
            return
        pair.append(total.total(Rows(X, target), np.zeros((1, 1)), np.ones((1, n), bool)))
    moved = float(np.linalg.norm(pair[0] - pair[1]))
    model = DPGeneralizedLinear(
        Scaled(), epsilon=1.0, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 1), solver="gradient", max_passes=2
    ).fit(X, y)
    assert moved <= total.diameter or _vouched(model.certificate_), f"one record moved the sum by {moved}"
