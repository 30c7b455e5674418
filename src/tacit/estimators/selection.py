"""DPSelection: hyper-parameters chosen privately (the guarantee and its proof: ``tacit.estimators._search``)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate, certify
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered, TacitError
from tacit.estimators._labels import class_list, class_numbers
from tacit.estimators._linear import LinearModel
from tacit.estimators._schema import checked, labels_of, numbers_of
from tacit.estimators._search import Costs, Outcome, admit, best_of, calibrated, drawn, gdp_to_dp
from tacit.estimators._space import Space, corners, point_of, spaces_of
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Mechanism
from tacit.problem import TargetUnits
from tacit.run import SEEDED, Channel, Streams
from tacit.run.sums import BoundedValues

__all__ = ["DPSelection", "NothingSelected", "Plannable"]

Array = NDArray[np.float64]
Table = tuple[Any, Any]

SCORES = {True: ("accuracy", "brier"), False: ("absolute_error", "squared_error")}
"""For classifiers and for regressors."""


class NothingSelected(TacitError, NotFittedError):  # type: ignore[misc]
    """The search was fitted, and returned nothing: by design, with probability e^−m."""


@runtime_checkable
class Plannable(Protocol):
    """What an estimator offers to be a candidate (the linear ones are understood without it)."""

    def planned_certificate(self, X: Any, classes: Any) -> Certificate:
        """What ``fit`` is going to certify; X is all zeros and has the training data's shape, type and sparsity."""


# -- candidates -------------------------------------------------------------------------------------------------


def _planned(estimator: Any, X: Any, classes: Any) -> Certificate:
    """What the estimator is going to certify, from the shape of its data."""
    if isinstance(estimator, Plannable):
        return estimator.planned_certificate(X, classes)
    if not isinstance(estimator, LinearModel):
        raise InvalidInput(
            f"{type(estimator).__name__} cannot tell its plan before it reads records: use a Tacit estimator, or write "
            "planned_certificate(X, classes)"
        )
    if classes is not None:
        found = estimator._planned(X, None, 1 if len(classes) == 2 else len(classes)).certificate
    else:
        target = TargetUnits.of(estimator.target_bounds, keep_zero=not estimator.fit_intercept)
        found = estimator._planned(X, target).certificate
    return _marked(found, estimator._declared())


def _marked(certificate: Certificate, marks: Iterable[str]) -> Certificate:
    for mark in marks:
        certificate = certificate.marked(mark)
    return certificate


def _trial(
    estimator: Any,
    certified: Certificate,
    point: dict[str, Any],
    train: Table,
    test: Table,
    scoring: str,
    score: Mechanism,
) -> Outcome:
    """Train one candidate and release its noisy score, with randomness of its own."""
    estimator.fit(*train)
    if estimator.certificate_.plan != certified.plan:
        raise MechanismMismatch("the candidate ran another plan than the one that was checked; please report this")
    values = _scores(estimator, scoring, *test)
    channel = Channel(certify(score), len(values), streams=Streams(estimator.random_state))
    noisy = channel.release(BoundedValues(values[:, None]), np.zeros((1, 1)))
    return float(noisy[0, 0]) / len(values), (estimator, point)


def _scores(estimator: Any, scoring: str, X: Any, y: Any) -> Array:
    """A number in [0, 1] for each record, by that record and the model alone."""
    if scoring == "accuracy":
        return np.asarray(estimator.predict(X) == y, np.float64)
    if scoring == "brier":
        truth = np.asarray(y)[:, None] == estimator.classes_[None, :]
        values = 1 - np.square(estimator.predict_proba(X) - truth).sum(axis=1) / 2
    else:
        low, high = (float(end) for end in estimator.target_bounds)
        error = np.abs(np.clip(estimator.predict(X), low, high) - np.clip(y, low, high)) / ((high - low) or 1.0)
        values = 1 - (error if scoring == "absolute_error" else error**2)
    return np.asarray(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), np.float64)


# -- the estimator ----------------------------------------------------------------------------------------------


def _offers(name: str) -> Callable[[DPSelection], bool]:
    return lambda self: hasattr(self.estimator, name)


