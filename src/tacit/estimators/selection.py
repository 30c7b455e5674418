"""DPSelection: hyper-parameters chosen privately (the guarantee and its proof: ``tacit.estimators._search``)."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from scipy import sparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate, certify
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered, TacitError
from tacit.estimators._data import Data, held_out, split
from tacit.estimators._search import Costs, Outcome, best_of, calibrated, check_candidate, drawn, gdp_to_dp
from tacit.estimators._space import Space, corners, point_of, spaces_of
from tacit.estimators.base import PrivateEstimator, publish, with_certificate
from tacit.estimators.fitted import CHANGED, check_promise, check_width, check_words
from tacit.inputs.parameters import check_parameters
from tacit.inputs.tables import class_list, class_numbers, labels_of, numbers_of, validate_table
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Arithmetic, Mechanism
from tacit.records import InMemory, Persons
from tacit.release import Streams, open_session
from tacit.release.queries import SCORES, BoundedSum, Score

__all__ = ["DPSelection", "NothingSelected"]


class NothingSelected(TacitError, NotFittedError):  # type: ignore[misc]
    """The search was fitted, and returned nothing: by design, with probability e^−m."""


# -- candidates -------------------------------------------------------------------------------------------------


def _planned(estimator: Any, n_records: int, n_features: int, is_sparse: bool, by_person: bool) -> Certificate:
    """What the estimator is going to certify, from the shape of its data."""
    plan = getattr(estimator, "planned_certificate", None)
    if plan is None:
        raise InvalidInput(
            f"{type(estimator).__name__} cannot tell its plan before it reads records: use a Tacit estimator, or write "
            "planned_certificate(n_records, n_features)"
        )
    told = {name: True for name, given in (("sparse", is_sparse), ("by_person", by_person)) if given}
    found: Certificate = plan(n_records, n_features, **told)
    return found


def _trial(
    estimator: Any,
    certified: Certificate,
    point: dict[str, Any],
    train: Data,
    test: Data,
    scoring: str,
    score: Mechanism,
) -> Outcome:
    """Train one candidate and release its noisy score, with randomness of its own."""
    estimator.fit(*train[:2], **({} if train.persons is None else {"groups": train.persons.codes}))
    if estimator.certificate_.plan != certified.plan:
        raise MechanismMismatch("the candidate ran another plan than the one that was checked; please report this")
    records = InMemory(*test)
    with open_session(certify(score), records, random_state=estimator.random_state) as session:
        total = session.release(BoundedSum(Score(estimator, scoring)))
    return float(total[0]) / records.n, (estimator, point)


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
            random_state, and its ledger must be None.
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
        arithmetic: "exact" or "float", of scores and candidates; by default that of the estimator, and "float" where
            ``fit`` is told whose rows are.
        ledger: a ``tacit.Ledger``; the search reserves (ε, δ) there before it reads a record.
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
    best_estimator_: Any
    best_params_: dict[str, Any] | None
    best_score_: float | None

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
        arithmetic: str | None = None,
        ledger: Ledger | None = None,
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
        self.arithmetic = arithmetic
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Search, under one certificate.

        Args:
            X: (rows, features), dense or sparse; finite.
            y: (rows,) targets or labels.
            groups: whose each row is; the certificate is then about persons, and a hold-out holds whole persons.

        Returns:
            The search itself; ``best_estimator_`` may be None.

        Raises:
            NotCovered: if persons are to be searched over in exact arithmetic.
        """
        labelled, relation, share = self._public()
        spaces = spaces_of(self.estimator, self.param_distributions)
        draft = copy.copy(self)  # validation writes the names of features there; this search stays as it is
        accepted = "csc" if get_tags(self.estimator).input_tags.sparse else False
        X, y = validate_table(draft, X, y, accept_sparse=accepted, y_numeric=not labelled)
        y = labels_of(y) if labelled else numbers_of(y)
        classes, marks = _classes(self.estimator, y) if labelled else (None, ())
        marks = (*marks, *(self.estimator._declared_marks() if isinstance(self.estimator, PrivateEstimator) else ()))
        persons = None if groups is None else Persons.of(groups, X.shape[0])
        n = X.shape[0] if persons is None else persons.n
        m, d, unit = self.mean_trials, self._delta(n), "record" if persons is None else "person"
        held = 0 if self.holdout is None else held_out(self.holdout, n)
        numbers = self._arithmetic(persons is not None)
        if persons is not None and numbers is Arithmetic.EXACT:
            raise NotCovered(
                "arithmetic: a model's predictions may round a row by its place, and with groups the number of rows is "
                "secret: use DPSelection(arithmetic='float') with groups",
                axis="arithmetic",
            )
        costs = calibrated(float(self.epsilon), d, _validate.positive(mean_trials=m), relation, share, numbers, unit)
        shape = (n - held, X.shape[1], sparse.issparse(X), persons is not None)
        check = functools.partial(self._checked, self._fixed(costs.train, d, classes, numbers), shape, costs, marks)
        for point in corners(spaces):
            check(point, None)
        streams = Streams(self.random_state)
        candidates = drawn(streams, m, functools.partial(self._candidate, spaces, check))
        with open_session(
            costs.certificate,
            InMemory(X, y, persons),
            ledger=self.ledger,
            random_state=self.random_state,
            marks=marks,
            note=type(self).__name__,
            delta=d,
        ) as session:
            train, test = split(Data(X, y, persons), held, streams)
            scoring = self._scoring(labelled)
            trial = functools.partial(_trial, train=train, test=test, scoring=scoring, score=costs.score)
            best = best_of((functools.partial(trial, *candidate) for candidate in candidates), self.n_jobs)
        fitted = {"classes_": classes} if labelled else {}
        publish(self, draft, {**fitted, **self._winner(best, session.certificate, draft)}, session.certificate)
        return self

    def _public(self) -> tuple[bool, Adjacency, float | None]:
        """Parameters that need no data: whether it is classification, the relation, the score's share."""
        known = self.estimator.get_params() if hasattr(self.estimator, "get_params") else {}
        if missing := {"epsilon", "delta", "adjacency", "ledger", "random_state"} - known.keys():
            raise InvalidInput(
                f"{type(self.estimator).__name__} has no parameter {min(missing)!r}: search over a Tacit estimator"
            )
        if not hasattr(self.estimator, "predict"):
            raise InvalidInput(
                f"{type(self.estimator).__name__} cannot be searched over: it predicts no target that a score could "
                "compare; search over a classifier or a regressor"
            )
        if known["ledger"] is not None:
            raise InvalidInput(
                "estimator.ledger is set, so that candidates would be charged beside the search: pass the ledger to "
                "DPSelection(ledger=…), and None to the estimator"
            )
        if self.n_jobs is not None and (not isinstance(self.n_jobs, int) or self.n_jobs == 0):
            raise InvalidInput(f"n_jobs must be None or a number of processes (-1 for all), got {self.n_jobs!r}")
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
        """δ, after every parameter that all estimators share was checked."""
        check_parameters(self, n)
        return _validate.delta(self.delta)

    def _arithmetic(self, by_person: bool) -> Arithmetic:
        """The search's own, or the estimator's; one that states none, and persons', runs in floating point."""
        if self.arithmetic is None and by_person:
            return Arithmetic.FLOAT
        own = self.estimator.get_params().get("arithmetic", "float")
        return Arithmetic.parse(own if self.arithmetic is None else self.arithmetic)

    def _fixed(self, train: float, delta: float, classes: Any, numbers: Arithmetic) -> dict[str, Any]:
        """What the search sets for every candidate."""
        allowed = dict(zip(("epsilon", "delta"), gdp_to_dp(train, delta), strict=True))
        fixed: dict[str, Any] = {**allowed, "adjacency": Adjacency.parse(self.adjacency).value, "ledger": None}
        if "arithmetic" in self.estimator.get_params():
            fixed["arithmetic"] = numbers.value
        if "progress" in self.estimator.get_params():
            fixed["progress"] = False  # bars would count candidates
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
        shape: tuple[int, int, bool, bool],
        costs: Costs,
        marks: tuple[str, ...],
        point: dict[str, Any],
        seed: int | None,
    ) -> tuple[Any, Certificate]:
        """The candidate at a point, with what it is going to certify; refused unless that is within its means."""
        estimator = clone(self.estimator).set_params(**clone(point, safe=False))
        estimator.set_params(**fixed, random_state=seed)
        if bool(is_classifier(estimator)) != bool(is_classifier(self.estimator)):
            raise InvalidInput(f"the candidate {point!r} turns a classifier into a regressor, or back: search over one")
        try:
            if shape[3] and estimator.get_params().get("weighting", "person") != "person":
                raise NotCovered(
                    "weighting: its plan follows a noisy sum of weights, and is not known before; use "
                    "weighting='person'",
                    axis="weighting",
                )
            certificate = _planned(estimator, *shape)
        except (InvalidInput, NotCovered) as error:
            error.args = (f"the candidate {_named(point)} cannot be searched over: {error}",)
            raise
        remedy = getattr(estimator, "_gdp_remedy", "choose a solver that reads all records at each step")
        relation, delta, unit = Adjacency.parse(self.adjacency), fixed["delta"], "person" if shape[3] else "record"
        check_candidate(
            certificate, costs.train, relation, _named(point), delta=delta, marks=marks, remedy=remedy, unit=unit
        )
        return estimator, certificate

    def _winner(self, best: Outcome | None, certificate: Certificate, draft: DPSelection) -> dict[str, Any]:
        """Fitted attributes: the winner, and nothing about the others."""
        score, (model, point) = best or (None, (None, None))
        if model is not None:  # what holds for the model is the search's promise, not one candidate's
            model.set_params(epsilon=self.epsilon, delta=self.delta, random_state=self.random_state)
            model.certificate_ = certificate
            if "progress" in model.get_params(deep=False):
                model.set_params(progress=self.estimator.progress)
            vars(model).update(with_certificate(dict(vars(model)), certificate))  # its plan may state a promise, too
            if hasattr(draft, "feature_names_in_"):
                model.feature_names_in_ = draft.feature_names_in_
        return {"best_score_": score, "best_estimator_": model, "best_params_": point}

    def _check_fitted(self) -> None:
        """As that of a ``PrivateEstimator``; the winner checks itself."""
        check_promise(self)
        p = check_width(self)
        check_words(self, p)
        model, score = self.best_estimator_, self.best_score_
        if model is None:
            if score is not None or self.best_params_ is not None:
                raise InvalidInput("best_score_ and best_params_ must be None where nothing was selected")
            return
        fits = type(model) is type(self.estimator) and model.n_features_in_ == p
        if not fits or model.certificate_ != self.certificate_:
            raise InvalidInput(f"best_estimator_ is not a winner under the search's certificate: {CHANGED}")
        if type(score) is not float or not math.isfinite(score) or type(self.best_params_) is not dict:
            raise InvalidInput("best_score_ must be a number, and best_params_ a dict")

    def _ask(self, method: str, X: Any, *rest: Any) -> Any:
        check_is_fitted(self, "certificate_")
        if self.best_estimator_ is None:
            raise NothingSelected(
                f"the search returned nothing: with probability e^-{self.mean_trials:g} it tries no candidate, by "
                "design (one that always tries some would cost more); fit again, which costs as much again; if that "
                "returns nothing either, fit the estimator alone on made-up records: perhaps every candidate fails"
            )
        X = validate_table(self, X, accept_sparse="csr", reset=False)
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
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
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
