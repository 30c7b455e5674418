"""``open_records``: a table anywhere, as records that models are fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.errors import InvalidInput
from tacit.inputs.parameters import parse_memory
from tacit.records.base import Records
from tacit.records.clustered import Clustered
from tacit.records.encoding import Encoder, check_columns, check_type, plain_features
from tacit.records.opened import Opened
from tacit.records.schema import Categories, Schema
from tacit.records.sources import Source, find_source
from tacit.records.sources.dask import DaskSource
from tacit.records.streamed import MEMORY, Streamed

__all__ = ["open_records"]

_NARROW = ("float32", "float16", "halffloat")


def open_records(
    source: Any,
    target: str | int | None = None,
    person: str | int | None = None,
    schema: Schema | Mapping[str, Any] | str | Path | None = None,
    *,
    memory: int | str = MEMORY,
    scratch: bool | str | Path | None = None,
    separator: str = ",",
) -> Opened:
    """Open a table that need not fit into memory; ``fit`` and ``predict`` of an estimator then take it.

    Nothing of what a row holds is read here, or before a fit is paid for; names, types and the number of rows are (one
    counting pass where no metadata tells). Names and types that do not fit are refused at once. A row whose *values* do
    not fit (missing, infinite, a label that is not listed) counts as nothing, silently: a message would tell about it.

    Args:
        source: a path of a Parquet or CSV file (gzipped, too) or of a folder of them; a pyarrow Table, Dataset or
            RecordBatchReader; a Polars DataFrame or LazyFrame; a DuckDB relation; a pandas frame; a numpy array or
            memory map; anything with ``__arrow_c_stream__``. On a cluster of Dask (docs/on_a_cluster.md): a DataFrame,
            an array, or a bag or list of paths that its workers read; rows stay there.
        target: the column to predict (of an array, its number); None for that of the schema, if it names one.
        person: the column of ids that say whose each row is; the certificate is then about persons. None for that of
            the schema, if it names one.
        schema: bounds and categories by column: a ``Schema``, its dictionary, or the path of its file. Its features are
            the model's, in this order. Without one, all columns of numbers but target and person are.
        memory: how much of a scratch copy may stay in memory: bytes, or "500 MB". What is beyond lies in a file.
        scratch: True to read the source once and copy its numbers, False to read it anew in every pass, or a folder for
            the copy. By default files and queries are copied, and tables in memory are not.
        separator: between the fields of a CSV file.

    Returns:
        The records.

    Raises:
        InvalidInput: if the source is of another kind, or its columns are not those that are asked for.

    >>> import numpy as np
    >>> from tacit import DPRidge, open_records
    >>> table = np.random.default_rng(0).uniform(-1, 1, (3000, 4))
    >>> records = open_records(table, target=3)
    >>> model = DPRidge(epsilon=1, delta=1e-6, feature_bounds=(-1, 1), target_bounds=(-1, 1), random_state=0)
    >>> model.fit(records).predict(records).shape
    (3000,)
    """
    if isinstance(source, Records):
        raise InvalidInput("source is open already: pass it to fit")
    found = find_source(source, separator)
    public = _schema(schema)
    public = None if public is None else public.resolved([field.name for field in found.fields])
    goal, owner = _roles(found, public, _name("target", target), _name("person", person))
    encoder = _encoder(found, public, goal, owner)
    classes = None if public is None or public.target is None else public.target.classes
    folder = Path(scratch) if isinstance(scratch, str | Path) else None
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"scratch: the folder {str(folder)!r} does not exist: create it first")
    if isinstance(found, DaskSource):
        if scratch is not None:
            raise InvalidInput("scratch has no effect on a cluster, whose workers hold the records: leave it out")
        return Clustered(found, encoder, classes)
    copied = found.slow if scratch is None else bool(scratch)
    if found.once and scratch is False:
        raise InvalidInput(f"source is {found.what}, which can be read once: leave scratch out, so that it is copied")
    return Streamed(
        found,
        encoder,
        copied=copied,
        memory=MEMORY if (held := parse_memory(memory)) is None else held,
        folder=folder,
        classes=classes,
    )


def _name(role: str, column: object) -> str | None:
    if column is None or isinstance(column, str):
        return column
    if isinstance(column, int | np.integer) and not isinstance(column, bool):
        return str(column)
    raise InvalidInput(f"{role} must be the name of a column of the source (of an array, its number)")


def _roles(
    source: Source, schema: Schema | None, target: str | None, person: str | None
) -> tuple[str | None, str | None]:
    """Target and person: what was said, else what the schema says, if there is such a column."""
    if schema is None:
        return target, person
    names = [field.name for field in source.fields]
    stated = None if schema.target is None else schema.target.column
    return target or (stated if stated in names else None), person or (
        schema.person if schema.person in names else None
    )


def _schema(schema: Any) -> Schema | None:
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema.from_dict(dict(schema))
    if isinstance(schema, str | Path):
        return Schema.read(Path(schema))
    raise InvalidInput("schema must be a tacit Schema, a dictionary, or the path of a JSON file")


def _encoder(source: Source, schema: Schema | None, target: str | None, person: str | None) -> Encoder:
    """What to read, and as what; every fault that names and types tell is found here."""
    needed = [name for name in (target, person) if name is not None]
    if schema is None:
        names = [field.name for field in source.fields]
        for role, name in (("target", target), ("person", person)):
            if name is not None and name not in names:
                shown = ", ".join(map(repr, names[:8])) if source.named else f"0 … {len(names) - 1}"
                hint = "" if any(field.kind == "text" for field in source.fields) else f": its columns are {shown}"
                raise InvalidInput(f"{role}: {source.what} has no column {name!r}{hint}")
        features = plain_features(source, needed)
    else:
        check_columns(source, schema, needed, strict=False)
        features = schema.features
        both = [feature.name for feature in features if feature.name in needed]
        if both:
            raise InvalidInput(f"{both[0]!r} is also among the features of the schema: remove it there")
    known = {field.name: field for field in source.fields}
    for feature in features:
        check_type(source, known[feature.name], feature.categories if isinstance(feature, Categories) else None)
    if target is not None and known[target].kind == "other":
        raise source.type_fault(known[target])
    if target is not None and schema is not None and schema.target is not None:
        check_type(source, known[target], schema.target.classes)
    plain = [known[feature.name].type for feature in features if not isinstance(feature, Categories)]
    narrow = bool(plain) and len(plain) == len(features) and set(plain) <= set(_NARROW)
    if person is not None and known[person].kind == "other":
        raise source.type_fault(known[person])
    return Encoder(features, np.float32 if narrow else np.float64, target, person=person)
