"""What every theorem certifies about a training run, before anything is run: the content of ``tacit plan``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacit.accounting import Assumption, Certificate, Gap, Theorem, calibrate, certify, theorem_named
from tacit.accounting.theorem import fixed_membership
from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.mechanism import Mechanism
from tacit.report.methods import METHODS, PROBES, Method
from tacit.report.settings import Settings

__all__ = ["Curve", "PlanReport", "Refusal", "Row", "certified", "make_report", "rounded_up"]

MAX_POISSON_TARGET = 50.0
"""Target ε above which no σ is searched for Poisson sampling: minutes of work towards a promise of nothing."""


@dataclass(frozen=True)
class Row:
    """A method that its theorem covers.

    Attributes:
        letter: names the row in the text below the table.
        method: what would be run.
        certificate: the promise, from that theorem alone.
        epsilon: at the δ of the settings.
        assumptions: what it rests on, the theorem's and those of the options.
        tightest: whether no other row of the same view is smaller.
        sigma_for_target: the σ that the target ε needs (None: not asked for, or see ``target_note``).
        target_note: why there is none.
        runs: whether code of ours can run it.
    """

    letter: str
    method: Method
    certificate: Certificate
    epsilon: float
    assumptions: tuple[Assumption, ...]
    tightest: bool = False
    sigma_for_target: float | None = None
    target_note: str = ""
    runs: bool = True

    @property
    def theorem(self) -> Theorem:
        """The theorem."""
        return theorem_named(self.method.theorem)

    def to_dict(self, delta: float) -> dict[str, Any]:
        """Plain data."""
        return {
            "row": self.letter,
            "id": self.method.id,
            "method": self.method.title,
            "theorem": self.theorem.id,
            "theorem_name": self.theorem.name,
            "reference": self.theorem.reference,
            "may_be_released": self.theorem.view,
            "epsilon": _plain(self.epsilon),
            "delta": delta,
            "mu": _plain(self.certificate.mu),
            "run_by_tacit": self.runs,
            "tightest_of_its_view": self.tightest,
            "sigma_for_target": _plain(self.sigma_for_target),
            "sigma_for_target_note": self.target_note,
            "assumptions": [{"text": a.text, "evidence": a.evidence.value} for a in self.assumptions],
        }


@dataclass(frozen=True)
class Refusal:
    """A method that the theorem does not cover: the reason, a way out, and the theorem's wording."""

    title: str
    theorem: Theorem
    gap: Gap
    formal: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain data."""
        return {
            "method": self.title,
            "theorem": self.theorem.id,
            "axis": self.gap.axis,
            "reason": self.gap.reason,
            "remedy": self.gap.remedy,
            "accountant_says": self.formal or self.gap.reason,
        }


@dataclass(frozen=True)
class Curve:
    """ε over the number of epochs, of one row."""

    row: Row
    epochs: tuple[int, ...]
    epsilon: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "row": self.row.letter,
            "epochs": list(self.epochs),
            "epsilon": [_plain(e) for e in self.epsilon],
        }


@dataclass(frozen=True)
class PlanReport:
    """The whole answer of ``tacit plan``."""

    settings: Settings
    rows: tuple[Row, ...]
    refusals: tuple[Refusal, ...]
    curves: tuple[Curve, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON (infinities as the word "inf")."""
        s = self.settings
        derived = {
            "batches": s.n_batches,
            "batch_sizes": sorted({size for size, _ in s.batches}),
            "steps": s.steps,
            "sampling_rate": 1 / s.n_batches,
            "ratio": _plain(s.ratio),
            "contraction": _plain(s.contraction),
            "diameter_used": s.uses_diameter,
        }
        found = {
            "inputs": s.inputs,
            "derived": derived,
            "covered": [row.to_dict(s.checked_delta) for row in self.rows],
            "not_covered": [refusal.to_dict() for refusal in self.refusals],
        }
        return found | ({"curves": [curve.to_dict() for curve in self.curves]} if self.curves else {})


