"""DPSelection: what it certifies, what it hides, what it picks; attacked through its own code."""

from __future__ import annotations

import functools
import math
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from joblib import parallel_backend
from scipy import sparse, stats
from scipy.stats import norm, poisson
from sklearn.base import BaseEstimator, RegressorMixin, clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from tacit import DPGeneralizedLinear, DPLogisticRegression, DPRidge, DPSelection, Ledger, certify
from tacit.accounting import gdp_delta, gdp_mu, selection_epsilon
from tacit.accounting.selection import refined_delta
from tacit.audit import audit_epsilon
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered
from tacit.estimators import _search as search_module
from tacit.estimators import selection as module
from tacit.estimators._data import Data, split
from tacit.estimators._search import best_of, calibrated, check_candidate, drawn
from tacit.estimators._space import point_of
from tacit.mechanism import Adjacency, Arithmetic, Mechanism, Selection, Trials
from tacit.records import InMemory, Rows
from tacit.release import Channel, Streams, open_session
from tacit.release.queries import BoundedSum, Score, TargetShare

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


@pytest.mark.parametrize("share", [0.02])
def test_training_and_score_split_the_candidate(share):
    costs = calibrated(EPSILON, DELTA, MEAN, Adjacency.REPLACE_ONE, share)
    score = costs.score.ratio.max
    assert score**2 == pytest.approx(share * (costs.train**2 + score**2))
    whole = calibrated(EPSILON, DELTA, MEAN, Adjacency.REPLACE_ONE, None)
    assert whole.train == whole.score.ratio.max == pytest.approx(math.hypot(costs.train, score))


@pytest.mark.parametrize(("epsilon", "delta", "m"), [(0.05, 1e-9, 3.0), (500.0, 1e-6, 10.0)])
def test_calibration_spends_the_budget_and_no_more(epsilon, delta, m):
    certificate = calibrated(epsilon, delta, m, Adjacency.REPLACE_ONE, 0.1).certificate
    assert epsilon * (1 - 1e-3) < certificate.epsilon(delta) <= epsilon


def test_every_bound_rises_with_the_mean_number_of_candidates():
    # Refusing candidates before a record is read thins the Poisson number: it must not cost more.
    for mu in (0.1, 0.7, 3.0):
        for epsilon in (0.0, 1.0):
            costs = [refined_delta(mu, m, epsilon) for m in (0.3, 1.0, 10.0)]
            assert costs == sorted(costs)


def test_a_mixture_with_revealed_label_is_as_private_as_its_worst_part():
    # Exact, for three Gaussian candidates of different μ chosen with public probabilities.
    mus, weights, y = np.array([0.2, 0.9, 1.4]), np.array([0.5, 0.3, 0.2]), np.linspace(-12, 14, 40_001)
    for epsilon in (-1.0, 0.0, 0.5, 2.0):
        parts = [np.maximum(norm.pdf(y, mu) - math.exp(epsilon) * norm.pdf(y), 0).sum() * (y[1] - y[0]) for mu in mus]
        assert weights @ parts <= gdp_delta(1.4, epsilon) + 1e-12


# -- audits ------------------------------------------------------------------------------------------------------

RUNS = 2000
THRESHOLD, NOTHING = 0.3, 1e6


def ranked(y):
    """E4's score: below the threshold beats above it."""
    return y + (100.0 if y < THRESHOLD else 0.0)


def toy(mean, m, seed):
    """Runs of the search's own core, with candidates y ~ N(mean, 1); NOTHING where it returned nothing."""

    def draw(streams):
        def candidate():
            y = mean + streams.at("y").standard_normal()
            return ranked(y), y

        return candidate

    def sample(k):
        root = Streams(seed)
        outcomes = (best_of(drawn(root.child("run"), m, draw)) for _ in range(k))
        return np.array([NOTHING if best is None else best[1] for best in outcomes])

    return sample


def log_ratio(mu, m):
    """The exact log-likelihood ratio of an outcome: the best statistic there is."""

    def better(y, mean):
        return np.where(y < THRESHOLD, norm.cdf(THRESHOLD, mean), 1 + norm.cdf(THRESHOLD, mean)) - norm.cdf(y, mean)

    def statistic(y):
        found = norm.logpdf(y, mu) - norm.logpdf(y) - m * (better(y, mu) - better(y, 0))
        return np.where(np.ravel(y) == NOTHING, 0.0, np.ravel(found))

    return statistic


