"""The reports of ``tacit plan`` for people: tables and the assumptions, at any width, coloured or plain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tacit.report.cyclic import CyclicReport, CyclicRow
from tacit.report.plan import PlanReport, Refusal, Row, rounded_up

__all__ = ["print_cyclic", "print_plan"]

NARROW = 72
"""Below this width tables become lists."""
NOT_RUN = "certified, not run by Tacit"
"""A theorem covers such a row, but no code of ours performs it."""


def print_plan(report: PlanReport, console: Console) -> None:
    """Print the whole report.

    Args:
        report: what to print.
        console: where to; its width decides between tables and lists.
    """
    console.print(_heading(report))
    console.print()
    if not report.rows:
        console.print(Text("No theorem covers any of the methods.", style="bold red"))
    elif console.width < NARROW:
        _print_list(report, console)
    else:
        console.print(_covered_table(report))
    console.print(Text(_footnote(report), style="dim"))
    _print_assumptions(report.rows, console)
    _print_theorems(report.rows, console)
    _print_refusals(report.refusals, console)


def _heading(report: PlanReport) -> Text:
    s = report.settings
    batches = f"{s.n_batches} {'batches' if s.n_batches > 1 else 'batch'}"
    batches += f" of {s.sizes}" if s.sizes != str(s.batch) else ""
    text = Text()
    text.append(f"n = {s.n}, b = {s.batch}: {batches}, {s.epochs} epochs, {s.steps} steps. ")
    text.append(f"σ = {s.sigma:g}, δ = {s.checked_delta:g}, {s.adjacency.value}: {s.adjacency.sentence}.")
    if s.contraction is not None:
        text.append(f" Contraction of a step c = {s.contraction:.8g}.")
    return text


def _title(report: PlanReport) -> str:
    return f"What each theorem certifies at δ = {report.settings.checked_delta:g}"


def _target(report: PlanReport) -> str | None:
    target = report.settings.target_epsilon
    return None if target is None else f"σ for ε ≤ {target:g}"


def _sigma(row: Row) -> str:
    return "–" if row.sigma_for_target is None else rounded_up(row.sigma_for_target)


def _style(row: Row) -> str:
    return "bold green" if row.tightest else ""


# -- what is covered --------------------------------------------------------------------------------------


def _covered_table(report: PlanReport) -> Table:
    table = Table(title=_title(report), box=box.SIMPLE_HEAD, title_style="bold", padding=(0, 1))
    table.add_column("", no_wrap=True)
    table.add_column("method / theorem", ratio=1, overflow="fold")
    table.add_column("may be released", overflow="fold", max_width=16)
    table.add_column("ε", justify="right", overflow="fold", max_width=12)
    target = _target(report)
    if target:
        table.add_column(target, justify="right", overflow="fold", max_width=16)
    for row in report.rows:
        cells: list[str | Text] = [
            f"{row.letter}{' ★' if row.tightest else ''}",
            Text(row.method.title).append(f"\n{row.theorem.id}{'' if row.runs else f'; {NOT_RUN}'}", style="dim"),
            row.theorem.view,
            rounded_up(row.epsilon),
        ]
        table.add_row(*cells, *([_sigma(row)] if target else []), style=_style(row))
    return table


def _print_list(report: PlanReport, console: Console) -> None:
    console.print(Text(_title(report), style="bold"))
    target = _target(report)
    for row in report.rows:
        star = " ★" if row.tightest else ""
        console.print(Text(f"{row.letter}{star} {row.method.title}", style=_style(row)))
        lines = [f"theorem: {row.theorem.id}", f"may be released: {row.theorem.view}", f"ε = {rounded_up(row.epsilon)}"]
        if not row.runs:
            lines.append(NOT_RUN)
        if target:
            lines.append(f"{target}: {_sigma(row)}")
        console.print(Padding(Text("\n".join(lines)), (0, 0, 0, 3)))


def _footnote(report: PlanReport) -> str:
    words = [
        "★ the tightest of its view. A promise about every iterate also holds for the final model. ε and σ are rounded "
        "up; --json has every digit. Rows share σ, not accuracy: it is spread over n records by full batches, over b "
        "by the others."
    ]
    words += [f"Row {row.letter}: σ {row.target_note}." for row in report.rows if row.target_note]
    return " ".join(words)


# -- noise, steps and ridge for a target ------------------------------------------------------------------


def print_cyclic(report: CyclicReport, console: Console) -> None:
    """Print the plans that reach a target.

    Args:
        report: what to print.
        console: where to; its width decides between a table and lists.
    """
    s, first = report.settings, report.rows[0].plan
    low, high = s.n // first.n_batches, -(-s.n // first.n_batches)
    sizes = f"{low}" if low == high else f"{low} or {high}"
    batches = f"{first.n_batches} {'batches' if first.n_batches > 1 else 'batch'} of {sizes}"
    heading = f"n = {s.n}: {batches}, {s.epochs} epochs, {len(first.step_sizes)} steps. δ = {s.checked_delta:g}, "
    console.print(Text(f"{heading}{s.adjacency.value}: {s.adjacency.sentence}."))
    console.print()
    title = f"Noise, steps and ridge for ε ≤ {s.target_epsilon:g} at δ = {s.checked_delta:g}"
    cells = [_plan_cells(row) for row in report.rows]
    if console.width < NARROW:
        console.print(Text(title, style="bold"))
        for row, found in zip(report.rows, cells, strict=True):
            console.print(Text(f"{row.letter} {row.title}"))
            console.print(Padding(Text("\n".join(f"{name}: {value}" for name, value in found.items())), (0, 0, 0, 3)))
    else:
        table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold", padding=(0, 1))
        table.add_column("", no_wrap=True)
        for row in report.rows:
            table.add_column(f"{row.letter}  {row.title}", justify="right", overflow="fold")
        for name in cells[0]:
            table.add_row(name, *(found[name] for found in cells))
        console.print(table)
    console.print(Text(CYCLIC_FOOTNOTE, style="dim"))
    _print_assumptions(report.rows, console)
    _print_theorems(report.rows, console)
    _print_refusals(report.refusals, console)


CYCLIC_FOOTNOTE = (
    "σ is the noise on a batch's sum, C the clip, η the learning rate on the batch mean, λ the ridge, β the smoothness "
    "of one record's loss, c the contraction of the first step. Balanced steps are full for the first half, then fall "
    "to a hundredth, while the noise grows as η^(−1/2). ε, σ and c are rounded up, η down; --json has every digit. "
    "Plans share ε, not accuracy."
)


def _plan_cells(row: CyclicRow) -> dict[str, str]:
    """The column of a plan: name → value."""
    p = row.plan
    first, last = p.noise_multiplier, p.noise_multiplier * float(p.noise[-1])
    return {
        "may be released": p.certificate.view,
        "batches": f"{p.n_batches}, in turns" if row.hidden else f"rate 1/{p.n_batches}",
        "ε": rounded_up(row.epsilon),
        "σ/C": _range(rounded_up(first), rounded_up(last)),
        "σ": _range(rounded_up(p.sigma), rounded_up(last * p.bound)),
        "C": f"{p.bound:.6g}",
        "η": _range(_rounded_down(p.step_size), _rounded_down(float(p.step_sizes[-1]))),
        "λ": f"{p.l2:.6g}",
        "η·λ": f"{p.step_size * p.l2:.4g}",
        "β": f"{p.smoothness:.6g}",
        "c": rounded_up(p.contraction, 8) if row.hidden else "any",
        "theorem": row.theorem.id,
    }


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} → {last}"


def _rounded_down(value: float) -> str:
    """Four digits, rounded down: a longer step might expand."""
    shown = float(f"{value:.4g}")
    return f"{shown if shown <= value else shown - 10.0 ** (math.floor(math.log10(value)) - 3):.4g}"


# -- what it rests on -------------------------------------------------------------------------------------


def _print_assumptions(rows: Iterable[Row | CyclicRow], console: Console) -> None:
    """Every assumption once, after the letters of the rows that rest on it."""
    users: dict[str, list[str]] = {}
    for row in rows:
        for assumption in row.assumptions:
            users.setdefault(str(assumption), []).append(row.letter)
    if not users:
        return
    console.print()
    console.print(Text("What the rows rest on", style="bold"))
    _print_items([(" ".join(letters), text) for text, letters in users.items()], console)


def _print_theorems(rows: Iterable[Row | CyclicRow], console: Console) -> None:
    theorems = {row.theorem.id: row.theorem for row in rows}
    if not theorems:
        return
    console.print()
    console.print(Text("Theorems", style="bold"))
    _print_items([(t.id, f"{t.name}: {t.reference}") for t in theorems.values()], console)


def _print_items(items: Sequence[tuple[str, str]], console: Console) -> None:
    """Two columns where there is room, else one after the other."""
    if console.width < NARROW:
        for head, text in items:
            console.print(Text(f"• {head}: ", style="cyan").append(text, style="default"))
        return
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for head, text in items:
        grid.add_row(Text(head), Text(text))
    console.print(grid)


# -- what is not covered ----------------------------------------------------------------------------------


def _print_refusals(refusals: Iterable[Refusal], console: Console) -> None:
    refused = list(refusals)
    if not refused:
        return
    console.print()
    if console.width < NARROW:
        console.print(Text("Not covered", style="bold"))
        entries = [(f"{i.title} ({i.theorem.id})", f"{i.gap.reason}; {i.gap.remedy}") for i in refused]
        _print_items(entries, console)
        return
    table = Table(title="Not covered", box=box.SIMPLE_HEAD, title_style="bold", padding=(0, 1), leading=1)
    for name, ratio in (("method / theorem", 5), ("why not", 6), ("way out", 5)):
        table.add_column(name, ratio=ratio, overflow="fold")
    for item in refused:
        title = Text(item.title).append(f"\n{item.theorem.id}", style="dim")
        table.add_row(title, Text(item.gap.reason), Text(item.gap.remedy))
    console.print(table)
