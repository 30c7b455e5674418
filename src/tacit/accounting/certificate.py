"""Certificates: one object carries the promise, and ``certify`` is the only way to make one."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tacit
from tacit import _validate
from tacit._digits import up
from tacit.accounting.banded import BandedCyclicPoisson, FactorisedComposition
from tacit.accounting.block_sweeps import BlockShift
from tacit.accounting.curve import Curve, Gaussian, compose
from tacit.accounting.gaussian import GaussianComposition
from tacit.accounting.last_iterate import LastIterateAveraged, LastIterateMinorant
from tacit.accounting.poisson import PoissonGaussian
from tacit.accounting.selection import selection_curves
from tacit.accounting.theorem import Accountant, Assumption, Theorem
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import Adjacency, Evidence, Mechanism, Part, Plan, Selection, Start
from tacit.mechanism.serialise import digest, from_json, to_json

__all__ = ["ACCOUNTANTS", "Bound", "Certificate", "certify", "survey"]

ACCOUNTANTS: tuple[Accountant, ...] = (
    GaussianComposition(),
    PoissonGaussian(),
    LastIterateMinorant(),
    LastIterateAveraged(),
    BlockShift(),
    BandedCyclicPoisson(),
    FactorisedComposition(),
)
"""Every theorem about a mechanism. A new one is added here and inherits the contract suite."""

REFERENCE_DELTA = 1e-6
"""The δ at which "the tightest theorem" is decided when none is given."""
FORMAT = 1
_MAX_COMBINATIONS = 16
_SEAL = object()


@dataclass(frozen=True)
class Bound:
    """What one theorem says about one part of a plan."""

    theorem: Theorem
    curve: Curve
    assumptions: tuple[Assumption, ...]


class Certificate:
    """A privacy guarantee: ε(δ) of a plan, the relation, the view, the theorems and each of their assumptions.

    Made by ``certify`` only; read-only; pickles and saves as its plan and theorem names, and is certified again when
    loaded. Where several theorems cover a part, every query takes the tightest.
    """

    __slots__ = ("__weakref__", "_combinations", "_digest", "_marks", "_only", "_plan", "_reference")
    _combinations: tuple[tuple[tuple[Bound, ...], Curve], ...]
    _digest: str | None
    _marks: tuple[str, ...]
    _only: tuple[str | None, ...]
    _plan: Plan
    _reference: float

    def __init__(
        self,
        plan: Plan,
        bounds: Sequence[Sequence[Bound]],
        marks: Iterable[str],
        reference: float,
        only: Sequence[str | None],
        *,
        seal: object = None,
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("certificates are made by certify(), not by hand")
        store = object.__setattr__
        store(self, "_plan", plan)
        store(self, "_marks", tuple(dict.fromkeys(marks)))
        store(self, "_reference", reference)
        store(self, "_digest", None)
        store(self, "_only", tuple(only))
        store(self, "_combinations", tuple((c, compose([b.curve for b in c])) for c in _combinations(bounds)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a certificate is read-only: certify another plan instead")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a certificate is read-only: certify another plan instead")

    # -- the numbers ------------------------------------------------------------------------------------

    def epsilon(self, delta: float) -> float:
        """The smallest ε that a covering theorem certifies at this δ."""
        return self._tightest(_validate.delta(delta))[0]

    def delta(self, epsilon: float) -> float:
        """The smallest δ that a covering theorem certifies at this ε."""
        value = _validate.nonnegative(epsilon=epsilon)
        return min(curve.delta(value) for _, curve in self._combinations)

    @property
    def mu(self) -> float | None:
        """The GDP parameter if theorems cover the whole plan as Gaussian, else None."""
        found = [curve.mu for _, curve in self._combinations if isinstance(curve, Gaussian)]
        return min(found) if found else None

    def _tightest(self, delta: float) -> tuple[float, tuple[Bound, ...]]:
        best: tuple[float, tuple[Bound, ...]] | None = None
        refusal: NotCovered | None = None
        for bounds, curve in self._combinations:
            try:
                epsilon = curve.epsilon(delta)
            except NotCovered as error:
                refusal = error
                continue
            if best is None or epsilon < best[0]:
                best = (epsilon, bounds)
        if best is None:
            raise refusal or NotCovered("no theorem covers this delta", axis="delta")
        return best

    # -- what it is about -------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What was certified."""
        return self._plan

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation."""
        return self._plan.adjacency

    @property
    def unit(self) -> str:
        """Whose data is protected."""
        return self._plan.unit

    @property
    def theorems(self) -> tuple[Theorem, ...]:
        """The tightest theorems, one per part of the plan (at the reference δ)."""
        return tuple(bound.theorem for bound in self._tightest(self._reference)[1])

    @property
    def theorem(self) -> str:
        """The names of the theorems, in one line."""
        return " + ".join(dict.fromkeys(theorem.name for theorem in self.theorems))

    @property
    def view(self) -> str:
        """What may be seen: the narrowest view of any theorem that a number of this certificate may rest on."""
        views = [bound.theorem.view for bounds, _ in self._combinations for bound in bounds]
        return next((view for view in views if view != "every iterate"), "every iterate")

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Everything that a number of this certificate may rest on, each enforced, checked or declared."""
        used = (bound for bounds, _ in self._combinations for bound in bounds)
        return tuple(dict.fromkeys(a for bound in used for a in bound.assumptions))

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know besides, e.g. "not private: seeded"."""
        return self._marks

    @property
    def digest(self) -> str:
        """sha256 of the plan and marks: names the promise."""
        if self._digest is None:  # a certificate never changes
            object.__setattr__(self, "_digest", digest((self._plan, self._marks, self._only)))
        return str(self._digest)

    def marked(self, mark: str) -> Certificate:
        """The same certificate with one more mark."""
        return _make(self._plan, (*self._marks, mark), self._reference, self._only)

    def __add__(self, other: Certificate) -> Certificate:
        if not isinstance(other, Certificate):
            return NotImplemented
        plan = Plan.of(self._plan, other._plan)
        return _make(plan, (*self._marks, *other._marks), self._reference, (*self._only, *other._only))

    # -- for people and for disks -----------------------------------------------------------------------

    def describe(self, delta: float | None = None) -> str:
        """The promise as a paragraph.

        Args:
            delta: δ at which to state it (the reference δ if omitted).

        Returns:
            A paragraph in plain words, with every assumption and who vouches for it.
        """
        d = self._reference if delta is None else _validate.delta(delta)
        epsilon, bounds = self._tightest(d)
        names = "; ".join(dict.fromkeys(f"{b.theorem.name} ({b.theorem.reference})" for b in bounds))
        seen = "every intermediate result" if self.view == "every iterate" else f"{self.view} only"
        lines = [
            f"This computation is ({up(epsilon)}, {d:g})-differentially private for each {self.unit}: whatever "
            f"anybody learns from the output, the chance of it changes by at most a factor e^{up(epsilon)}, up to "
            f"a probability of {d:g}, when {self.adjacency.sentence}.",
            f"The guarantee covers {seen}; nothing else of the computation may be shown.",
            f"It follows from: {names}.",
            "It rests on: " + "; ".join(str(a) for a in self.assumptions) + ".",
            "Enforced means by Tacit's own code where that is what runs; declared is your word.",
        ]
        lines += [f"Note: {mark}." for mark in self._marks]
        return " ".join(lines)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        try:
            epsilon = up(self.epsilon(self._reference))
        except NotCovered:
            epsilon = "?"
        marks = f", marks={list(self._marks)}" if self._marks else ""
        return (
            f"Certificate(ε={epsilon} at δ={self._reference:g}, {self.adjacency.value}, {self.view}, "
            f"{self.theorem!r}{marks})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Certificate):
            return NotImplemented
        return (self._plan, self._marks, self._only) == (other._plan, other._marks, other._only)

    def __hash__(self) -> int:
        return hash((self._plan, self._marks, self._only))

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the plan, the theorems, and the claim in numbers."""
        epsilon, bounds = self._tightest(self._reference)
        return {
            "format": FORMAT,
            "software": f"tacit {tacit.__version__}",
            "claim": {"epsilon": epsilon if math.isfinite(epsilon) else "inf", "delta": self._reference},
            "adjacency": self.adjacency.value,
            "unit": self.unit,
            "view": self.view,
            "theorems": [bound.theorem.id for bound in bounds],
            "assumptions": [{"text": a.text, "evidence": a.evidence.value} for a in self.assumptions],
            "marks": list(self._marks),
            "only": list(self._only),
            "plan": to_json(self._plan),
            "digest": self.digest,
        }

    def to_json(self) -> str:
        """The certificate as JSON text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Load and certify again: the numbers come from the plan, never from the file.

        Args:
            text: what ``to_json`` wrote.

        Returns:
            A fresh certificate.

        Raises:
            InvalidInput: if the text is not a certificate.
            MechanismMismatch: if the file claims less ε than its plan costs, or was edited without care.
        """
        try:
            data = json.loads(text)
            plan, marks = from_json(data["plan"]), [str(m) for m in data["marks"]]
            only = [None if name is None else str(name) for name in data["only"]]
            claim = {name: float(value) for name, value in data["claim"].items()}
            delta, claimed = claim["delta"], claim["epsilon"]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidInput(f"not a certificate: {error}") from None
        whole = isinstance(plan, Plan) and len(only) == len(plan) and data.get("format") == FORMAT
        if not whole or math.isnan(claimed):
            raise InvalidInput(f"not a certificate of format {FORMAT}")
        fresh = _make(plan, marks, _validate.delta(delta), only)
        if fresh.digest != data.get("digest"):
            raise MechanismMismatch("the file's plan or marks are not those it was written with; do not rely on it")
        said = (data.get("adjacency"), data.get("unit"), data.get("view"))
        if said != (fresh.adjacency.value, fresh.unit, fresh.view):
            raise MechanismMismatch("the file's words do not describe its plan: they were edited; do not rely on it")
        actual = fresh.epsilon(delta)
        if claimed < actual * (1 - 1e-6):
            raise MechanismMismatch(
                f"the file claims ε = {claimed:.6g}, but its plan costs {actual:.6g} at δ = {delta:g}: it was edited, "
                "or certified by a version with an error; do not rely on it"
            )
        return fresh

    def __reduce__(self) -> tuple[Any, ...]:
        return (Certificate.from_json, (self.to_json(),))

    def __copy__(self) -> Certificate:
        return self

    def __deepcopy__(self, memo: object) -> Certificate:
        return self


