"""Self-contained HTML pages for people who file them: no script, no font, no link that leaves the page.

Text is escaped, colours are safe for colour-blind readers and follow the reader's light or dark setting, and the page
prints in black on white. Plots are SVG in the page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Line", "bullets", "facts", "note", "page", "paragraph", "plot", "section", "table"]

STYLE = """
:root{--ink:#1b1f24;--soft:#57606a;--paper:#fff;--tint:#f3f5f8;--rule:#d5dae1;--blue:#0b62a4;--orange:#b35900;
--green:#00695c}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#a3adb8;--paper:#14181d;--tint:#1e242b;--rule:#39424d;
--blue:#6cb6ff;--orange:#f0a35e;--green:#5fd0bd}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:52rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:.2rem 0 .4rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--rule);padding-bottom:.25rem}
p{margin:.5rem 0;overflow-wrap:anywhere}
.lead{font-size:1.08rem}
.soft,footer{color:var(--soft)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;margin:1rem 0}
.facts div{background:var(--tint);border-radius:.5rem;padding:.7rem .9rem}
.facts dt{color:var(--soft);font-size:.85rem}
.facts dd{margin:0;font-size:1.2rem;font-weight:600;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .9rem .4rem 0;border-bottom:1px solid var(--rule)}
th,td.short{white-space:nowrap}
th{color:var(--soft);font-weight:600}
.note{border-left:4px solid var(--orange);background:var(--tint);padding:.6rem .9rem;margin:.8rem 0;
overflow-wrap:anywhere}
svg{width:100%;height:auto;max-width:40rem;display:block;margin:.5rem 0}
svg text{fill:var(--ink);font-size:12px}
svg .rule{stroke:var(--rule)}
figure{margin:1rem 0;break-inside:avoid}
figcaption{color:var(--soft);font-size:.9rem}
footer{margin-top:3rem;border-top:1px solid var(--rule);padding-top:.8rem;font-size:.88rem;overflow-wrap:anywhere}
@media print{:root{--ink:#000;--soft:#333;--paper:#fff;--tint:#f4f4f4;--rule:#bbb;--blue:#0b62a4;--orange:#b35900;
--green:#00695c}body{font-size:11pt}main{max-width:none;padding:0}h2{break-after:avoid}tr{break-inside:avoid}}
"""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 300, 56, 44, 14, 14
SHORT = 24
"""Letters of a cell that stays in one line."""
COLOURS = ("var(--blue)", "var(--orange)", "var(--green)")
DASHES = ("", "6 4", "2 3")
"""Lines differ in their dashes, too: on paper, and for readers who see no colours."""


def page(title: str, body: Sequence[str], footer: str) -> str:
    """A whole page.

    Args:
        title: plain text.
        body: pieces of HTML that the other functions here made.
        footer: plain text.

    Returns:
        HTML.
    """
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>"
    )
    pieces = "\n".join([f"<h1>{html.escape(title)}</h1>", *body, f"<footer>{html.escape(footer)}</footer>"])
    return f"{head}\n<body><main>{pieces}</main></body></html>\n"


def section(title: str) -> str:
    """A heading."""
    return f"<h2>{html.escape(title)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """Text; ``kind`` is "lead", "soft" or nothing."""
    return f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>"


def note(text: str) -> str:
    """What a reader must not miss."""
    return f'<div class="note">{html.escape(text)}</div>'


def bullets(lines: Sequence[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def facts(values: Sequence[tuple[str, str]]) -> str:
    """A few large figures with their names."""
    cells = "".join(f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in values)
    return f'<dl class="facts">{cells}</dl>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text."""
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    short = ' class="short"' if len(text) <= SHORT else ""
    return f"<td{short}>{html.escape(text)}</td>"


# -- plots ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: in the legend; empty for none.
        x: increasing.
        y: as many numbers.
        steps: whether y stays as it is up to the next x.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    steps: bool = False


def plot(lines: Sequence[Line], x: str, y: str, caption: str, *, logarithmic: bool = False) -> str:
    """Curves as SVG in the page, the vertical axis from 0 on.

    Args:
        lines: at most three; numbers that are not finite are left out.
        x: name of the horizontal axis.
        y: name of the vertical axis.
        caption: what the reader sees.
        logarithmic: whether the horizontal axis is.

    Returns:
        HTML.
    """
    every = [(u, v) for line in lines for u, v in zip(line.x, line.y, strict=True) if math.isfinite(v)]
    if len(every) < 2:
        return ""
    place = math.log10 if logarithmic else float
    low, high = min(place(u) for u, _ in every), max(place(u) for u, _ in every)
    top = _ticks(0.0, max(v for _, v in every))[-1]
    across = lambda u: LEFT + (place(u) - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)  # noqa: E731
    up = lambda v: HEIGHT - BOTTOM - v / (top or 1.0) * (HEIGHT - BOTTOM - TOP)  # noqa: E731
    parts = [_grid(top, up), _across(low, high, across, logarithmic)]
    for line, colour, dash in zip(lines, COLOURS, DASHES, strict=False):
        points = _points(line, across, up)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"{dashed}/>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{html.escape(x)}</text>')
    parts.append(f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})">{html.escape(y)}</text>')
    named = [(line.name, c, d) for line, c, d in zip(lines, COLOURS, DASHES, strict=False) if line.name]
    for k, (name, colour, dash) in enumerate(named):
        row = TOP + 14 + 18 * k
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(
            f'<line x1="{LEFT + 14}" x2="{LEFT + 44}" y1="{row - 4}" y2="{row - 4}" stroke="{colour}" '
            f'stroke-width="2.2"{dashed}/><text x="{LEFT + 50}" y="{row}">{html.escape(name)}</text>'
        )
    label = html.escape(caption, quote=True)
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _points(line: Line, across: object, up: object) -> str:
    assert callable(across)
    assert callable(up)
    points: list[tuple[float, float]] = []
    for u, v in zip(line.x, line.y, strict=True):
        if not math.isfinite(v):
            continue
        if line.steps and points:
            points.append((across(u), points[-1][1]))
        points.append((across(u), up(v)))
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)


def _grid(top: float, up: object) -> str:
    assert callable(up)
    out = []
    for tick in _ticks(0.0, top):
        at = up(tick)
        out.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    return "".join(out)


def _across(low: float, high: float, across: object, logarithmic: bool) -> str:
    assert callable(across)
    if logarithmic:
        step = max(round((high - low) / 6), 1)
        values = [10.0**e for e in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1, step)]
    else:
        values = [tick for tick in _ticks(low, high) if low <= tick <= high]
    texts = (f'<text x="{across(v):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{v:g}</text>' for v in values)
    return "".join(texts)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, the last no smaller than ``high``."""
    span = (high - low) or 1.0
    unit = 10.0 ** math.floor(math.log10(span / 4))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k * 4.0001 >= span)
    first = math.floor(low / step)
    return [round((first + k) * step, 12) for k in range(math.ceil((high - first * step) / step - 1e-9) + 1)]
