"""Nodes of a federation: ``tacit federation init`` and ``tacit federation node``."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.console import OneLineErrors, hide_record_errors

__all__ = ["app"]

app = typer.Typer(
    cls=OneLineErrors,
    help="Models over several owners: certificates for a trial, and a node that serves the rows of a file.",
    no_args_is_help=True,
)
_SERVER = typer.Option("--server", help="The name in the certificate of the server.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to put the certificates; made if it is missing.")],
    node: Annotated[list[str], typer.Option("--node", help="The name of a node; once for each.")],
    server: Annotated[str, _SERVER] = "server",
    days: Annotated[int, typer.Option("--days", help="Until the certificates end.")] = 30,
) -> None:
    """Make certificates for a TRIAL: one authority, one server, some nodes.

    For trials only, because one hand makes the keys of all parties. In earnest each party makes its own key, and an
    authority that all of them trust signs it.
    """
    from tacit.federation import make_trial_certificates

    place = make_trial_certificates(folder, node, server=server, days=days)
    typer.echo(f"For trials: certificates of {', '.join([server, *node])} in {place}, for {days} days, mode 0600.")
    typer.echo("Give each party authority.pem and its own .pem and .key, and nobody else's .key.")


@app.command("node")
def serve(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file with this owner's rows.")],
    schema: Annotated[Path, typer.Option("--schema", help="Public bounds and categories (JSON); see tacit schema.")],
    ledger: Annotated[Path, typer.Option("--ledger", help="Each session reserves here first; see tacit ledger.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="ε of a session.")],
    delta: Annotated[float, typer.Option("--delta", help="δ of a session.")],
    tls: Annotated[Path, typer.Option("--tls", help="The folder of authority.pem, NAME.pem and NAME.key.")],
    name: Annotated[str, typer.Option("--name", help="Of this node, as in its certificate.")],
    address: Annotated[str, typer.Option("--address", help="Host and port to listen at.")] = "127.0.0.1:7443",
    target: Annotated[str | None, typer.Option("--target", help="The column to predict, for linear models.")] = None,
    row_norm: Annotated[
        float | None, typer.Option("--row-norm", help="A public bound on rows, for factorisations.")
    ] = None,
    person: Annotated[str | None, typer.Option("--person", help="The column that says whose each row is.")] = None,
    adjacency: Annotated[str, typer.Option("--adjacency", help="replace-one or zero-out.")] = "replace-one",
    server: Annotated[str, _SERVER] = "server",
    separator: Annotated[str, typer.Option("--separator", help="Between the fields of a CSV file.")] = ",",
) -> None:
    """Serve the rows of a file to a server, until it is told to stop (Ctrl-C).

    Rows stay here. What leaves are sums with all of this node's noise, after the ledger has reserved them.
    """
    with hide_record_errors():
        from tacit.federation import TLS, serve_node
        from tacit.records import Schema
        from tacit.tables import fitting, nodes

        parts, book = TLS.read(tls, name), fitting.open_ledger(ledger)
        terms = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "ledger": book}
        public = Schema.read(schema)
        node = nodes.table_node(
            data, public, target, person=person, row_norm=row_norm, separator=separator, terms=terms
        )
        with serve_node(node, address, tls=parts, server_name=server) as running:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            typer.echo(f"{name} serves {node.shape[0]} {node.unit}s at {running.address} to {server!r}; Ctrl-C ends it")
            try:
                running.wait()
            except KeyboardInterrupt:
                typer.echo("stopped; what was reserved stays spent")