def _combinations(bounds: Sequence[Sequence[Bound]]) -> Iterable[tuple[Bound, ...]]:
    """One theorem per part, in every way; if those are too many: Gaussian wherever possible, and nowhere."""
    if math.prod(len(options) for options in bounds) <= _MAX_COMBINATIONS:
        return itertools.product(*bounds)
    gaussian = tuple(min(options, key=lambda b: not isinstance(b.curve, Gaussian)) for options in bounds)
    other = tuple(min(options, key=lambda b: isinstance(b.curve, Gaussian)) for options in bounds)
    return dict.fromkeys((gaussian, other))


# -- certify --------------------------------------------------------------------------------------------------


def certify(plan: Plan | Part, *, delta: float | None = None, theorem: str | None = None) -> Certificate:
    """The only maker of certificates: every theorem that covers each part is tried, the tightest counts.

    Args:
        plan: what is going to run.
        delta: the δ at which "tightest" is decided for words and records (1e-6 if omitted); every δ can be asked later.
        theorem: use this theorem only (an ``id``), e.g. to see what it alone would say.

    Returns:
        The certificate.

    Raises:
        NotCovered: if no theorem covers a part; the message names the axis and a way out.
    """
    reference = REFERENCE_DELTA if delta is None else _validate.delta(delta)
    whole = Plan.of(plan)
    return _make(whole, (), reference, [theorem] * len(whole))


