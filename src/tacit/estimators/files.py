"""Models on disk: JSON with the certificate inside, never pickle; loading certifies again and runs no foreign code.

    {"tacit": "model", "format": 2, "model": …, "certificates": […], "extra": …, "digest": …}

A model is a class by name, its parameters and its fitted attributes, all written by ``tacit._codec``; models inside of it
(steps, winners of a search) look the same. Certificates are listed once, and certified again before they are believed.
Public feature maps are stored by their parameters and made again. The digest notices damage and careless edits; it is
no signature: whoever writes a file can write its digest, too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from scipy import stats
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from tacit import _codec, maps
from tacit._codec import described
from tacit._files import read_whole, write_whole
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, TacitError
from tacit.estimators import load_all
from tacit.estimators.base import ESTIMATORS
from tacit.estimators.rooms import check_room, sample_of
from tacit.estimators.selection import DPSelection
from tacit.maps.steps import COMPOSITE, PUBLIC, parts
from tacit.mechanism import Mechanism, Plan, Selection

__all__ = ["load_model", "load_model_and_extra", "save_model"]

FORMAT = 2
NOT_KEPT = ("ledger", "random_state")
"""Parameters that stay at home: a ledger belongs to the data, and a seed would let a reader subtract the noise."""
LONGEST_RUN = 10**6
"""Steps of a varying schedule, which certifying lays out in memory."""
MOST_PARTS = 1000
"""Mechanisms in all certificates of a file."""
LONGEST_WORDS = 400
"""Of a message about a file."""
_NAME = re.compile(r"_?[a-z][a-z0-9_]*")
_CONTAINERS = (Pipeline, ColumnTransformer, FeatureUnion)


# -- what stands for the things that the codec does not know --------------------------------------------------------


@described("model")
@dataclass(frozen=True)
class _Stored:
    """A model: the name of its class, parameters, and fitted attributes (none of one that is not fitted)."""

    kind: str
    parameters: dict[str, Any]
    fitted: dict[str, Any]


@described("certificate")
@dataclass(frozen=True)
class _Certified:
    """A certificate, by its place in the file."""

    index: int


@described("slice")
@dataclass(frozen=True)
class _Slice:
    ends: tuple[Any, ...]


@described("dtype")
@dataclass(frozen=True)
class _Type:
    """A type of numpy's numbers: as a dtype, or as its class."""

    name: str
    scalar: bool

    def __post_init__(self) -> None:
        if self.name not in np.sctypeDict:
            raise InvalidInput("it names a type of numbers that this version does not know")


@described("distribution")
@dataclass(frozen=True)
class _Distribution:
    """A distribution of scipy's, in the space of a search."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]


def _kinds() -> dict[str, type[Any]]:
    """What may be saved and loaded, by name: every estimator that was defined, and public steps of ours and sklearn's."""
    load_all()
    maps.load_all()
    steps = [*PUBLIC, *COMPOSITE, *_CONTAINERS]
    known = {kind.__name__: kind for kind in steps if kind.__module__.startswith(("tacit.", "sklearn."))}
    return {**known, DPSelection.__name__: DPSelection, **ESTIMATORS}


def _is_private(kind: type[Any]) -> bool:
    return kind is DPSelection or kind.__name__ in ESTIMATORS


def _is_made_again(kind: type[Any]) -> bool:
    """Whether it is a public map of ours: a function of its parameters and the number of columns."""
    return kind.__module__.startswith("tacit.maps.")


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
    kinds = _kinds()
    if kinds.get(type(model).__name__) is not type(model):
        raise InvalidInput(
            f"a {type(model).__name__} cannot be saved: save_model takes estimators of tacit's by their own classes, "
            "and pipelines of them"
        )
    _check_whole_model(model)
    writer = _Writer(kinds)
    stored = _codec.encode(writer.lay_down(model))
    for certificate in writer.certificates:
        _check_length(certificate.plan)
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


