"""Where records are: places that hand rows to the release layer, and to nobody else."""

from tacit._registry import load_folder
from tacit.records.base import PLACES, Records, TargetMap, row_weights
from tacit.records.integers import Integers
from tacit.records.memory import InMemory
from tacit.records.persons import MAX_ROWS, Persons, Shares
from tacit.records.rows import Design, Mapped, Rows

__all__ = [
    "MAX_ROWS",
    "PLACES",
    "Design",
    "InMemory",
    "Integers",
    "Mapped",
    "Persons",
    "Records",
    "Rows",
    "Shares",
    "TargetMap",
    "row_weights",
]

load_folder(__name__, __path__)
