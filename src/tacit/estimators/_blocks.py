"""What estimators by block coordinate descent share: their checks, and the way from a plan to a certified run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.errors import InvalidInput, NotCovered
from tacit.estimators._fit import budget_of
from tacit.estimators._progress import bar
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency
from tacit.run import SEEDED, Channel, Streams
from tacit.run.blocks import BlockProblem, Values
from tacit.solvers.base import Budget
from tacit.solvers.blocks import BlockPlan, run_blocks

__all__ = ["SCHEMA", "block_budget", "public_seed", "run_certified"]

SCHEMA = ("n_features_in_", "feature_names_in_")
"""What scikit-learn keeps of the input: no result of a fit."""


def block_budget(estimator: Any, n: int, why_not_final: str) -> Budget:
    """ε, δ and relation of a fit; refuses what no theorem covers, and what cannot be run.

    Args:
        estimator: with the parameters that all of them have.
        n: records.
        why_not_final: why nothing more is known about the last iterate.

    Returns:
        The budget.

    Raises:
        NotCovered: for add/remove and for the final model.
        InvalidInput: if a parameter is out of range, or has no effect.
    """
    for name, why in estimator._idle().items():
        if getattr(estimator, name) is not None:
            raise InvalidInput(f"{name} has no effect with {why}={getattr(estimator, why)!r}: leave it out")
    budget = budget_of(estimator.epsilon, estimator.delta, estimator.adjacency, estimator.view, n)
    if budget.adjacency is Adjacency.ADD_REMOVE:
        raise NotCovered(
            "adjacency: under add-remove the number of rows is secret, but the plan is made for it; use replace-one or "
            "zero-out",
            axis="adjacency",
        )
    if budget.view == "final_model":
        raise NotCovered(
            f"view: {why_not_final}, and no theorem about the last iterate applies; use view='all_iterates'",
            axis="view",
        )
    if estimator.budget is not None and not isinstance(estimator.budget, Ledger):
        raise InvalidInput(f"budget must be a tacit.Ledger or None, got {type(estimator.budget).__name__}")
    if estimator.progress is not None and not isinstance(estimator.progress, bool | np.bool_):
        raise InvalidInput(f"progress must be True, False or None (on a terminal only), got {estimator.progress!r}")
    if estimator.random_state is not None:
        public_seed("random_state", estimator.random_state)
    return budget


def public_seed(name: str, value: object) -> int:
    """A seed, checked."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        private = "" if name == "init_seed" else "None, for private noise, or "
        raise InvalidInput(f"{name} must be {private}a non-negative integer, got {value!r}")
    return int(value)


def run_certified(
    estimator: Any, plan: BlockPlan, marks: tuple[str, ...], problem: Callable[[], BlockProblem]
) -> tuple[Values, BlockPlan, Streams]:
    """Reserve, forget the former model, and only then read records.

    Args:
        estimator: whose ``budget``, ``progress`` and ``random_state`` count; its former results are deleted.
        plan: of the run.
        marks: what the certificate must say besides.
        problem: makes the problem from records.

    Returns:
        The blocks, the plan with the marked certificate, and the noise for more parts of the plan.
    """
    streams, certificate = Streams(estimator.random_state), plan.certificate
    for mark in (*marks, *((SEEDED,) if streams.seeded else ())):
        certificate = certificate.marked(mark)
    if estimator.budget is not None:
        estimator.budget.reserve(certificate, type(estimator).__name__)
    for name in [key for key in vars(estimator) if key.endswith("_") and key not in SCHEMA]:
        delattr(estimator, name)  # an interrupted fit must leave neither the old model nor a new name for it
    quiet = np.errstate(all="ignore")  # a warning, or somebody's "raise", would tell about a record
    with quiet, bar(type(estimator).__name__, estimator.progress) as tick:
        made = problem()
        values = run_blocks(plan, made, Channel(certificate, made.records, streams=streams), tick)
    return values, replace(plan, certificate=certificate), streams
