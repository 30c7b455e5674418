"""What is public about a table: bounds, categories and classes, stated by people and never read off the data."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit._codec import described
from tacit._files import write_whole
from tacit.errors import InvalidInput
from tacit.inputs.parameters import bounds_of
from tacit.inputs.tables import check_distinct, mixed_labels

if TYPE_CHECKING:
    from tacit.records.table_encoder import TableEncoder

__all__ = ["Categories", "Feature", "Label", "Numbers", "Schema", "Target", "check_names", "is_number"]

Label = str | int | float | bool
_BOTH = 'state public limits, {"bounds": [0, 100]}, or public words, {"categories": ["a", "b"]}'


@described("NumbersColumn")
@dataclass(frozen=True)
class Numbers:
    """A column of numbers.

    Attributes:
        name: the column, or a pattern such as "pixel_*" that stands for all columns that fit.
        low: the public lower limit; smaller values are clipped silently.
        high: the public upper limit.
        missing: what stands for a missing value; None if none may be missing.
        unit: of the numbers, for people.
    """

    name: str
    low: float
    high: float
    missing: float | None = None
    unit: str | None = None

    @classmethod
    def examples(cls) -> tuple[Numbers, ...]:
        """Objects for the contract tests."""
        return (cls("age", 0.0, 110.0, 40.0, "years"),)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the features that the column becomes."""
        return (self.name,)

    @property
    def bounds(self) -> tuple[float, float]:
        """Limits of these features."""
        return self.low, self.high

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        return {"bounds": [self.low, self.high]} | _unless_none(missing=self.missing, unit=self.unit)


