"""Certificates: one object carries the promise, and ``certify`` is the only way to make one.

Every registered theorem is asked about every part of a plan. The order in which theorems are defined or imported
decides nothing: the smallest bound counts, and among equal ones that of the theorem that promises about every iterate,
then that of the first ``id``.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tacit
from tacit import _codec, _validate
from tacit._digits import format_up
from tacit._files import write_whole
from tacit.accounting.curve import Curve, Gaussian, compose
from tacit.accounting.groups import describe_groups, group_epsilon
from tacit.accounting.page import certificate_page
from tacit.accounting.theorem import EVERY_ITERATE, Assumption, Theorem, theorem_named, theorems
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import Adjacency, Arithmetic, Part, Plan, Start

__all__ = ["Bound", "Certificate", "Combination", "assumptions_of", "certify", "combine", "compare_theorems", "rank"]

REFERENCE_DELTA = 1e-6
"""The δ at which "the tightest theorem" is decided when none is given."""
FORMAT = 1
_SEAL = object()
_MAX_COMBINATIONS = 16


# -- what the registered theorems say about a plan --------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """What one theorem says about one part of a plan."""

    theorem: Theorem
    curve: Curve
    assumptions: tuple[Assumption, ...]


Combination = tuple[tuple[Bound, ...], Curve]
"""One bound per part of a plan, and the curve of all of them together."""


def rank(bounds: Iterable[Bound]) -> tuple[tuple[bool, str], ...]:
    """Decides between equal numbers: promises about every iterate first, then by ``id``."""
    return tuple((bound.theorem.view != EVERY_ITERATE, bound.theorem.id) for bound in bounds)


def combine(plan: Plan, only: Sequence[str | None] | None = None) -> tuple[Combination, ...]:
    """Every combination of theorems that covers a plan, with its curve.

    Args:
        plan: what is to be certified.
        only: for each part the ``id`` of the theorem to use, or None for all that cover it.

    Returns:
        At least one combination.

    Raises:
        NotCovered: if no theorem covers a part, or the plan starts at a point that it does not pay for.
    """
    if plan.parts[0].start is Start.RELEASED:
        raise NotCovered(
            "view.start: the chain starts at a released point whose release is not part of the plan; put the "
            "mechanism that released it first, so that both are charged",
            axis="view.start",
        )
    names = [None] * len(plan.parts) if only is None else only
    bounds = [_bounds(part, _candidates(part, name)) for part, name in zip(plan.parts, names, strict=True)]
    return tuple((chosen, compose([b.curve for b in chosen])) for chosen in _combinations(bounds))


def assumptions_of(combinations: Iterable[Combination]) -> tuple[Assumption, ...]:
    """Everything that a number from one of the combinations may rest on."""
    used = (bound for bounds, _ in combinations for bound in bounds)
    return tuple(dict.fromkeys(a for bound in used for a in bound.assumptions))


def _combinations(bounds: Sequence[Sequence[Bound]]) -> Iterable[tuple[Bound, ...]]:
    """One theorem per part, in every way; if those are too many: Gaussian wherever possible, and nowhere."""
    if math.prod(len(options) for options in bounds) <= _MAX_COMBINATIONS:
        return itertools.product(*bounds)
    gaussian = tuple(min(options, key=lambda b: not isinstance(b.curve, Gaussian)) for options in bounds)
    other = tuple(min(options, key=lambda b: isinstance(b.curve, Gaussian)) for options in bounds)
    return dict.fromkeys((gaussian, other))


def _candidates(part: Part, only: str | None) -> tuple[Theorem, ...]:
    if only is not None:
        return (theorem_named(only, type(part)),)
    found = tuple(theorem for theorem in theorems(type(part)) if theorem.by_default)
    if not found:
        raise NotCovered(f"no theorem is about a {type(part).__name__} ({part.label!r}): define one", axis="part")
    return found


@functools.lru_cache(maxsize=256)
def _bounds(part: Part, candidates: tuple[Theorem, ...]) -> tuple[Bound, ...]:
    """Every covering theorem's bound; of several Gaussian ones only the smallest can ever be the tightest."""
    gaps = [(theorem, theorem.gaps(part)) for theorem in candidates]
    found = [_bound(theorem, part) for theorem, missing in gaps if not missing]
    if not found:
        nearest = min(len(missing) for _, missing in gaps)
        closest = [missing for _, missing in gaps if len(missing) == nearest]
        reasons = " | ".join(" and ".join(map(str, missing)) for missing in closest)
        raise NotCovered(f"no theorem covers {part.label!r}. {reasons}", axis=closest[0][0].axis)
    gaussian = [(bound.curve.mu, rank([bound]), bound) for bound in found if isinstance(bound.curve, Gaussian)]
    others = [bound for bound in found if not isinstance(bound.curve, Gaussian)]
    return (*others, *(bound for _, _, bound in sorted(gaussian, key=lambda row: row[:2])[:1]))


