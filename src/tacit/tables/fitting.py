"""Fit and predict on files: the schema travels with the model."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text
from sklearn.base import ClassifierMixin

from tacit import _validate
from tacit._registry import claim
from tacit.errors import InvalidInput
from tacit.estimators import load_all
from tacit.estimators.base import ESTIMATORS
from tacit.estimators.files import load_model_and_extra, save_model
from tacit.estimators.progress import watching
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency
from tacit.records import Streamed, open_records
from tacit.records.encoding import check_columns
from tacit.records.schema import Schema
from tacit.records.sources import find_source

__all__ = [
    "TableModel",
    "WatchedLedger",
    "as_csv",
    "check_output",
    "fit_table",
    "open_ledger",
    "shell_models",
]


def shell_models() -> dict[str, type[Any]]:
    """Estimators of Tacit's by their names on the command line: all that state one (``shell_name``)."""
    load_all()
    found: dict[str, type[Any]] = {}
    for cls in ESTIMATORS.values():
        if cls.shell_name is not None and cls.__module__.startswith("tacit."):
            claim(found, cls.shell_name, cls, "a model of the shell")
    return dict(sorted(found.items()))


class WatchedLedger(Ledger):
    """A ledger that remembers whether this run was charged.

    Attributes:
        entry: the number of the reservation, None before it.
    """

    entry: int | None = None

    def reserve(self, certificate: Any, note: str = "", *, delta: float | None = None) -> int:
        """As any ledger's."""
        self.entry = super().reserve(certificate, note, delta=delta)
        return self.entry


@dataclass(frozen=True)
class TableModel:
    """A fitted model with the schema that turns tables into its features.

    Attributes:
        model: the estimator.
        schema: of the tables.
        target: the column that it predicts.
    """

    model: Any
    schema: Schema
    target: str

    def save(self, path: Path) -> None:
        """Write both into one file; ``tacit.load_model`` reads the estimator alone."""
        save_model(self.model, path, extra={"schema": self.schema.to_dict(), "target": self.target})

    @classmethod
    def load(cls, path: Path) -> TableModel:
        """Read both.

        Args:
            path: what ``save`` wrote.

        Returns:
            The model, certified again.

        Raises:
            InvalidInput: if it is no model, or one without a schema.
        """
        model, extra = load_model_and_extra(path)
        if not isinstance(extra, dict) or not isinstance(extra.get("target"), str):
            raise InvalidInput(f"{path} was saved without a table's schema: use it from Python, with tacit.load_model")
        schema = Schema.from_dict(extra.get("schema"))
        if len(schema.outputs) != model.n_features_in_:
            raise InvalidInput(f"{path} has a schema for another number of features than its model")
        return cls(model, schema, extra["target"])

    def predict(self, data: Path, separator: str = ",", *, proba: bool = False) -> dict[str, list[Any]]:
        """Predictions for every record, which are read part by part.

        Args:
            data: a file or folder with the columns of the schema; others do not matter.
            separator: between the fields of a CSV file.
            proba: also the probability of each class.

        Returns:
            Columns by name.

        Raises:
            InvalidInput: if the table does not fit, or the model has no probabilities.
        """
        if proba and not hasattr(self.model, "predict_proba"):
            raise InvalidInput(f"{type(self.model).__name__} has no probabilities: leave --proba out, or fit logistic")
        records = open_records(data, schema=self.schema, separator=separator)
        out = {self.target: self.model.predict(records).tolist()}
        if proba:
            columns = self.model.predict_proba(records).T.tolist()
            labels = self.model.classes_.tolist()
            out |= {f"P({self.target}={label})": column for label, column in zip(labels, columns, strict=True)}
        return out

    @property
    def _secret(self) -> bool:
        """Whether the relation hides how many records there are."""
        return self.model.certificate_.adjacency is Adjacency.ADD_REMOVE

    def summary(self, records: int) -> dict[str, Any]:
        """The summary as plain data.

        Args:
            records: how many it was fitted on (public under replace-one and zero-out).

        Returns:
            What ``tacit fit --json`` prints.
        """
        model = self.model
        certificate = model.certificate_
        return {
            "model": type(model).__name__,
            "target": self.target,
            "records": None if self._secret else records,
            "columns": len(self.schema.features),
            "features": model.n_features_in_,
            "solver": model.solver_,
            "epsilon": certificate.epsilon(model.delta),
            "delta": model.delta,
            "notes": list(model.notes_),
            "description": certificate.describe(model.delta),
            "certificate": certificate.to_dict(),
        }

    def print_summary(self, records: int, path: Path, console: Console) -> None:
        """The summary for people.

        Args:
            records: how many it was fitted on.
            path: where it was saved.
            console: where to print.
        """
        model = self.model
        columns, features = len(self.schema.features), model.n_features_in_
        wide = f"{features} features" if features == columns else f"{features} features from {columns} columns"
        many = f"{model.certificate_.unit}s"
        shown = f"a secret number of {many}" if self._secret else f"{records} {many}"
        console.print(Text(f"{type(model).__name__} for {self.target!r}: {shown}, {wide}, solver {model.solver_}"))
        console.print()
        console.print(Text(model.certificate_.describe(model.delta)))
        for note in model.notes_:
            console.print()
            console.print(Text(f"Note: {note}", style="bold"))
        console.print()
        console.print(Text(f"Saved to {path}"))


