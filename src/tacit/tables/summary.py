"""What a fit tells about itself: public quantities, the certificate and where the model lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tacit.mechanism import Adjacency
from tacit.tables.fitting import TableModel

__all__ = ["print_fit", "to_dict"]


def _secret(fitted: TableModel) -> bool:
    """Whether the relation hides how many records there are."""
    return fitted.model.certificate_.adjacency is Adjacency.ADD_REMOVE


def to_dict(fitted: TableModel, records: int) -> dict[str, Any]:
    """The summary as plain data.

    Args:
        fitted: the model.
        records: how many it was fitted on (public under replace-one and zero-out).

    Returns:
        What ``tacit fit --json`` prints.
    """
    model = fitted.model
    certificate = model.certificate_
    return {
        "model": type(model).__name__,
        "target": fitted.target,
        "records": None if _secret(fitted) else records,
        "columns": len(fitted.schema.features),
        "features": model.n_features_in_,
        "solver": model.solver_,
        "epsilon": certificate.epsilon(model.delta),
        "delta": model.delta,
        "notes": list(model.notes_),
        "description": certificate.describe(model.delta),
        "certificate": certificate.to_dict(),
    }


def print_fit(fitted: TableModel, records: int, path: Path, console: Console) -> None:
    """The summary for people.

    Args:
        fitted: the model.
        records: how many it was fitted on.
        path: where it was saved.
        console: where to print.
    """
    model = fitted.model
    columns, features = len(fitted.schema.features), model.n_features_in_
    wide = f"{features} features" if features == columns else f"{features} features from {columns} columns"
    shown = "a secret number of records" if _secret(fitted) else f"{records} records"
    console.print(Text(f"{type(model).__name__} for {fitted.target!r}: {shown}, {wide}, solver {model.solver_}"))
    console.print()
    console.print(Text(model.certificate_.describe(model.delta)))
    for note in model.notes_:
        console.print()
        console.print(Text(f"Note: {note}", style="bold"))
    console.print()
    console.print(Text(f"Saved to {path}"))
