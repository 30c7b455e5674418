"""What every public map promises: rows by themselves, within a norm, repeatable, and silent about records."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from tacit.errors import InvalidInput
from tacit.maps import Deskew, Hog, Join, NormScaler, RandomFourier, RandomRelu, ReluGates
from tacit.maps.draws import gaussians
from tacit.maps.lengths import scaled_down

KINDS = (np.float64, np.float32)
PINNED = [1098258, -255927, 754076, 339979]


def hostile(kind) -> np.ndarray:
    """Rows that overflow, underflow, vanish, or sit on the edge of a bound."""
    big, small = (1e300, 1e-300) if kind is np.float64 else (1e38, 1e-38)
    rng = np.random.default_rng(1)
    rows = [
        np.zeros(64),
        -np.zeros(64),
        np.full(64, big),
        np.full(64, -big),
        np.full(64, small),
        np.full(64, np.finfo(kind).max),
        np.full(64, np.finfo(kind).smallest_subnormal),
        np.where(np.arange(64) == 7, big, small),
        rng.choice([-big, big], 64),
        rng.choice([-big, big, small, 0.0, 1.0], 64),
        *rng.normal(size=(200, 64)),
        *(rng.normal(size=(50, 64)) / 8),
        *np.eye(64)[:5],
        *(0.7 * np.eye(64)[:5]),
    ]
    with np.errstate(under="ignore"):
        return np.array(rows).astype(kind)


def exact_norms(Z) -> np.ndarray:
    """Row norms from squares in extended precision."""
    wide = np.asarray(Z).astype(np.longdouble)
    return np.sqrt((wide * wide).sum(axis=1))


# -- a row is a function of its own record --------------------------------------------------------------------------


def test_the_order_of_records_does_not_matter(model, table):
    X = table()
    Z, order = model.fit_transform(X), np.random.default_rng(2).permutation(len(X))
    np.testing.assert_allclose(model.transform(X[order]), Z[order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.transform(X[3:17]), Z[3:17], rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.vstack([model.transform(x[None]) for x in X]), Z, rtol=0, atol=1e-12)


def test_one_record_changes_one_row(model, table):
    X = table()
    Z = model.fit_transform(X)
    for culprit in (np.full(64, 1e300), np.zeros(64), table(seed=5)[0]):
        other = X.copy()
        other[11] = culprit
        changed = clone(model).fit(other).transform(other) != Z
        assert not np.delete(changed, 11, axis=0).any()  # to the bit: the shapes are the same


def test_the_check_would_notice_a_leak(table, monkeypatch):
    monkeypatch.setattr(NormScaler, "_rows", lambda self, x: scaled_down(x - x.mean(axis=0), 1.0))
    with pytest.raises(AssertionError):
        test_one_record_changes_one_row(NormScaler(), table)
    with pytest.raises(AssertionError):
        test_the_order_of_records_does_not_matter(NormScaler(), table)


def test_nothing_is_learned(model, table):
    one, other = clone(model).fit(table(4)), clone(model).fit(hostile(np.float64))
    X = table(7, seed=3)
    np.testing.assert_array_equal(one.transform(X), other.transform(X))
    assert one.certificate_ is None


def test_blocks_of_rows_are_not_seen(model, table, monkeypatch):
    X = table()
    whole = model.fit_transform(X)
    monkeypatch.setattr("tacit.maps.feature_map.BLOCK", 200)
    np.testing.assert_allclose(model.transform(X), whole, rtol=0, atol=1e-12)


# -- the norm holds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_exceeds_the_stated_norm(model, kind):
    X = hostile(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning would tell about a record
        Z = model.fit_transform(X)
    assert Z.dtype == kind
    assert np.isfinite(Z).all()
    assert exact_norms(Z).max() <= model.norm


@pytest.mark.parametrize("kind", KINDS)
def test_the_norm_is_nearly_reached(kind):
    X = hostile(kind)
    for model in (NormScaler(0.7), NormScaler(3.0, how="normalise"), RandomFourier(16, gamma=0.3)):
        top = exact_norms(clone(model).fit_transform(X)).max()
        assert model.norm * (1 - 4e-6) <= top <= model.norm


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_keeps_short_rows_to_the_bit_and_twice_is_once(kind):
    X = hostile(kind)
    once = NormScaler().fit_transform(X)
    short = exact_norms(X) < 0.999
    assert short.any()
    np.testing.assert_array_equal(once[short], X[short])
    np.testing.assert_array_equal(NormScaler().fit_transform(once), once)
    long = exact_norms(X) > 1
    np.testing.assert_allclose(exact_norms(once[long]).astype(float), 1.0, rtol=4e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 1.0, 1e300])
def test_directions_survive_any_scale(scale):
    x = np.array([[3.0, -4.0, 12.0]]) * scale
    np.testing.assert_allclose(NormScaler(13.0, how="normalise").fit_transform(x), [[3, -4, 12]], rtol=1e-9)
    gates = ReluGates(50).fit(x)
    np.testing.assert_array_equal(gates.active(x), gates.active(x / scale))


def test_bounds_are_exact_for_many_random_rows():
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for width in (1, 2, 3, 1000):
            X = (rng.normal(size=(500, width)) * 10.0 ** rng.uniform(-30, 30, (500, 1))).astype(kind)
            for bound in (1e-20, 1 / 3, 1.0, 7e15):
                assert exact_norms(scaled_down(X, bound)).max() <= bound


# -- public, repeatable ----------------------------------------------------------------------------------------------


def test_draws_are_pinned():
    """Philox bits are guaranteed by numpy; the grid of 2⁻²⁰ hides the last bits of a platform's logarithm."""
    drawn = gaussians(7, 1, (4,)) * 2**20
    np.testing.assert_array_equal(drawn, PINNED)
    np.testing.assert_array_equal(gaussians(7, 1, (2, 50)), gaussians(7, 1, (2, 50)).astype(np.float32))