def _make(plan: Plan, marks: Iterable[str], reference: float, only: Sequence[str | None]) -> Certificate:
    _check_starts(plan)
    bounds = [_bounds(part, theorem) for part, theorem in zip(plan, only, strict=True)]
    return Certificate(plan, bounds, marks, reference, only, seal=_SEAL)


def _check_starts(plan: Plan) -> None:
    first = plan.parts[0]
    if isinstance(first, Mechanism) and getattr(first.view, "start", Start.PUBLIC) is Start.RELEASED:
        raise NotCovered(
            "view.start: the chain starts at a released point whose release is not part of the plan; put the "
            "mechanism that released it first, so that both are charged",
            axis="view.start",
        )


@functools.lru_cache(maxsize=256)
def _bounds(part: Part, theorem: str | None) -> tuple[Bound, ...]:
    """Every covering theorem's bound; of several Gaussian ones only the smallest can ever be the tightest."""
    found = _selection_bounds(part, theorem) if isinstance(part, Selection) else _mechanism_bounds(part, theorem)
    gaussian = [b for b in found if isinstance(b.curve, Gaussian)]
    others = [b for b in found if not isinstance(b.curve, Gaussian)]
    smallest = min(gaussian, key=lambda b: getattr(b.curve, "mu", math.inf), default=None)
    return tuple(others + ([smallest] if smallest else []))