@described("CategoriesColumn")
@dataclass(frozen=True)
class Categories:
    """A column of categories: one feature of zeros and ones for each.

    Attributes:
        name: the column.
        categories: the public list; another value becomes all zeros, silently.
        missing: the category that stands for a missing value; None if none may be missing.
    """

    name: str
    categories: tuple[Label, ...]
    missing: Label | None = None

    @classmethod
    def examples(cls) -> tuple[Categories, ...]:
        """Objects for the contract tests."""
        return (cls("plan", ("basic", "full"), "basic"),)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the features that the column becomes."""
        return tuple(f"{self.name}={category}" for category in self.categories)

    @property
    def bounds(self) -> tuple[float, float]:
        """Limits of these features."""
        return 0.0, 1.0

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        return {"categories": list(self.categories)} | _unless_none(missing=self.missing)


Feature = Numbers | Categories


@described("TargetColumn")
@dataclass(frozen=True)
class Target:
    """What is public about the target: limits (regression) or classes (classification).

    Attributes:
        bounds: (low, high), or None.
        classes: the labels, or None.
        column: its name, or None where it is stated elsewhere.
    """

    bounds: tuple[float, float] | None = None
    classes: tuple[Label, ...] | None = None
    column: str | None = None

    @classmethod
    def examples(cls) -> tuple[Target, ...]:
        """Objects for the contract tests."""
        return cls((0.0, 80.0), None, "visits"), cls(None, ("no", "yes"), "sick")

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        bounds, classes = (None if pair is None else list(pair) for pair in (self.bounds, self.classes))
        return _unless_none(column=self.column, bounds=bounds, classes=classes)


@described("Schema")
@dataclass(frozen=True)
class Schema:
    """Everything that a fit may know about a table before it reads one record.

    A feature's name may be a pattern ("pixel_*"): it stands for all columns of a table that fit it and are mentioned
    nowhere else, in their order.

    Attributes:
        features: the columns to learn from; their order is the model's.
        target: about the column to predict; None in a schema that serves no fit.
        ignore: columns (or patterns) that the data may hold besides.
        person: the column of ids that say whose each row is, or None.

    >>> schema = Schema.from_dict({
    ...     "features": {"age": {"bounds": [0, 110], "missing": 40}, "plan": {"categories": ["basic", "full"]}},
    ...     "target": {"column": "visits", "bounds": [0, 80]}, "person": "patient",
    ... })
    >>> schema.outputs
    ('age', 'plan=basic', 'plan=full')
    >>> import pandas as pd
    >>> schema.transformer().fit_transform(pd.DataFrame({"age": [33, None], "plan": ["full", "other"]})).tolist()
    [[33.0, 0.0, 1.0], [40.0, 0.0, 0.0]]
    """

    features: tuple[Feature, ...]
    target: Target | None = None
    ignore: tuple[str, ...] = ()
    person: str | None = None

    @classmethod
    def examples(cls) -> tuple[Schema, ...]:
        """Objects for the contract tests."""
        return (cls(Numbers.examples() + Categories.examples(), Target.examples()[0], ("note*",), "patient"),)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Names of features that stand for several columns."""
        return tuple(feature.name for feature in self.features if "*" in feature.name)

    def resolved(self, names: Sequence[str]) -> Schema:
        """The schema of a table with these columns: every pattern in the place of the columns that fit it.

        Args:
            names: of the columns.

        Returns:
            A schema without patterns.

        Raises:
            InvalidInput: if no column fits a pattern.
        """
        if not self.patterns:
            return self
        target = None if self.target is None else self.target.column
        taken = {feature.name for feature in self.features} | {target, self.person}
        free = [n for n in names if n not in taken and not any(fnmatch.fnmatchcase(n, one) for one in self.ignore)]
        out: list[Feature] = []
        for feature in self.features:
            if "*" not in feature.name:
                out.append(feature)
                continue
            found = [name for name in free if fnmatch.fnmatchcase(name, feature.name)]
            if not found:
                raise InvalidInput(f"no column fits {feature.name!r}: check the spelling in header and schema")
            out += [replace(feature, name=name) for name in found]
            free = [name for name in free if name not in found]
        return replace(self, features=tuple(out))

    def transformer(self) -> TableEncoder:
        """A public step for pipelines: raw frames in, the model's features out, within ``bounds``."""
        from tacit.records.table_encoder import TableEncoder

        return TableEncoder(self)

    @classmethod
    def template(cls, data: Any, target: str | None = None, person: str | None = None, separator: str = ",") -> str:
        """A schema to fill in, from names and *types* of columns alone: JSON with nulls for what is to be stated.

        Args:
            data: a frame, or the path of a table; what ``open_records`` takes.
            target: the column to predict.
            person: the column of ids.
            separator: between the fields of a CSV file.

        Returns:
            JSON; columns that differ by a number only share a pattern.
        """
        from tacit.records.table_encoder import template_of

        return template_of(data, target, person, separator)

    def write(self, path: str | Path) -> None:
        """Write a JSON file that ``read`` reads."""
        write_whole(Path(path), (json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n").encode())

    @property
    def outputs(self) -> tuple[str, ...]:
        """The features of the model."""
        return tuple(name for feature in self.features for name in feature.outputs)

    @property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Limits of the features of the model."""
        pairs = [feature.bounds for feature in self.features for _ in feature.outputs]
        low, high = np.array(pairs, np.float64).T
        return low.copy(), high.copy()

    def to_dict(self) -> dict[str, Any]:
        """As in the file."""
        target = {} if self.target is None else {"target": self.target.to_dict()}
        person = {} if self.person is None else {"person": self.person}
        return {"features": {f.name: f.to_dict() for f in self.features}, **target, **person, "ignore": [*self.ignore]}

    @classmethod
    def from_dict(cls, data: Any) -> Schema:
        """Read and check plain data; entries that are null count as absent.

        Args:
            data: {"features": {...}, "target": {...}, "person": "...", "ignore": [...]}.

        Returns:
            The schema.

        Raises:
            InvalidInput: if something is missing or malformed; schemas are public, so the message shows it.
        """
        parts = _object("the schema", data, ("features", "target", "person", "ignore"))
        columns = _object("features", parts.get("features", {}))
        if not columns:
            raise InvalidInput(f'the schema lists no features: {{"features": {{"age": ...}}}}; for each {_BOTH}')
        ignore = parts.get("ignore", [])
        if not isinstance(ignore, list) or not all(isinstance(name, str) for name in ignore):
            raise InvalidInput("ignore must be a list of column names")
        features = tuple(_feature(name, entry) for name, entry in columns.items())
        both = [name for name in ignore if name in columns]
        if both:
            raise InvalidInput(f"column {both[0]!r} is both a feature and ignored: choose one")
        person, target = parts.get("person"), _target(parts.get("target"))
        if person is not None and not isinstance(person, str):
            raise InvalidInput('person must be the name of a column: {"person": "patient_id"}')
        for role, name in (("target", None if target is None else target.column), ("person", person)):
            if name is not None and name in columns:
                raise InvalidInput(f"column {name!r} is both a feature and the {role}: remove it from the features")
        schema = cls(features, target, tuple(ignore), person)
        if len(set(schema.outputs)) != len(schema.outputs):
            raise InvalidInput("two features get the same name after encoding: rename a column or a category")
        return schema

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """From a JSON file.

        Args:
            path: the file.

        Returns:
            The schema.

        Raises:
            InvalidInput: if it is no schema.
        """
        text, path = "", Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
            return cls.from_dict(json.loads(text, object_pairs_hook=_distinct))
        except UnicodeDecodeError:
            raise InvalidInput(f"{path} is not a schema: it is not UTF-8 text") from None
        except RecursionError:
            raise InvalidInput(f"{path} is not a schema: it is nested too deeply") from None
        except json.JSONDecodeError as error:
            where = f": {error}" if text.lstrip().startswith("{") else ""  # it might be a table by mistake
            raise InvalidInput(f"{path} is not JSON{where}; write one with tacit schema and fill it in") from None
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None
        except ValueError:
            raise InvalidInput(f"{path} is not a schema: a number is too long") from None


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that cannot be told apart (call it only if the first line is known to be a header).

    Args:
        names: the header.

    Raises:
        InvalidInput: if a name is empty or occurs twice.
    """
    if "" in names:
        raise InvalidInput("a column has no name: name it (pandas writes its index so; save with index=False)")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"column {twice[0]!r} occurs twice: rename or remove one")


def is_number(name: str) -> bool:
    """Whether a name reads like a number: then the first line of a file might be a record."""
    try:
        float(name)
    except ValueError:
        return False
    return True


# -- parts of the file ------------------------------------------------------------------------------------


def _unless_none(**entries: Any) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if value is not None}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise InvalidInput(f"{twice[0]!r} is stated twice: keep one")
    return dict(pairs)


