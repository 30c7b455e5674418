"""What ``open_records`` opens: a source for each type of data."""

from tacit._registry import load_folder
from tacit.records.sources.base import BATCH, SOURCES, Coded, Column, Field, Source, find_source, source

__all__ = ["BATCH", "SOURCES", "Coded", "Column", "Field", "Source", "find_source", "source"]

load_folder(__name__, __path__)