def _mechanism_bounds(mechanism: Mechanism, theorem: str | None) -> list[Bound]:
    chosen = [a for a in ACCOUNTANTS if theorem in (None, a.theorem.id)]
    if not chosen:
        known = ", ".join(a.theorem.id for a in ACCOUNTANTS)
        raise InvalidInput(f"theorem must be one of {known}, got {theorem!r}")
    found, gaps = [], []
    for accountant in chosen:
        missing = accountant.gaps(mechanism)
        if missing:
            gaps.append((accountant, missing))
        else:
            found.append(Bound(accountant.theorem, accountant.curve(mechanism), accountant.assumptions(mechanism)))
    if not found:
        nearest = min(len(missing) for _, missing in gaps)
        reasons = [" and ".join(map(str, missing)) for _, missing in gaps if len(missing) == nearest]
        axis = next(missing[0].axis for _, missing in gaps if len(missing) == nearest)
        raise NotCovered(f"no theorem covers {mechanism.label!r}. " + " | ".join(reasons), axis=axis)
    return found


def _selection_bounds(selection: Selection, theorem: str | None) -> list[Bound]:
    base = certify(Plan(selection.base))
    holdout = certify(Plan(selection.holdout)) if selection.holdout else None
    # DPSelection keeps the number, the candidates and their scores to itself, but nobody can vouch for the duration,
    # and a selection described by hand is the user's word altogether.
    secret: tuple[Assumption, ...] = (
        Assumption("the number of candidates, their scores and the duration stay secret", Evidence.DECLARED),
        Assumption("the score is part of what one candidate costs", Evidence.DECLARED),
    )
    if holdout is not None:
        apart = Assumption("the hold-out shares no record with the training data", Evidence.DECLARED)
        secret = (*holdout.assumptions, apart, *secret)
    curve, held = _single_curve(base), _single_curve(holdout) if holdout else None
    curves = selection_curves(curve, held, selection.trials)
    found = [Bound(t, c, (*base.assumptions, *secret)) for t, c in curves if theorem in (None, t.id)]
    if not found:
        known = ", ".join(t.id for t, _ in curves)
        raise InvalidInput(f"theorem must be one of {known} for this selection, got {theorem!r}")
    return found


def _single_curve(certificate: Certificate) -> Curve:
    """Gaussian if possible (the refined bound needs it), else whatever the first combination gives."""
    curves = [curve for _, curve in certificate._combinations]
    gaussian = [curve for curve in curves if isinstance(curve, Gaussian)]
    return min(gaussian, key=lambda c: c.mu) if gaussian else curves[0]


def survey(mechanism: Mechanism) -> list[tuple[Theorem, Bound | NotCovered]]:
    """What every theorem says about a mechanism: its bound, or why it does not cover it."""
    out: list[tuple[Theorem, Bound | NotCovered]] = []
    for accountant in ACCOUNTANTS:
        try:
            curve = accountant.apply(mechanism)
        except NotCovered as refusal:
            out.append((accountant.theorem, refusal))
        else:
            out.append((accountant.theorem, Bound(accountant.theorem, curve, accountant.assumptions(mechanism))))
    return out
