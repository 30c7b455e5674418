"""Where records are: places that hand rows to the release layer, and to nobody else."""

from tacit._registry import load_folder
from tacit.records.base import PLACES, Records, TargetMap
from tacit.records.memory import InMemory
from tacit.records.rows import Design, Integers, Mapped, Rows

__all__ = ["PLACES", "Design", "InMemory", "Integers", "Mapped", "Records", "Rows", "TargetMap"]

load_folder(__name__, __path__)