def rounded_up(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits, rounded up, so that the printed promise still holds.

    Args:
        value: non-negative.
        digits: significant digits.

    Returns:
        The text.

    >>> rounded_up(1.19630768)
    '1.197'
    """
    if not math.isfinite(value):
        return "∞"
    shown = float(f"{value:.{digits}g}")
    if shown < value:
        shown = float(f"{value + 10.0 ** (math.floor(math.log10(value)) - digits + 1):.{digits}g}")
    return f"{shown:.{digits}g}"


def _plain(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else repr(value)


# -- computing --------------------------------------------------------------------------------------------


def make_report(settings: Settings) -> PlanReport:
    """Ask each theorem about its method.

    Args:
        settings: the public numbers.

    Returns:
        Covered rows and refusals; curves are added by ``tacit.report.curves``.
    """
    rows: list[Row] = []
    refusals: list[Refusal] = []
    for method in METHODS:
        answer = _ask(method, settings, letter="abcdefghij"[len(rows)])
        if isinstance(answer, Row):
            rows.append(answer)
        else:
            refusals.append(answer)
    for probe in PROBES:
        mechanism = probe.make(settings)
        gaps = theorem_named(probe.theorem).gaps(mechanism)
        if gaps and not fixed_membership(mechanism):  # else no theorem covers its batches: a row says so already
            gap = Gap(gaps[0].axis, probe.why, probe.remedy)
            refusals.append(Refusal(probe.title, theorem_named(probe.theorem), gap, gaps[0].reason))
    return PlanReport(settings, _marked(rows), tuple(refusals))


def certified(method: Method, settings: Settings) -> tuple[Certificate, float] | Gap:
    """The certificate and ε of one method, or what stands in the way."""
    gap = method.obstacle(settings)
    if gap is not None:
        return gap
    try:
        with np.errstate(all="ignore"):  # a row whose number is not finite is refused below
            mechanism = method.make(settings)
            gaps = theorem_named(method.theorem).gaps(mechanism)
            if gaps:
                return gaps[0]
            return _number(mechanism, method.theorem, settings.checked_delta)
    except NotCovered as refusal:
        reason, _, remedy = str(refusal).rpartition("; ")
        return Gap(refusal.axis, reason or remedy, remedy if reason else "change it")
    except (ArithmeticError, MemoryError, InvalidInput) as error:
        return Gap("numbers", f"out of numerical range ({error})", "choose less extreme values")


def _number(mechanism: Mechanism, theorem: str, delta: float) -> tuple[Certificate, float] | Gap:
    certificate = certify(mechanism, delta=delta, theorem=theorem)
    epsilon = certificate.epsilon(delta)
    if math.isnan(epsilon):
        return Gap("numbers", "out of numerical range", "choose less extreme values")
    return certificate, epsilon


def _ask(method: Method, settings: Settings, letter: str) -> Row | Refusal:
    answer = certified(method, settings)
    if isinstance(answer, Gap):
        return Refusal(method.title, theorem_named(method.theorem), answer)
    certificate, epsilon = answer
    assumptions = (*certificate.assumptions, *method.notes(settings))
    sigma, note = _sigma_for_target(method, settings)
    found = Row(letter, method, certificate, epsilon, assumptions, sigma_for_target=sigma, target_note=note)
    return replace(found, runs=method.runs(settings))


def _sigma_for_target(method: Method, settings: Settings) -> tuple[float | None, str]:
    """The least σ for the target ε, everything else unchanged, or why it is not given."""
    target = settings.target_epsilon
    if target is None:
        return None, ""
    if method.theorem == "poisson-gaussian" and target > MAX_POISSON_TARGET:
        return None, f"not searched for: ε = {target:g} promises nothing"
    try:
        with np.errstate(all="ignore"):
            found = calibrate(
                lambda sigma: method.make(settings.replace(sigma=sigma)), epsilon=target, delta=settings.checked_delta
            )
    except (TacitError, ArithmeticError, MemoryError) as error:
        return None, f"not found: {error}"
    return found.value, ""


def _marked(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows, those with the smallest ε of their view marked."""
    best: dict[str, float] = {}
    for row in rows:
        best[row.theorem.view] = min(row.epsilon, best.get(row.theorem.view, math.inf))
    return tuple(replace(row, tightest=row.epsilon <= best[row.theorem.view] * (1 + 1e-9)) for row in rows)
