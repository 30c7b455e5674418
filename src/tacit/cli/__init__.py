"""The command line ``tacit``: thin over the library, one-line errors, heavy imports only where they are used."""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from tacit.cli import federation, planning, tables
from tacit.cli.console import OneLineErrors
from tacit.errors import PrivacyUtilityWarning

__all__ = ["app", "main"]

app = typer.Typer(
    cls=OneLineErrors,
    help="Differentially private training with certificates: plan, fit and predict, and see what is promised.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tacit {version('tacit-dp')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(tables.demo)
app.command()(planning.plan)
app.command("schema")(tables.make_schema)
app.command()(tables.fit)
app.command()(tables.predict)
app.command()(planning.report)
app.command()(tables.ledger)
app.add_typer(federation.app, name="federation")


def main() -> None:
    """The entry point of the ``tacit`` script; what a warning would say is printed with the result."""
    warnings.simplefilter("ignore", PrivacyUtilityWarning)
    app()
