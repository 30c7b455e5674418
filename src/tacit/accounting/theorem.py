"""What an accountant is: one theorem, the axis values it covers, and a map from mechanism to curve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from tacit.accounting.curve import Curve
from tacit.errors import NotCovered
from tacit.mechanism import (
    Adjacency,
    AllIterates,
    BlockSweeps,
    Cyclic,
    CyclicPoisson,
    Evidence,
    FullBatch,
    Independent,
    LastIterate,
    Mechanism,
    Memory,
    NoiseShape,
    Output,
    Poisson,
    Separated,
    Shuffled,
    Start,
    WithoutReplacement,
)

__all__ = [
    "ANY_VIEW",
    "PUBLIC_NUMBERS",
    "SECRET_DURATION",
    "Accountant",
    "Assumption",
    "ChainAccountant",
    "Gap",
    "Theorem",
    "fixed_membership",
]


@dataclass(frozen=True)
class Theorem:
    """A statement that somebody proved.

    Attributes:
        id: a short stable name, written into certificates.
        name: for people.
        reference: author, year, number.
        view: what it promises about: "every iterate" or "the final model".
    """

    id: str
    name: str
    reference: str
    view: str


@dataclass(frozen=True)
class Assumption:
    """Something a theorem needs, and who vouches for it."""

    text: str
    evidence: Evidence

    def __str__(self) -> str:
        return f"{self.text} [{self.evidence.value}]"


@dataclass(frozen=True)
class Gap:
    """Why a theorem does not cover a mechanism: the axis, the reason, and a way out."""

    axis: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.axis}: {self.reason}; {self.remedy}"


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
}

_SUB_AXES: Mapping[str, tuple[str, ...]] = {"view": ("output", "memory", "noise_shape")}


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    return type(value).__name__


class Accountant(ABC):
    """One theorem. Whatever is not on its whitelist is refused, new axis values included."""

    theorem: ClassVar[Theorem]
    covers: ClassVar[Mapping[str, tuple[Any, ...]]]

    def gaps(self, mechanism: Mechanism) -> list[Gap]:
        """Every reason why the theorem does not cover the mechanism; empty if it does."""
        found = []
        for axis in ("adjacency", "sampling", "noise", "view"):
            value = getattr(mechanism, axis)
            found += self._axis_gaps(axis, value)
            for name in _SUB_AXES.get(axis, ()):
                if f"{axis}.{name}" in self.covers and hasattr(value, name):
                    found += self._axis_gaps(f"{axis}.{name}", getattr(value, name))
        return found or self.relations(mechanism)

    def _axis_gaps(self, axis: str, value: object) -> list[Gap]:
        allowed = self.covers.get(axis, ())
        if any(value is a or (isinstance(a, type) and isinstance(value, a)) for a in allowed):
            return []
        reason = f"{self.theorem.name} does not cover {_shown(value)}"
        return [Gap(axis, reason, _REMEDY.get(axis, "change it"))]

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Gaps between axes that are each covered alone (e.g. more bands than groups)."""
        return []

    @abstractmethod
    def curve(self, mechanism: Mechanism) -> Curve:
        """The theorem's bound; called only if there are no gaps."""

    def assumptions(self, mechanism: Mechanism) -> tuple[Assumption, ...]:
        """What the bound rests on, with who vouches for it."""
        return (_bounded(mechanism), *_sampled(mechanism), PUBLIC_NUMBERS)

    def apply(self, mechanism: Mechanism) -> Curve:
        """The curve, or a refusal that names the first gap.

        Args:
            mechanism: what is to be certified.

        Returns:
            The theorem's curve.

        Raises:
            NotCovered: if the theorem does not cover the mechanism.
        """
        gaps = self.gaps(mechanism)
        if gaps:
            raise NotCovered("; ".join(map(str, gaps)), axis=gaps[0].axis)
        return self.curve(mechanism)


PUBLIC_NUMBERS = Assumption(
    "bounds, clips, classes, sizes and settings were not chosen by looking at the records", Evidence.DECLARED
)
"""What no program can see, and users break most."""
SECRET_DURATION = Assumption("nobody learns anything from how long the run takes", Evidence.DECLARED)


def _bounded(mechanism: Mechanism) -> Assumption:
    if mechanism.adjacency is not Adjacency.REPLACE_ONE:
        how, step = "has norm at most C, so that neighbours move the sum by at most C", "C"
    elif isinstance(mechanism.sampling, FullBatch):
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
    if isinstance(mechanism.sampling, FullBatch):
        return ()
    if isinstance(mechanism.sampling, Separated):  # somebody else's batches: the channel cannot draw them
        text = "each record takes part only as often, and as far apart, as stated"
        return (Assumption(text, Evidence.DECLARED),)
    words = {
        Poisson: "every step reads each record independently with the stated probability",
        CyclicPoisson: "groups take turns, and records of a group are read independently with the stated probability",
        Cyclic: "batches are disjoint and visited in a fixed cyclic order",
        Shuffled: "batches are disjoint within an epoch, so that a record is read once per epoch",
        WithoutReplacement: "every step reads a batch of a fixed size",
    }
    return (Assumption(words[type(mechanism.sampling)], Evidence.ENFORCED),)


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
    )


def fixed_membership(mechanism: Mechanism) -> list[Gap]:
    """Disjoint or fixed-size batches under add/remove: one record more moves *other* records to other batches."""
    sampling = mechanism.sampling
    if mechanism.adjacency is not Adjacency.ADD_REMOVE or isinstance(sampling, FullBatch | Poisson):
        return []
    reason = f"under add/remove a record more moves other records between the batches of {_shown(sampling)}"
    return [Gap("sampling", reason, "use replace-one or zero-out, full batches, or Poisson sampling")]


class ChainAccountant(Accountant):
    """A theorem about the last state of a hidden chain: what all of them cover and assume."""

    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "adjacency": tuple(Adjacency),
        "sampling": (FullBatch, Cyclic),
        "noise": (Independent,),
        "view": (LastIterate,),
        "view.output": (Output.LAST_ITERATE,),
        "view.memory": (Memory.NONE,),
        "view.noise_shape": (NoiseShape.ISOTROPIC,),
    }

    def assumptions(self, mechanism: Mechanism) -> tuple[Assumption, ...]:
        """Composition's assumptions and those of the chain."""
        view = mechanism.view
        assert isinstance(view, LastIterate | BlockSweeps)
        return (*super().assumptions(mechanism), *_chain_assumptions(view))