class Claim:
    """The refined bound, ε rounded down to a grid: never less than what is certified, and fast."""

    def __init__(self, mu, m):
        self.mu, self.m = mu, m

    def delta(self, epsilon):
        return coarse_delta(self.mu, self.m, math.floor(2 * epsilon) / 2)

    def epsilon(self, delta):
        return selection_epsilon(self.mu, self.m, delta)


coarse_delta = functools.cache(refined_delta)


def toy_verdict(mu, m, runs=RUNS):
    audit = audit_epsilon(toy(0.0, m, 1), toy(mu, m, 2), runs, 1e-3, statistic=log_ratio(mu, m))
    return audit.verdict(Claim(mu, m)), audit.epsilon_lower, selection_epsilon(mu, m, 1e-3)


def test_the_core_stays_below_its_certificate_and_comes_near():
    verdict, lower, certified = toy_verdict(1.0, 2.0, 4 * RUNS)  # with RUNS, half of all seeds come near enough
    assert not verdict.violated
    assert 0.5 * certified < lower < certified


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

    def excess(law):
        return np.maximum(law(*densities[0]) - math.exp(epsilon) * law(*densities[1]), 0).sum() * (y[1] - y[0])

    hidden = excess(lambda q, u: m * q * np.exp(-m * u))
    shown = sum(poisson.pmf(k, m) * excess(lambda q, u, k=k: k * q * (1 - u) ** (k - 1)) for k in range(1, 30))
    assert hidden < refined_delta(mu, m, epsilon) < shown / 1.9


@functools.cache
def toy_certificate(epsilon, delta, adjacency):
    return certify(Mechanism(adjacency=adjacency, ratio=float(gdp_mu(epsilon, delta)), steps=1, label="toy"))


class OneNumber(RegressorMixin, BaseEstimator):
    """A toy candidate: one noisy sum of the targets, predicted for everybody."""

    def __init__(
        self,
        shift=0.0,
        epsilon=1.0,
        delta=1e-6,
        adjacency="replace-one",
        ledger=None,
        random_state=None,
        target_bounds=(0, 1),
    ):
        self.shift, self.epsilon, self.delta, self.adjacency = shift, epsilon, delta, adjacency
        self.ledger, self.random_state, self.target_bounds = ledger, random_state, target_bounds

    def planned_certificate(self, n_records, n_features):
        return toy_certificate(self.epsilon, self.delta, self.adjacency)

    def fit(self, X, y):
        certificate = toy_certificate(self.epsilon, self.delta, self.adjacency)
        with open_session(certificate, InMemory(X, y), random_state=self.random_state) as session:
            self.value_ = float(session.release(BoundedSum(TargetShare(0.0, 1.0)))[0])
        self.certificate_ = session.certificate
        return self

    def predict(self, X):
        return np.full(len(X), self.value_ + self.shift)


def whole(seen, n=2, **extra):
    """Runs of DPSelection.fit on a table in which one record's target is 0 or 1."""
    X, y = np.zeros((n, 1)), np.zeros(n)
    y[0] = seen
    extra = {"epsilon": 1.5, "delta": 1e-2, "mean_trials": 3.0, "score_share": 0.5, "random_state": None} | extra
    model = search(OneNumber(), {"shift": [0.0, 0.5]}, **extra)

    def sample(k):
        rows = np.zeros((k, 3))
        for row in rows:
            best = model.fit(X, y)
            if best.best_estimator_ is not None:
                row[:] = best.predict(X)[0], best.best_score_, 1.0
        return rows

    return sample, model


def consistent_with_zero(rows):
    """How far the score is from what the model scores if every target is 0."""
    return np.abs(rows[:, 1] - (1 - np.clip(rows[:, 0], 0, 1))) * rows[:, 2]


def whole_verdict(runs, statistic=None, **extra):
    (here, model), (there, _) = whole(0.0, **extra), whole(1.0, **extra)
    audit = audit_epsilon(here, there, runs, 1e-2, statistic=statistic)
    (plan,) = model.certificate_.plan.parts
    ratios = [part.ratio.max for part in plan.base]
    claim = Claim(math.hypot(*ratios), plan.trials.mean)
    return audit.verdict(claim), audit.epsilon_lower, model.certificate_.epsilon(1e-2)


