"""Models on disk: JSON with the certificate inside, never pickle; loading certifies again and runs no foreign code.

    {"tacit": "model", "format": 2, "model": …, "certificates": […], "extra": …, "digest": …}

A model is a class by name, its parameters and its fitted attributes, all written by ``tacit._codec``; models inside of
it (steps, winners of a search) look the same. Certificates are listed once, and certified again before they are
believed. Public feature maps are stored by their parameters and made again. The digest notices damage and careless
edits; it is no signature: whoever writes a file can write its digest, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tacit import _codec
from tacit._files import read_whole, write_whole
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.estimators.rooms import check_room
from tacit.estimators.stored import CONTAINERS, Reader, Stored, Writer, is_private, known_kinds
from tacit.maps.steps import COMPOSITE, parts
from tacit.mechanism import Mechanism, Plan, Selection

__all__ = ["load_model", "load_model_and_extra", "save_model"]

FORMAT = 2
LONGEST_RUN = 10**6
"""Steps of a varying schedule, which certifying lays out in memory."""
MOST_PARTS = 32
"""Different mechanisms in all certificates of a file: certifying one takes up to a second."""
LONGEST_WORDS = 400
"""Of a message about a file."""


# -- writing --------------------------------------------------------------------------------------------------------


def save_model(model: Any, path: str | os.PathLike[str], *, extra: Any = None) -> None:
    """Write a fitted model and its certificate as JSON, whole or not at all.

    The file holds what the model may show: parameters, fitted attributes, notes and the certificate. A ledger and a
    seed are left out. People's factors are in it if they were released, and only then.

    Args:
        model: a fitted estimator, search or scaler of Tacit's; or a Pipeline, ColumnTransformer or FeatureUnion of them
            and of public steps.
        path: where to; an existing file is replaced.
        extra: plain JSON data to keep with it.

    Raises:
        InvalidInput: if the model is not fitted, not ours, holds something that a file cannot hold (a function), or has
            other parameters than at its fit.

    >>> import tempfile, pathlib, numpy as np
    >>> from tacit import DPRidge, load_model
    >>> X = np.random.default_rng(0).uniform(0, 1, (500, 2))
    >>> model = DPRidge(epsilon=1.0, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 2)).fit(X, X.sum(axis=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(model, pathlib.Path(folder) / "model.json")
    ...     again = load_model(pathlib.Path(folder) / "model.json")
    >>> bool((again.predict(X) == model.predict(X)).all()), again.certificate_ == model.certificate_
    (True, True)
    """
    kinds = known_kinds()
    if kinds.get(type(model).__name__) is not type(model):
        raise InvalidInput(
            f"a {type(model).__name__} cannot be saved: save_model takes estimators of tacit's by their own classes, "
            "and pipelines of them"
        )
    try:
        _check_whole_model(model)
    except NotCovered as error:
        raise InvalidInput(f"the model cannot be saved: {error}") from None
    writer = Writer(kinds)
    stored = _codec.encode(writer.lay_down(model))
    _check_work([certificate.plan for certificate in writer.certificates])
    document = {
        "tacit": "model",
        "format": FORMAT,
        "model": stored,
        "certificates": [certificate.to_dict() for certificate in writer.certificates],
        "extra": extra,
    }
    try:
        document["digest"] = _digest(document)
        data = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the model cannot be written as JSON: {_in_short(error)}") from None
    for step in writer.steps:
        check_room(step, step.n_features_in_, len(data))
    write_whole(Path(path), data + b"\n")


# -- reading --------------------------------------------------------------------------------------------------------


def load_model(path: str | os.PathLike[str]) -> Any:
    """Read what ``save_model`` wrote: the model predicts as before, to the bit, and is certified again.

    The digest notices damage and careless edits; it is no signature: whoever writes a file can write its digest, too.

    Args:
        path: the file.

    Returns:
        A fitted model; its ``ledger`` and ``random_state`` are None.
    """
    return load_model_and_extra(path)[0]


def load_model_and_extra(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """As ``load_model``, with the extra data that was saved beside the model.

    Args:
        path: the file.

    Returns:
        The model and the extra data (None if there is none).

    Raises:
        InvalidInput: if the file is not there, is not a model of ours, was edited, or holds shapes and numbers that do
            not fit.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"path must name a file, got {type(path).__name__}")
    data = read_whole(Path(path))
    try:
        return _read(data)
    except TacitError as error:
        raise InvalidInput(f"{path} is not a model that can be used: {_in_short(error)}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a model: it is not UTF-8 text") from None
    except RecursionError:
        raise InvalidInput(f"{path} is not a model: it is nested too deeply") from None
    except MemoryError:
        raise InvalidInput(f"{path} is not a model that can be used: it does not fit into memory") from None
    except json.JSONDecodeError:
        raise InvalidInput(f"{path} is not a model: it is not JSON") from None
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        why = f"{type(error).__name__}: {_in_short(error)}"
        raise InvalidInput(f"{path} is not a model that can be used: {why}") from None


def _read(data: bytes) -> tuple[Any, Any]:
    document = json.loads(data.decode(), parse_constant=_no_constant)
    _check_document(document)
    kinds = known_kinds()
    stored = _codec.decode(document["model"])
    if not isinstance(stored, Stored):
        raise InvalidInput("save_model did not write it")
    reader = Reader(kinds, _certified(document["certificates"]), len(data))
    model = reader.build(stored)
    _check_whole_model(model)
    return model, document["extra"]


def _check_document(document: Any) -> None:
    if not isinstance(document, dict) or document.get("tacit") != "model":
        raise InvalidInput("save_model did not write it")
    if document.get("format") == 1:
        raise InvalidInput("Tacit 0.1 wrote it, whose models this version does not load: fit the model again")
    if document.get("format") != FORMAT:
        raise InvalidInput(f"it has another format than {FORMAT}; load it with the version that wrote it")
    if document.get("digest") != _digest(document):
        raise InvalidInput("it was damaged or edited after it was saved; do not rely on it, fit or copy it again")


def _certified(written: Any) -> list[Certificate]:
    """The certificates, made again; how much work that is, is known before."""
    texts = [json.dumps(one) for one in written]
    plans = [_codec.decode(one["plan"]) for one in written]
    _check_work(plans)
    return [Certificate.from_json(text) for text in texts]


def _check_work(plans: list[Any]) -> None:
    for plan in plans:
        _check_length(plan)
    if len({part for plan in plans for part in plan}) > MOST_PARTS:
        raise InvalidInput(
            f"its certificates have more than {MOST_PARTS} different parts, and files hold at most that many: save its "
            "steps one by one"
        )


def _check_length(plan: Any) -> None:
    if not isinstance(plan, Plan):
        raise InvalidInput("it has no plan")
    for part in plan:
        for one in (*part.base, *part.holdout) if isinstance(part, Selection) else (part,):
            if isinstance(one, Mechanism) and len(one.ratio) > LONGEST_RUN and not one.ratio.is_constant:
                raise InvalidInput(
                    f"its plan has {len(one.ratio)} releases in {one.steps} steps, and files hold at most "
                    f"{LONGEST_RUN} of noise that varies: take larger batches"
                )


# -- both -----------------------------------------------------------------------------------------------------------


def _check_whole_model(model: Any) -> None:
    """Every private part is fitted and consistent, and every other part is public."""
    for _ in parts(model, type(model).__name__):
        pass
    for one in _inside(model):
        if isinstance(getattr(one, "certificate_", None), Certificate):
            _check_names(one)
            one._check_fitted()


def _inside(value: Any) -> Iterator[Any]:
    """Fitted models of ours, in pipelines and searches."""
    if isinstance(value, str) and value not in ("passthrough", "drop"):
        raise InvalidInput("it holds a word for a step: save_model did not write it")
    if is_private(type(value)):
        yield value
        yield from _inside(getattr(value, "best_estimator_", None))
    elif isinstance(value, CONTAINERS) or type(value) in COMPOSITE:
        listed: Callable[[Any], Any] = COMPOSITE.get(type(value), lambda step: step.transformers_)
        for entry in listed(value):
            yield from _inside(entry[1])


def _check_names(model: Any) -> None:
    for name, value in vars(model).items():
        if _holds_nan(value):
            raise InvalidInput(f"{name} holds NaN: a model file holds numbers only")


def _holds_nan(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "f" and bool(np.isnan(value).any())
    if isinstance(value, tuple | list):
        return any(map(_holds_nan, value))
    if dataclasses.is_dataclass(value) and _codec.is_described(value):
        return any(_holds_nan(getattr(value, entry.name)) for entry in dataclasses.fields(value))
    return False


def _digest(document: dict[str, Any]) -> str:
    rest = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _in_short(error: Exception) -> str:
    """One line, also if it quotes what the file holds."""
    text = " ".join(str(error).split())
    return text if len(text) <= LONGEST_WORDS else f"{text[:LONGEST_WORDS]}…"


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput(f"it holds {name}")
