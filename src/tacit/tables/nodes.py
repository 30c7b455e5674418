"""Nodes of a federation from files: rows by a public schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.errors import InvalidInput
from tacit.federation import FactorNode, LinearNode
from tacit.federation.node import Node
from tacit.tables.reading import Table, check_columns, encode
from tacit.tables.schema import Schema

__all__ = ["table_node"]


def table_node(
    table: Table,
    schema: Schema,
    target: str | None,
    *,
    person: str | None = None,
    row_norm: float | None = None,
    **terms: Any,
) -> Node:
    """A node that serves the rows of a file.

    Args:
        table: the file.
        schema: what is public about it.
        target: the column to predict, for linear models; None for factorisations of all columns.
        person: the column that says whose each row is; listed under "ignore" in the schema.
        row_norm: for factorisations, a public bound on the norm of a row.
        **terms: ε, δ, relation and ledger.

    Returns:
        The node.

    Raises:
        InvalidInput: if the table does not fit the schema, or an option has no effect.
    """
    if (target is None) is (row_norm is None):
        raise InvalidInput(
            "name the target, for linear models, or a row norm, for factorisations: a node takes part in one of them"
        )
    check_columns(table, schema, target)
    terms["groups"] = None if person is None else _ids(table, person)
    X, y = encode(table, schema, target)
    if row_norm is not None:
        return FactorNode(X, row_norm=row_norm, **terms)
    if schema.target is None:
        raise InvalidInput("the schema says nothing about the target: give its bounds, or its classes")
    return LinearNode(X, y, classes=schema.target.classes, feature_bounds=schema.bounds, **terms)


def _ids(table: Table, person: str) -> Any:
    if person not in table.names:
        raise InvalidInput(f"{table.path} has no column {person!r}: check the spelling of the person's column")
    return np.concatenate([np.asarray(chunk[person], object) for chunk in table.chunks([person])])