@pytest.mark.parametrize(("holdout", "statistic"), [(None, consistent_with_zero), (0.5, None)])
def test_the_whole_search_stays_below_its_certificate(holdout, statistic):
    verdict, lower, certified = whole_verdict(RUNS // 10, statistic, holdout=holdout)
    assert not verdict.violated
    assert lower < certified


def without_noise(part):
    """Channel._noise that forgets the noise of one part."""
    honest = Channel._noise
    return lambda self, sigma, *rest: honest(self, 0.0 if part in self.mechanism.label else sigma, *rest)


def test_a_score_without_noise_is_caught(monkeypatch):
    monkeypatch.setattr(Channel, "_noise", without_noise("score"))
    assert whole_verdict(RUNS // 10, consistent_with_zero)[0].violated


def test_training_without_noise_is_caught(monkeypatch):
    monkeypatch.setattr(Channel, "_noise", without_noise("toy"))
    assert whole_verdict(RUNS // 10)[0].violated


# -- what is hidden, and what is not there -----------------------------------------------------------------------

PUBLIC = {"certificate_", "best_estimator_", "best_params_", "best_score_", "n_features_in_"}


def learned(model):
    return {name for name in vars(model) if name not in model.get_params(deep=False)}


def test_nothing_tells_how_many_or_which_candidates_there_were(table, labelled, capfd):
    assert learned(search().fit(*table)) == PUBLIC
    classifier = search(DPLogisticRegression(feature_bounds=(-1, 1), classes=["no", "yes"])).fit(*labelled)
    assert learned(classifier) == PUBLIC | {"classes_"}
    alone = DPRidge(feature_bounds=(-1, 1), target_bounds=(-4, 4), epsilon=1, delta=DELTA, random_state=0).fit(*table)
    winner = search().fit(*table).best_estimator_
    assert vars(winner).keys() == vars(alone).keys()
    assert winner.random_state == 1  # a seed of its own would tell its place in the row
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")


def test_nothing_is_an_answer(table, monkeypatch, labelled):
    model = search().fit(*table)
    with monkeypatch.context() as patch:
        patch.setattr(search_module, "_number", lambda rng, m: 0)
        model.fit(*table)
        assert (model.best_estimator_, model.best_params_, model.best_score_) == (None, None, None)
        assert model.certificate_.epsilon(DELTA) <= EPSILON
        with pytest.raises(NotFittedError, match=r"with probability e\^-5 it tries no candidate, by design"):
            model.predict(table[0])
        with pytest.raises(module.NothingSelected):
            model.score(*table)
    assert model.fit(*table).best_estimator_ is not None
    with pytest.raises(NotFittedError):
        search().predict(table[0])


def test_how_often_nothing_is_returned():
    counts = [len(drawn(Streams(), 1.5, lambda streams: None)) for _ in range(3000)]
    expected = 3000 * np.append(poisson.pmf(range(6), 1.5), poisson.sf(5, 1.5))
    assert stats.chisquare(np.bincount(np.minimum(counts, 6)), expected).pvalue > 1e-4
    rare = [best_of(drawn(Streams(), 0.01, lambda streams: lambda: (0.0, 1))) for _ in range(100)]
    assert rare.count(None) > 80


def test_a_candidate_that_fails_is_the_worst_whatever_the_reason():
    def fails():
        raise np.linalg.LinAlgError("singular")

    def refuses():
        raise InvalidInput("steps must be finite")  # of steps that follow from what was released

    assert best_of([fails, lambda: (-5.0, "a"), lambda: (math.nan, "b")]) == (-5.0, "a")
    assert best_of([fails, fails]) is None
    assert best_of([lambda: (1.0, "first"), lambda: (1.0, "second")]) == (1.0, "first")
    assert best_of([lambda: (0.0, "a"), refuses]) == (0.0, "a")


def test_candidates_are_drawn_with_replacement_and_independently():
    space = [{"alpha": [1, 2], "clip": stats.uniform(0, 1)}]
    rng = Streams(3).at("x")
    points = [point_of(space, rng) for _ in range(400)]
    first = np.array([point["alpha"] for point in points])
    assert 150 < (first == 1).sum() < 250
    assert stats.kstest([point["clip"] for point in points], "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.2


# -- arithmetic -----------------------------------------------------------------------------------------------------


def test_a_search_is_exact_if_its_candidates_and_scores_are(table):
    plain, exact = (calibrated(EPSILON, DELTA, MEAN, Adjacency.REPLACE_ONE, 0.1, way) for way in Arithmetic)
    assert (plain.certificate.arithmetic, exact.certificate.arithmetic) == ("float", "exact")
    assert plain.certificate.epsilon(DELTA) == exact.certificate.epsilon(DELTA)
    estimator = ridge(epsilon=1.0, delta=DELTA).fit(*table)
    query = BoundedSum(Score(estimator, "absolute_error"))
    with open_session(certify(exact.score), InMemory(*table)) as session:
        unit = query.grid(session.noise_std(query)).unit
        assert (session.release(query) / unit).item().is_integer()


def test_an_exact_search_refuses_candidates_in_floating_point():
    certificate = certify(Mechanism(adjacency="replace-one", ratio=0.1, steps=1))
    given = {"limit": 0.2, "relation": Adjacency.REPLACE_ONE, "point": "{}", "delta": DELTA, "marks": (), "remedy": ""}
    check_candidate(certificate, **given)
    with pytest.raises(NotCovered, match="floating point"):
        check_candidate(certificate, **given, arithmetic=Arithmetic.EXACT)
    exact = certify(Mechanism(adjacency="replace-one", ratio=0.1, steps=1, arithmetic="exact"))
    for way in Arithmetic:
        check_candidate(exact, **given, arithmetic=way)


# -- no noise twice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_processes_share_no_noise(table, backend):
    costs = calibrated(EPSILON, DELTA, MEAN, Adjacency.REPLACE_ONE, 0.1)
    estimator = ridge(epsilon=1.0, delta=DELTA)
    certificate = estimator.planned_certificate(*table[0].shape)
    trial = functools.partial(
        module._trial, train=Data(*table), test=Data(*table), scoring="absolute_error", score=costs.score
    )
    with parallel_backend(backend):
        outcomes = search_module.Parallel(n_jobs=2)(
            search_module.delayed(search_module._attempt)(functools.partial(trial, clone(estimator), certificate, {}))
            for _ in range(4)
        )
    assert len({score for score, _ in outcomes}) == 4
    assert len({model.coef_.tobytes() for _, (model, _) in outcomes}) == 4


def test_parallel_is_serial_with_a_seed(table):
    one, two = search().fit(*table), search(n_jobs=2).fit(*table)
    assert one.best_params_ == two.best_params_
    assert one.best_score_ == two.best_score_
    np.testing.assert_array_equal(one.best_estimator_.coef_, two.best_estimator_.coef_)
    assert one.certificate_.marks == ("not private: seeded",)
    free = search(random_state=None).fit(*table)
    assert free.certificate_.marks == ()
    assert free.best_estimator_ is None or not np.array_equal(free.best_estimator_.coef_, one.best_estimator_.coef_)


# -- budgets -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))

    def make(**limits):
        return Ledger(tmp_path / "study.ledger", **limits)

    return make


def test_a_search_is_charged_once_before_records_are_read(table, ledger, monkeypatch):
    budget = ledger(epsilon=2 * EPSILON, delta=3 * DELTA)
    model = search(ledger=budget)
    clone(model).fit(*table)
    model.fit(*table)
    assert [(entry.epsilon, entry.delta) for entry in budget.entries()] == [
        (pytest.approx(EPSILON, rel=1e-5), DELTA),
        (pytest.approx(EPSILON, rel=1e-5), DELTA),
    ]
    assert {entry.digest for entry in budget.entries()} == {model.certificate_.digest}  # with the mark of the seed
    monkeypatch.setattr(module, "_trial", lambda *a, **k: pytest.fail("a record was read"))
    with pytest.raises(BudgetExhausted):
        model.fit(*table)


def test_an_interrupted_search_leaves_the_old_one(table, labelled, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    model = search().fit(*table)
    before = dict(vars(model))
    monkeypatch.setattr(module, "_trial", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(table[0][:, :2], table[1])
    assert vars(model) == before


def test_a_grid_search_is_charged_for_each_of_its_fits(table, ledger):
    budget = ledger(epsilon=10.0, delta=DELTA)
    each = ridge(epsilon=0.5, delta=DELTA, ledger=budget, random_state=0)
    GridSearchCV(each, {"alpha": [1e-4, 1e-2]}, cv=5, refit=False).fit(*table)
    assert len(budget.entries()) == 10
    assert sum(entry.mu**2 for entry in budget.entries()) == pytest.approx(10 * gdp_mu(0.5, DELTA) ** 2, rel=1e-9)


def test_the_inner_budget_is_refused(table, ledger):
    with pytest.raises(InvalidInput, match=r"charged beside the search: pass the ledger to DPSelection"):
        search(ridge(ledger=ledger(epsilon=1.0, delta=DELTA))).fit(*table)


# -- refusals, all before records are read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "space", "extra", "kind", "words"),
    [
        (None, {"solver": ["sgd"]}, {}, NotCovered, "'sgd'.*gives no μ"),
        (None, {"alpha": []}, {}, InvalidInput, "must be a list"),
        (None, {"alpha": "12"}, {}, InvalidInput, "must be a list"),
        (None, {"nonsense": [1]}, {}, InvalidInput, "does not have"),
        (None, {"epsilon": [1.0]}, {}, InvalidInput, "same for all candidates"),
        (None, [], {}, InvalidInput, "param_distributions"),
        (None, None, {"delta": None}, InvalidInput, "1/n² = 2.5e-07"),
        (None, None, {"epsilon": -1.0}, InvalidInput, "epsilon"),
        (None, None, {"mean_trials": 0}, InvalidInput, "mean_trials"),
        (None, None, {"mean_trials": 1e-9}, InvalidInput, "mean_trials must be well above delta"),
        (None, None, {"score_share": 1.0}, InvalidInput, "score_share"),
        (None, None, {"holdout": 1.0}, InvalidInput, "holdout"),
        (None, None, {"holdout": 1e-9}, InvalidInput, "holdout"),
        (None, None, {"adjacency": "add-remove"}, NotCovered, "replace-one"),
        (None, None, {"scoring": "accuracy"}, InvalidInput, "scoring"),
        (None, None, {"n_jobs": 0}, InvalidInput, "n_jobs"),
        (None, None, {"random_state": -1}, InvalidInput, "random_state"),
        (None, None, {"ledger": 3.0}, InvalidInput, "ledger must be a tacit.Ledger"),
        (DPRidge(feature_bounds=(-1, 1)), None, {}, InvalidInput, "target_bounds"),
        (DPRidge(target_bounds=(-1, 1)), None, {}, InvalidInput, "feature_bounds"),
        (BaseEstimator(), None, {}, InvalidInput, "Tacit estimator"),
    ],
)
def test_refusals(table, monkeypatch, estimator, space, extra, kind, words):
    monkeypatch.setattr(module, "_trial", lambda *a, **k: pytest.fail("a record was read"))
    model = search(estimator, space or {"alpha": [1.0]} if space != [] else None, **extra)
    if space == []:
        model.set_params(param_distributions=[])
    with pytest.raises(kind, match=words) as caught:
        model.fit(*table)
    assert "\n" not in str(caught.value)
    assert not hasattr(model, "certificate_")


class Dear(OneNumber):
    """Costs a little more than it may."""

    def planned_certificate(self, n_records, n_features):
        return certify(
            Mechanism(adjacency=self.adjacency, ratio=1.001 * float(gdp_mu(self.epsilon, self.delta)), steps=1)
        )


class Sly(OneNumber):
    """Runs something else than it plans."""

    def planned_certificate(self, n_records, n_features):
        return certify(Mechanism(adjacency=self.adjacency, ratio=1e-3, steps=1))


@pytest.mark.parametrize(("kind", "words"), [(Dear, "it costs μ"), (Sly, "another plan than the one that was checked")])
def test_candidates_that_cost_more_than_they_may_are_refused(kind, words):
    with pytest.raises(ValueError, match=words):
        search(kind(), {"shift": [0.0]}).fit(np.zeros((5, 1)), np.zeros(5))


# -- scikit-learn ------------------------------------------------------------------------------------------------


def test_it_is_an_estimator_like_others(table, labelled):
    model = search(space={"alpha": stats.loguniform(1e-5, 1e-1)}, n_jobs=None)
    again = clone(model)
    assert again is not model
    assert again.get_params()["estimator__target_bounds"] == (-4, 4)
    assert again.set_params(estimator__fit_intercept=False).estimator.fit_intercept is False
    assert is_regressor(model)
    assert not hasattr(model, "decision_function")
    loaded = pickle.loads(pickle.dumps(model.fit(*table)))
    np.testing.assert_array_equal(loaded.predict(table[0]), model.predict(table[0]))
    assert 1e-5 <= model.best_params_["alpha"] <= 1e-1
    classifier = search(DPLogisticRegression(feature_bounds=(-1, 1)))
    assert is_classifier(classifier)
    X, y = labelled
    classifier.fit(X, y)
    assert "read off the data" in classifier.certificate_.marks[0]
    assert classifier.decision_function(X).shape == (2000,)
    assert classifier.predict_proba(X).shape == (2000, 2)
    assert classifier.score(X, y) > 0.85
    assert list(classifier.classes_) == ["no", "yes"]


def test_names_of_features_pass_through(table):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table[0], columns=["a", "b", "c"])
    model = search().fit(frame, table[1])
    assert model.predict(frame).shape == model.best_estimator_.predict(frame).shape == (2000,)
    assert list(model.feature_names_in_) == ["a", "b", "c"]


@pytest.mark.parametrize("scoring", ["accuracy", "brier"])
def test_three_classes_on_a_sparse_hold_out(table, scoring):
    X = sparse.csr_array(np.abs(table[0]))
    y = np.asarray(table[0]).argmax(axis=1)
    model = search(DPLogisticRegression(feature_bounds=(0, 1), classes=[0, 1, 2]), scoring=scoring, holdout=0.2)
    assert model.fit(X, y).predict(X).shape == (2000,)
    assert -0.5 < model.best_score_ < 1.5


@pytest.mark.parametrize("scoring", ["absolute_error", "squared_error"])
def test_scores_are_between_zero_and_one_whatever_the_model_says(table, scoring):
    model = ridge(epsilon=1.0, delta=DELTA, random_state=0).fit(*table)
    X, y = np.array([[0.0] * 3, [1e300] * 3, [1.0] * 3]), np.array([1e9, -1e9, 0.0])
    model.coef_ = np.array([1e300, -1e300, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a search
        values = Score(model, scoring)(Rows(X, y))
    assert np.isfinite(values).all()
    assert ((values >= 0) & (values <= 1)).all()
    assert BoundedSum(Score(model, scoring)).diameter == 1.0


@pytest.mark.parametrize("scoring", ["accuracy", "brier"])
def test_a_score_is_a_function_of_its_own_record(labelled, scoring):
    """To the bit: where the number of records is public, a record has its place, and others do not enter."""
    X, y = labelled
    model = DPLogisticRegression(epsilon=1.0, delta=DELTA, feature_bounds=(-1, 1), random_state=0).fit(X, y)
    score = Score(model, scoring)
    before = score(Rows(X, y))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        other, here = X.copy(), int(rng.integers(len(X)))
        other[here] = rng.uniform(-9, 9, 3)
        np.testing.assert_array_equal(np.delete(score(Rows(other, y)), here), np.delete(before, here))


def test_the_hold_out_is_disjoint_and_of_public_size(table):
    X, y = np.arange(10.0)[:, None], np.arange(10.0)
    (train, *_), (test, *_) = split(Data(X, y), 3, Streams())
    assert sorted([*train[:, 0], *test[:, 0]]) == list(range(10))
    assert len(test) == 3
    counts = np.zeros(10)
    for _ in range(400):
        counts[split(Data(X, y), 3, Streams())[1].y.astype(int)] += 1
    assert stats.chisquare(counts).pvalue > 1e-3  # every record equally often


# -- does it choose well? ----------------------------------------------------------------------------------------


def test_it_picks_sensible_parameters(table):
    winners = [
        search(space={"alpha": [1e-5, 1e-4, 1e-3, 30.0]}, random_state=seed).fit(*table).best_params_
        for seed in range(3)
    ]
    assert all(winner["alpha"] < 1 for winner in winners)


def test_it_chooses_between_solvers_and_losses(table):
    space = [{"solver": ["metric", "statistics"]}, {"view": ["final_model"]}]
    model = search(DPGeneralizedLinear(feature_bounds=(-1, 1), target_bounds=(-4, 4)), space, adjacency="zero-out")
    assert model.fit(*table).score(*table) > 0.9
    assert model.certificate_.adjacency is Adjacency.ZERO_OUT


def test_the_table_on_the_page_says_what_the_code_does():
    page = Path(__file__).parents[2] / "docs" / "selection.md"
    row = re.search(r"^\| 3 \| ([\d.]+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|$", page.read_text(), re.M)
    one = float(gdp_mu(3.0, 1e-6))
    assert [float(cell) for cell in row.groups()] == pytest.approx([one, one / math.sqrt(10)], rel=5e-3)
