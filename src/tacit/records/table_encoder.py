"""A schema as a public step of pipelines, and as a form to fill in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacit.errors import InvalidInput
from tacit.maps.steps import norm_of_rows, public_step
from tacit.records.encoding import Encoder, check_columns, check_type
from tacit.records.schema import Categories, Schema, check_names, is_number
from tacit.records.sources import Field, Source, find_source

__all__ = ["TableEncoder", "template_of"]

Array = NDArray[np.float64]
ALIKE = 4
"""Columns that differ by a number only, from so many on, share a pattern in a template."""


def _norm(encoder: TableEncoder) -> float:
    """Every entry lies within the bounds."""
    low, high = encoder.feature_bounds_
    return float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high))))


@norm_of_rows(_norm)
@public_step
class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns raw tables into a model's features by a public schema (``Schema.transformer``).

    Numbers are clipped to their bounds, categories become zeros and ones, missing values what the schema says. Columns
    are found by their names; others do not matter. Frames of pandas, Polars or Arrow go in as they are.

    *Formal guarantee.* The fitted encoder is a function of the schema and of the names of columns, so it costs nothing:
    ``certificate_`` is None.

    *Assumptions.* The schema was not read off the data.

    Args:
        schema: a ``Schema``, or its dictionary.

    Attributes:
        certificate_: None.
        feature_bounds_: (low, high) of the features that come out.
        n_features_in_: how many columns of the table are read.
        schema_: without patterns.
    """

    def __init__(self, schema: Any = None) -> None:
        self.schema = schema

    def fit(self, X: Any, y: object = None) -> Self:
        """Find the columns by their names; no value is looked at.

        Args:
            X: a table with names.
            y: ignored.

        Returns:
            Itself.

        Raises:
            InvalidInput: if the schema is none, or the table has other columns.
        """
        schema = Schema.from_dict(dict(self.schema)) if isinstance(self.schema, Mapping) else self.schema
        if not isinstance(schema, Schema):
            raise InvalidInput("schema must be a tacit Schema, or its dictionary: Schema.read(path) reads one")
        source = _named(X)
        self.schema_ = schema.resolved([field.name for field in source.fields])
        self._check(source)
        self.feature_bounds_ = self.schema_.bounds
        self.n_features_in_ = len(self.schema_.features)
        self.certificate_ = None
        return self

    def transform(self, X: Any) -> Array:
        """The features, within their bounds.

        Args:
            X: a table with the columns of the schema.

        Returns:
            (rows, features).
        """
        check_is_fitted(self, "schema_")
        source = _named(X)
        self._check(source)
        encoder = Encoder(self.schema_.features)
        low, high = self.feature_bounds_
        parts = [np.clip(encoder(columns, strict=True).X, low, high) for columns in source.batches(encoder.wanted)]
        return np.concatenate(parts) if parts else np.empty((0, len(low)))

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """The column, or column=category.

        Args:
            input_features: not needed.

        Returns:
            The names.
        """
        check_is_fitted(self, "schema_")
        return np.array(self.schema_.outputs, dtype=object)

    def _check(self, source: Source) -> None:
        """Refuse missing columns and wrong types, by the header alone."""
        check_columns(source, self.schema_, [], strict=False)
        known = {field.name: field for field in source.fields}
        for feature in self.schema_.features:
            check_type(source, known[feature.name], feature.categories if isinstance(feature, Categories) else None)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags


def _named(X: Any, separator: str = ",") -> Source:
    source = find_source(X, separator)
    if not source.named:
        raise InvalidInput(
            f"{type(X).__name__} has no names of columns, by which a schema finds them: pass a frame, e.g. "
            "pandas.DataFrame(X, columns=[…])"
        )
    return source


# -- a form to fill in ------------------------------------------------------------------------------------------------

BOUNDS, WORDS = {"bounds": [None, None]}, {"categories": None}
EITHER = {**BOUNDS, **WORDS}


def template_of(data: Any, target: str | None, person: str | None, separator: str = ",") -> str:
    """JSON with nulls for what is to be stated, from names and types alone.

    Args:
        data: what ``open_records`` takes.
        target: the column to predict.
        person: the column of ids.
        separator: between the fields of a CSV file.

    Returns:
        A line per column; columns of one type that differ by a number only share a pattern.

    Raises:
        InvalidInput: if target or person is no column, or the first line of a file of text may be no header.
    """
    source = _named(data, separator)
    names = [field.name for field in source.fields]
    untyped = any(field.kind == "text" for field in source.fields)
    for role, name in (("target", target), ("person", person)):
        if name is not None and (name not in names or (untyped and any(map(is_number, names)))):
            hint = ": is the first line a header, and the name right?" if untyped else ""
            raise InvalidInput(f"{role}: {source.what} does not name a column {name!r}{hint}")
    check_names(names)
    fields = [field for field in source.fields if field.name not in (target, person) and field.kind != "other"]
    others = [field.name for field in source.fields if field.kind == "other" and field.name not in (target, person)]
    lines = [f"    {json.dumps(name, ensure_ascii=False)}: {json.dumps(entry)}" for name, entry in _entries(fields)]
    pieces = ['  "features": {\n' + ",\n".join(lines) + "\n  }"]
    if target is not None:
        (goal,) = [field for field in source.fields if field.name == target]
        about = {"column": target, **_about(goal, "classes")}
        pieces.append(f'  "target": {json.dumps(about, ensure_ascii=False)}')
    if person is not None:
        pieces.append(f'  "person": {json.dumps(person, ensure_ascii=False)}')
    pieces.append(f'  "ignore": {json.dumps(others, ensure_ascii=False)}')
    return "{\n" + ",\n".join(pieces) + "\n}\n"


def _about(field: Field, words: str) -> dict[str, Any]:
    """What is to be stated about a column of this type."""
    if field.kind == "truth":
        return {words: [False, True]}
    if field.kind == "number":
        return dict(BOUNDS) if words == "categories" else {**BOUNDS, words: None}
    if field.kind == "word":
        return {words: None}
    return {**BOUNDS, words: None}  # text: the file states no types


def _entries(fields: Sequence[Field]) -> list[tuple[str, dict[str, Any]]]:
    """Columns with what is to be stated about each, and patterns for those that differ by a number only."""
    stems: dict[tuple[str, str], list[str]] = {}
    for field in fields:
        stem = re.fullmatch(r"(.*\D)\d+", field.name)
        if stem is not None and field.kind == "number":
            stems.setdefault((stem[1], field.kind), []).append(field.name)
    shared = {name: stem for (stem, _), names in stems.items() if len(names) >= ALIKE for name in names}
    out: dict[str, dict[str, Any]] = {}
    for field in fields:
        name = f"{shared[field.name]}*" if field.name in shared else field.name
        out.setdefault(name, _about(field, "categories"))
    return list(out.items())
