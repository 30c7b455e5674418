"""ε over the number of epochs, computed and drawn: Figure 1 of the convex ReLU paper for any settings."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacit._files import write_whole
from tacit.accounting import Gap
from tacit.accounting.pld import upper_only
from tacit.errors import InvalidInput
from tacit.report.plan import Curve, PlanReport, Row, certified, rounded_up
from tacit.report.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "check_plot_path", "draw_plan", "save_plot", "with_curves"]

POINTS, POISSON_POINTS = 25, 10
FORMATS = ("png", "pdf", "svg")
HUES = {
    "poisson": "#0072B2",
    "cyclic": "#D55E00",
    "cyclic-final": "#009E73",
    "cyclic-final-secret": "#CC79A7",
    "full": "#E69F00",
    "full-final": "#222222",
    "reshuffled": "#56B4E9",
}
"""Hues that stay apart for colour-blind readers (Okabe, Ito 2008), one per method."""


def _epochs(last: int, points: int) -> list[int]:
    """At most ``points`` integers from 1 to ``last``, spread geometrically."""
    return sorted({*np.geomspace(1, last, points).round().astype(int).tolist(), 1, last})


def with_curves(report: PlanReport) -> PlanReport:
    """The report with ε over epochs for each covered row; the last point is the row's own ε."""
    return replace(report, curves=tuple(_curve(row, report.settings) for row in report.rows))


def _curve(row: Row, settings: Settings) -> Curve:
    poisson = row.method.theorem == "poisson-gaussian"
    epochs, epsilon = [], []
    for count in _epochs(settings.epochs, POISSON_POINTS if poisson else POINTS)[:-1]:
        with upper_only(1.0):  # one valid upper value per point: half the work, no visible difference
            answer = certified(row.method, settings.replace(epochs=count))
        if not isinstance(answer, Gap):
            epochs.append(count)
            epsilon.append(answer[1])
    return Curve(row, (*epochs, settings.epochs), (*epsilon, row.epsilon))


# -- drawing ----------------------------------------------------------------------------------------------


def _merged(curves: Sequence[Curve]) -> list[tuple[Curve, list[Row]]]:
    """Curves with the rows that share them: lines on top of each other would hide one another."""
    groups: list[tuple[Curve, list[Row]]] = []
    for curve in curves:
        for first, rows in groups:
            same = first.epochs == curve.epochs and first.row.theorem.view == curve.row.theorem.view
            if same and np.allclose(first.epsilon, curve.epsilon, rtol=1e-9, atol=0):
                rows.append(curve.row)
                break
        else:
            groups.append((curve, [curve.row]))
    return groups


def _label(rows: Sequence[Row]) -> str:
    first = rows[0]
    letters = ", ".join(row.letter for row in rows)
    name = first.method.title if len(rows) == 1 else first.theorem.name
    return f"{letters}  {name}\n     ({first.theorem.view}, ε = {rounded_up(first.epsilon)})"


def draw_plan(report: PlanReport) -> Figure:
    """ε over epochs, one line per covered method (made without pyplot: nothing global, no display).

    Args:
        report: with curves.

    Returns:
        The figure.

    Raises:
        InvalidInput: if no method is covered, or the report has no curves.
    """
    from matplotlib.figure import Figure

    if not report.curves:
        raise InvalidInput("nothing to draw: no theorem covers any of the methods")
    figure = Figure(figsize=(9.6, 5.2), layout="constrained")
    ax = figure.subplots()
    groups = _merged(report.curves)
    for curve, rows in sorted(groups, key=lambda group: -group[0].epsilon[-1]):  # the legend in the order of the lines
        seen = curve.row.theorem.view == "every iterate"
        ax.plot(
            curve.epochs,
            curve.epsilon,
            color=HUES[curve.row.method.id],
            linestyle="-" if seen else "--",
            marker="o",
            markersize=2.5 if len(curve.epochs) > 1 else 5,
            label=_label(rows),
        )
    _decorate(ax, report)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, labelspacing=1.0)
    return figure


def _decorate(ax: Axes, report: PlanReport) -> None:
    from matplotlib.ticker import MaxNLocator

    s = report.settings
    last = [e for e in (curve.epsilon[-1] for curve in report.curves) if e > 0 and math.isfinite(e)]
    if max(last, default=1) > 5 * min(last, default=1):
        ax.set_yscale("log")
    if s.epochs >= 10 and ax.get_yscale() == "log":
        ax.set_xscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter("{x:g}")
    if s.epochs == 1:
        ax.set_xticks([1])
    elif ax.get_xscale() == "linear":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("epochs")
    ax.set_ylabel(f"ε at δ = {s.checked_delta:g}")
    ax.set_title(
        "What each theorem certifies\n"
        f"n = {s.n}, b = {s.batch}, σ = {s.sigma:g}, δ = {s.checked_delta:g}, {s.adjacency.value}"
        + ("" if s.contraction is None else f", c = {s.contraction:.6g}"),
        fontsize=11,
    )
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


# -- the file ---------------------------------------------------------------------------------------------


def check_plot_path(path: Path) -> Path:
    """Refuse a path that cannot become a picture, before anything is computed.

    Args:
        path: where the picture shall go.

    Returns:
        The path.

    Raises:
        InvalidInput: if the ending is unknown, the folder is missing or nothing can be written there.
    """
    ending = path.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise InvalidInput(f"plot must end in {', '.join('.' + f for f in FORMATS)}, got {str(path)!r}")
    if not path.parent.is_dir():
        raise InvalidInput(f"plot: the folder {str(path.parent)!r} does not exist: create it first")
    if path.is_dir():
        raise InvalidInput(f"plot: {str(path)!r} is a folder: name a file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"plot: {str(path)!r} cannot be written: choose another place")
    return path


def save_plot(figure: Figure, path: Path) -> None:
    """Render in memory, then write: a failure leaves no half-written file.

    Args:
        figure: what to save.
        path: where to.

    Raises:
        InvalidInput: if the file cannot be written.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix.lower().lstrip("."), dpi=160)
    try:
        write_whole(path, buffer.getvalue())
    except InvalidInput as error:
        raise InvalidInput(f"plot: {error}") from None
