"""DPSelection: what it certifies, what it hides, what it picks; attacked through its own code."""

from __future__ import annotations

import functools
import math
import pickle

import numpy as np
import pytest
from joblib import parallel_backend
from scipy import sparse, stats
from scipy.stats import norm, poisson
from sklearn.base import BaseEstimator, RegressorMixin, clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from tacit import DPGeneralizedLinear, DPLogisticRegression, DPRidge, DPSelection, Ledger, certify
from tacit.accounting import gdp_delta, gdp_epsilon, gdp_mu, selection_epsilon
from tacit.accounting.selection import refined_delta
from tacit.audit import audit_epsilon, audit_gdp
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered
from tacit.estimators import _search as search_module
from tacit.estimators import selection as module
from tacit.estimators._search import best_of, calibrated, drawn
from tacit.mechanism import Adjacency, Mechanism, Selection, Trials
from tacit.run import Channel, Streams
from tacit.run.sums import BoundedValues

DELTA = 1e-6
EPSILON, MEAN = 3.0, 5.0
"""One setting for most tests: calibration is cached."""


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 3))
    return X, X @ [1.0, -2.0, 0.5] + rng.normal(0, 0.1, 2000)


@pytest.fixture(scope="module")
def labelled(table):
    X, y = table
    return X, np.where(y > 0, "yes", "no")


def ridge(**extra):
    return DPRidge(feature_bounds=(-1, 1), target_bounds=(-4, 4), **extra)


def search(estimator=None, space=None, **extra):
    given = {"epsilon": EPSILON, "delta": DELTA, "mean_trials": MEAN, "random_state": 1} | extra
    return DPSelection(estimator or ridge(), space or {"alpha": [1e-4, 1e-2]}, **given)


# -- the certificate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holdout", [None, 0.25])
def test_the_certificate_is_that_of_selection(table, holdout):
    model = search(holdout=holdout).fit(*table)
    (plan,) = model.certificate_.plan.parts
    assert isinstance(plan, Selection)
    assert plan.trials == Trials(MEAN)
    ratios = [part.ratio.max for part in (*plan.base, *plan.holdout)]
    mu = math.hypot(*ratios) if holdout is None else max(ratios)
    assert len(plan.holdout) == (0 if holdout is None else 1)
    assert model.certificate_.epsilon(DELTA) == pytest.approx(selection_epsilon(mu, MEAN, DELTA), rel=1e-6)
    assert EPSILON * (1 - 1e-4) < model.certificate_.epsilon(DELTA) <= EPSILON
    assert model.certificate_.view == "the selected model"
    assert model.best_estimator_.certificate_ == model.certificate_  # never the smaller ε of one candidate
    assert (model.best_estimator_.epsilon, model.best_estimator_.delta) == (EPSILON, DELTA)


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_training_and_score_split_the_candidate(share):
    costs = calibrated(EPSILON, DELTA, MEAN, Adjacency.REPLACE_ONE, share)
    score = costs.score.ratio.max
    assert score**2 == pytest.approx(share * (costs.train**2 + score**2))
    whole = calibrated(EPSILON, DELTA, MEAN, Adjacency.REPLACE_ONE, None)
    assert whole.train == whole.score.ratio.max == pytest.approx(math.hypot(costs.train, score))


@pytest.mark.parametrize(
    ("epsilon", "delta", "m"), [(0.05, 1e-9, 3.0), (1.0, 0.2, 0.5), (8.0, 1e-5, 30.0), (500.0, 1e-6, 10.0)]
)
def test_calibration_spends_the_budget_and_no_more(epsilon, delta, m):
    certificate = calibrated(epsilon, delta, m, Adjacency.REPLACE_ONE, 0.1).certificate
    assert epsilon * (1 - 1e-3) < certificate.epsilon(delta) <= epsilon


def test_every_bound_rises_with_the_mean_number_of_candidates():
    # Refusing candidates before a record is read thins the Poisson number: it must not cost more.
    for mu in (0.1, 0.7, 3.0):
        costs = [selection_epsilon(mu, m, 1e-5) for m in (0.3, 1.0, 3.0, 10.0)]
        assert costs == sorted(costs)


def test_a_mixture_with_revealed_label_is_as_private_as_its_worst_part():
    # Exact, for three Gaussian candidates of different μ chosen with public probabilities.
    mus, weights, y = np.array([0.2, 0.9, 1.4]), np.array([0.5, 0.3, 0.2]), np.linspace(-12, 14, 40_001)
    for epsilon in (-1.0, 0.0, 0.5, 2.0):
        parts = [np.maximum(norm.pdf(y, mu) - math.exp(epsilon) * norm.pdf(y), 0).sum() * (y[1] - y[0]) for mu in mus]
        assert weights @ parts <= gdp_delta(1.4, epsilon) + 1e-12


# -- audits ------------------------------------------------------------------------------------------------------

RUNS = 2000
THRESHOLD = 0.3


def ranked(y):
    """E4's score: below the threshold beats above it."""
    return y + (100.0 if y < THRESHOLD else 0.0)


def toy(mean, m, seed):
    """Runs of the search's own core, with candidates y ~ N(mean, 1); NaN where it returned nothing."""

    def draw(streams):
        def candidate():
            y = mean + streams.at("y").standard_normal()
            return ranked(y), y

        return candidate

    def sample(k):
        root = Streams(seed)
        outcomes = (best_of(drawn(root.child("run"), m, draw)) for _ in range(k))
        return np.array([math.nan if best is None else best[1] for best in outcomes])

    return sample


