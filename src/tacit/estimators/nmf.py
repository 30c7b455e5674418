"""Non-negative matrix factorisation whose item factors are private: topics of documents, tastes of customers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators.base import PrivateEstimator, Table
from tacit.estimators.fitted import check_block_plan, check_marks, check_numbers
from tacit.inputs.parameters import check_magnitude, public_seed
from tacit.inputs.tables import validate_table
from tacit.ledger import Ledger
from tacit.maps import NonnegativeRows
from tacit.mechanism import Adjacency, Arithmetic, Mechanism, Plan, Schedule
from tacit.problem.blocks import Block
from tacit.records import InMemory, Persons
from tacit.release import Session
from tacit.release.queries import ItemFactors, ItemStatistic, PersonFactors
from tacit.release.queries.factors import all_weights
from tacit.solvers.base import Budget
from tacit.solvers.blocks import BlockDescent, BlockLayout, BlockPlan
from tacit.solvers.nmf import PERSON_SHARE, UPDATES, NMFOptions, item_block, unused_options

__all__ = ["DPNMF"]

Array = NDArray[np.float64]
RELEASES = ("items", "both")
MISSING = ("zero", "unobserved")


def _joint(unit: str) -> str:
    return (
        f"joint (billboard) differential privacy: the item factors alone are covered; factors of a training {unit} "
        f"(fit_transform) and errors on training rows are local, for that {unit} only"
    )


def _local(unit: str) -> str:
    return (
        f"the factors of each {unit} are released with noise of their own, which is local differential privacy for "
        f"that {unit}; fit_transform and errors on training rows are without it, for that {unit} only"
    )


@dataclass(frozen=True, eq=False)
class FactorFit:
    """A factorisation with every public choice made.

    Attributes:
        numbers: the releases of the items and their noise.
        problem: what people contribute to the items.
        persons: the release of people's factors, or None.
        declared: to whom the certificate is a promise.
    """

    numbers: BlockPlan
    problem: ItemFactors
    persons: PersonFactors | None
    declared: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """All that will be released."""
        return self.numbers.certificate.plan

    def solve(self, session: Session) -> tuple[Array, Array | None]:
        """H, and W with noise or None, both in units of the row norm."""
        (H,) = BlockDescent(self.numbers, self.problem).solve(session)
        if self.persons is None:
            return H, None
        return H, session.release(self.persons, H.ravel(), part=1).reshape(-1, len(H))


class DPNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """M ≈ WH with W, H ≥ 0: rows are people, H (components, items) is released, a person's row of W is not.

        minimise  1/n·Σ ½‖m_i − w_i H‖² + λ_w/2‖w_i‖²  +  λ₁‖H‖₁ + λ₂/2‖H‖²,    rows of H of norm 1

    by alternation: w_i in closed form from m_i and H (hidden, computed afresh and forgotten), H from noisy sums of
    people's clipped contributions. Every entry of a sum is noised, also those of items that nobody touched. Rows are
    made non-negative and scaled down to ``row_norm``; the start comes from a public seed.

    Formal guarantee: ``certificate_``, the exact composition of all releases, for one row, or one person (``groups``);
    every iterate may be shown. With release="items" it is *joint* (billboard) differential privacy: what everybody else
    learns about you is H.

    Assumptions: ``row_norm`` and all other parameters are public, and so is the number of rows.

    Args:
        n_components: k.
        epsilon: ε.
        delta: δ; required.
        adjacency: "replace-one" or "zero-out".
        row_norm: U, a public bound on the norm of a row; longer rows are scaled down. Required.
        release: "items", or "both": people's factors as well, each with noise of its own.
        missing: "zero", or "unobserved": entries that are not stored in a sparse table (NaN in an array) are unknown.
        update: "residuals" (statistics of what the current H leaves; the most accurate), "statistics" (second moments,
            solved afresh) or "gradient".
        batch_size: people in a batch; None for everybody. Few large batches are best: each noises every item.
        epochs: how often each person is read.
        sampling: of batches, "cyclic" or "poisson".
        options: penalties, clipping, noise schedule and the like (``tacit.solvers.nmf.NMFOptions``); None for its
            defaults.
        init_seed: public, for the start.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        ledger: a ``tacit.Ledger``; every fit reserves there before it reads a record.
        progress: a bar on stderr: True, False, or None for "on a terminal only".
        random_state: None for private noise; an integer makes fits repeatable and marks the certificate "not private:
            seeded".

    Attributes:
        components_: H, (components, items).
        person_factors_: W with noise, for release="both" only.
        certificate_: the promise.
        plan_: the releases and their noise.

    >>> rng = np.random.default_rng(0)
    >>> M = rng.gamma(0.3, size=(5000, 4)) @ rng.gamma(0.3, size=(4, 30))
    >>> model = DPNMF(4, epsilon=2.0, delta=1e-6, row_norm=5.0, random_state=0).fit(M)
    >>> model.components_.shape, round(model.certificate_.epsilon(1e-6), 3), model.certificate_.unit
    ((4, 30), 2.0, 'record')
    """

    plan_: BlockPlan
    components_: Array
    person_factors_: Array

    def __init__(
        self,
        n_components: int = 10,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        adjacency: str = "replace-one",
        row_norm: float | None = None,
        release: str = "items",
        missing: str = "zero",
        update: str = "residuals",
        batch_size: int | None = None,
        epochs: int = 40,
        sampling: str = "cyclic",
        options: NMFOptions | None = None,
        init_seed: int = 0,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.row_norm = row_norm
        self.release = release
        self.missing = missing
        self.update = update
        self.batch_size = batch_size
        self.epochs = epochs
        self.sampling = sampling
        self.options = options
        self.init_seed = init_seed
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    # -- fit -------------------------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        X = self._validated(X, reset=True)
        n, items = X.shape
        places = np.arange(n)  # of people's own factors, if they are released
        return Table(n, items, sparse.issparse(X), X.dtype), X, places

    def _records(self, table: Table, X: Any, y: Any, persons: Persons | None) -> InMemory:
        return InMemory(X, y if persons is None else None, persons)  # a place is nothing that a row holds

    def _shape(self, n_records: int, n_features: int) -> Table:
        return Table(n_records, n_features)

    def _planned(self, table: Table, budget: Budget) -> FactorFit:
        options, k = self._checked_options(), _validate.positive_int(n_components=self.n_components)
        block, weight = self._block(table.n, table.p)
        if self.release == "both" and budget.unit == "person":
            raise InvalidInput(
                "release='both' shows factors of single rows, which groups cannot cover: use release='items', or leave "
                "groups out"
            )
        numbers = self._layout(block, table.n, budget.adjacency, budget.unit).calibrated(budget.epsilon, budget.delta)
        people = NonnegativeRows(table.p, self.row_norm, self.missing == "unobserved")
        problem = ItemFactors((block,), UPDATES[self.update], people, weight, options.person_l2)
        both = None if self.release == "items" else PersonFactors(people, k, table.n, options.person_l2)
        return FactorFit(numbers, problem, both, (self._mark(budget.unit),))

    def _block(self, n: int, items: int) -> tuple[Block, float]:
        """The public description of H, and the weight of squares."""
        seed, options = public_seed("init_seed", self.init_seed), self._checked_options()
        return item_block(self.n_components, items, self.update, options, people=n, seed=seed)

    def _layout(self, block: Block, n: int, adjacency: Adjacency, unit: str) -> BlockLayout:
        options = self._checked_options()
        return BlockLayout.of(
            blocks=[block],
            n=n,
            batch_size=self.batch_size,
            epochs=self.epochs,
            sampling=_validate.one_of(("cyclic", "poisson"), sampling=self.sampling),
            noise_schedule=options.schedule,
            adjacency=adjacency,
            extra_mechanism=None if self.release == "items" else self._person_mechanism(adjacency, options),
            unit=unit,
            label="item factors",
            arithmetic=self.arithmetic,
        )

    def _person_mechanism(self, adjacency: Adjacency, options: NMFOptions) -> Any:
        """People's own release, with its share of μ²."""
        share = PERSON_SHARE if options.person_share is None else options.person_share

        def persons(strength: float) -> Mechanism:
            ratio = Schedule.constant(strength * math.sqrt(share / (1 - share)), 1)
            label = "noisy factors of each record (local)"
            numbers = Arithmetic.parse(self.arithmetic)
            return Mechanism(adjacency=adjacency, ratio=ratio, steps=1, label=label, arithmetic=numbers)

        return persons

    def _checked_options(self) -> NMFOptions:
        """Every parameter that is this family's own, checked."""
        options = NMFOptions() if self.options is None else self.options
        if not isinstance(options, NMFOptions):
            raise InvalidInput(f"options must be a tacit.solvers.nmf.NMFOptions, got {type(options).__name__}")
        if self.row_norm is None:
            raise InvalidInput(
                "row_norm is missing: state a public bound on the norm of a row (longer ones are scaled down)"
            )
        check_magnitude(row_norm=self.row_norm)
        for name, words in (("release", RELEASES), ("missing", MISSING), ("update", tuple(UPDATES))):
            _validate.one_of(words, **{name: getattr(self, name)})
        for name, why in unused_options(self.update, self.release).items():
            if getattr(options, name) is not None:
                raise InvalidInput(f"{name} has no effect with {why}: leave it out")
        if self.missing == "unobserved" and UPDATES[self.update] is ItemStatistic.MOMENTS:
            raise InvalidInput("update='statistics' needs every entry of a row: use 'residuals' for unobserved ones")
        return options

    def _mark(self, unit: str) -> str:
        return _joint(unit) if self.release == "items" else _local(unit)

    def _fitted(self, planned: FactorFit, solution: tuple[Array, Array | None], table: Table) -> dict[str, Any]:
        H, persons = solution
        fitted = {"components_": H.copy(), "plan_": planned.numbers}
        if persons is not None:
            assert self.row_norm is not None  # the plan needed it
            fitted["person_factors_"] = np.maximum(persons, 0.0) * self.row_norm
        return fitted

    def _check_fitted(self) -> None:
        super()._check_fitted()
        k, plan = _validate.positive_int(n_components=self.n_components), getattr(self, "plan_", None)
        if not isinstance(plan, BlockPlan):
            raise InvalidInput("plan_ must be a plan of blocks: fit again")
        check_numbers("components_", getattr(self, "components_", None), (k, self.n_features_in_), least=0.0)
        self._checked_options()
        if self.release == "both":
            check_numbers("person_factors_", getattr(self, "person_factors_", None), (plan.n, k), least=0.0)
        elif hasattr(self, "person_factors_"):
            raise InvalidInput("it holds person_factors_, but release='items' does not pay for them: fit again")
        check_marks(self, (self._mark(self.certificate_.unit),))
        relation = Adjacency.parse(self.adjacency)
        check_block_plan(
            self,
            plan,
            lambda n: n if self.batch_size is None else _validate.positive_int(batch_size=self.batch_size),
            lambda: self._layout(self._block(plan.n, self.n_features_in_)[0], plan.n, relation, self.certificate_.unit),
        )

    def _validated(self, X: Any, *, reset: bool) -> Any:
        finite: Any = "allow-nan" if self.missing == "unobserved" else True
        return validate_table(self, X, reset=reset, accept_sparse="csr", ensure_all_finite=finite)

    # -- what the item factors are good for --------------------------------------------------------------------

    def transform(self, X: Any) -> Array:
        """Factors of rows, from ``components_`` and each row alone: local, seen by whoever holds the row.

        Args:
            X: (rows, items).

        Returns:
            W (rows, components), X ≈ W @ components_.
        """
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        ridge = 0.0 if self.options is None else self.options.person_l2
        return all_weights(X, self.components_, ridge=ridge, observed_only=self.missing == "unobserved")

    def inverse_transform(self, W: Any) -> Array:
        """Rows from their factors: W @ components_."""
        check_is_fitted(self)
        W = np.asarray(W, np.float64)
        if W.ndim != 2 or W.shape[1] != len(self.components_):
            raise InvalidInput(f"W must have shape (rows, {len(self.components_)}), got {W.shape}")
        return np.asarray(W @ self.components_)

    def top_items(self, n: int = 10, names: Sequence[Any] | None = None) -> list[list[Any]]:
        """The items with the largest factors, for each component.

        Args:
            n: how many.
            names: of the items; those of the training table, or their numbers, if missing.

        Returns:
            One list per component, largest first.

        Raises:
            InvalidInput: if there are not as many names as items.
        """
        labels = self._names() if names is None else list(names)
        check_is_fitted(self)
        if len(labels) != self.components_.shape[1]:
            raise InvalidInput(f"names must hold one entry for each of {self.components_.shape[1]} items")
        count = min(_validate.positive_int(n=n), len(labels))
        order = np.argsort(-self.components_, axis=1, kind="stable")[:, :count]
        return [[labels[item] for item in row] for row in order]

    def item_similarities(self, item: Any) -> Array:
        """Cosines between one item's factors and those of every item; 0 for items without factors.

        Args:
            item: its number, or its name in the training table.

        Returns:
            (items,).

        Raises:
            InvalidInput: if there is no such item.
        """
        check_is_fitted(self)
        if isinstance(item, str):
            labels = self._names()
            if item not in labels:
                raise InvalidInput(f"no item is named {item!r}: pass its number, or fit on a table with names")
            item = labels.index(item)
        number = _validate.index(self.components_.shape[1], item=item)
        H = self.components_ / np.maximum(np.linalg.norm(self.components_, axis=0), 1e-300)
        return np.asarray(H[:, number] @ H)

    def _names(self) -> list[Any]:
        check_is_fitted(self)
        return list(getattr(self, "feature_names_in_", range(self.components_.shape[1])))

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.missing == "unobserved"
        return tags
