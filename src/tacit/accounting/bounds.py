"""What the registered theorems say about the parts of a plan: every bound, and every combination of them.

The order in which theorems are defined or imported decides nothing: the smallest bound counts, and among equal ones
that of the theorem that promises about every iterate, then that of the first ``id``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tacit.accounting.curve import Curve, Gaussian, compose
from tacit.accounting.theorem import EVERY_ITERATE, Assumption, Theorem, theorem_named, theorems
from tacit.errors import NotCovered
from tacit.mechanism import Part, Plan, Start

__all__ = ["Bound", "Combination", "assumptions_of", "combine", "compare_theorems", "rank"]

_MAX_COMBINATIONS = 16


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
    names = [None] * len(plan) if only is None else only
    bounds = [_bounds(part, _candidates(part, name)) for part, name in zip(plan, names, strict=True)]
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