class DPSelection(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Private hyper-parameter search over a Tacit estimator.

    K ~ Poisson(mean_trials) candidates draw their parameters independently, train, and get a noisy score; the model of
    the best score is released, and (ε, δ) covers the whole search. With probability e^−mean_trials there is no
    candidate, and the search returns nothing: ``best_estimator_`` is None. The guarantee needs that, and that K, the
    other candidates, their scores and the *duration* of ``fit`` stay secret: nothing of it is kept or printed, and you
    must not publish how long it took.

    Formal guarantee: ``certificate_`` is (ε, δ)-DP for the selected model with its parameters and its noisy score, or
    for the answer that there is none: the smaller of Theorem 5.1 (corrected) and our refined bound for a μ-GDP base
    (``tacit.accounting.selection``). Why candidates may differ in solver, steps and noise is proved in
    ``tacit.estimators._search``.

    Assumptions: every candidate is μ-GDP within its allowance (checked before a record is read; others are refused).
    Parameters are drawn without the records, K is Poisson with zero included, scores are means of numbers in [0, 1]
    with Gaussian noise (enforced). n is public. That K, the other candidates and the duration stay secret outside of
    this object is up to you (declared), and so is that bounds, distributions and classes are public.

    Args:
        estimator: with everything that is not searched over; the search sets its epsilon, delta, adjacency and
            random_state, and its budget must be None.
        param_distributions: from names to lists (drawn uniformly) or scipy distributions; or a list of such mappings.
        epsilon: ε of the whole search.
        delta: δ of the whole search; required.
        mean_trials: m, the expected number of candidates.
        scoring: the mean of a score in [0, 1]: "accuracy", "brier" (needs ``predict_proba``), "absolute_error" or
            "squared_error" (one minus the error, in units of the target's range); "auto" for the first that fits.
        score_share: the share of a candidate's μ² for its score; without a hold-out.
        holdout: None to score on the training data, or the fraction of records set aside for scores, which then cost
            nothing beside the training.
        adjacency: "replace-one" or "zero-out".
        n_jobs: processes, as in joblib.
        budget: a ``tacit.Ledger``; the search reserves (ε, δ) there before it reads a record.
        random_state: None for private noise; an integer makes searches repeatable and marks the certificate "not
            private: seeded".

    Attributes:
        certificate_: of the search, and of the model that it returned.
        best_estimator_: the model, or None.
        best_params_: what was drawn for it, or None.
        best_score_: its noisy score, or None; the best of several, hence optimistic.

    >>> import numpy as np
    >>> from tacit.estimators import DPRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 3))
    >>> y = X @ [1.0, -2.0, 0.0] + rng.normal(0, 0.1, 5000)
    >>> search = DPSelection(
    ...     DPRidge(feature_bounds=(-1, 1), target_bounds=(-4, 4)), {"alpha": [1e-4, 10.0]},
    ...     epsilon=2.0, delta=1e-7, random_state=0,
    ... ).fit(X, y)
    >>> search.best_params_
    {'alpha': 0.0001}
    >>> search.certificate_.epsilon(1e-7) <= 2.0
    True
    """

    certificate_: Certificate

    def __init__(
        self,
        estimator: Any,
        param_distributions: Any,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        mean_trials: float = 10.0,
        scoring: str = "auto",
        score_share: float = 0.1,
        holdout: float | None = None,
        adjacency: str = "replace-one",
        n_jobs: int | None = None,
        budget: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.param_distributions = param_distributions
        self.epsilon = epsilon
        self.delta = delta
        self.mean_trials = mean_trials
        self.scoring = scoring
        self.score_share = score_share
        self.holdout = holdout
        self.adjacency = adjacency
        self.n_jobs = n_jobs
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Search, under one certificate.

        Args:
            X: (records, features), dense or sparse; finite.
            y: (records,) targets or labels.

        Returns:
            The search itself; ``best_estimator_`` may be None.
        """
        labelled, relation, share = self._public()
        spaces = spaces_of(self.estimator, self.param_distributions)
        X, y = checked(self, X, y, accept_sparse="csc", y_numeric=not labelled)
        y = labels_of(y) if labelled else numbers_of(y)
        classes, marks = _classes(self.estimator, y) if labelled else (None, ())
        n, d = X.shape[0], self._delta(X.shape[0])
        held = 0 if self.holdout is None else _held(self.holdout, n)
        m = _validate.positive(mean_trials=self.mean_trials)
        costs = calibrated(_validate.positive(epsilon=self.epsilon), d, m, relation, share)
        streams = Streams(seed=self.random_state)
        declared = self.estimator._declared() if hasattr(self.estimator, "_declared") else ()
        certificate = _marked(costs.certificate, (*marks, *declared, *((SEEDED,) if streams.seeded else ())))
        check = functools.partial(
            self._checked, self._fixed(costs.train, d, classes), _blank(X, n - held), classes, costs, certificate.marks
        )
        for point in corners(spaces):
            check(point, None)
        candidates = drawn(streams, m, functools.partial(self._candidate, spaces, check))
        if self.budget is not None:
            self.budget.reserve(certificate, type(self).__name__, delta=d)
        # From here on records are read.
        train, test = _split(X, y, held, streams)
        trial = functools.partial(_trial, train=train, test=test, scoring=self._scoring(labelled), score=costs.score)
        best = best_of((functools.partial(trial, *candidate) for candidate in candidates), self.n_jobs)
        self._keep(best, certificate)
        if labelled:
            self.classes_ = classes
        return self

    def _public(self) -> tuple[bool, Adjacency, float | None]:
        """Parameters that need no data: whether it is classification, the relation, the score's share."""
        known = self.estimator.get_params() if hasattr(self.estimator, "get_params") else {}
        if missing := {"epsilon", "delta", "adjacency", "budget", "random_state"} - known.keys():
            raise InvalidInput(
                f"{type(self.estimator).__name__} has no parameter {min(missing)!r}: search over a Tacit estimator"
            )
        if not hasattr(self.estimator, "predict"):
            raise InvalidInput(
                f"{type(self.estimator).__name__} cannot be searched over: it predicts no target that a score could "
                "compare; search over a classifier or a regressor"
            )
        if known["budget"] is not None:
            raise InvalidInput(
                "estimator.budget is set, so that candidates would be charged beside the search: pass the ledger to "
                "DPSelection(budget=…), and None to the estimator"
            )
        if self.budget is not None and not isinstance(self.budget, Ledger):
            raise InvalidInput(f"budget must be a tacit.Ledger or None, got {type(self.budget).__name__}")
        if self.n_jobs is not None and (not isinstance(self.n_jobs, int) or self.n_jobs == 0):
            raise InvalidInput(f"n_jobs must be None or a number of processes (-1 for all), got {self.n_jobs!r}")
        seed = self.random_state
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidInput("random_state must be None (private noise) or a non-negative integer")
        relation = Adjacency.parse(self.adjacency)
        if relation is Adjacency.ADD_REMOVE:
            raise NotCovered(
                "adjacency: a mean score and a split need the number of records, which is secret under add-remove; use "
                "adjacency='replace-one' or 'zero-out'",
                axis="adjacency",
            )
        share = _validate.finite(score_share=self.score_share)
        if not 0 < share < 1:
            raise InvalidInput(f"score_share must lie strictly between 0 and 1, got {self.score_share!r}")
        labelled = bool(is_classifier(self.estimator))
        self._scoring(labelled)
        return labelled, relation, None if self.holdout is not None else share

    def _scoring(self, labelled: bool) -> str:
        name = _validate.one_of(("auto", *SCORES[labelled]), scoring=self.scoring)
        if name == "brier" and not hasattr(self.estimator, "predict_proba"):
            raise InvalidInput("scoring='brier' needs an estimator with predict_proba: use scoring='accuracy'")
        if not labelled and self.estimator.get_params().get("target_bounds") is None:
            raise InvalidInput("estimator.target_bounds is missing: state public limits (low, high) of the target")
        return SCORES[labelled][0] if name == "auto" else name

    def _delta(self, n: int) -> float:
        if self.delta is None:
            usual = 1 / max(n, 2) ** 2
            raise InvalidInput(
                f"delta is missing: choose it before the data is read; 1/n² = {usual:.1g} is a common choice"
            )
        return _validate.delta(self.delta)

    def _fixed(self, train: float, delta: float, classes: Any) -> dict[str, Any]:
        """What the search sets for every candidate."""
        allowed = dict(zip(("epsilon", "delta"), gdp_to_dp(train, delta), strict=True))
        fixed: dict[str, Any] = {**allowed, "adjacency": Adjacency.parse(self.adjacency).value, "budget": None}
        if "progress" in self.estimator.get_params():
            fixed["progress"] = False  # whoever sees bars counts candidates
        if classes is not None:
            fixed["classes"] = classes.tolist()
        return fixed

    def _candidate(
        self, spaces: Sequence[Space], check: Callable[..., tuple[Any, Certificate]], streams: Streams
    ) -> tuple[Any, Certificate, dict[str, Any]]:
        """Draw one candidate, and check what it is going to cost; no record is read."""
        point = point_of(spaces, streams.at("point"))
        seed = int(streams.at("seed").integers(2**62)) if streams.seeded else None
        return *check(point, seed), point

    def _checked(
        self,
        fixed: Mapping[str, Any],
        blank: Any,
        classes: Any,
        costs: Costs,
        marks: tuple[str, ...],
        point: dict[str, Any],
        seed: int | None,
    ) -> tuple[Any, Certificate]:
        """The candidate at a point, with what it is going to certify; refused unless that is within its means."""
        estimator = clone(self.estimator).set_params(**clone(point, safe=False))
        estimator.set_params(**fixed, random_state=seed)
        if bool(is_classifier(estimator)) != (classes is not None):
            raise InvalidInput(f"the candidate {point!r} turns a classifier into a regressor, or back: search over one")
        try:
            certificate = _planned(estimator, blank, classes)
        except (InvalidInput, NotCovered) as error:
            error.args = (f"the candidate {_named(point)} cannot be searched over: {error}",)
            raise
        remedy = getattr(estimator, "_gdp_remedy", "choose a solver that reads all records at each step")
        relation, delta = Adjacency.parse(self.adjacency), fixed["delta"]
        admit(certificate, costs.train, relation, _named(point), delta=delta, marks=marks, remedy=remedy)
        return estimator, certificate

    def _keep(self, best: Outcome | None, certificate: Certificate) -> None:
        """The winner, and nothing about the others."""
        self.certificate_ = certificate
        score, (model, point) = best or (None, (None, None))
        self.best_score_: float | None = score
        self.best_estimator_: Any = model
        self.best_params_: dict[str, Any] | None = point
        if self.best_estimator_ is not None:  # what holds for the model is the search's promise, not one candidate's
            self.best_estimator_.set_params(epsilon=self.epsilon, delta=self.delta, random_state=self.random_state)
            self.best_estimator_.certificate_ = certificate
            if "progress" in self.best_estimator_.get_params(deep=False):
                self.best_estimator_.set_params(progress=self.estimator.progress)
            if hasattr(self.best_estimator_, "plan_"):  # states a promise, too
                self.best_estimator_.plan_ = replace(self.best_estimator_.plan_, certificate=certificate)
            if hasattr(self, "feature_names_in_"):
                self.best_estimator_.feature_names_in_ = self.feature_names_in_

    def _ask(self, method: str, X: Any, *rest: Any) -> Any:
        check_is_fitted(self, "certificate_")
        if self.best_estimator_ is None:
            raise NothingSelected(
                f"the search returned nothing: with probability e^-{self.mean_trials:g} it tries no candidate, by "
                "design (one that always tries some would cost more); fit again, which costs as much again; if that "
                "returns nothing either, fit the estimator alone on made-up records: perhaps every candidate fails"
            )
        X = checked(self, X, accept_sparse="csr", reset=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return getattr(self.best_estimator_, method)(X, *rest)

    def predict(self, X: Any) -> Any:
        """The selected model's predictions."""
        return self._ask("predict", X)

    def score(self, X: Any, y: Any) -> float:
        """The selected model's score; on training data it is outside the certificate."""
        return float(self._ask("score", X, y))

    @available_if(_offers("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """The selected model's decision function."""
        return self._ask("decision_function", X)

    @available_if(_offers("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """The selected model's probabilities."""
        return self._ask("predict_proba", X)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = deepcopy(inner.classifier_tags), deepcopy(inner.regressor_tags)
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.non_deterministic = self.random_state is None
        return tags


def _classes(estimator: Any, y: Any) -> tuple[Any, tuple[str, ...]]:
    """The labels, public by parameter or by declaration; and what the certificate must then say."""
    classes, marks = class_list(estimator.get_params().get("classes"), y)
    class_numbers(classes, y)  # refuses labels that are not listed
    return classes, marks


def _named(point: Mapping[str, Any]) -> str:
    """A point in one line."""
    return " ".join(repr(dict(point)).split())


def _held(holdout: object, n: int) -> int:
    """How many of n records are set aside: public."""
    fraction = _validate.finite(holdout=holdout)
    held = round(fraction * n)
    if not 0 < fraction < 1 or not 0 < held < n:
        raise InvalidInput(f"holdout must be None, or a fraction that leaves some of {n} records in both parts")
    return held


def _blank(X: Any, n: int) -> Any:
    """No record, but the shape of n of them."""
    if sparse.issparse(X):
        return sparse.csc_array((n, X.shape[1]), dtype=X.dtype)
    return np.broadcast_to(X.dtype.type(0), (n, X.shape[1]))


def _split(X: Any, y: Any, held: int, streams: Streams) -> tuple[Table, Table]:
    """Training data and scoring data: the same, or disjoint by positions that depend on n alone."""
    if held == 0:
        return (X, y), (X, y)
    order = streams.at("split").permutation(len(y))
    rows = X.tocsr() if sparse.issparse(X) else X
    first, second = np.sort(order[held:]), np.sort(order[:held])
    return (rows[first], y[first]), (rows[second], y[second])
