"""Models from files: ``tacit fit``, ``predict``, ``schema``, ``ledger`` and ``demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit._files import write_whole
from tacit.cli.console import console, hide_record_errors, print_json, watched_bar, working

__all__ = ["demo", "fit", "ledger", "make_schema", "predict"]

_DATA = typer.Argument(
    help="A CSV or Parquet file, or a folder of them; the first line of a CSV file names the columns."
)
_MODELS = "A linear model: logistic, ridge, poisson, …; any other word is answered with all names."
_SEPARATOR = typer.Option("--separator", help="Between the fields of a CSV file.")


def fit(
    data: Annotated[Path, _DATA],
    target: Annotated[str, typer.Option("--target", help="The column to predict.")],
    model: Annotated[str, typer.Option("--model", help=_MODELS)],
    schema: Annotated[Path, typer.Option("--schema", help="Public bounds and categories (JSON); see tacit schema.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save the model (JSON).")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε of the promise.")],
    delta: Annotated[float | None, typer.Option("--delta", help="δ of the promise; 1/n² is a common choice.")] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", help="Strength of the penalty.")] = None,
    l1_ratio: Annotated[float | None, typer.Option("--l1-ratio", help="Share of ℓ1 (logistic, elasticnet).")] = None,
    huber_delta: Annotated[
        float | None, typer.Option("--huber-delta", help="Where huber turns linear, in the target's unit.")
    ] = None,
    adjacency: Annotated[str, typer.Option("--adjacency", help="replace-one or zero-out.")] = "replace-one",
    view: Annotated[str, typer.Option("--view", help="all-iterates or final-model.")] = "all-iterates",
    solver: Annotated[str, typer.Option("--solver", help="auto, or the name of a solver.")] = "auto",
    max_passes: Annotated[float | None, typer.Option("--max-passes", help="How often the data may be read.")] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="The solver's clip.")] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Reserve in this ledger first; see tacit ledger.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Repeatable noise, which is NOT private.")] = None,
    person: Annotated[str | None, typer.Option("--person", help="The column that says whose each row is.")] = None,
    separator: Annotated[str, _SEPARATOR] = ",",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a summary.")] = False,
) -> None:
    """Fit a private model on a table, and save it with its certificate.

    For example: tacit fit people.csv --target income --model logistic --epsilon 1 --delta 1e-6 --schema schema.json
    -o model.json
    """
    options = {
        "epsilon": epsilon,
        "delta": delta,
        "alpha": alpha,
        "l1_ratio": l1_ratio,
        "huber_delta": huber_delta,
        "adjacency": adjacency,
        "view": view.replace("-", "_"),
        "solver": solver,
        "max_passes": max_passes,
        "clip": clip,
        "random_state": seed,
    }
    with hide_record_errors(), watched_bar("fitting") as progress:
        from tacit.inputs.schema import Schema
        from tacit.tables import fitting

        fitting.check_output(output, data, schema, ledger)
        public = Schema.read(schema)
        watched = None if ledger is None else fitting.open_ledger(ledger)
        with hide_record_errors(watched):
            more = options | {"ledger": watched}
            fitted, records = fitting.fit_table(data, public, target, model, more, progress, person, separator)
            fitted.save(output)
    if as_json:
        print_json(fitted.summary(records) | {"saved": str(output)})
    else:
        fitted.print_summary(records, output, console())


def predict(
    model: Annotated[Path, typer.Argument(help="A model that tacit fit saved.")],
    data: Annotated[Path, _DATA],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A CSV file instead of stdout.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class (logistic).")] = False,
    separator: Annotated[str, _SEPARATOR] = ",",
) -> None:
    """Predict the target of every record, as CSV. Records that the model was not fitted on get no privacy from it."""
    with hide_record_errors(), working("predicting …"):
        from tacit.tables import fitting

        if output is not None:
            fitting.check_output(output, model, data)
        columns = fitting.TableModel.load(model).predict(data, separator, proba=proba)
        text = fitting.as_csv(columns)
        if output is not None:
            write_whole(output, text.encode())
    if output is None:
        typer.echo(text.encode(), nl=False)  # bytes: UTF-8 whatever the terminal's encoding
    else:
        many = len(next(iter(columns.values())))
        typer.echo(f"{many} predictions written to {output}")


def make_schema(
    data: Annotated[Path, _DATA],
    target: Annotated[str, typer.Option("--target", help="The column to predict.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of stdout.")] = None,
    separator: Annotated[str, _SEPARATOR] = ",",
) -> None:
    """Write a schema to fill in, from the names of the columns only: bounds and categories must not come from the data.

    Of bounds and categories (or classes), fill in one and leave the other.
    """
    with hide_record_errors():
        from tacit.inputs.schema import template
        from tacit.tables import fitting

        empty = template(fitting.column_names(data, separator), target)
        if output is not None:
            fitting.check_output(output, replace=False)
            write_whole(output, empty.encode())
    if output is None:
        typer.echo(empty.encode(), nl=False)
    else:
        typer.echo(f"Template written to {output}: replace the nulls by what is public.")


def ledger(
    path: Annotated[Path, typer.Argument(help="The file of the ledger.")],
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The total ε of a new ledger.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="The total δ of a new ledger.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Give up the ledger that was here before and is gone.")] = False,
) -> None:
    """Show what a budget has spent, or start one: tacit ledger study.ledger --epsilon 3 --delta 1e-6."""
    from tacit.ledger import Ledger

    found = Ledger(path, epsilon, delta, new=new)
    for line in (found.spent(), found.remaining()):
        typer.echo(str(line))


def demo() -> None:
    """Fit private models on real data (bundled with scikit-learn) beside one that is not private."""
    from tacit.report.demo import run_demo

    with watched_bar("fitting") as progress:
        results = run_demo(progress)
    results.print(console())
