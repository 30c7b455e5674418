"""Norms and row locality of whole chains: certified, or refused by the name of the step."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from tacit import DPStandardScaler, certificate_of
from tacit.errors import InvalidInput, NotCovered
from tacit.maps import (
    BoundsScaler,
    Hog,
    Join,
    NormScaler,
    PublicOneHotEncoder,
    RandomFourier,
    RandomRelu,
    ReluGates,
    Streamed,
    feature_norm,
    row_local,
)
from tacit.maps.steps import COMPOSITE, PUBLIC, composite_step, public_step

X = np.random.default_rng(0).normal(size=(40, 4))
PRIVATE = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": (-3, 3)}


class Sly(NormScaler):
    def transform(self, X):
        return 1e6 * np.asarray(X)


class SlyJoin(Join):
    def transform(self, X):
        return 1e6 * np.asarray(X)


# -- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "norm"),
    [
        (NormScaler(2.5), 2.5),
        (RandomFourier(8), 1.0),
        (make_pipeline(StandardScaler(), NormScaler(2.0), ReluGates(3, norm=9.0)), 2.0),
        (make_pipeline(NormScaler(2.0), ReluGates(3, norm=0.5), "passthrough"), 0.5),
        (make_pipeline(NormScaler(0.5), NormScaler(2.0)), 0.5),
        (make_pipeline(NormScaler(0.5), NormScaler(2.0, how="normalise")), 2.0),
        (Join([("a", NormScaler(3.0)), ("b", RandomRelu(5, norm=4.0))]), 5.0),
        (Join([("a", NormScaler(3.0)), ("b", RandomRelu(5, norm=4.0))], weights={"a": 4, "b": 4}), 20.0),
        (
            make_pipeline(
                NormScaler(3.0), FeatureUnion([("x", "passthrough"), ("f", RandomRelu(norm=4)), ("n", "drop")])
            ),
            5,
        ),
        (FeatureUnion([("a", NormScaler(3.0))], transformer_weights={"a": -2.0}), 6.0),
        (BoundsScaler((-1, 1)).fit(X), 2.0),
        (PublicOneHotEncoder([0, 1]).fit(np.zeros((1, 9))), 3.0),
        (make_pipeline(BoundsScaler((-1, 1)), ReluGates(2, norm=7.0)).fit(X), 2.0),
        (DPStandardScaler(**PRIVATE, clip_to=2.0, random_state=0).fit(X), 4.0),
    ],
    ids=str,
)
def test_norms_of_chains(model, norm):
    certified = feature_norm(model)
    assert certified == pytest.approx(norm, rel=2e-6)
    out = model.fit_transform(
        np.vstack([X * 10.0**k for k in (-9, 0, 1, 9)]) if not hasattr(model, "categories") else X * 0
    )
    assert np.linalg.norm(np.asarray(out), axis=1).max() <= certified * (1 + 1e-15)


def test_a_known_norm_of_the_records_is_used():
    assert feature_norm(ReluGates(3, norm=5.0), input_norm=0.25) == 0.25
    assert feature_norm(ReluGates(3), input_norm=7.0) == 1.0
    assert feature_norm(Pipeline([("x", "passthrough")]), input_norm=3.0) == 3.0
    assert feature_norm(Join([("a", ReluGates(3)), ("b", ReluGates(3))]), 0.5) == pytest.approx(0.5 * np.sqrt(2))
    with pytest.raises(InvalidInput, match="input_norm must be positive"):
        feature_norm(ReluGates(3), input_norm=0)


@pytest.mark.parametrize(
    ("model", "culprit"),
    [
        (make_pipeline(NormScaler(), FunctionTransformer(np.exp)), "Pipeline → functiontransformer"),
        (make_pipeline(NormScaler(), PCA(2), "passthrough"), "Pipeline → pca"),
        (make_pipeline(NormScaler(), Sly()), "Pipeline → sly"),
        (make_pipeline(SlyJoin([("a", NormScaler())])), "Pipeline → slyjoin"),
        (Normalizer(), "Normalizer"),
        (FeatureUnion([("a", NormScaler()), ("b", "passthrough")]), "input"),
        (Join([("a", NormScaler()), ("b", StandardScaler())]), "b"),
        (Sly(), "Sly"),
    ],
    ids=str,
)
def test_the_step_that_certifies_nothing_is_named(model, culprit):
    with pytest.raises(NotCovered) as caught:
        feature_norm(model)
    assert caught.value.axis == culprit
    assert "NormScaler()" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_estimator_at_the_end_makes_no_features():
    with pytest.raises(InvalidInput, match=r"'Pipeline → ridge' \(Ridge\) makes no features: .*model\[:-1\]"):
        feature_norm(make_pipeline(NormScaler(), Ridge()))


def test_norms_that_need_a_width_need_a_fit():
    with pytest.raises(InvalidInput, match="not fitted"):
        feature_norm(make_pipeline(BoundsScaler((0, 1))))


def test_scikit_learns_normalizer_is_no_bound():
    """Why it is not trusted: rounding in float32 makes rows longer than 1."""
    rows = np.random.default_rng(0).normal(size=(500, 300)).astype(np.float32)
    longest = [np.linalg.norm(s.fit_transform(rows).astype(float), axis=1).max() for s in (Normalizer(), NormScaler())]
    assert longest[0] > 1 + 2e-8
    assert longest[1] <= 1


# -- row locality and certificates -----------------------------------------------------------------------------------


def test_public_maps_are_free():
    model = make_pipeline(
        DPStandardScaler(**PRIVATE), NormScaler(), Join([("f", RandomFourier(8)), ("g", ReluGates(2))])
    )
    model.fit(X)
    assert row_local(model) == ()
    assert certificate_of(model).mu == certificate_of(model[0]).mu
    with pytest.raises(NotCovered, match="nothing in this model is private"):
        certificate_of(model[1:])


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (make_pipeline(StandardScaler(), NormScaler()), "StandardScaler"),
        (make_pipeline(NormScaler(), Sly()), "Sly"),
        (Join([("a", make_pipeline(PCA(2), NormScaler()))]), "Join → a → pca"),
        (make_pipeline(SlyJoin([("a", NormScaler())])), "SlyJoin"),
        (FeatureUnion([("a", PCA(1))]), "PCA"),
    ],
    ids=str,
)
def test_steps_that_learn_are_refused(model, word):
    model.fit(X)
    for check in (row_local, certificate_of):
        with pytest.raises(NotCovered, match=word):
            check(model)


def test_functions_are_the_users_word():
    (mark,) = row_local(Join([("a", make_pipeline(FunctionTransformer(np.tanh), NormScaler()))]))
    assert mark.startswith("declared")


def test_trust_is_not_inherited_and_a_users_trust_is_marked():
    class Plain(NormScaler):
        pass

    with pytest.raises(NotCovered, match="Plain"):
        row_local(Plain())
    public_step(Plain)
    try:
        (mark,) = row_local(make_pipeline(Plain()))
        assert mark.startswith("declared: step 'Pipeline → plain' (Plain)")
        assert feature_norm(Plain(3.0)) == 3.0
    finally:
        del PUBLIC[Plain]


def test_a_users_composite_is_marked_as_well():
    class Pair(Join):
        pass

    composite_step(lambda pair: pair.maps)(Pair)
    try:
        (mark,) = row_local(Pair([("a", NormScaler())]))
        assert mark.startswith("declared: step 'Pair'")
        with pytest.raises(NotCovered, match="Pair → a"):
            row_local(Pair([("a", PCA())]))
    finally:
        del COMPOSITE[Pair]


def test_private_steps_inside_a_join_are_counted():
    inner = make_pipeline(DPStandardScaler(**PRIVATE), NormScaler())
    one = certificate_of(clone(inner).fit(X))
    two = certificate_of(Join([("a", inner), ("b", inner)]).fit(X))
    assert two.mu == pytest.approx(np.sqrt(2) * one.mu)


# -- join ------------------------------------------------------------------------------------------------------------


def test_a_join_is_a_weighted_union():
    parts = [("a", NormScaler(3.0)), ("b", RandomFourier(6)), ("c", make_pipeline(NormScaler(), ReluGates(2)))]
    weights = {"a": 0.5, "c": 2.0}
    join = Join(parts, weights=weights).fit(X)
    union = FeatureUnion(parts, transformer_weights=weights).fit(X)
    np.testing.assert_allclose(join.transform(X), union.transform(X), rtol=1e-12)
    assert join.norm == pytest.approx(feature_norm(union), rel=2e-6)
    assert join.norm == pytest.approx(np.sqrt(1.5**2 + 1 + 4))


def test_parameters_of_the_maps_are_reached():
    join = Join([("a", NormScaler(3.0)), ("b", RandomFourier(6))])
    assert clone(join).set_params(a__norm=4.0, b=ReluGates(2)).get_params()["a__norm"] == 4.0
    assert join.get_params()["b__gamma"] == 1.0
    join.fit(X)
    assert not hasattr(join.maps[0][1], "n_features_in_")  # clones are fitted


def test_parts_without_a_bound_are_refused_in_fit():
    with pytest.raises(NotCovered, match="map 'b' of Join has no bound"):
        Join([("a", NormScaler()), ("b", StandardScaler())]).fit(X)


# -- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_is_the_transform_in_pieces():
    model = make_pipeline(NormScaler(), RandomFourier(10)).fit(X)
    stream, whole = Streamed(model, X, batch=7), model.transform(X)
    assert (stream.shape, stream.dtype, len(stream)) == ((40, 10), np.float64, 40)
    pieces = list(stream)
    assert [len(p) for p in pieces] == [7, 7, 7, 7, 7, 5]
    np.testing.assert_allclose(np.vstack(pieces), whole, atol=1e-12)
    for rows in ([3, 1, 1], slice(5, 9), np.arange(40) % 3 == 0, np.array([39])):
        np.testing.assert_allclose(stream[rows], whole[rows], atol=1e-12)
    np.testing.assert_allclose(stream[-1], whole[-1], atol=1e-12)
    with pytest.raises(IndexError):
        stream[40]
    assert sum(len(p) for p in stream) == 40  # again


def test_a_stream_never_makes_more_than_a_batch(monkeypatch):
    model, seen = RandomFourier(10).fit(X), []
    plain = RandomFourier._rows
    monkeypatch.setattr(RandomFourier, "_rows", lambda self, x: seen.append(len(x)) or plain(self, x))
    list(Streamed(model, X, batch=7))
    assert max(seen) == 7


def test_streams_of_sparse_narrow_and_framed_tables():
    pd = pytest.importorskip("pandas")
    model = NormScaler().fit(X)
    for table in (sparse.csr_array(X), sparse.csc_array(X), X.tolist()):
        np.testing.assert_allclose(np.vstack(list(Streamed(model, table, batch=9))), model.transform(X))
    assert Streamed(model, X.astype(np.float32)).dtype == np.float32
    frame = pd.DataFrame(X, columns=list("abcd"))
    np.testing.assert_array_equal(Streamed(NormScaler().fit(frame), frame)[[4, 2]], model.transform(X[[4, 2]]))


@pytest.mark.parametrize("table", [np.empty((0, 4)), np.zeros(4)])
def test_streams_want_tables(table):
    with pytest.raises(InvalidInput, match="table"):
        Streamed(NormScaler().fit(X), table)
    with pytest.raises(InvalidInput, match="batch"):
        Streamed(NormScaler().fit(X), X, batch=0)


def test_images_in_a_chain():
    pictures = np.random.default_rng(0).uniform(size=(5, 64))
    model = make_pipeline(Hog((8, 8), (0, 1)), RandomFourier(20, gamma=2.0)).fit(pictures)
    assert feature_norm(model) == 1.0
    assert row_local(model) == ()
