"""The benchmark of final models, small: every method on scikit-learn's digits, far above chance and at its ε."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tacit import DPConvexReLUClassifier, DPSoftmaxRegression
from tacit.maps import NormScaler, image_features

EPSILON, DELTA = 4.0, 1e-5
SHARED = {"epsilon": EPSILON, "delta": DELTA, "classes": range(10), "random_state": 0, "progress": False, "epochs": 20}
EDGES = image_features((8, 8), (0, 16), n_features=500)
PIXELS = NormScaler(how="normalise")
MODELS = {
    "fourier": (DPSoftmaxRegression(features=EDGES, fit_intercept=False, **SHARED), 0.75),
    "logistic": (DPSoftmaxRegression(features=PIXELS, fit_intercept=False, **SHARED), 0.75),
    "gates": (DPConvexReLUClassifier(8, features=PIXELS, **SHARED), 0.6),
    "dpsgd gates": (DPConvexReLUClassifier(8, features=PIXELS, view="all_iterates", **SHARED), 0.6),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_method_learns_at_its_epsilon(name):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:1400], order[1400:]
    model, goal = MODELS[name]
    model.fit(X[train], y[train])
    assert EPSILON * 0.999 <= model.certificate_.epsilon(DELTA) <= EPSILON
    assert model.certificate_.view == ("every iterate" if "dpsgd" in name else "the final model")
    assert model.score(X[test], y[test]) > goal
