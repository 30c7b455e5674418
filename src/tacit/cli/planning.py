"""Promises without data: ``tacit plan`` and ``tacit report``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.console import console, print_json, working
from tacit.errors import InvalidInput

if TYPE_CHECKING:
    from tacit.accounting import Certificate
    from tacit.report.cyclic import CyclicReport
    from tacit.report.plan import PlanReport

__all__ = ["plan", "report"]


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


def plan(
    n: Annotated[int, typer.Option("--n", help="Number of records (nominal under add-remove).", **_COUNT)],
    batch: Annotated[int, typer.Option("--batch", help="Batch size b.", **_COUNT)],
    epochs: Annotated[int, typer.Option("--epochs", help="How often the data is read.", **_COUNT)],
    sigma: Annotated[
        float | None,
        typer.Option(
            "--sigma", help="Noise on a batch's sum, in units of the clip; found if --target-epsilon is given."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="δ of the promise; 1/n² is a common choice.")] = None,
    clip: Annotated[
        float | None, typer.Option("--clip", help="Largest norm of one record's gradient: 1, or √2 without --sigma.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Learning rate, on the batch mean; without --sigma the longest.")
    ] = None,
    l2: Annotated[float, typer.Option("--l2", help="Ridge in the objective, in every coordinate.")] = 0.0,
    smoothness: Annotated[
        float | None,
        typer.Option(
            "--smoothness", help="Smoothness of one record's loss, without the ridge: 0.5 if --sigma is missing, too."
        ),
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
        float | None,
        typer.Option("--target-epsilon", help="Find the noise that this ε needs; without --sigma a whole plan."),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw ε over epochs (.png, .pdf, .svg).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare what each theorem would certify about a training run, or find the noise, steps and ridge for an ε.

    For example: tacit plan --n 60000 --batch 1000 --epochs 400 --sigma 15 --delta 1e-5 --lr 0.1 --l2 1e-3
    --smoothness 0.5; or: tacit plan --n 60000 --batch 500 --epochs 50 --delta 1e-5 --target-epsilon 1.33
    """
    with working("asking every theorem …"):
        from tacit.mechanism import Adjacency

        given = {
            "n": n,
            "batch": batch,
            "epochs": epochs,
            "sigma": sigma,
            "delta": delta,
            "clip": clip,
            "lr": lr,
            "l2": l2,
            "smoothness": smoothness,
            "adjacency": Adjacency.parse(adjacency),
            "diameter": diameter,
            "secret_partition": secret_partition,
            "target_epsilon": target_epsilon,
        }
        # what is left out keeps the default of the settings; δ is asked for by name
        options = {name: value for name, value in given.items() if value is not None or name == "delta"}
        report = _compared(options, plot) if sigma is not None else _found(options, plot)
    if as_json:
        print_json(report.to_dict() | ({"plot": str(plot)} if plot else {}))
        return
    from tacit.report import tables
    from tacit.report.plan import PlanReport

    screen = console()
    if isinstance(report, PlanReport):
        tables.print_plan(report, screen)
    else:
        tables.print_cyclic(report, screen)
    if plot:
        screen.print(f"\nPlot written to {plot}")


def _compared(options: dict[str, Any], plot: Path | None) -> PlanReport:
    """What each theorem says; the picture is checked first and written before anything is printed."""
    from tacit.report import curves
    from tacit.report.settings import Settings

    settings = Settings(**options)
    if plot is not None:
        curves.check_plot_path(plot)
    from tacit.report.plan import make_report

    report = make_report(settings)
    if plot is not None:
        report = curves.with_curves(report)
        curves.save_plot(curves.draw_plan(report), plot)
    return report


def _found(options: dict[str, Any], plot: Path | None) -> CyclicReport:
    """The plans for a target, and their picture, likewise."""
    if "target_epsilon" not in options:
        raise InvalidInput(
            "neither --sigma nor --target-epsilon is given, and each follows from the other: give --sigma to compare "
            "theorems, or --target-epsilon to have noise, steps and ridge found"
        )
    if "diameter" in options:
        raise InvalidInput(
            "--diameter is not used without --sigma, because planned runs do not project: leave it out, or give --sigma"
        )
    from tacit.report import curves, cyclic_curves
    from tacit.report.settings import CyclicSettings

    settings = CyclicSettings(**options)
    if plot is not None:
        curves.check_plot_path(plot)
    from tacit.report.cyclic import make_cyclic

    report = make_cyclic(settings)
    if plot is not None:
        report = cyclic_curves.with_cyclic_curves(report)
        curves.save_plot(cyclic_curves.draw_cyclic(report), plot)
    return report


def report(
    certificate: Annotated[Path, typer.Argument(help="A certificate or a model saved as JSON.")],
    delta: Annotated[float | None, typer.Option("--delta", help="State the promise at this δ.")] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Write a page to file or print instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a paragraph.")] = False,
) -> None:
    """Certify a saved certificate again and print its promise in words, or write it as a page (--html)."""
    with working("certifying again …"):
        loaded, model = _loaded(certificate)
        if page is not None:
            _write_page(page, loaded, model, delta)
            typer.echo(f"Written to {page}")
            return
        words = loaded.describe(delta)
    if as_json:
        found = loaded.to_dict()
        at = found["claim"]["delta"] if delta is None else delta
        epsilon = loaded.epsilon(at)
        shown = epsilon if epsilon < float("inf") else "inf"
        print_json(found | {"epsilon": shown, "delta": at, "description": words})
        return
    from rich.text import Text

    console().print(Text(words))


def _write_page(path: Path, certificate: Certificate, model: Any, delta: float | None) -> None:
    """The page of a model, or of a certificate alone."""
    from tacit._files import write_whole
    from tacit.report.pages import model_page

    if model is None:
        certificate.to_html(path, delta)
    else:
        write_whole(path, model_page(model, delta).encode())


def _loaded(path: Path) -> tuple[Certificate, Any]:
    """A certificate, with its model if the file holds one."""
    from tacit.accounting import Certificate

    no = f"{path} is not a certificate or a model"
    give = "give a file that Certificate.to_json, save_model or tacit fit wrote"
    try:
        text = path.read_text(encoding="utf-8")
        if re.match(r'\s*\{\s*"tacit":\s*"model"', text):
            from tacit.estimators import certificate_of, load_model

            model = load_model(path)
            return certificate_of(model), model
        data = json.loads(text)
    except UnicodeDecodeError:
        raise InvalidInput(f"{no}: it is not UTF-8 text; {give}") from None
    except json.JSONDecodeError:
        raise InvalidInput(f"{no}: it is not JSON; {give}") from None
    except RecursionError:
        raise InvalidInput(f"{no}: it is nested too deeply; {give}") from None
    if not isinstance(data, dict) or not {"plan", "marks", "only", "claim"} <= data.keys():
        raise InvalidInput(f"{no}: it is JSON with other content; {give}")
    try:
        return Certificate.from_json(text), None
    except (RecursionError, OverflowError) as error:
        raise InvalidInput(f"{no}: {error}; {give}") from None
