"""Non-negative matrix factorisation whose item factors are private: topics of documents, tastes of customers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators._blocks import block_budget, public_seed, run_certified
from tacit.estimators._schema import checked
from tacit.ledger import Ledger
from tacit.mechanism import Mechanism, Schedule
from tacit.run import Channel, Streams
from tacit.run.sums.factors import FactorRows, ItemFactors, ItemStatistic, PersonFactors
from tacit.solvers.base import Budget
from tacit.solvers.blocks import BlockPlan, plan_blocks
from tacit.solvers.factorise import HALF_LIFE, THRESHOLD, UPDATES, item_block
from tacit.solvers.schedules import NoiseSchedule, Optimised

__all__ = ["DPNMF"]

Array = NDArray[np.float64]
STEP, PERSON_SHARE = 5.0, 0.5
"""If nothing is said."""
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


class DPNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """M ≈ WH with W, H ≥ 0: rows are people, H (components, items) is released, a person's row of W is not.

        minimise  1/n·Σ ½‖m_i − w_i H‖² + λ_w/2‖w_i‖²  +  λ₁‖H‖₁ + λ₂/2‖H‖²,    rows of H of norm 1

    by alternation: w_i in closed form from m_i and H (hidden, computed afresh and forgotten), H from noisy sums of
    people's clipped contributions. Every entry of a sum is noised, also those of items that nobody touched. Rows are
    made non-negative and scaled down to ``row_norm``; the start comes from a public seed.

    Formal guarantee: ``certificate_``, the exact composition of all releases, for one row (``unit``). With
    release="items" it is *joint* (billboard) differential privacy: what everybody else learns about you is H.

    Assumptions: ``row_norm`` and all other parameters are public; under replace-one and zero-out n is, too.

    Args:
        n_components: k.
        epsilon: ε.
        delta: δ; required.
        adjacency: "replace-one" or "zero-out".
        row_norm: U, a public bound on the norm of a row; longer rows are scaled down. Required.
        release: "items", or "both": people's factors as well, each with noise of its own.
        contribution_norm: C, the longest contribution of a person, in units of row_norm².
        batch_size: people in a batch; everybody if missing. Few large batches are best: each noises every item.
        epochs: how often each person is read.
        sampling: of batches, "cyclic" or "poisson".
        noise_schedule: how noise is spread over the run: "constant", "linear", "step", "optimised" (for a half-life of
            3 epochs), or a function (epoch, batch) → relative variance.
        update: "residuals" (statistics of what the current H leaves; the most accurate), "statistics" (second moments,
            solved afresh) or "gradient".
        step_size: of update="gradient", in units of 1/row_norm²; 5 if missing.
        l1: λ₁, on the items.
        l2: λ₂, on the items.
        person_l2: λ_w.
        noise_threshold: taken off noisy statistics, in units of their noise, before H is solved for: helps where most
            items do not belong to most components. If missing 2.5 where there are more items than people, else 0. Not
            for update="gradient".
        missing: "zero", or "unobserved": entries that are not stored in a sparse table (NaN in an array) are unknown.
        person_share: of μ², for people's factors, if release="both"; a half if missing.
        unit: whose data a row is. If rows are items instead of people, say so: the promise is about rows.
        view: "all_iterates"; nothing proves more for the last iterate alone.
        init_seed: public, for the start.
        budget: a ``tacit.Ledger``.
        progress: a bar on stderr: True, False, or None for "if somebody is watching".
        random_state: None for private noise.

    Attributes:
        components_: H, (components, items).
        person_factors_: W with noise, for release="both" only.
        certificate_: the promise.
        plan_: the releases and their noise.

    >>> rng = np.random.default_rng(0)
    >>> M = rng.gamma(0.3, size=(5000, 4)) @ rng.gamma(0.3, size=(4, 30))
    >>> model = DPNMF(4, epsilon=2.0, delta=1e-6, row_norm=5.0, random_state=0).fit(M)
    >>> model.components_.shape, round(model.certificate_.epsilon(1e-6), 3), model.certificate_.unit
    ((4, 30), 2.0, 'person')
    """

    certificate_: Certificate
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
        contribution_norm: float | None = None,
        batch_size: int | None = None,
        epochs: int = 40,
        sampling: str = "cyclic",
        noise_schedule: NoiseSchedule = "optimised",
        update: str = "residuals",
        step_size: float | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        person_l2: float = 0.0,
        noise_threshold: float | None = None,
        missing: str = "zero",
        person_share: float | None = None,
        unit: str = "person",
        view: str = "all_iterates",
        init_seed: int = 0,
        budget: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.row_norm = row_norm
        self.release = release
        self.contribution_norm = contribution_norm
        self.batch_size = batch_size
        self.epochs = epochs
        self.sampling = sampling
        self.noise_schedule = noise_schedule
        self.update = update
        self.step_size = step_size
        self.l1 = l1
        self.l2 = l2
        self.person_l2 = person_l2
        self.noise_threshold = noise_threshold
        self.missing = missing
        self.person_share = person_share
        self.unit = unit
        self.view = view
        self.init_seed = init_seed
        self.budget = budget
        self.progress = progress
        self.random_state = random_state

    # -- fit -------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find item factors under the certificate that the parameters ask for.

        Args:
            X: (people, items): an array, or a sparse matrix (CSR is not copied). Negative entries count as 0 and long
                rows are scaled down, silently.
            y: ignored.

        Returns:
            The estimator itself.
        """
        X = self._checked(X, reset=True)
        plan, weight = self._planned(*X.shape)

        def people() -> FactorRows:
            return FactorRows(X, self.row_norm, observed_only=self.missing == "unobserved")

        def problem() -> ItemFactors:
            return ItemFactors(people(), plan.blocks[0], UPDATES[self.update], weight=weight, ridge=self.person_l2)

        (H,), certified, streams = run_certified(self, plan, (self._mark(),), problem)
        if self.release == "both":
            self.person_factors_ = self._noisy_factors(people(), H, certified.certificate, streams)
        self.components_, self.certificate_, self.plan_ = H.copy(), certified.certificate, certified
        return self

    def _noisy_factors(self, rows: FactorRows, H: Array, certificate: Certificate, streams: Streams) -> Array:
        total = PersonFactors(rows, len(H), ridge=self.person_l2)
        channel = Channel(certificate, rows.people, streams=streams, part=1)
        noisy = channel.release(total, H.ravel()[None])[0].reshape(rows.people, len(H))
        assert self.row_norm is not None  # the plan needed it
        return np.asarray(np.maximum(noisy, 0.0) * self.row_norm)

    def planned_certificate(self, people: int, items: int) -> Certificate:
        """What ``fit`` is going to certify, from the shape of the table alone.

        Args:
            people: rows.
            items: columns.

        Returns:
            The certificate, without a mark of the seed.
        """
        return self._planned(people, items)[0].certificate.marked(self._mark())

    def _planned(self, n: int, items: int, noise_multiplier: float | None = None) -> tuple[BlockPlan, float]:
        """Every public choice; no record is read. The noise is calibrated unless it is known (a saved model)."""
        budget, k = self._check_parameters(n), _validate.positive_int(n_components=self.n_components)
        threshold = (THRESHOLD if items > n else 0.0) if self.noise_threshold is None else self.noise_threshold
        block, weight = item_block(
            k,
            items,
            self.update,
            seed=public_seed("init_seed", self.init_seed),
            contribution_norm=self.contribution_norm,
            step_size=STEP if self.step_size is None else _validate.positive(step_size=self.step_size),
            l1=_validate.nonnegative(l1=self.l1),
            l2=_validate.nonnegative(l2=self.l2),
            threshold=_validate.nonnegative(noise_threshold=threshold),
        )
        plan = plan_blocks(
            budget.epsilon if noise_multiplier is None else None,
            budget.delta,
            noise_multiplier=noise_multiplier,
            blocks=[block],
            n=n,
            batch_size=self.batch_size,
            epochs=self.epochs,
            sampling=_validate.one_of(("cyclic", "poisson"), sampling=self.sampling),
            noise_schedule=self._schedule(),
            adjacency=budget.adjacency,
            extra_mechanism=self._extra_mechanism(budget),
            unit=self.unit,
            label="item factors",
        )
        return plan, weight

    def _idle(self) -> dict[str, str]:
        """Options that have no effect, and with what."""
        idle = {"person_share": "release"} if self.release == "items" else {}
        if self.update == "gradient":
            return idle | {"noise_threshold": "update"}
        return idle | {"step_size": "update"} if self.update in tuple(UPDATES) else idle

    def _schedule(self) -> NoiseSchedule:
        named = isinstance(self.noise_schedule, str) and self.noise_schedule == "optimised"
        return Optimised(HALF_LIFE) if named else self.noise_schedule

    def _extra_mechanism(self, budget: Budget) -> Callable[[float], Mechanism] | None:
        """People's own release, with its share of μ²."""
        if self.release == "items":
            return None
        share = PERSON_SHARE if self.person_share is None else _validate.probability(person_share=self.person_share)
        if share == 1:
            raise InvalidInput("person_share must be below 1: the items need a part of the budget, too")

        def persons(strength: float) -> Mechanism:
            ratio = Schedule.constant(strength * math.sqrt(share / (1 - share)), 1)
            label = f"noisy factors of each {self.unit} (local)"
            return Mechanism(adjacency=budget.adjacency, ratio=ratio, steps=1, unit=self.unit, label=label)

        return persons

    def _check_parameters(self, n: int) -> Budget:
        why_not = "a person's factors change with H, so that no Lipschitz constant of a step is known"
        budget = block_budget(self, n, why_not)
        if self.row_norm is None:
            raise InvalidInput(
                "row_norm is missing: state a public bound on the norm of a row (longer ones are scaled down)"
            )
        norm = _validate.positive(row_norm=self.row_norm)
        if not 1e-100 <= norm <= 1e100:
            raise InvalidInput(f"row_norm must lie between 1e-100 and 1e100, got {norm!r}: choose other units")
        for name, options in (("release", RELEASES), ("missing", MISSING), ("update", tuple(UPDATES))):
            _validate.one_of(options, **{name: getattr(self, name)})
        if self.missing == "unobserved" and UPDATES[self.update] is ItemStatistic.MOMENTS:
            raise InvalidInput("update='statistics' needs every entry of a row: use 'residuals' for unobserved ones")
        _validate.nonnegative(person_l2=self.person_l2)
        return budget

    def _mark(self) -> str:
        return _joint(self.unit) if self.release == "items" else _local(self.unit)

    def _checked(self, X: Any, *, reset: bool) -> Any:
        finite: Any = "allow-nan" if self.missing == "unobserved" else True
        return checked(self, X, reset=reset, accept_sparse="csr", ensure_all_finite=finite)

    # -- what the item factors are good for --------------------------------------------------------------------

    def transform(self, X: Any) -> Array:
        """Factors of rows, from ``components_`` and each row alone: local, seen by whoever holds the row.

        Args:
            X: (rows, items).

        Returns:
            W (rows, components), X ≈ W @ components_.
        """
        check_is_fitted(self)
        rows = FactorRows(self._checked(X, reset=False), None, observed_only=self.missing == "unobserved")
        return rows.all_weights(self.components_, self.person_l2)

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
        tags.non_deterministic = self.random_state is None
        return tags