def log_ratio(mu, m):
    """The exact log-likelihood ratio of an outcome: the best statistic there is."""

    def better(y, mean):
        return np.where(y < THRESHOLD, norm.cdf(THRESHOLD, mean), 1 + norm.cdf(THRESHOLD, mean)) - norm.cdf(y, mean)

    def statistic(y):
        return np.nan_to_num(norm.logpdf(y, mu) - norm.logpdf(y) - m * (better(y, mu) - better(y, 0)), nan=0.0)

    return statistic


def toy_verdict(mu, m):
    claim = certify(Selection(base=(Mechanism(adjacency="replace-one", ratio=mu, steps=1),), trials=Trials(m)))
    audit = audit_epsilon(toy(0.0, m, 1), toy(mu, m, 2), RUNS, 1e-3, statistic=log_ratio(mu, m))
    return audit.verdict(claim), audit.epsilon_lower, claim.epsilon(1e-3)


def test_the_core_stays_below_its_certificate_and_comes_near():
    verdict, lower, certified = toy_verdict(1.0, 5.0)
    assert not verdict.violated
    assert 0.4 * certified < lower < certified


def test_at_least_one_candidate_would_be_another_mechanism(monkeypatch):
    assert not toy_verdict(2.0, 0.2)[0].violated
    honest = search_module._number
    monkeypatch.setattr(search_module, "_number", lambda rng, m: max(honest(rng, m), 1))
    assert toy_verdict(2.0, 0.2)[0].violated


def test_showing_the_number_of_candidates_would_break_the_certificate():
    # Exact: the pair (K, best) against the certificate; without K the same attack stays below it.
    mu, m, epsilon, y = 1.0, 2.0, 3.0, np.linspace(-9, 10, 8001)
    densities = []
    for mean in (mu, 0.0):
        u = np.where(y < 0.5, norm.cdf(0.5, mean), 1 + norm.cdf(0.5, mean)) - norm.cdf(y, mean)
        densities.append((norm.pdf(y, mean), np.clip(u, 0, 1)))
    excess = lambda law: (
        np.maximum(law(*densities[0]) - math.exp(epsilon) * law(*densities[1]), 0).sum() * (y[1] - y[0])
    )  # noqa: E731
    hidden = excess(lambda q, u: m * q * np.exp(-m * u))
    shown = sum(poisson.pmf(k, m) * excess(lambda q, u, k=k: k * q * (1 - u) ** (k - 1)) for k in range(1, 30))
    assert hidden < refined_delta(mu, m, epsilon) < shown / 1.9


@functools.cache
def toy_certificate(epsilon, delta, adjacency):
    return certify(Mechanism(adjacency=adjacency, ratio=float(gdp_mu(epsilon, delta)), steps=1, label="toy"))


class OneNumber(RegressorMixin, BaseEstimator):
    """A toy candidate: one noisy sum of the targets, predicted for everybody."""

    def __init__(self, shift=0.0, epsilon=1.0, delta=1e-6, adjacency="replace-one", budget=None, random_state=None, target_bounds=(0, 1)):  # fmt: skip
        self.shift, self.epsilon, self.delta, self.adjacency = shift, epsilon, delta, adjacency
        self.budget, self.random_state, self.target_bounds = budget, random_state, target_bounds

    def planned_certificate(self, X, classes):
        assert not X.any()
        assert classes is None
        return toy_certificate(self.epsilon, self.delta, self.adjacency)

    def fit(self, X, y):
        self.certificate_ = self.planned_certificate(np.zeros_like(X), None)
        channel = Channel(self.certificate_, len(y), streams=Streams(self.random_state))
        self.value_ = float(channel.release(BoundedValues(y[:, None]), np.zeros((1, 1)))[0, 0])
        return self

    def predict(self, X):
        return np.full(len(X), self.value_ + self.shift)


def whole(seen, n=2, **extra):
    """Runs of DPSelection.fit on a table in which one record's target is 0 or 1."""
    X, y = np.zeros((n, 1)), np.zeros(n)
    y[0] = seen
    extra = {"epsilon": 6.0, "delta": 1e-2, "mean_trials": 3.0, "score_share": 0.5, "random_state": None} | extra
    model = search(OneNumber(), {"shift": [0.0, 0.5]}, **extra)

    def sample(k):
        rows = np.zeros((k, 3))
        for row in rows:
            best = model.fit(X, y)
            if best.best_estimator_ is not None:
                row[:] = best.best_estimator_.value_, best.best_score_, 1.0
        return rows

    return sample, model


def whole_verdict(runs, **extra):
    (here, model), (there, _) = whole(0.0, **extra), whole(1.0, **extra)
    audit = audit_epsilon(here, there, runs, 1e-2)
    return audit.verdict(model.certificate_), audit.epsilon_lower, model.certificate_.epsilon(1e-2)


@pytest.mark.parametrize("holdout", [None, 0.5])
def test_the_whole_search_stays_below_its_certificate(holdout):
    verdict, lower, certified = whole_verdict(600, holdout=holdout)
    assert not verdict.violated
    assert lower < certified


def test_a_score_without_noise_is_caught(monkeypatch):
    bare = lambda self, sigma, index, clean: np.zeros_like(clean)  # noqa: E731
    honest = Channel._noise
    monkeypatch.setattr(
        Channel, "_noise", lambda self, *a: (honest if self.mechanism.label == "toy" else bare)(self, *a)
    )
    assert whole_verdict(600)[0].violated