def _object(what: str, data: Any, allowed: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InvalidInput(f"{what} must be a JSON object {{...}}")
    strange = [name for name in data if allowed is not None and name not in allowed]
    if strange:
        raise InvalidInput(f"{what} has an unknown entry {strange[0]!r}: it may have {', '.join(allowed or ())}")
    return {name: value for name, value in data.items() if value is not None}


def _filled(data: dict[str, Any]) -> dict[str, Any]:
    """Without the empty bounds of a template."""
    return {name: value for name, value in data.items() if value != [None, None]}


def _feature(name: str, data: Any) -> Feature:
    what = f"feature {name!r}"
    parts = _filled(_object(what, data, ("bounds", "categories", "missing", "unit")))
    if ("bounds" in parts) == ("categories" in parts):
        which = "both bounds and categories" if "bounds" in parts else "neither bounds nor categories"
        raise InvalidInput(f"{what} has {which}: {_BOTH}; neither may be read off the data")
    missing = parts.get("missing")
    if "bounds" in parts:
        low, high = _bounds(what, parts["bounds"])
        if missing is not None and not (_is_number(missing) and low <= missing <= high):
            raise InvalidInput(f"{what}: missing must be a number within the bounds")
        unit = parts.get("unit")
        if unit is not None and not isinstance(unit, str):
            raise InvalidInput(f"{what}: unit must be a word, such as years")
        return Numbers(name, low, high, None if missing is None else float(missing), unit)
    labels = _labels(f"{what}: categories", parts["categories"], 1)
    if missing is not None and (type(missing) not in {type(label) for label in labels} or missing not in labels):
        raise InvalidInput(f'{what}: missing must be one of the categories; add one, such as "unknown", if need be')
    return Categories(name, labels, missing)


def _target(data: Any) -> Target | None:
    if data is None:
        return None
    parts = _filled(_object("target", data, ("column", "bounds", "classes")))
    column = parts.pop("column", None)
    if column is not None and not isinstance(column, str):
        raise InvalidInput('target: column must be a name: {"target": {"column": "income", "bounds": [0, 100]}}')
    if ("bounds" in parts) == ("classes" in parts):
        which = "both bounds and classes" if parts else "neither bounds nor classes"
        raise InvalidInput(
            f'target has {which}: state public limits, {{"bounds": [0, 100]}}, for regression, or all public labels, '
            '{"classes": ["no", "yes"]}, for classification'
        )
    if "bounds" in parts:
        return Target(bounds=_bounds("target", parts["bounds"]), column=column)
    classes = _labels("target: classes", parts["classes"], 2)
    if any(isinstance(label, float) and label != int(label) for label in classes):
        raise InvalidInput("target: classes must be words, whole numbers, or true and false")
    return Target(classes=classes, column=column)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _bounds(what: str, data: Any) -> tuple[float, float]:
    low, high = bounds_of(f"{what}: bounds", data)
    return float(low), float(high)


def _labels(what: str, data: Any, least: int) -> tuple[Label, ...]:
    labels = data if isinstance(data, list) else []
    kinds = {type(label) for label in labels}
    one_kind = kinds in ({str}, {bool}, {int}, {float}, {int, float}) and all(map(_is_label, labels))
    if labels and not one_kind:
        raise mixed_labels(what)
    keys = [label.strip() if isinstance(label, str) else label for label in labels]
    check_distinct(what, keys, least)
    return tuple(keys)


def _is_label(label: Any) -> bool:
    if isinstance(label, str):
        return bool(label.strip())
    return abs(label) < 2**53 and math.isfinite(label)
