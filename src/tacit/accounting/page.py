"""A certificate as a page that a privacy officer can file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tacit
from tacit._digits import format_up
from tacit._page import Line, facts, note, page, paragraph, plot, section, table
from tacit.errors import NotCovered
from tacit.mechanism import Mechanism, Part

if TYPE_CHECKING:
    from tacit.accounting.certificate import Certificate

__all__ = ["certificate_body", "certificate_page"]

EXPONENTS = range(-12, -2)
"""Of the δ at which ε is shown."""
MOST_ROWS = 10
"""Rows of one person for which a promise about single rows is shown."""
EVIDENCE = {
    "enforced": "by the software, where that is what runs",
    "checked": "on the input, before anything was charged",
    "declared": "the word of whoever ran it: somebody must be able to answer for it",
}


def certificate_page(certificate: Certificate, delta: float, title: str = "Privacy certificate") -> str:
    """The page of a certificate alone.

    Args:
        certificate: what is promised.
        delta: δ at which to state it.
        title: of the page.

    Returns:
        HTML.
    """
    return page(title, certificate_body(certificate, delta), footer_of(certificate))


def footer_of(certificate: Certificate) -> str:
    """How to check the page."""
    return (
        f"tacit {tacit.__version__} · certificate {certificate.digest} · Every figure follows from the plan by the "
        "named theorems; `tacit report FILE` on the saved certificate or model works them out again."
    )


def certificate_body(certificate: Certificate, delta: float) -> list[str]:
    """The pieces of a page about a certificate.

    Args:
        certificate: what is promised.
        delta: δ at which to state it.

    Returns:
        HTML.
    """
    return [
        *_promise(certificate, delta),
        *_curves(certificate, delta),
        *_assumptions(certificate),
        *_runs(certificate),
    ]


def _promise(certificate: Certificate, delta: float) -> list[str]:
    epsilon = format_up(certificate.epsilon(delta))
    seen = certificate.view
    out = [
        facts(
            [
                ("ε", epsilon),
                ("δ", f"{delta:g}"),
                ("promised to each", certificate.unit),
                ("relation", certificate.adjacency.value),
                ("what may be seen", seen),
                ("arithmetic", certificate.arithmetic),
            ]
        ),
        paragraph(
            f"Whatever anybody learns from the result, the chance of it changes by at most a factor e^{epsilon}, up to "
            f"a probability of {delta:g}, when {certificate.adjacency.sentence}.",
            "lead",
        ),
    ]
    return out + [note(f"{mark[:1].upper()}{mark[1:]}.") for mark in certificate.marks]


def _curves(certificate: Certificate, delta: float) -> list[str]:
    x = [10.0**e for e in EXPONENTS]
    y = [_epsilon(certificate, at) for at in x]
    out = [section("What is promised")]
    out.append(plot([Line("", x, y)], "δ", "ε", "ε at every δ: both hold at once.", logarithmic=True))
    if certificate.unit == "record" and certificate.mu is not None:
        rows = list(range(1, MOST_ROWS + 1))
        worth = [certificate.group_epsilon(k, delta) for k in rows]
        caption = f"What the promise about one record is worth to somebody with several, at δ = {delta:g}."
        out.append(plot([Line("", rows, worth)], "records of one person", "ε", caption))
    return out


def _epsilon(certificate: Certificate, delta: float) -> float:
    try:
        return certificate.epsilon(delta)
    except NotCovered:  # of this δ alone
        return math.inf


def _assumptions(certificate: Certificate) -> list[str]:
    rows = [(one.text, one.evidence.value) for one in certificate.assumptions]
    kinds = dict.fromkeys(kind for _, kind in rows)
    said = "; ".join(f"{kind}: {EVIDENCE[kind]}" for kind in kinds if kind in EVIDENCE)
    theorems = dict.fromkeys((one.name, one.reference) for one in certificate.theorems)
    return [
        section("What it rests on"),
        table(["assumption", "evidence"], rows),
        paragraph(f"{said}.", "soft"),
        section("Theorems"),
        table(["theorem", "reference"], [list(pair) for pair in theorems]),
    ]


def _runs(certificate: Certificate) -> list[str]:
    head = ["part", "steps", "releases a step", "batches", "noise", "arithmetic"]
    return [section("What ran"), table(head, [_row(part) for part in certificate.plan.parts])]


def _row(part: Part) -> list[str]:
    if not isinstance(part, Mechanism):
        return [type(part).__name__, "", "", "", "", ""]
    ratios = part.ratio.to_array()
    least, most = float(ratios.min()), float(ratios.max())
    noise = f"σ/Δ = {1 / most:.4g}" + ("" if least == most else f" … {1 / least:.4g}" if least > 0 else " …")
    kinds = [type(one).__name__ for one in (part.sampling, part.noise)]
    return [
        part.label,
        str(part.steps),
        str(part.releases),
        kinds[0],
        f"{noise}, {kinds[1]}",
        part.arithmetic.value,
    ]