def test_draws_are_standard_gaussians():
    from scipy import stats

    drawn = gaussians(0, 1, (20_000,))
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    for wrong in (0.9, 1.1):
        assert stats.kstest(drawn, "norm", args=(0, wrong)).pvalue < 1e-6
    assert abs(np.corrcoef(drawn, gaussians(0, 2, (20_000,)))[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn, gaussians(1, 1, (20_000,)))[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (ReluGates(4, gate_seed=0), ReluGates(4, gate_seed=1)),
        (RandomFourier(8, seed=0), RandomFourier(8, seed=1)),
        (RandomFourier(8, seed=0), RandomFourier(8, seed=0, orthogonal=True)),
        (RandomRelu(8, seed=0), RandomRelu(8, seed=1)),
    ],
)
def test_seeds_matter(one, two, table):
    assert (one.fit_transform(table()) != two.fit_transform(table())).any()


def test_more_rows_of_draws_keep_the_first_ones(table):
    few, many = ReluGates(3).fit(table()), ReluGates(9).fit(table())
    np.testing.assert_array_equal(many.gates_[:3], few.gates_)


def test_clones_and_pickles_agree(model, table):
    X = table()
    fitted = clone(model).fit(X)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    np.testing.assert_array_equal(clone(fitted).fit(X).transform(X), fitted.transform(X))
    assert again.norm == fitted.norm == clone(fitted).norm


def test_float32_is_close_to_float64(model, table):
    X = table().astype(np.float32)
    np.testing.assert_allclose(
        model.fit_transform(X), model.fit_transform(X.astype(np.float64)), rtol=0, atol=1e-5 * model.norm
    )


def test_integers_are_numbers(model):
    X = np.random.default_rng(0).integers(0, 3, size=(6, 64))
    Z = model.fit_transform(X.astype(np.uint8))
    assert Z.dtype == np.float64
    np.testing.assert_array_equal(Z, model.fit_transform(X.astype(float)))


def test_features_have_names(model, table):
    X = table()
    frame = pd.DataFrame(X, columns=[f"p{j}" for j in range(64)], index=range(5, 35))
    out = clone(model).set_output(transform="pandas").fit(frame).transform(frame)
    assert list(out.index) == list(frame.index)
    assert list(out.columns) == list(clone(model).fit(frame).get_feature_names_out())
    np.testing.assert_array_equal(out.to_numpy(), model.fit_transform(X))


