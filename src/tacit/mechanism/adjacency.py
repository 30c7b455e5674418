"""What "one person more or less" means: the neighbouring relation of a guarantee."""

from __future__ import annotations

from enum import Enum

from tacit._codec import described
from tacit.errors import InvalidInput

__all__ = ["Adjacency"]


@described("Adjacency")
class Adjacency(Enum):
    """The relation between neighbouring data sets; guarantees under different ones never mix.

    For a sum of per-record contributions of ℓ2 norm at most C, the sum moves by at most
    ``sum_factor``·C: 2C when a record is replaced, C otherwise. The number of records n is public under
    REPLACE_ONE and ZERO_OUT, and secret under ADD_REMOVE.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    def __init__(self, word: str) -> None:
        self.sum_factor = 2.0 if word == "replace-one" else 1.0
        """How far a sum of unit-norm contributions can move between neighbours."""

    @property
    def sentence(self) -> str:
        """The relation in words."""
        return {
            Adjacency.ADD_REMOVE: "one record is added or removed",
            Adjacency.ZERO_OUT: "one record's contribution is replaced by nothing (the number of records is public)",
            Adjacency.REPLACE_ONE: "one record is replaced by an arbitrary other one (the number of records is public)",
        }[self]

    @classmethod
    def parse(cls, value: object) -> Adjacency:
        """An Adjacency from itself, its value ("replace-one") or its name ("REPLACE_ONE").

        Args:
            value: a member, or a string in any case with dashes or underscores.

        Returns:
            The member.

        Raises:
            InvalidInput: if nothing matches.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            word = value.strip().lower().replace("_", "-")
            for member in cls:
                if member.value == word:
                    return member
        options = ", ".join(repr(member.value) for member in cls)
        raise InvalidInput(f"adjacency must be one of {options}, got {value!r}")
