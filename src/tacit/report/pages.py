"""Pages to file: a model with its promise and what was public about it, and a ledger with all that was spent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import tacit
from tacit._digits import format_down, format_up
from tacit._page import Line, bullets, facts, note, page, paragraph, plot, section, table
from tacit.accounting import gdp_epsilon
from tacit.accounting.page import certificate_body, footer_of
from tacit.estimators.certificates import certificate_of
from tacit.ledger import Ledger

__all__ = ["ledger_page", "model_page"]

MOST_COLUMNS = 200
"""Columns whose bounds are listed."""
HIDDEN = ("ledger", "feature_bounds", "epsilon", "delta")
"""Parameters that stand elsewhere on the page."""


def model_page(model: Any, delta: float | None = None, title: str | None = None) -> str:
    """The page of a fitted model: its promise, its public bounds, its parameters and notes.

    Args:
        model: fitted; whatever ``save_model`` takes.
        delta: δ at which to state the promise; the model's own if omitted.
        title: of the page.

    Returns:
        HTML.
    """
    certificate = certificate_of(model)
    at = float(delta if delta is not None else getattr(model, "delta", None) or 1e-6)
    body = certificate_body(certificate, at)
    body += _bounds(model) + _parameters(model)
    notes = tuple(getattr(model, "notes_", ()))
    if notes:
        body += [section("Notes of the fit"), bullets(notes)]
    return page(title or f"{type(model).__name__}: what it promises", body, footer_of(certificate))


def _bounds(model: Any) -> list[str]:
    bounds = getattr(model, "feature_bounds_", None)
    if bounds is None:
        return []
    low, high = np.asarray(bounds, float)
    names = getattr(model, "feature_names_in_", None)
    named = [f"column {j + 1}" for j in range(len(low))] if names is None else [str(name) for name in names]
    shown = [[name, f"{a:g}", f"{b:g}"] for name, a, b in zip(named, low, high, strict=True)][:MOST_COLUMNS]
    out = [section("What was public about the columns"), table(["column", "from", "to"], shown)]
    if len(low) > MOST_COLUMNS:
        out.append(paragraph(f"… and {len(low) - MOST_COLUMNS} more.", "soft"))
    return [*out, paragraph("Values outside were taken as the nearest bound, in the fit and in predictions.", "soft")]


def _parameters(model: Any) -> list[str]:
    if not hasattr(model, "get_params"):
        return []
    stated = {name: value for name, value in model.get_params(deep=False).items() if name not in HIDDEN}
    rows = [[name, _short(value)] for name, value in sorted(stated.items()) if value is not None]
    return [section("Parameters"), table(["parameter", "value"], rows)]


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else text[:199] + "…"


def ledger_page(ledger: Ledger, title: str = "Privacy ledger") -> str:
    """The page of a ledger: limits, what was spent and by what, what is left.

    Args:
        ledger: opened.
        title: of the page.

    Returns:
        HTML.
    """
    spent, left, entries = ledger.spent(), ledger.remaining(), ledger.entries()
    body = [
        facts(
            [
                ("limit", f"ε = {ledger.epsilon:g}"),
                ("δ", f"{ledger.delta:g}"),
                ("spent", f"ε = {format_up(spent.epsilon)}"),
                ("left", f"ε = {format_down(left.epsilon)}"),
                ("promised to each", ledger.unit or "not yet said"),
                ("entries", str(len(entries))),
            ]
        ),
        paragraph("Every entry was charged before a record was read; none can be taken back.", "lead"),
    ]
    body += _history(ledger, entries)
    head = ["", "for", "cost alone", "marks", "time (UTC)", "relation", "certificate"]
    body += [section("Entries"), table(head, [_entry(one, ledger) for one in entries])]
    if any(getattr(one, "marks", ()) for one in entries):
        body.append(note("Some entries carry marks: what they say limits what may be concluded from a promise."))
    return page(title, body, f"tacit {tacit.__version__} · {len(entries)} entries, verified from the first one on")


def _history(ledger: Ledger, entries: Iterable[Any]) -> list[str]:
    squares, basic, y = 0.0, 0.0, [0.0]
    for one in entries:
        squares += (one.mu or 0.0) ** 2
        basic += one.epsilon or 0.0
        y.append((gdp_epsilon(squares**0.5, ledger.gaussian_delta) if squares else 0.0) + basic)
    if len(y) < 2:
        return []
    x = list(range(len(y)))
    lines = [Line("spent", x, y, steps=True), Line("limit", [0, x[-1]], [ledger.epsilon] * 2)]
    return [section("Budget"), plot(lines, "entries", "ε", f"ε after each entry, at δ = {ledger.delta:g}.")]


def _entry(one: Any, ledger: Ledger) -> list[str]:
    """A row; a Gaussian entry costs what it would cost alone, which is more than what it adds."""
    if one.mu is None:
        cost = f"ε = {format_up(one.epsilon)} at {one.delta:g}"
    else:
        cost = f"ε = {format_up(gdp_epsilon(one.mu, ledger.gaussian_delta))}"
    relation, marks = one.adjacency.lower().replace("_", "-"), "; ".join(getattr(one, "marks", ()))
    time = str(one.time)[:19].replace("T", " ")
    return [str(one.id), one.note, cost, marks, time, relation, one.digest[:12]]
