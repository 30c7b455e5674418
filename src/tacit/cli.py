"""The command line ``tacit``: thin over the library, one-line errors, heavy imports only where they are used."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tacit.errors import InvalidInput, TacitError

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.accounting import Certificate
    from tacit.report.plan import PlanReport
    from tacit.report.settings import Settings

__all__ = ["app", "main"]

# -- errors -----------------------------------------------------------------------------------------------


def _message(error: Exception) -> tuple[str, int] | None:
    """One line for the user and an exit code, or None for an error that the user can do nothing about."""
    if isinstance(error, TacitError):
        return str(error), 2
    usage = getattr(error, "format_message", None)  # click's errors, whether click is a package or part of typer
    if callable(usage):
        return str(usage()), 2
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}", 2
    if isinstance(error, ArithmeticError | MemoryError | RecursionError):
        return f"out of numerical range: {str(error) or type(error).__name__}; choose less extreme values", 2
    return None


class _OneLineErrors(TyperGroup):
    """A command group whose every failure is one line on stderr."""

    def main(self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and turn exceptions into a line and an exit code."""
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except typer.Abort:
            _fail("aborted", 130)
        except Exception as error:
            if not standalone_mode or "TACIT_TRACEBACK" in os.environ:
                raise
            known = _message(error)
            if known is None:
                hint = "please report it, with what TACIT_TRACEBACK=1 prints"
                known = f"internal: {type(error).__name__}: {error}; {hint}", 1
            _fail(*known)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)


# -- the application --------------------------------------------------------------------------------------

app = typer.Typer(
    cls=_OneLineErrors,
    help="Differentially private training with certificates: what each theorem promises, before anything is run.",
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


def _console() -> Console:
    """Rich's console on stdout; characters that the terminal's encoding lacks are replaced, not fatal."""
    from rich.console import Console

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return Console(highlight=False, markup=False, emoji=False)


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """A spinner on stderr while the numbers are computed, if somebody is watching."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _print_json(data: object) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


# -- plan -------------------------------------------------------------------------------------------------


def _count(text: str) -> int:
    """A positive integer, 6e4 included."""
    try:
        value = int(text) if text.strip().lstrip("+-").isdigit() else float(text)
        if value != int(value) or value < 1:
            raise ValueError
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a positive integer") from None
    return int(value)


_COUNT: dict[str, Any] = {"parser": _count, "metavar": "INTEGER"}


@app.command()
def plan(
    n: Annotated[int, typer.Option("--n", help="Number of records (nominal under add-remove).", **_COUNT)],
    batch: Annotated[int, typer.Option("--batch", help="Batch size b.", **_COUNT)],
    epochs: Annotated[int, typer.Option("--epochs", help="How often the data is read.", **_COUNT)],
    sigma: Annotated[float, typer.Option("--sigma", help="Noise on a batch's sum, in units of the clip.")],
    delta: Annotated[float | None, typer.Option("--delta", help="δ of the promise; 1/n² is a common choice.")] = None,
    clip: Annotated[float, typer.Option("--clip", help="Largest norm of one record's gradient.")] = 1.0,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate, on the batch mean.")] = None,
    l2: Annotated[float, typer.Option("--l2", help="Ridge in the objective, in every coordinate.")] = 0.0,
    smoothness: Annotated[
        float | None, typer.Option("--smoothness", help="Smoothness of one record's loss, without the ridge.")
    ] = None,
    adjacency: Annotated[str, typer.Option("--adjacency", help="replace-one, zero-out or add-remove.")] = "replace-one",
    diameter: Annotated[
        float | None, typer.Option("--diameter", help="Diameter of a set that every step projects onto.")
    ] = None,
    secret_partition: Annotated[
        bool,
        typer.Option(
            "--secret-partition/--public-partition", help="The partition is random, secret and fresh for each fit."
        ),
    ] = False,
    target_epsilon: Annotated[
        float | None, typer.Option("--target-epsilon", help="Also find the noise that this ε needs.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw ε over epochs (.png, .pdf, .svg).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare what each theorem would certify about a training run, and say why others do not apply.

    For example: tacit plan --n 60000 --batch 1000 --epochs 400 --sigma 15 --delta 1e-5 --lr 0.1 --l2 1e-3
    --smoothness 0.5
    """
    with _working("asking every theorem …"):
        from tacit.mechanism import Adjacency
        from tacit.report.settings import Settings

        settings = Settings(
            n=n,
            batch=batch,
            epochs=epochs,
            sigma=sigma,
            delta=delta,
            clip=clip,
            lr=lr,
            l2=l2,
            smoothness=smoothness,
            adjacency=Adjacency.parse(adjacency),
            diameter=diameter,
            secret_partition=secret_partition,
            target_epsilon=target_epsilon,
        )
        report = _planned(settings, plot)
    if as_json:
        _print_json(report.to_dict() | ({"plot": str(plot)} if plot else {}))
        return
    from tacit.report.tables import print_plan

    console = _console()
    print_plan(report, console)
    if plot:
        console.print(f"\nPlot written to {plot}")


def _planned(settings: Settings, plot: Path | None) -> PlanReport:
    """The report; the picture is checked first and written before anything is printed."""
    from tacit.report import curves

    if plot is not None:
        curves.check_plot_path(plot)
    from tacit.report.plan import make_report

    report = make_report(settings)
    if plot is not None:
        report = curves.with_curves(report)
        curves.save_plot(curves.draw_plan(report), plot)
    return report


# -- report -----------------------------------------------------------------------------------------------


@app.command()
def report(
    certificate: Annotated[Path, typer.Argument(help="A certificate saved as JSON.")],
    delta: Annotated[float | None, typer.Option("--delta", help="State the promise at this δ.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a paragraph.")] = False,
) -> None:
    """Certify a saved certificate again and print its promise in words."""
    with _working("certifying again …"):
        loaded = _loaded(certificate)
        words = loaded.describe(delta)
    if as_json:
        found = loaded.to_dict()
        at = found["claim"]["delta"] if delta is None else delta
        epsilon = loaded.epsilon(at)
        shown = epsilon if epsilon < float("inf") else "inf"
        _print_json(found | {"epsilon": shown, "delta": at, "description": words})
        return
    from rich.text import Text

    _console().print(Text(words))


def _loaded(path: Path) -> Certificate:
    from tacit.accounting import Certificate

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a certificate: it is not UTF-8 text") from None
    try:
        return Certificate.from_json(text)
    except (RecursionError, OverflowError) as error:
        raise InvalidInput(f"{path} is not a certificate: {error}") from None


def main() -> None:
    """The entry point of the ``tacit`` script."""
    app()


if __name__ == "__main__":
    main()
