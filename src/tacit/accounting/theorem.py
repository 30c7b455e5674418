"""What a theorem is: the type of part it is about, the axis values it covers, and a map from a part to a curve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from tacit.accounting.curve import Curve
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import (
    Adjacency,
    AllIterates,
    Arithmetic,
    BlockSweeps,
    Cyclic,
    Evidence,
    FullBatch,
    Independent,
    LastIterate,
    Mechanism,
    Memory,
    NoiseShape,
    Output,
    Part,
    Rounding,
    Start,
)

__all__ = [
    "ANY_VIEW",
    "ARITHMETIC",
    "EVERY_ITERATE",
    "PUBLIC_NUMBERS",
    "SECRET_DURATION",
    "Assumption",
    "ChainTheorem",
    "Gap",
    "Theorem",
    "fixed_membership",
    "theorem_named",
    "theorems",
]

EVERY_ITERATE = "every iterate"
"""The view of a theorem that bounds everything released, hence every function of it."""


@dataclass(frozen=True)
class Assumption:
    """Something a theorem needs, and what that rests on."""

    text: str
    evidence: Evidence

    def __str__(self) -> str:
        return f"{self.text} [{self.evidence.value}]"


@dataclass(frozen=True)
class Gap:
    """Why a theorem does not cover a part: the axis, the reason, and a way out."""

    axis: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.reason}; {self.remedy}"


UNLESS_COVERED: Mapping[str, tuple[Any, ...]] = {"view.rounding": (type(None),)}
"""Values that every theorem covers; more than these only where it says so."""

ANY_VIEW = (AllIterates, LastIterate, BlockSweeps)
"""Composition bounds everything released, hence also every function of it: all views are covered."""

_REMEDY = {
    "adjacency": "state the guarantee under a relation that the theorem covers",
    "sampling": "draw batches in a way that the theorem covers",
    "noise": "use noise that the theorem covers",
    "view": "certify all iterates by composition instead",
    "view.output": "release the last iterate only, or certify all iterates by composition",
    "view.memory": "drop the extra state, or certify all iterates by composition",
    "view.noise_shape": "noise the whole state at every step, or certify all iterates by composition",
    "view.rounding": "certify the chain in floating point, or by a theorem that prices rounding",
}

_registry: dict[str, type[Theorem]] = {}


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__


class Theorem(ABC):
    """A theorem that bounds the privacy loss of a part of a plan.

    A subclass is registered by being defined, unless it says ``abstract=True``, and then takes part in ``certify``.
    Whatever is not on its whitelist is refused, axis values that do not exist yet included.

    Attributes:
        id: a short stable name, written into certificates.
        name: for people.
        reference: author, year, number.
        view: what it promises about: "every iterate", "the final model", …
        about: the type of part it covers, exactly.
        covers: the values it covers of each axis of that type (``Mechanism.axes``), types by exact type; "view.output"
            is looked at where a view has an output.
        by_default: whether it is tried without being asked for by its ``id``.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    reference: ClassVar[str]
    view: ClassVar[str]
    about: ClassVar[type[Any]] = Mechanism
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    by_default: ClassVar[bool] = True

    def __init_subclass__(cls, *, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not abstract:
            _register(cls)

    def gaps(self, part: Any) -> list[Gap]:
        """Every reason why the theorem does not cover the part; empty if it does."""
        if type(part) is not self.about:
            reason = f"{self.name} is about a {self.about.__name__}, not about a {type(part).__name__}"
            return [Gap("part", reason, "certify it by another theorem")]
        found = []
        for axis in self.about.axes:
            found += self._axis_gaps(axis, getattr(part, axis))
        for name in {**UNLESS_COVERED, **self.covers}:
            axis, _, inner = name.partition(".")
            if inner and axis in self.about.axes and hasattr(getattr(part, axis), inner):
                found += self._axis_gaps(name, getattr(getattr(part, axis), inner))
        return found or self.relations(part)

    def _axis_gaps(self, axis: str, value: object) -> list[Gap]:
        for allowed in self.covers.get(axis, UNLESS_COVERED.get(axis, ())):
            if value is allowed or type(value) is allowed:
                return []
        reason = f"{self.name} does not cover {_shown(value)}"
        return [Gap(axis, reason, _REMEDY.get(axis, "change it"))]

    def relations(self, part: Any) -> list[Gap]:
        """Gaps between axes that are each covered alone (e.g. more bands than groups)."""
        return []

    @abstractmethod
    def curve(self, part: Any) -> Curve:
        """The theorem's bound; called only if there are no gaps."""

    def assumptions(self, part: Any) -> tuple[Assumption, ...]:
        """What the bound rests on."""
        return (_bounded(part), *_sampled(part), ARITHMETIC[part.arithmetic], PUBLIC_NUMBERS)

    def apply(self, part: Any) -> Curve:
        """The curve, or a refusal that names the first gap.

        Args:
            part: what is to be certified.

        Returns:
            The theorem's curve.

        Raises:
            NotCovered: if the theorem does not cover the part.
        """
        gaps = self.gaps(part)
        if gaps:
            raise NotCovered("; ".join(map(str, gaps)), axis=gaps[0].axis)
        return self.curve(part)

    def examples(self, plain: Mechanism) -> tuple[Part, ...]:
        """Parts that the theorem covers, for the contract tests: at least one for each sampling and noise.

        Args:
            plain: full batches with constant ratio; the parts are to have its relation, ratio and steps.
        """
        raise NotImplementedError(
            f"{type(self).__name__} gives no example for the contract tests: write examples(self, plain), which "
            "returns variants of the mechanism `plain` that it covers, e.g. (replace(plain, sampling=Poisson(0.2)),)"
        )

    def __repr__(self) -> str:
        return f"<theorem {self.id}>"


# -- the registry -----------------------------------------------------------------------------------------------


def _register(cls: type[Theorem]) -> None:
    missing = [name for name in ("id", "name", "reference") if name not in vars(cls)]
    missing += ["view"] if not hasattr(cls, "view") else []
    if missing:
        raise TypeError(
            f"{cls.__name__} states no {', '.join(missing)}: certificates show id, name, reference and view of a "
            "theorem (a base of several theorems says abstract=True)"
        )
    old = _registry.get(cls.id)
    if old is not None and (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"the id {cls.id!r} belongs to {old.__module__}.{old.__qualname__}: choose another one")
    _registry[cls.id] = cls


_instances: dict[type[Theorem], Theorem] = {}


def theorems(about: type[Any] | None = None) -> tuple[Theorem, ...]:
    """Every theorem that is defined, sorted by ``id``.

    Args:
        about: only those about this type of part.

    Returns:
        One object per theorem, always the same.
    """
    found = [cls for _, cls in sorted(_registry.items()) if about is None or cls.about is about]
    return tuple(_instances.setdefault(cls, cls()) for cls in found)


def theorem_named(id: str, about: type[Any] | None = None) -> Theorem:
    """The theorem with this ``id``.

    Args:
        id: as written in certificates.
        about: the type of part it must be about.

    Returns:
        The theorem.

    Raises:
        InvalidInput: if there is none.
    """
    known = {theorem.id: theorem for theorem in theorems(about)}
    if id not in known:
        raise InvalidInput(f"theorem must be one of {', '.join(known)}, got {id!r}")
    return known[id]


# -- what many theorems share -----------------------------------------------------------------------------------


PUBLIC_NUMBERS = Assumption(
    "bounds, clips, classes, sizes and settings were not chosen by looking at the records", Evidence.DECLARED
)
"""What no program can see, and users break most."""
ARITHMETIC = {
    Arithmetic.EXACT: Assumption(
        "arithmetic: sums of integers on a public grid and noise with exact probabilities", Evidence.ENFORCED
    ),
    Arithmetic.FLOAT: Assumption(
        "arithmetic: floating point; low-order bits of what is released are assumed not to be inspected",
        Evidence.DECLARED,
    ),
}
"""In which numbers a mechanism runs: theorems are about real numbers, of which floating point releases more bits."""
SECRET_DURATION = Assumption("nobody learns anything from how long the run takes", Evidence.DECLARED)


def _bounded(mechanism: Mechanism) -> Assumption:
    if mechanism.adjacency is not Adjacency.REPLACE_ONE:
        how, step = "has norm at most C, so that neighbours move the sum by at most C", "C"
    elif type(mechanism.sampling) is FullBatch:
        how = "has norm at most C and lies within Δ ≤ 2C of any other, so that neighbours move the sum by at most Δ"
        step = "Δ"
    else:
        how, step = "has norm at most C, so that neighbours move the sum by at most 2C", "2C"
    return Assumption(
        f"each {mechanism.unit}'s contribution to a released sum {how}; the noise is Gaussian with standard deviation "
        f"{step}/ratio",
        Evidence.ENFORCED,
    )


def _sampled(mechanism: Mechanism) -> tuple[Assumption, ...]:
    sampling = mechanism.sampling
    return (Assumption(sampling.assumption, sampling.evidence),) if sampling.assumption else ()


def _chain_assumptions(view: LastIterate | BlockSweeps) -> tuple[Assumption, ...]:
    """What every hidden-state theorem needs."""
    # No chain of ours projects yet, so the user vouches for it.
    bounded = Assumption("every step projects onto a set of the stated diameter", Evidence.DECLARED)
    start = (
        Assumption("the chain starts at a public point", Evidence.ENFORCED)
        if view.start is Start.PUBLIC
        else Assumption("the chain starts at a point released earlier in the same plan", Evidence.CHECKED)
    )
    return (
        Assumption(
            "only the last iterate is released: no average, checkpoint or loss curve",
            Evidence.ENFORCED,
        ),
        SECRET_DURATION,
        Assumption("no momentum and no per-record state is carried between steps", Evidence.ENFORCED),
        start,
        Assumption("every step's map has the stated Lipschitz constant, for every data set", view.evidence),
        *((bounded,) if getattr(view, "diameter", None) is not None else ()),
        *((_ON_LATTICE,) if view.rounding is not None else ()),
    )


_ON_LATTICE = Assumption(
    "the state moves on the stated lattice, inside the stated ball, and its float64 map stays within the stated "
    "distance of the ideal one; that rounding is part of the bound",
    Evidence.CHECKED,
)


def fixed_membership(mechanism: Mechanism) -> list[Gap]:
    """Disjoint or fixed-size batches under add/remove: one record more moves *other* records to other batches."""
    sampling = mechanism.sampling
    if mechanism.adjacency is not Adjacency.ADD_REMOVE or sampling.independent:
        return []
    reason = f"under add/remove a record more moves other records between the batches of {_shown(sampling)}"
    return [Gap("sampling", reason, "use replace-one or zero-out, full batches, or Poisson sampling")]


class ChainTheorem(Theorem, abstract=True):
    """A theorem about the last state of a hidden chain: what all of them cover and assume."""

    view: ClassVar[str] = "the final model"
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "adjacency": tuple(Adjacency),
        "sampling": (FullBatch, Cyclic),
        "noise": (Independent,),
        "view": (LastIterate,),
        "view.output": (Output.LAST_ITERATE,),
        "view.memory": (Memory.NONE,),
        "view.noise_shape": (NoiseShape.ISOTROPIC,),
        "view.rounding": (type(None), Rounding),
    }

    def assumptions(self, part: Mechanism) -> tuple[Assumption, ...]:
        """Composition's assumptions and those of the chain."""
        view = part.view
        assert isinstance(view, LastIterate | BlockSweeps)
        return (*super().assumptions(part), *_chain_assumptions(view))

    @staticmethod
    def period(mechanism: Mechanism) -> int:
        """Every how many steps a record is read (1: at each of them)."""
        k = mechanism.sampling.period
        assert k is not None  # so have all samplings on the whitelist
        return k
