"""Nodes of a federation from files: rows by a public schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import InvalidInput
from tacit.federation import FactorNode, LinearNode
from tacit.federation.node import Node
from tacit.records.encoding import Encoder, check_columns
from tacit.records.schema import Schema
from tacit.records.sources import Coded, Source, find_source

__all__ = ["table_node"]


def table_node(
    data: Path,
    schema: Schema,
    target: str | None,
    *,
    person: str | None = None,
    row_norm: float | None = None,
    separator: str = ",",
    terms: dict[str, Any],
) -> Node:
    """A node that serves the rows of a file.

    Args:
        data: a file, or a folder of files.
        schema: what is public about it.
        target: the column to predict, for linear models; by default the schema's. None for factorisations.
        person: the column that says whose each row is; by default the schema's.
        row_norm: for factorisations, a public bound on the norm of a row.
        separator: between the fields of a CSV file.
        terms: ε, δ, relation and ledger.

    Returns:
        The node.

    Raises:
        InvalidInput: if the table does not fit the schema, or an option has no effect.
    """
    source = find_source(data, separator)
    schema = schema.resolved([field.name for field in source.fields])
    if target is None and row_norm is None and schema.target is not None:
        target = schema.target.column
    if (target is None) is (row_norm is None):
        raise InvalidInput(
            "name the target, for linear models, or a row norm, for factorisations: a node takes part in one of them"
        )
    person = person or schema.person
    check_columns(source, schema, [name for name in (target, person) if name is not None])
    terms = {**terms, "groups": None if person is None else _ids(source, person)}
    classes = None if schema.target is None else schema.target.classes
    encoder = Encoder(schema.features, target=target, classes=classes)
    parts = [encoder(columns, strict=True) for columns in source.batches(encoder.wanted)]
    X = np.concatenate([part.X for part in parts])
    if row_norm is not None:
        return FactorNode(X, row_norm=row_norm, **terms)
    if schema.target is None:
        raise InvalidInput("the schema says nothing about the target: give its bounds, or its classes")
    y: Any = np.concatenate([part.y for part in parts])
    if classes is not None:
        y = np.array(classes, object)[y.astype(np.intp)]
    return LinearNode(X, y, classes=classes, feature_bounds=schema.bounds, **terms)


def _ids(source: Source, person: str) -> Any:
    """The ids of all rows."""
    parts = []
    for columns in source.batches([person]):
        column = columns[person]
        if isinstance(column, Coded):
            parts.append(np.array([*column.words, None], object)[column.place])
        else:
            parts.append(np.asarray(column, object))
    return np.concatenate(parts)