def _bound(theorem: Theorem, part: Part) -> Bound:
    return Bound(theorem, theorem.curve(part), theorem.assumptions(part))


def compare_theorems(part: Part) -> list[tuple[Theorem, Bound | NotCovered]]:
    """What every theorem about this type of part says: its bound, or why it does not cover the part."""
    out: list[tuple[Theorem, Bound | NotCovered]] = []
    for theorem in theorems(type(part)):
        try:
            curve = theorem.apply(part)
        except NotCovered as refusal:
            out.append((theorem, refusal))
        else:
            out.append((theorem, Bound(theorem, curve, theorem.assumptions(part))))
    return out


# -- certificates -----------------------------------------------------------------------------------------------


class Certificate:
    """A privacy guarantee: ε(δ) of a plan, the relation, the view, the theorems and each of their assumptions.

    Made by ``certify`` only; read-only; pickles and saves as its plan and theorem names, and is certified again when
    loaded. Where several theorems cover a part, every query takes the tightest.

    Attributes:
        plan: what was certified.
        adjacency: the neighbouring relation.
        unit: whose data is protected.
        mu: the GDP parameter if theorems cover the whole plan as Gaussian, else None.
        marks: what a reader must know besides, e.g. "not private: seeded".
    """

    __slots__ = (
        *("adjacency", "marks", "mu", "plan", "unit"),
        *("__weakref__", "_combinations", "_digest", "_only", "_reference"),
    )
    plan: Plan
    adjacency: Adjacency
    unit: str
    mu: float | None
    marks: tuple[str, ...]
    _combinations: tuple[Combination, ...]
    _digest: str | None
    _only: tuple[str | None, ...]
    _reference: float

    def __init__(
        self,
        plan: Plan,
        combinations: Sequence[Combination],
        marks: Iterable[str],
        reference: float,
        only: Sequence[str | None],
        *,
        seal: object = None,
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("certificates are made by certify(), not by hand")
        gaussian = [curve.mu for _, curve in combinations if isinstance(curve, Gaussian)]
        store = object.__setattr__
        store(self, "plan", plan)
        store(self, "adjacency", plan.parts[0].adjacency)
        store(self, "unit", plan.parts[0].unit)
        store(self, "mu", min(gaussian, default=None))
        store(self, "marks", tuple(dict.fromkeys(marks)))
        store(self, "_reference", reference)
        store(self, "_digest", None)
        store(self, "_only", tuple(only))
        store(self, "_combinations", tuple(combinations))

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

    def group_epsilon(self, k: int, delta: float) -> float:
        """What is promised at this δ to k units together, e.g. a person with k rows where each row is a record.

        Args:
            k: how many.
            delta: δ.

        Returns:
            ε (``tacit.accounting.groups``); infinite if none is found.
        """
        return group_epsilon(self, k, delta)

    def _tightest(self, delta: float) -> tuple[float, tuple[Bound, ...]]:
        found: list[tuple[float, tuple[Bound, ...]]] = []
        refusals: list[NotCovered] = []
        for bounds, curve in self._combinations:
            try:
                found.append((curve.epsilon(delta), bounds))
            except NotCovered as error:
                refusals.append(error)
        if not found:
            raise refusals[-1]
        return min(found, key=lambda row: (row[0], rank(row[1])))

    # -- what it is about -------------------------------------------------------------------------------

    @property
    def arithmetic(self) -> str:
        """In which numbers it runs: "exact" if every part does, else "float"; then low bits may tell records apart."""
        ways = {getattr(part, "arithmetic", Arithmetic.FLOAT) for part in self.plan}
        return Arithmetic.EXACT.value if ways == {Arithmetic.EXACT} else Arithmetic.FLOAT.value

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
        return next((view for view in views if view != EVERY_ITERATE), EVERY_ITERATE)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Everything that a number of this certificate may rest on, each enforced, checked or declared."""
        return assumptions_of(self._combinations)

    @property
    def digest(self) -> str:
        """sha256 of the plan and marks: names the promise."""
        if self._digest is None:  # a certificate never changes
            object.__setattr__(self, "_digest", _codec.digest((self.plan, self.marks, self._only)))
        return str(self._digest)

    def marked(self, mark: str) -> Certificate:
        """The same certificate with one more mark."""
        return _make(self.plan, (*self.marks, mark), self._reference, self._only)

    def __add__(self, other: Certificate) -> Certificate:
        if not isinstance(other, Certificate):
            return NotImplemented
        plan = Plan.of(self.plan, other.plan)
        return _make(plan, (*self.marks, *other.marks), self._reference, (*self._only, *other._only))

    # -- for people and for disks -----------------------------------------------------------------------

    def describe(self, delta: float | None = None) -> str:
        """The promise as a paragraph.

        Args:
            delta: δ at which to state it (the reference δ if omitted).

        Returns:
            A paragraph in plain words, with every assumption and what it rests on.
        """
        d = self._reference if delta is None else _validate.delta(delta)
        epsilon, bounds = self._tightest(d)
        names = "; ".join(dict.fromkeys(f"{b.theorem.name} ({b.theorem.reference})" for b in bounds))
        seen = "every intermediate result" if self.view == EVERY_ITERATE else f"{self.view} only"
        lines = [
            f"This computation is ({format_up(epsilon)}, {d:g})-differentially private for each {self.unit}: whatever "
            f"anybody learns from the output, the chance of it changes by at most a factor e^{format_up(epsilon)}, up "
            f"to a probability of {d:g}, when {self.adjacency.sentence}.",
            f"The guarantee covers {seen}; nothing else of the computation may be shown.",
            f"It follows from: {names}.",
            "It rests on: " + "; ".join(str(a) for a in self.assumptions) + ".",
            "Enforced means by Tacit's own code where that is what runs; declared is your word.",
        ]
        if self.unit == "record":
            lines += [f"A person with several records is promised less: {describe_groups(self, d, epsilon)}."]
        lines += [f"Note: {mark}." for mark in self.marks]
        return " ".join(lines)

    def to_html(self, path: str | Path, delta: float | None = None, *, title: str = "Privacy certificate") -> None:
        """Write the promise as one self-contained page to file or print.

        Args:
            path: of the page.
            delta: δ at which to state it (the reference δ if omitted).
            title: of the page.
        """
        d = self._reference if delta is None else _validate.delta(delta)
        write_whole(Path(path), certificate_page(self, d, title).encode())

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        try:
            epsilon = format_up(self.epsilon(self._reference))
        except NotCovered:
            epsilon = "?"
        marks = f", marks={list(self.marks)}" if self.marks else ""
        return (
            f"Certificate(ε={epsilon} at δ={self._reference:g}, {self.adjacency.value}, {self.view}, "
            f"{self.theorem!r}{marks})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Certificate):
            return NotImplemented
        return (self.plan, self.marks, self._only) == (other.plan, other.marks, other._only)

    def __hash__(self) -> int:
        return hash((self.plan, self.marks, self._only))

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
            "marks": list(self.marks),
            "only": list(self._only),
            "plan": _codec.encode(self.plan),
            "digest": self.digest,
        }

    def to_json(self) -> str:
        """The certificate as JSON text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, *, limit: float = _codec.LIMIT) -> Certificate:
        """Load and certify again: the numbers come from the plan, never from the file.

        Args:
            text: what ``to_json`` wrote.
            limit: how many values the plan may stand for (a step of a schedule is one), counted before it is built.

        Returns:
            A fresh certificate.

        Raises:
            InvalidInput: if the text is not a certificate.
            MechanismMismatch: if the file claims less ε than its plan costs, or was edited without care.
        """
        try:
            data = _codec.parse(text)
            plan, marks = _codec.decode(data["plan"], limit=limit), [str(m) for m in data["marks"]]
            only = [None if name is None else str(name) for name in data["only"]]
            claim = {name: float(value) for name, value in data["claim"].items()}
            delta, claimed = claim["delta"], claim["epsilon"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
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
        return (_unpickled, (self.to_json(),))

    def __copy__(self) -> Certificate:
        return self

    def __deepcopy__(self, memo: object) -> Certificate:
        return self


def _unpickled(text: str) -> Certificate:
    return Certificate.from_json(text, limit=math.inf)  # a pickle is trusted anyway


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
    whole = plan if isinstance(plan, Plan) else Plan.of(plan)
    return _make(whole, (), reference, [theorem] * len(whole.parts))


def _make(plan: Plan, marks: Iterable[str], reference: float, only: Sequence[str | None]) -> Certificate:
    return Certificate(plan, combine(plan, only), marks, reference, only, seal=_SEAL)
