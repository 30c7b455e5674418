"""The scalers are right when noise is small, calibrated when it is not, and quiet about records always."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats

from tacit.accounting import certify, gdp_epsilon, gdp_mu
from tacit.errors import BudgetExhausted, InvalidInput
from tacit.estimators import DPQuantileScaler, DPStandardScaler, private_mean, private_quantiles, private_variance
from tacit.maps import BoundsScaler
from tacit.mechanism import Adjacency, Mechanism
from tacit.records import InMemory
from tacit.release import SEEDED, Channel, open_session
from tacit.release.queries import HistogramSum

RELATIONS = [a.value for a in Adjacency]
BIG = {"epsilon": 1e8, "delta": 1e-5}
SCALERS = [BoundsScaler(), DPStandardScaler(**BIG), DPQuantileScaler(**BIG)]


def table(n: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.column_stack([rng.normal(3, 1, n), rng.uniform(50, 150, n), rng.integers(0, 2, n)])


LIMITS = ([-10, 0, 0], [10, 200, 1])


# -- right ------------------------------------------------------------------------------------------------------


def test_public_bounds_become_the_unit_box():
    scaler = BoundsScaler(([0, -4, 7], [10, 4, 7]))
    Z = scaler.fit_transform([[0.0, 0.0, 7.0], [10.0, 4.0, 9.0], [-99.0, -1e300, 0.0]])
    np.testing.assert_array_equal(Z, [[-1, 0, 0], [1, 1, 0], [-1, -1, 0]])
    assert scaler.certificate_ is None
    np.testing.assert_allclose(scaler.inverse_transform(Z)[:2], [[0, 0, 7], [10, 4, 7]])


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_much_budget_standardises_as_scikit_learn_does(adjacency):
    X = table()
    scaler = DPStandardScaler(**BIG, feature_bounds=LIMITS, adjacency=adjacency).fit(X)
    np.testing.assert_allclose(scaler.mean_, X.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(scaler.scale_, X.std(axis=0), rtol=1e-3)
    Z = scaler.transform(X)
    np.testing.assert_allclose(Z, np.clip((X - scaler.mean_) / scaler.scale_, -5, 5))
    np.testing.assert_allclose(scaler.inverse_transform(Z), X, atol=1e-9)


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_a_real_budget_is_useful_and_certified(adjacency):
    X = table(20_000)
    scaler = DPStandardScaler(1.0, 1e-6, LIMITS, adjacency=adjacency, random_state=0).fit(X)
    np.testing.assert_allclose(scaler.mean_, X.mean(axis=0), rtol=0.05)
    np.testing.assert_allclose(scaler.scale_, X.std(axis=0), rtol=0.25)
    assert scaler.certificate_.epsilon(1e-6) == pytest.approx(1.0, rel=1e-9)
    assert scaler.certificate_.epsilon(1e-6) <= 1.0
    assert scaler.certificate_.adjacency.value == adjacency


def test_outputs_stay_within_the_promise():
    X = np.vstack([table(100), [[1e300, -1e300, 5.0]]])
    Z = DPStandardScaler(0.01, 1e-6, LIMITS, clip_to=2.5).fit(X).transform(X)
    assert np.abs(Z).max() <= 2.5
    Z = DPQuantileScaler(0.01, 1e-6, LIMITS).fit(X).transform(X)
    assert np.abs(Z).max() <= 1.0


def test_values_outside_the_bounds_count_as_the_bounds():
    inside, outside = np.array([[1.0], [-1.0], [1.0]]), np.array([[1e300], [-7.0], [2.0]])
    fits = [DPStandardScaler(1.0, 1e-5, (-1, 1), random_state=0).fit(X).mean_ for X in (inside, outside)]
    np.testing.assert_array_equal(*fits)


def test_constant_columns_are_not_blown_up():
    X = np.column_stack([np.full(1000, 0.25), np.full(1000, 7.0), np.linspace(-1, 1, 1000)])
    for epsilon in (0.1, 1e8):
        scaler = DPStandardScaler(epsilon, 1e-5, ([-1, 7, -1], [1, 7, 1]), random_state=1).fit(X)
        Z = scaler.transform(X)
        assert (scaler.scale_ > 0).all()
        assert scaler.mean_[1] == 7.0
        assert np.abs(Z[:, 0]).max() < 1.5
        np.testing.assert_array_equal(Z[:, 1], 0.0)


def test_bounds_without_any_choice_release_nothing():
    X = np.full((5, 2), 3.0)
    for scaler in (DPStandardScaler(1.0, 1e-5, (3, 3)), DPQuantileScaler(1.0, 1e-5, (3, 3))):
        np.testing.assert_array_equal(scaler.fit_transform(X), 0.0)
        assert scaler.certificate_.epsilon(1e-5) <= 1.0


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (3, 200)])
def test_tiny_and_wide_tables_work(shape, adjacency):
    X = np.random.default_rng(0).normal(size=shape)
    for scaler in (
        DPStandardScaler(1.0, 1e-5, (-3, 3), adjacency=adjacency),
        DPQuantileScaler(1.0, 1e-5, (-3, 3), adjacency=adjacency),
    ):
        Z = scaler.fit_transform(X)
        assert np.isfinite(Z).all()
        assert (scaler.scale_ > 0).all()


def test_bounds_far_from_zero_survive_rounding():
    low = np.array([1e5, -1e9, 1e90])
    high = low + np.array([1e-5, 1e-3, 1e80])
    X = np.vstack([low, high, (low + high) / 2])
    Z = DPStandardScaler(1e8, 1e-5, (low, high)).fit(X).transform(X)
    assert np.isfinite(Z).all()
    assert np.isfinite(BoundsScaler((low, high)).fit_transform(X)).all()


def test_quantile_scaler_maps_its_interval_to_the_unit_interval():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=5000), rng.lognormal(1, 1, 5000)])
    scaler = DPQuantileScaler(1e7, 1e-5, ([-8, 0], [8, 1243]), grid=["uniform", "geometric"], bins=512).fit(X)
    np.testing.assert_allclose(scaler.quantiles_, np.quantile(X, [0.05, 0.95], axis=0), rtol=0.02)
    np.testing.assert_allclose(scaler.transform(scaler.quantiles_), [[-1, -1], [1, 1]])
    assert scaler.transform([[0.0, 1e9]])[0, 1] == 1.0
    np.testing.assert_allclose(scaler.inverse_transform([[1.0, -1.0]])[0], np.diag(scaler.quantiles_[::-1]))


def test_a_feature_on_one_value_is_scaled_by_its_bin():
    scaler = DPQuantileScaler(1e8, 1e-5, (0, 64), bins=64).fit(np.full((1000, 1), 3.5))
    assert scaler.scale_[0] == pytest.approx(0.5)  # half a bin
    assert abs(scaler.transform([[3.5]])[0, 0]) <= 1


# -- calibrated ---------------------------------------------------------------------------------------------------


def moment_noise(adjacency: str, fits: int = 800) -> np.ndarray:
    """The noise in n·means and n·mean squares, through the public interface."""
    n, p = 5000, 3
    X = np.tile([[0.6], [-0.6]], (n // 2, p))
    out = []
    for seed in range(fits):
        s = DPStandardScaler(5.0, 1e-5, (-1, 1), adjacency=adjacency, random_state=seed).fit(X)
        out.append(n * s.mean_)
        if adjacency != "add-remove":  # there m₂ also carries the noise of the count
            out.append(n * (s.scale_**2 + s.mean_**2 - 0.36))
    return np.ravel(out)


@pytest.mark.parametrize(
    ("adjacency", "squared"), [("replace-one", 4 * 3), ("zero-out", 2 * 3), ("add-remove", 2 * 3 + 1)]
)
def test_the_noise_is_what_the_certificate_says(adjacency, squared):
    sigma = np.sqrt(squared) / gdp_mu(5.0, 1e-5)
    noise = moment_noise(adjacency)
    assert stats.kstest(noise, "norm", args=(0, sigma)).pvalue > 0.01
    for wrong in (0.7, 1.3):
        assert stats.kstest(noise, "norm", args=(0, wrong * sigma)).pvalue < 1e-6


@pytest.mark.parametrize(("adjacency", "squared"), [("replace-one", 4), ("zero-out", 2), ("add-remove", 2)])
def test_the_noise_of_histograms_is_what_the_certificate_says(adjacency, squared):
    X, edges = np.random.default_rng(0).normal(size=(50, 2)), (np.linspace(-2, 2, 4001),) * 2
    query, plan = HistogramSum(edges), Mechanism(adjacency=adjacency, ratio=float(gdp_mu(1.0, 1e-5)), steps=1)
    exact = np.concatenate([np.histogram(np.clip(x, -2, 2), edges[0])[0] for x in X.T])
    with open_session(certify(plan), InMemory(X), random_state=1) as session:
        stated, noisy = session.noise_std(query), session.release(query)
    sigma = np.sqrt(squared) / gdp_mu(1.0, 1e-5)
    assert stated == pytest.approx(sigma)
    assert stats.kstest(noisy - exact, "norm", args=(0, sigma)).pvalue > 0.01
    for wrong in (0.7, 1.3):
        assert stats.kstest(noisy - exact, "norm", args=(0, wrong * sigma)).pvalue < 1e-6


def test_a_secret_number_of_records_is_used_only_with_its_noise(monkeypatch):
    """Noise of n on the count must double it: whoever divides by the true n tells it."""
    n, deal = 40, {"epsilon": 1.0, "delta": 1e-5, "adjacency": "add-remove", "arithmetic": "float"}
    X = np.full((n, 1), 0.5)

    def drawn(noise):
        monkeypatch.setattr(Channel, "_noise", lambda self, sigma, index, clean, history: np.array([noise], float))

    drawn([0, 0, n])  # u, u², 1
    assert DPStandardScaler(**deal, feature_bounds=(-1, 1)).fit(X).mean_[0] == pytest.approx(0.25)
    assert private_variance(X, (-1, 1), **deal)[0] == pytest.approx(0.125 - 0.0625)
    drawn([0, n])  # u, 1
    assert private_mean(X, (-1, 1), **deal)[0] == pytest.approx(0.25)
    drawn([n, n])  # two bins, now of 2n and n: the median of 3n is three quarters into the first
    assert private_quantiles(X - 0.4, 0.5, (0, 1), bins=2, **deal)[0] == pytest.approx(0.375)


def test_two_fits_never_share_noise():
    X = table(100)
    one, two = (DPStandardScaler(1.0, 1e-5, LIMITS).fit(X).mean_ for _ in range(2))
    assert (one != two).all()


def test_a_seed_repeats_and_is_marked():
    X = table(100)
    one, two = (DPStandardScaler(1.0, 1e-5, LIMITS, random_state=4).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.mean_, two.mean_)
    assert SEEDED in one.certificate_.marks
    assert SEEDED not in DPStandardScaler(1.0, 1e-5, LIMITS).fit(X).certificate_.marks


def test_epsilon_is_never_exceeded():
    for epsilon, delta in ((1e-3, 1e-9), (0.5, 1e-5), (30.0, 0.1)):
        c = DPStandardScaler(epsilon, delta, (0, 1)).fit([[0.0], [1.0]]).certificate_
        assert c.epsilon(delta) <= epsilon
        assert gdp_epsilon(c.mu * (1 + 1e-6), delta) > epsilon  # and nothing is left on the table


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaler", SCALERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "X",
    [
        [[np.nan, 7.25]],
        [[np.inf, 7.25]],
        [["secret", "word"]],
        pd.DataFrame({"a": ["secret"], "b": [7.25]}),
        np.array([[10**400, 7.25]], dtype=object),
        [[7.25, 7.25j]],
        [7.25, 7.25],
        np.full((2, 2, 2), 7.25),
        np.empty((0, 2)),
        np.empty((2, 0)),
        sparse.csc_array(np.full((2, 2), 7.25)),
        [[7.25], [7.25, 1.0]],
    ],
    ids=[
        "nan",
        "inf",
        "words",
        "frame",
        "huge",
        "complex",
        "1d",
        "3d",
        "no records",
        "no features",
        "sparse",
        "ragged",
    ],
)
def test_schema_faults_are_refused_without_telling_values(scaler, X):
    with pytest.raises((ValueError, TypeError)) as caught:
        scaler.set_params(feature_bounds=(-1, 1)).fit(X)
    text = str(caught.value)
    assert "7.25" not in text
    assert "secret" not in text
    assert "\n" not in text
    assert caught.value.__cause__ is None
    assert not any(word in str(caught.value.__context__) for word in ("7.25", "secret"))


@pytest.mark.parametrize("scaler", SCALERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (None, "feature_bounds is missing"),
        ((1, 0), "low ≤ high"),
        ((0, np.inf), "finite"),
        ((0, np.nan), "finite"),
        (([0, 0, 0], [1, 1, 1]), "per feature"),
        (3, "pair"),
        ("ab", "pair|number"),
        ((-1.7e308, 1.7e308), "finite|within"),
    ],
)
def test_bounds_are_required_and_sensible(scaler, bounds, message):
    with pytest.raises(InvalidInput, match=message):
        scaler.set_params(feature_bounds=bounds).fit([[0.0, 1.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": None}, "epsilon is missing"),
        ({"epsilon": 0}, "positive"),
        ({"epsilon": np.inf}, "finite"),
        ({"epsilon": "1"}, "real number"),
        ({"delta": None}, "delta is missing"),
        ({"delta": 0}, "strictly between"),
        ({"adjacency": "swap"}, "adjacency must be one of"),
        ({"clip_to": 0}, "clip_to must be positive"),
        ({"ledger": 3.0}, "must be a tacit.Ledger"),
        ({"random_state": -1}, "random_state must be"),
        ({"random_state": np.random.default_rng(0)}, "random_state must be"),
    ],
)
@pytest.mark.parametrize("kind", [DPStandardScaler, DPQuantileScaler])
def test_arguments_are_checked_in_fit(kind, change, message):
    scaler = kind(1.0, 1e-5, (0, 1)).set_params(**change)
    with pytest.raises(InvalidInput, match=message):
        scaler.fit([[0.0], [1.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantiles": (0.0, 1.0)}, "strictly between 0 and 1"),
        ({"quantiles": (0.9, 0.1)}, "increasing"),
        ({"quantiles": 0.5}, "increasing"),
        ({"bins": 0}, "positive integer"),
        ({"bins": 10**9}, "million"),
        ({"grid": "log"}, "one of"),
        ({"grid": ["log"]}, "one of"),
        ({"grid": [[0, 1], [0, 1]]}, "one entry per feature"),
        ({"grid": [[1, 0]]}, "strictly increasing"),
        ({"grid": [[0]]}, "strictly increasing"),
        ({"grid": 7}, "grid must be"),
        ({"resolution": 0}, "positive"),
        ({"resolution": [1.0, 1.0]}, "one per feature"),
    ],
)
def test_grids_are_checked_in_fit(change, message):
    scaler = DPQuantileScaler(1.0, 1e-5, (0, 1)).set_params(**change)
    with pytest.raises(InvalidInput, match=message):
        scaler.fit([[0.0], [1.0]])


def test_new_tables_must_have_the_same_features():
    scaler = DPStandardScaler(1.0, 1e-5, (0, 1)).fit([[0.0, 1.0]])
    with pytest.raises(ValueError, match="3 features"):
        scaler.transform([[0.0, 1.0, 2.0]])
    with pytest.raises(InvalidInput, match="3 features"):
        scaler.inverse_transform([[0.0, 1.0, 2.0]])


# -- paid first -----------------------------------------------------------------------------------------------------


def test_a_budget_too_small_stops_the_fit_before_a_record_is_read(ledger, watched):
    budget = ledger(0.5)
    deal = {"epsilon": 1.0, "delta": 1e-5, "ledger": budget}
    X, x = watched(20, 2), watched(20)
    runs = [
        lambda: DPStandardScaler(**deal, feature_bounds=(-1, 1)).fit(X),
        lambda: DPStandardScaler(**deal, feature_bounds=(-1, 1), adjacency="add-remove").fit(X),
        lambda: DPQuantileScaler(**deal, feature_bounds=(-1, 1)).fit(X),
        lambda: private_mean(x, (-1, 1), **deal),
        lambda: private_variance(x, (-1, 1), **deal),
        lambda: private_quantiles(x, 0.5, (-1, 1), **deal),
    ]
    for run in runs:
        with pytest.raises(BudgetExhausted):
            run()
    assert not X.touched
    assert not x.touched
    assert budget.entries() == ()
    DPStandardScaler(0.1, 1e-5, (-1, 1), ledger=budget).fit(X)
    assert X.touched  # the watch works
    assert len(budget.entries()) == 1


def test_public_mistakes_cost_nothing_and_private_ones_do(ledger):
    budget = ledger(5.0)
    for change in ({"feature_bounds": (1, 0)}, {"clip_to": -1}, {"random_state": "x"}, {"delta": 2}):
        with pytest.raises(InvalidInput):
            DPStandardScaler(1.0, 1e-5, (0, 1), ledger=budget).set_params(**change).fit([[0.5]])
    assert budget.entries() == ()
    with pytest.raises(InvalidInput, match="NaN"):  # found by reading records, so after the reservation
        DPStandardScaler(1.0, 1e-5, (0, 1), ledger=budget).fit([[np.nan]])
    assert len(budget.entries()) == 1
