"""What a fit knows before it is paid for, and the fit with every public choice made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tacit.mechanism import Plan
from tacit.release import Session

__all__ = ["Planned", "Table"]


@dataclass(frozen=True)
class Table:
    """What a fit knows about its data before anything is paid for: shapes, types and public labels.

    Attributes:
        n: the number of records; of persons, where rows belong to persons.
        p: the number of features.
        sparse: whether zeros are not stored.
        dtype: of the features.
        outputs: classes, or columns of the target.
        classes: the labels, or None.
        marks: what the certificate must say about them.
        single_target: whether the target is one column, without an axis of its own.
        unit: "record", or "person" where rows belong to persons.
        secret_weight: whether it is secret how much all rows count together, though the number of records is public.
    """

    n: int
    p: int
    sparse: bool = False
    dtype: Any = float
    outputs: int = 1
    classes: Any = None
    marks: tuple[str, ...] = ()
    single_target: bool = True
    unit: str = "record"
    secret_weight: bool = False


class Planned(Protocol):
    """A fit with every public choice made."""

    @property
    def plan(self) -> Plan:
        """What it will release."""

    @property
    def declared(self) -> tuple[str, ...]:
        """What the user declares beyond it; the certificate carries it as marks."""

    def solve(self, session: Session) -> Any:
        """Run the plan on the user's records, seen through the plan's public maps."""