def fit_table(
    data: Path,
    schema: Schema,
    target: str | None,
    kind: str,
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
    person: str | None = None,
    separator: str = ",",
) -> tuple[TableModel, int]:
    """Fit an estimator on a table.

    Everything that can be checked without records is checked first. Their values are checked on the way to the scratch
    copy, before anything is charged: who runs the command can mend the file.

    Args:
        data: a file, or a folder of files.
        schema: what is public about it.
        target: the column to predict; None for that of the schema.
        kind: one of ``shell_models``.
        options: parameters of the estimator; those that are None are left at its defaults.
        progress: called with (done, all).
        person: the column that says whose each row is; None for that of the schema, if it names one.
        separator: between the fields of a CSV file.

    Returns:
        The model and the number of records (of persons).

    Raises:
        InvalidInput: if the target is not named.
    """
    models = shell_models()
    cls = models[_validate.one_of(tuple(models), model=kind)]
    source = find_source(data, separator)
    schema = schema.resolved([field.name for field in source.fields])
    person, target = person or schema.person, target or (None if schema.target is None else schema.target.column)
    if target is None:
        raise InvalidInput('the target is not named: add --target COLUMN, or {"target": {"column": …}} to the schema')
    public = _public(schema, target, kind, issubclass(cls, ClassifierMixin))
    model: Any = cls(**_parameters(cls, kind, options), **public)
    check_columns(source, schema, [name for name in (target, person) if name is not None])
    records = open_records(data, target, person, schema, scratch=True, separator=separator)
    if isinstance(records, Streamed):
        records.copy_now()
    with watching(model, progress):
        model.fit(records)
    # How many rows persons have is secret; how many persons there are is what the promise is about.
    return TableModel(model, schema, target), records.n if person is None else records.of_persons().n


def _parameters(cls: type[Any], kind: str, options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    strange = sorted(given.keys() - set(cls._get_param_names()))
    if strange:
        option = "--" + strange[0].replace("_", "-")
        raise InvalidInput(f"the model {kind!r} has no {option}: leave it out, or choose another model")
    return given


def _public(schema: Schema, target: str, kind: str, classify: bool) -> dict[str, Any]:
    """The parameters that the schema states."""
    if target in {feature.name for feature in schema.features} | set(schema.ignore):
        raise InvalidInput(f"the target {target!r} is also among the features or ignored columns: remove it there")
    about = schema.target
    if about is None or (about.classes if classify else about.bounds) is None:
        needed = '{"target": {"classes": ["no", "yes"]}}' if classify else '{"target": {"bounds": [0, 100]}}'
        raise InvalidInput(
            f"the model {kind!r} needs to know what is public about the target: add {needed} to the schema"
        )
    if classify:
        return {"feature_bounds": schema.bounds, "classes": list(about.classes or ())}
    return {"feature_bounds": schema.bounds, "target_bounds": about.bounds}


def check_output(path: Path, *inputs: Path | None, replace: bool = True) -> None:
    """Refuse a place where the result could not be written, before anything is spent.

    Args:
        path: where the result shall go.
        inputs: files that it must not replace.
        replace: whether it may replace any other file.

    Raises:
        InvalidInput: if the folder is missing, nothing can be written there, or something would be lost.
    """
    if not path.parent.is_dir():
        raise InvalidInput(f"output: the folder {str(path.parent)!r} does not exist: create it first")
    if path.is_dir():
        raise InvalidInput(f"output: {str(path)!r} is a folder: name a file")
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise InvalidInput(f"output: {str(path)!r} is an input, which would be lost: choose another name")
    if path.exists() and not replace:
        raise InvalidInput(f"output: {str(path)!r} exists, and might be filled in already: choose another name")
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"output: {str(path)!r} cannot be written: choose another place")


def open_ledger(path: Path) -> WatchedLedger:
    """An existing ledger.

    Args:
        path: its file.

    Returns:
        The ledger.

    Raises:
        InvalidInput: if there is none: its limits are a decision of their own.
    """
    if not path.exists() and not path.with_name(path.name + ".anchor").exists():
        raise InvalidInput(f"there is no ledger at {path}: start one with tacit ledger {path} --epsilon 3 --delta 1e-6")
    return WatchedLedger(path)


def as_csv(columns: dict[str, list[Any]]) -> str:
    """Columns as CSV text; numbers keep every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