def test_a_changed_parameter_never_breaks_the_bound(table):
    """Between set_params and the next fit, ``norm`` and ``transform`` still agree."""
    X = hostile(np.float64)
    scaler = NormScaler(1.0).fit(X)
    assert exact_norms(scaler.set_params(norm=0.01).transform(X)).max() <= 0.01
    both = Join([("a", NormScaler())], weights={"a": 2.0}).fit(X)
    both.set_params(weights={"a": 1e-3}, a__norm=1e-3)
    assert exact_norms(both.transform(X)).max() <= both.norm
    with pytest.raises(InvalidInput, match="norm must be positive"):
        scaler.set_params(norm=-1).transform(X)
    for model in (RandomFourier(4), RandomRelu(4), Hog((8, 8), (0, 1))):
        model.fit(X).set_params(**{name: np.nan for name in ("gamma", "bias", "epsilon") if hasattr(model, name)})
        assert np.isfinite(model.transform(X)).all()


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "X",
    [
        np.full((2, 64), np.nan),
        np.full((2, 64), np.inf),
        np.full((2, 64), "secret"),
        np.full((2, 64), 7.25j),
        np.full(64, 7.25),
        np.full((2, 8, 8), 7.25),
        np.empty((0, 64)),
        np.empty((2, 0)),
        sparse.csc_array(np.full((2, 64), 7.25)),
        [[7.25], [7.25, 1.0]],
    ],
    ids=["nan", "inf", "words", "complex", "1d", "3d", "no records", "no columns", "sparse", "ragged"],
)
def test_schema_faults_are_refused_without_telling_values(model, X, table):
    fitted = clone(model).fit(table())
    for call in (clone(model).fit, fitted.transform, getattr(fitted, "active", fitted.transform)):
        with pytest.raises((ValueError, TypeError)) as caught:
            call(X)
        text = str(caught.value)
        assert "7.25" not in text
        assert "secret" not in text
        assert "\n" not in text


def test_sparse_tables_get_a_remedy(model):
    with pytest.raises(InvalidInput, match="toarray"):
        model.fit(sparse.csr_array(np.eye(64)))


def test_other_widths_are_refused(model, table):
    with pytest.raises(ValueError, match="63 features"):
        model.fit(table()).transform(table()[:, :63])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NormScaler(0), "norm must be positive"),
        (NormScaler(1e40), "between 1e-30 and 1e30"),
        (NormScaler("1"), "real number"),
        (NormScaler(how="both"), "how must be one of"),
        (ReluGates(0), "n_gates must be a positive integer"),
        (ReluGates(gate_seed=None), "gate_seed must be a non-negative integer"),
        (ReluGates(gate_seed=-1), "non-negative"),
        (ReluGates(gate_seed=1.5), "non-negative integer"),
        (ReluGates(norm=np.inf), "finite"),
        (RandomFourier(7), "even"),
        (RandomFourier(8, gamma=0), "gamma must be positive"),
        (RandomFourier(8, gamma=1e30), "gamma must lie"),
        (RandomFourier(8, seed=np.random.default_rng(0)), "seed must be"),
        (RandomRelu(8, bias=-1), "bias must not be negative"),
        (RandomRelu(8, norm=None), "norm must be a real number"),
        (Deskew(), "image_shape must be"),
        (Deskew((8, 8)), "pixel_range is missing"),
        (Deskew((8, 9), (0, 1)), "72 pixels, but X has 64 columns"),
        (Deskew((8, 8), (1, 0)), "low < high"),
        (Deskew((8, 8), (0, np.inf)), "finite"),
        (Deskew((8, 8), 255), "pixel_range must be"),
        (Deskew((8, 8), (0, 1), max_shear=-1), "max_shear"),
        (Deskew(64, (0, 1)), "image_shape must be"),
        (Deskew((8, 0), (0, 1)), "positive integer"),
        (Hog((8, 8)), "pixel_range is missing"),
        (Hog((8, 8), (0, 1), cell=3), "cell must divide"),
        (Hog((8, 8), (0, 1), cell=8), "block is 2 cells wide"),
        (Hog((8, 8), (0, 1), orientations=1), "at least 2"),
        (Hog((8, 8), (0, 1), epsilon=0), "epsilon must be positive"),
        (Hog((8, 8), (0, 1), epsilon=1e-9), "epsilon must lie"),
        (Join(), "maps must be a list"),
        (Join([]), "maps must be a list"),
        (Join([NormScaler()]), "pairs"),
        (Join([("a", 3)]), "pairs"),
        (Join([("a", NormScaler())], weights={"b": 1.0}), "'b'"),
        (Join([("a", NormScaler())], weights={"a": 0.0}), "positive"),
        (Join([("a", NormScaler()), ("a", NormScaler())]), "unique"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_arguments_are_checked_in_fit(model, message, table):
    with pytest.raises(ValueError, match=message) as caught:
        model.fit(table())
    assert "\n" not in str(caught.value)
