"""Records instead of tables: what estimators ask of them before a fit, and how they predict for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from tacit.errors import InvalidInput, NotCovered
from tacit.inputs.tables import class_list
from tacit.mechanism import FullBatch, Mechanism, Plan
from tacit.records import Header, Opened, Records
from tacit.records.opened import TICKS

__all__ = [
    "as_column",
    "check_place",
    "checked_records",
    "header_of",
    "labelled",
    "name_features",
    "rows_to_predict",
    "watched",
]


def checked_records(records: Records, **besides: Any) -> Opened:
    """Records that were opened, and nothing beside them.

    Args:
        records: what the user passed as X.
        besides: other arguments of fit, which must be None.

    Returns:
        The records.

    Raises:
        InvalidInput: if something stands beside them, or they are no table with a header.
    """
    ways = {"y": "name the column, open_records(…, target=…)", "groups": "name the column, open_records(…, person=…)"}
    for name, value in besides.items():
        if value is not None:
            raise InvalidInput(f"{name} has no effect beside records: {ways.get(name, 'leave it out')}")
    if not isinstance(records, Opened):
        raise InvalidInput(f"{type(records).__name__} are records without a header: pass what open_records returns")
    return records


def header_of(records: Opened, *, target: bool, classify: bool = False) -> Header:
    """The header of records for a fit.

    Args:
        records: as opened.
        target: whether the model needs one.
        classify: whether it needs labels rather than numbers.

    Returns:
        The header.

    Raises:
        InvalidInput: if there is no target, or one of another type.
    """
    header = records.header
    assert header is not None
    if target and header.target is None:
        raise InvalidInput("the records have no target: name its column, open_records(…, target=…)")
    if target and not classify and header.target is not None and header.target.kind == "word":
        raise InvalidInput(
            f"the target {header.target.name!r} holds words: for labels use a classifier, e.g. DPLogisticRegression"
        )
    return header


def labelled(records: Opened, stated: Any) -> tuple[Header, Any, Records]:
    """The header of records for a classification, its classes, and the records with places of labels as targets.

    Args:
        records: as opened.
        stated: the labels that may occur, or None for those of the schema.

    Returns:
        All three.

    Raises:
        InvalidInput: if no labels are stated: they are not read off the data.
    """
    header = header_of(records, target=True, classify=True)
    if stated is None and header.classes is None:
        raise InvalidInput(
            "classes is missing: records are not read before they are paid for, so state the labels that may occur, "
            "classes=[…] (or list them in the schema)"
        )
    classes, _ = class_list(header.classes if stated is None else stated, ())
    return header, classes, records.labelled(classes)


def as_column(y: NDArray[Any]) -> NDArray[Any]:
    """Targets of one output, as a table."""
    return y[:, None]


def name_features(estimator: Any, records: Records) -> None:
    """What validation keeps of a table: the number and the names of its features."""
    header = records.header
    assert header is not None
    estimator.n_features_in_ = header.width
    vars(estimator).pop("feature_names_in_", None)
    if header.names is not None:
        estimator.feature_names_in_ = np.array(header.names, dtype=object)


def check_place(records: Records, planned: Any) -> None:
    """Refuse, before anything is charged, a plan that needs more of the records than their place can do.

    Args:
        records: where the rows are.
        planned: the fit.

    Raises:
        NotCovered: if the solver needs all rows in memory.
        InvalidInput: if batches are drawn, and rows cannot be fetched by their places.
    """
    solver: Any = getattr(planned, "solver", None)
    if not records.in_memory and getattr(solver, "in_memory", False):
        raise NotCovered(
            f"solver={solver.name!r} updates a value of every record at each step, so all rows must be in memory; "
            "use solver='metric' (up to 2000 coordinates) or 'sgd', or open them with scratch=True and more memory=",
            axis="solver",
        )
    parts = [part for part in planned.plan.parts if isinstance(part, Mechanism)]
    if not records.by_index and any(type(part.sampling) is not FullBatch for part in parts):
        raise InvalidInput(
            "scratch=False reads the source from its beginning in every pass, but this fit draws batches of rows: "
            "open the records with scratch=True"
        )


def watched(records: Records, plan: Plan, progress: Callable[[int, int], None] | None) -> Records:
    """Records that tell a progress bar how much of all passes is done, in thousandths of passes.

    Args:
        records: where the rows are.
        plan: how often they are read.
        progress: called with (done, all), or None.

    Returns:
        The records.
    """
    if progress is None or not isinstance(records, Opened):
        return records
    passes = sum(part.steps * part.releases for part in plan.parts if isinstance(part, Mechanism))
    whole, before = TICKS * (passes + int(records.by_index)), 0  # a copy is a pass, too

    def tick(done: int) -> None:
        nonlocal before
        progress(min(before + done, whole), whole)
        before += TICKS if done == TICKS else 0

    return records.watched(tick)


def rows_to_predict(estimator: Any, records: Records) -> Iterator[NDArray[Any]]:
    """The features of all rows, in the order of the table, some at a time.

    Args:
        estimator: fitted.
        records: with its features.

    Yields:
        Some rows.

    Raises:
        InvalidInput: if they have other features.
    """
    check_is_fitted(estimator)
    if not isinstance(records, Opened) or records.header is None:
        raise InvalidInput(f"{type(records).__name__} are records without a header: pass what open_records returns")
    names, known = records.header.names, getattr(estimator, "feature_names_in_", None)
    if records.header.width != estimator.n_features_in_:
        raise InvalidInput(
            f"the records have {records.header.width} features, but {type(estimator).__name__} was fitted on "
            f"{estimator.n_features_in_}: open them with the schema of the fit"
        )
    if names is not None and known is not None and list(names) != list(known):
        raise InvalidInput("the records have other features than the model was fitted on: open them with its schema")
    yield from records.features()