@dataclass(frozen=True)
class _Writer:
    """Puts descriptions in the place of models and certificates."""

    kinds: dict[str, type[Any]]
    certificates: list[Certificate] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)

    def lay_down(self, value: Any) -> Any:
        """The value as the codec takes it."""
        kind = type(value)
        if self.kinds.get(kind.__name__) is kind:
            return self._model(value, kind)
        if isinstance(value, Certificate):
            if value not in self.certificates:
                self.certificates.append(value)
            return _Certified(self.certificates.index(value))
        if kind in (list, tuple):
            return kind(self.lay_down(item) for item in value)
        if kind is dict:
            return {key: self.lay_down(item) for key, item in value.items()}
        if kind is slice:
            return _Slice((value.start, value.stop, value.step))
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
            return _Type(np.dtype(value).name, isinstance(value, type))
        if hasattr(value, "rvs") and hasattr(value, "dist"):
            return _Distribution(value.dist.name, tuple(map(self.lay_down, value.args)), self.lay_down(value.kwds))
        if _codec.is_described(value) and hasattr(value, "certificate"):
            return dataclasses.replace(value, certificate=self.lay_down(value.certificate))
        return value

    def _model(self, value: Any, kind: type[Any]) -> _Stored:
        given = {name: item for name, item in value.get_params(deep=False).items() if name not in NOT_KEPT}
        fitted = {name: item for name, item in vars(value).items() if name not in {*given, *NOT_KEPT}}
        if kind is ColumnTransformer and fitted:  # a selector has made its choice
            chosen = zip(value.transformers, value._columns, strict=True)
            given["transformers"] = [(name, step, columns) for (name, step, _), columns in chosen]
        if _is_made_again(kind):
            fitted = {name: item for name, item in fitted.items() if name in ("n_features_in_", "feature_names_in_")}
            if fitted:
                self.steps.append(value)
                fitted["sample"] = sample_of(value)
        return _Stored(kind.__name__, self._encodable(given, kind), self._encodable(fitted, kind))

    def _encodable(self, values: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
        """Laid down in order of their names; what the codec refuses is refused here, by name."""
        out = {}
        for name, value in sorted(values.items()):
            out[name] = self.lay_down(value)
            try:
                _codec.encode(out[name])
            except InvalidInput as error:
                raise InvalidInput(f"{name} of this {kind.__name__} cannot be saved: {error}") from None
        return out


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
    kinds = _kinds()
    stored = _codec.decode(document["model"])
    if not isinstance(stored, _Stored):
        raise InvalidInput("save_model did not write it")
    reader = _Reader(kinds, _certified(document["certificates"]), len(data))
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
    for plan in plans:
        _check_length(plan)
    if sum(map(len, plans)) > MOST_PARTS:
        raise InvalidInput(f"its certificates have more than {MOST_PARTS} parts: it is none of ours")
    return [Certificate.from_json(text) for text in texts]


def _check_length(plan: Any) -> None:
    if not isinstance(plan, Plan):
        raise InvalidInput("it has no plan")
    for part in plan:
        for one in (*part.base, *part.holdout) if isinstance(part, Selection) else (part,):
            if isinstance(one, Mechanism) and len(one.ratio) > LONGEST_RUN and not one.ratio.is_constant:
                raise InvalidInput(
                    f"its plan has {len(one.ratio)} releases in {one.steps} steps, and files hold at most {LONGEST_RUN} "
                    "with noise that varies: take larger batches"
                )


@dataclass(frozen=True)
class _Reader:
    """Puts models and certificates in the place of descriptions."""

    kinds: dict[str, type[Any]]
    certificates: list[Certificate]
    size: int

    def build(self, value: Any) -> Any:
        """The value as it was before ``_Writer``."""
        if isinstance(value, _Stored):
            return self._model(value)
        if isinstance(value, _Certified):
            return self.certificates[value.index]
        if type(value) in (list, tuple):
            return type(value)(self.build(item) for item in value)
        if type(value) is dict:
            return {key: self.build(item) for key, item in value.items()}
        if isinstance(value, _Slice):
            return slice(*value.ends)
        if isinstance(value, _Type):
            return np.sctypeDict[value.name] if value.scalar else np.dtype(value.name)
        if isinstance(value, _Distribution):
            return self._distribution(value)
        if _codec.is_described(value) and hasattr(value, "certificate"):
            return dataclasses.replace(value, certificate=self.build(value.certificate))
        return value

    def _model(self, stored: _Stored) -> Any:
        kind = self.kinds.get(stored.kind) if isinstance(stored.kind, str) else None
        if kind is None:
            raise InvalidInput("this version does not know its class")
        strange = sorted(stored.parameters.keys() - (set(kind._get_param_names()) - set(NOT_KEPT)))
        if strange:
            raise InvalidInput(f"{stored.kind} has no parameter {strange[0][:40]!r} that a file may set")
        model: Any = kind(**{name: self.build(value) for name, value in stored.parameters.items()})
        if stored.fitted and _is_made_again(kind):
            self._make_again(model, stored)
            return model
        for name, value in stored.fitted.items():
            if not _NAME.fullmatch(name) or hasattr(kind, name) or name in kind._get_param_names():
                raise InvalidInput(f"a {stored.kind} has no attribute {name[:40]!r}")
            setattr(model, name, self.build(value))
        return model

    def _make_again(self, step: Any, stored: _Stored) -> None:
        p = stored.fitted["n_features_in_"]
        check_room(step, p, self.size)
        step.fit(np.zeros((1, p)))
        if "feature_names_in_" in stored.fitted:
            step.feature_names_in_ = stored.fitted["feature_names_in_"]
        found, sample = sample_of(step), stored.fitted["sample"]
        if np.shape(found) != np.shape(sample) or not np.allclose(found, sample, rtol=1e-6, atol=1e-6):
            raise InvalidInput(
                f"its features ({stored.kind}) are not those that it was fitted with: load it with the version that "
                "wrote it, or fit again"
            )

    def _distribution(self, value: _Distribution) -> Any:
        found = getattr(stats, value.name, None) if isinstance(value.name, str) else None
        if not isinstance(found, stats.rv_continuous | stats.rv_discrete):
            raise InvalidInput("it names a distribution that scipy does not have")
        return found(*value.args, **value.options)


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
    if _is_private(type(value)):
        yield value
        yield from _inside(getattr(value, "best_estimator_", None))
    elif isinstance(value, _CONTAINERS) or type(value) in COMPOSITE:
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
