"""Steps of pipelines: which classes learn nothing from records, and what the others promise.

The registries hold exact types: a subclass may learn. A class is added where it is defined, by a decorator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sklearn import preprocessing as sk
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.feature_extraction import FeatureHasher
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.pipeline import FeatureUnion, Pipeline

from tacit.accounting import Certificate
from tacit.errors import InvalidInput, NotCovered

__all__ = ["NORMS", "composite_step", "is_public", "norm_of_rows", "parts", "public_step"]

T = TypeVar("T")


def _always(step: Any) -> str | None:
    return None


def _explicit_categories(step: Any) -> str | None:
    """Why an encoder of scikit-learn's is not public, or None."""
    if isinstance(step.categories, str) or step.min_frequency is not None or step.max_categories is not None:
        return "its categories come from the data; list them (categories=[[...], ...]), or use PublicOneHotEncoder"
    if step.handle_unknown != "ignore":
        return "it raises or warns if a record holds another value; set handle_unknown='ignore'"
    if step.drop is not None:
        return "with drop it warns if a record holds another value; use PublicOneHotEncoder(drop='first')"
    return None


def _constant_fill(step: Any) -> str | None:
    """Why an imputer is not public, or None."""
    if step.strategy != "constant" or step.add_indicator:
        return "it fills in statistics of the data; set strategy='constant', add_indicator=False"
    if not step.keep_empty_features:
        return "it drops columns in which every record misses its value; set keep_empty_features=True"
    return None


PUBLIC: dict[type, Callable[[Any], str | None]] = {
    sk.FunctionTransformer: _always,
    sk.Normalizer: _always,
    sk.Binarizer: _always,
    sk.PolynomialFeatures: _always,
    AdditiveChi2Sampler: _always,
    FeatureHasher: _always,
    sk.OneHotEncoder: _explicit_categories,
    SimpleImputer: _constant_fill,
}
"""Steps that learn nothing from records (exact types: a subclass may), each with the condition under which."""

COMPOSITE: dict[type, Callable[[Any], Iterable[tuple[str, Any]]]] = {
    Pipeline: lambda step: step.steps,
    FeatureUnion: lambda step: step.transformer_list,
}
"""Steps that are as public as their parts, each with a function that lists those."""

NORMS: dict[type, Callable[[Any], float]] = {}
"""Steps other than feature maps that certify a norm of their rows, each with a function of a fitted instance.

Not scikit-learn's Normalizer: rounding in float32 makes some of its rows longer than 1.
"""

REMEDIES = {
    "StandardScaler": "use DPStandardScaler, or BoundsScaler with public bounds",
    "MinMaxScaler": "use BoundsScaler with public bounds",
    "MaxAbsScaler": "use BoundsScaler with public bounds",
    "RobustScaler": "use DPQuantileScaler",
    "QuantileTransformer": "use DPQuantileScaler",
    "PowerTransformer": "apply a public function (FunctionTransformer), then DPStandardScaler",
    "OrdinalEncoder": "use PublicOneHotEncoder",
    "GridSearchCV": "its scores come from private folds: choose settings on public data, and fit once",
    "RandomizedSearchCV": "its scores come from private folds: choose settings on public data, and fit once",
}


def public_step(kind: type[T]) -> type[T]:
    """Class decorator: this very class learns nothing from records, and treats each by itself.

    A subclass is not trusted unless it is decorated itself. Certificates of pipelines with a class from outside of
    Tacit carry a mark: the user declares it.

    Args:
        kind: the class.

    Returns:
        The class.
    """
    PUBLIC[kind] = _always
    return kind


def composite_step(parts_of: Callable[[Any], Iterable[tuple[str, Any]]]) -> Callable[[type[T]], type[T]]:
    """Class decorator: this very class learns what its parts learn, and nothing else.

    Args:
        parts_of: lists the names and parts of an instance.

    Returns:
        The decorator.
    """

    def note(kind: type[T]) -> type[T]:
        COMPOSITE[kind] = parts_of
        return kind

    return note


def norm_of_rows(norm: Callable[[Any], float]) -> Callable[[type[T]], type[T]]:
    """Class decorator: rows of this very class's output are within ``norm(fitted instance)``, whatever its input.

    Args:
        norm: from a fitted instance to an ℓ2 norm, before rounding.

    Returns:
        The decorator.
    """

    def note(kind: type[T]) -> type[T]:
        NORMS[kind] = norm
        return kind

    return note


def is_public(step: Any) -> bool:
    """Whether the exact type of a step was declared public or composite; conditions on its parameters are not checked.

    Args:
        step: an instance.

    Returns:
        True or False.
    """
    return type(step) in PUBLIC or type(step) in COMPOSITE


def parts(step: Any, name: str) -> Iterator[Certificate | str]:
    """Certificates of the private parts, and marks of those that the user declares public; other parts are refused.

    Args:
        step: a step, nested as you like.
        name: where it stands, for messages.

    Yields:
        A certificate or a mark.
    """
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return
    if type(step) in COMPOSITE:
        yield from _declared(step, name)
        for inner, part in COMPOSITE[type(step)](step):
            yield from parts(part, f"{name} → {inner}")
    elif type(step) is ColumnTransformer:
        _check_columns(step, name)
        for inner, part, _ in step.transformers_:
            yield from parts(part, f"{name} → {inner}")
    elif type(step) in PUBLIC:
        yield from _public(step, name)
    else:
        yield _private(step, name)


def _public(step: Any, name: str) -> Iterator[str]:
    reason = PUBLIC[type(step)](step)
    if reason is not None:
        raise NotCovered(f"step {name!r} ({type(step).__name__}) is not public: {reason}", axis=name)
    if isinstance(step, sk.FunctionTransformer) and (step.func is not None or step.inverse_func is not None):
        yield f"declared: the function of step {name!r} treats each record by itself and knows nothing else of the data"
    yield from _declared(step, name)


def _declared(step: Any, name: str) -> Iterator[str]:
    """The mark of a class that was decorated outside of Tacit."""
    if not type(step).__module__.startswith(("tacit.", "sklearn.")):
        yield f"declared: step {name!r} ({type(step).__name__}) learns nothing from records and treats each by itself"


def _private(step: Any, name: str) -> Certificate:
    certificate = getattr(step, "certificate_", None)
    if isinstance(certificate, Certificate):
        return certificate
    kind = type(step).__name__
    if type(step).__module__.startswith("tacit."):
        raise InvalidInput(f"step {name!r} ({kind}) is not fitted: fit it first, a certificate is about a fit")
    remedy = REMEDIES.get(kind, "use a private estimator (one with certificate_), or fit it on public data only")
    raise NotCovered(
        f"step {name!r} ({kind}) may have learned from the data without a certificate: {remedy}", axis=name
    )


def _check_columns(step: Any, name: str) -> None:
    """Columns chosen by a function of the data are learned, too; a selector by name or type is not."""
    if not hasattr(step, "transformers_"):
        raise InvalidInput(f"step {name!r} (ColumnTransformer) is not fitted: fit it first")
    sparse = step.sparse_output_ or any(getattr(part, "sparse_output", False) for _, part, _ in step.transformers_)
    if sparse and 0 < step.sparse_threshold < 1:
        raise NotCovered(
            f"step {name!r} returns a sparse or a dense table by how many entries are zero, which one record can tip: "
            "set sparse_threshold=0",
            axis=name,
        )
    for inner, _, chosen in step.transformers:
        if callable(chosen) and type(chosen) is not make_column_selector:
            raise NotCovered(
                f"step '{name} → {inner}' chooses its columns by a function that sees the data: list them", axis=name
            )
