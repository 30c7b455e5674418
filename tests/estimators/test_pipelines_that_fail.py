"""A pipeline with a certificate neither fails nor warns because of one finite record: the whole whitelist is walked."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import preprocessing as sk
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.pipeline import FeatureUnion, make_pipeline

from tacit import DPRidge, DPStandardScaler, certificate_of, maps
from tacit.errors import NotCovered, PrivacyUtilityWarning
from tacit.maps.steps import PUBLIC
from tacit.records import TableEncoder

RNG = np.random.default_rng(0)
X, Y = RNG.uniform(0.1, 1, (40, 9)), RNG.uniform(-1, 1, 40)
BOUNDS = maps.BoundsScaler((0, 1))
PICTURE = {"image_shape": (3, 3), "pixel_range": (0, 1)}

EXAMPLES = {
    sk.FunctionTransformer: [sk.FunctionTransformer()],
    sk.Normalizer: [sk.Normalizer(), sk.Normalizer("l1"), sk.Normalizer("max")],
    sk.Binarizer: [sk.Binarizer()],
    sk.PolynomialFeatures: [
        sk.PolynomialFeatures(2),
        sk.PolynomialFeatures((0, 3)),
        sk.PolynomialFeatures(40, interaction_only=True),
    ],
    AdditiveChi2Sampler: [AdditiveChi2Sampler(), AdditiveChi2Sampler(sample_steps=3)],
    sk.OneHotEncoder: [
        sk.OneHotEncoder(categories=[[0.0, 1.0]] * 9, handle_unknown="ignore", sparse_output=False),
    ],
    SimpleImputer: [SimpleImputer(strategy="constant", fill_value=0.5, keep_empty_features=True)],
    maps.BoundsScaler: [BOUNDS],
    maps.Deskew: [maps.Deskew(**PICTURE)],
    maps.Hog: [maps.Hog(**PICTURE, cell=1)],
    maps.RandomFourier: [maps.RandomFourier(8)],
    maps.NormScaler: [maps.NormScaler()],
    maps.PublicOneHotEncoder: [maps.PublicOneHotEncoder([[0.0, 1.0]] * 9)],
    maps.RandomRelu: [maps.RandomRelu(8)],
    maps.ReluGates: [maps.ReluGates(4)],
}
WORDS = {FeatureHasher, TableEncoder}  # records of words, dictionaries or named columns
HOSTILE = {
    "large": 1e308,
    "negative": -1e308,
    "opposite": np.array([1e308, -1e308] * 4 + [1e308]),
    "squares overflow": 1e200,
    "beyond float32": 3.5e38,
    "denormal": 5e-324,
    "denormal below zero": -5e-324,
    "minus zero": -0.0,
    "minus one": -1.0,
}


def outcome(step: object, table: np.ndarray) -> str:
    """What anybody sees of a fit: done, warned, failed, or not certified."""
    model = make_pipeline(step, DPRidge(epsilon=1.0, delta=1e-5, feature_bounds=(-2, 2), target_bounds=(-1, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyUtilityWarning)  # of public numbers
        try:
            model.fit(table, Y)
            with np.errstate(all="ignore"):
                assert np.isfinite(model.predict(X)).all()
        except Exception as error:
            return f"failed: {error}"
    try:
        certificate_of(model)
    except NotCovered:
        return "not certified"
    return "done"


def hostile(value: object, dtype: type = np.float64) -> np.ndarray:
    out = X.astype(dtype)
    with np.errstate(all="ignore"):
        out[7] = np.nan_to_num(np.asarray(value, dtype))
    return out


def certified(step: object) -> bool:
    return outcome(step, X) == "done"


def test_every_public_step_has_an_example():
    ours = {kind for kind in PUBLIC if kind.__module__.startswith(("tacit.", "sklearn."))}
    assert ours == EXAMPLES.keys() | WORDS


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_one_finite_record_is_not_told(kind, value):
    """``AdditiveChi2Sampler`` raises on negative values; ``PolynomialFeatures`` overflows, and the next step raises."""
    for example in EXAMPLES[kind]:
        for step in [example, make_pipeline(BOUNDS, example), FeatureUnion([("a", example), ("b", "passthrough")])]:
            for dtype in (np.float64, np.float32) if certified(step) else ():
                assert outcome(step, hostile(HOSTILE[value], dtype)) == "done", (step, dtype)


def test_what_can_overflow_is_certified_behind_bounds_only():
    for step in (sk.PolynomialFeatures(2), sk.Normalizer("l1")):
        assert outcome(step, X) == "not certified"
        assert outcome(FeatureUnion([("a", step), ("b", BOUNDS)]), X) == "not certified"
        assert certified(make_pipeline(BOUNDS, step))
        assert certified(make_pipeline(sk.Normalizer(), step))
        assert certified(ColumnTransformer([("a", make_pipeline(BOUNDS, step), [0, 1])], remainder="passthrough"))
        assert outcome(make_pipeline(BOUNDS, sk.FunctionTransformer(np.exp), step), X) == "not certified"
    assert outcome(AdditiveChi2Sampler(), X) == "not certified"
    assert outcome(make_pipeline(maps.BoundsScaler((-1, 1)), AdditiveChi2Sampler()), X) == "not certified"
    binary = make_pipeline(sk.Binarizer(), AdditiveChi2Sampler())
    assert certified(binary)
    deep = make_pipeline(sk.PolynomialFeatures(2), sk.PolynomialFeatures(2))
    assert certified(make_pipeline(BOUNDS, deep))
    wide = FeatureUnion([("a", make_pipeline(BOUNDS, sk.PolynomialFeatures(2)))], transformer_weights={"a": 1e30})
    assert outcome(make_pipeline(wide, sk.PolynomialFeatures(2)), X) == "not certified"


def test_the_message_names_the_step_and_the_remedy():
    scaled = make_pipeline(sk.PolynomialFeatures(2), DPStandardScaler(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1)))
    with pytest.raises(NotCovered, match=r"'Pipeline → polynomialfeatures'.*one record.*BoundsScaler") as caught:
        certificate_of(scaled.fit(X))
    assert "\n" not in str(caught.value)
    chi = make_pipeline(AdditiveChi2Sampler(), DPStandardScaler(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1)))
    with pytest.raises(NotCovered, match=r"additivechi2sampler.*below zero"):
        certificate_of(chi.fit(X))


def test_private_scalers_bound_what_follows():
    scaler = DPStandardScaler(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1))
    assert certified(make_pipeline(scaler, sk.PolynomialFeatures(2)))


def test_a_function_of_ones_own_is_declared_finite():
    scaler = DPStandardScaler(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1))
    model = make_pipeline(sk.FunctionTransformer(np.sqrt), scaler)
    assert any("finite" in mark for mark in certificate_of(model.fit(X)).marks)


@pytest.mark.parametrize("kind", ["dict", "pair"])
def test_hashed_values_that_add_up_to_infinity(kind):
    values = {f"w{i}": 1e308 for i in range(20)}
    rows = [values if kind == "dict" else list(values.items())] + [{} if kind == "dict" else []] * 3
    step = FeatureHasher(4, input_type=kind, alternate_sign=False)
    assert not np.isfinite(step.transform(rows).toarray()).all()
    scaler = DPStandardScaler(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1)).fit(X)
    with pytest.raises(NotCovered, match="input_type='string'"):
        certificate_of(make_pipeline(step, scaler))
    certificate_of(make_pipeline(FeatureHasher(4, input_type="string"), scaler))
