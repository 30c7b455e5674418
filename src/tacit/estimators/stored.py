"""Models as descriptions that the codec writes, and back: a closed list of classes, by name."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from tacit import _codec, maps
from tacit._codec import described
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators import load_all
from tacit.estimators.base import ESTIMATORS
from tacit.estimators.rooms import check_room, sample_of
from tacit.estimators.selection import DPSelection
from tacit.maps.steps import COMPOSITE, PUBLIC

__all__ = ["CONTAINERS", "NOT_KEPT", "Reader", "Stored", "Writer", "is_private", "known_kinds"]

NOT_KEPT = ("ledger", "random_state")
"""Parameters that stay at home: a ledger belongs to the data, and a seed would let a reader subtract the noise."""
CONTAINERS = (Pipeline, ColumnTransformer, FeatureUnion)
_NAME = re.compile(r"_?[a-z][a-z0-9_]*")


# -- what stands for the things that the codec does not know --------------------------------------------------------


@described("model")
@dataclass(frozen=True)
class Stored:
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


def known_kinds() -> dict[str, type[Any]]:
    """What may be saved and loaded, by name: all estimators that were defined, public steps of ours and sklearn's."""
    load_all()
    maps.load_all()
    steps = [*PUBLIC, *COMPOSITE, *CONTAINERS]
    known = {kind.__name__: kind for kind in steps if kind.__module__.startswith(("tacit.", "sklearn."))}
    return {**known, DPSelection.__name__: DPSelection, **ESTIMATORS}


def is_private(kind: type[Any]) -> bool:
    """Whether models of the class have a certificate of their own."""
    return kind is DPSelection or kind.__name__ in ESTIMATORS


def _is_made_again(kind: type[Any]) -> bool:
    """Whether it is a public map of ours: a function of its parameters and the number of columns."""
    return kind.__module__.startswith("tacit.maps.")


@dataclass(frozen=True)
class Writer:
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

    def _model(self, value: Any, kind: type[Any]) -> Stored:
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
        return Stored(kind.__name__, self._encodable(given, kind), self._encodable(fitted, kind))

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


@dataclass(frozen=True)
class Reader:
    """Puts models and certificates in the place of descriptions."""

    kinds: dict[str, type[Any]]
    certificates: list[Certificate]
    size: int

    def build(self, value: Any) -> Any:
        """The value as it was before ``Writer``."""
        if isinstance(value, Stored):
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

    def _model(self, stored: Stored) -> Any:
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

    def _make_again(self, step: Any, stored: Stored) -> None:
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
