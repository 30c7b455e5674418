"""scikit-learn's own checks for every map.

Its tables have 1 to 20 columns of any values. Maps of images want a shape, so they are checked as subclasses that read
p columns as an image of 1 × p pixels. Nothing is skipped or expected to fail.
"""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import check_estimator

from tacit.maps import Deskew, Hog, Join, NormScaler, RandomFourier, RandomRelu, ReluGates


class OneRowDeskew(Deskew):
    def _shape(self, p):
        return 1, p


class OneRowHog(Hog):
    def _shape(self, p):
        return 1, p


WIDE = (-100, 100)
ESTIMATORS = [
    NormScaler(2.0),
    NormScaler(2.0, how="normalise"),
    ReluGates(3),
    RandomFourier(6, gamma=0.1),
    RandomFourier(30, gamma=0.1, orthogonal=True),
    RandomRelu(5),
    OneRowDeskew(pixel_range=WIDE),
    OneRowHog(pixel_range=WIDE, cell=1, block=1),
    Join([("a", NormScaler()), ("b", RandomFourier(4))], weights={"a": 0.5}),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_scikit_learn_is_content(estimator):
    check_estimator(estimator, on_skip=None)
