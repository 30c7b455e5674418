"""Where records are: places that hand rows to the release layer, and to nobody else."""

from tacit._registry import load_folder
from tacit.records.base import PLACES, Header, Records, TargetMap, row_weights
from tacit.records.integers import Integers
from tacit.records.memory import InMemory
from tacit.records.opened import Opened
from tacit.records.opening import open_records
from tacit.records.persons import MAX_ROWS, Persons, Shares
from tacit.records.rows import Design, Mapped, Rows
from tacit.records.schema import Schema
from tacit.records.streamed import Streamed
from tacit.records.table_encoder import TableEncoder

__all__ = [
    "MAX_ROWS",
    "PLACES",
    "Design",
    "Header",
    "InMemory",
    "Integers",
    "Mapped",
    "Opened",
    "Persons",
    "Records",
    "Rows",
    "Schema",
    "Shares",
    "Streamed",
    "TableEncoder",
    "TargetMap",
    "open_records",
    "row_weights",
]

load_folder(__name__, __path__)
