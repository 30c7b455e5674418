"""Where records are: places that hand rows to the release layer, and to nobody else."""

from tacit.records.base import PLACES, Records, TargetMap
from tacit.records.design import Design
from tacit.records.mapped import Mapped
from tacit.records.memory import InMemory
from tacit.records.rows import Rows

__all__ = ["PLACES", "Design", "InMemory", "Mapped", "Records", "Rows", "TargetMap"]
