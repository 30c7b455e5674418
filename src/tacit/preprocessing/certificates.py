"""The certificate of a whole pipeline: what its private steps cost together, if every other step is public."""

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
from tacit.preprocessing.bounds import BoundsScaler
from tacit.preprocessing.one_hot import PublicOneHotEncoder

__all__ = ["certificate_of", "composite_step", "is_public", "parts", "public_step"]

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
    BoundsScaler: _always,
    PublicOneHotEncoder: _always,
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
    Tacit carry a mark: the user vouches for it.

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


def is_public(step: Any) -> bool:
    """Whether the exact type of a step was declared public or composite; conditions on its parameters are not checked.

    Args:
        step: an instance.

    Returns:
        True or False.
    """
    return type(step) in PUBLIC or type(step) in COMPOSITE


def certificate_of(model: Any) -> Certificate:
    """What a fitted pipeline or estimator promises: the sum of the certificates of its private steps.

    Steps with a certificate add up (Gaussian ones exactly); steps that learn nothing from records are free; any other
    step makes the whole pipeline uncertified, because its parameters tell about the data.

    Formal guarantee: everything learned by the *last* fit of ``model`` satisfies the returned certificate.

    Assumptions: the steps were fitted once, on the same records; earlier fits (a grid search, a repeated call) are
    known to the ledger only. A FunctionTransformer must treat each record by itself and hold no statistics of the
    data: the certificate carries a mark that says so. A certificate is about what was learned; transformed records are
    still private.

    Args:
        model: a fitted Pipeline, ColumnTransformer, FeatureUnion, or one estimator; nested as you like.

    Returns:
        The certificate.

    Raises:
        NotCovered: if a step learned from the data without a certificate, or nothing was private at all.
    """
    found = list(parts(model, type(model).__name__))
    certificates = [part for part in found if isinstance(part, Certificate)]
    if not certificates:
        raise NotCovered(
            "nothing in this model is private, so there is no ε to state: every step is public or learned nothing",
            axis="pipeline",
        )
    total = certificates[0]
    for certificate in certificates[1:]:
        total = total + certificate
    for mark in found:
        total = total.marked(mark) if isinstance(mark, str) else total
    return total


def parts(step: Any, name: str) -> Iterator[Certificate | str]:
    """Certificates of the private parts, and marks of those that the user vouches for; other parts are refused.

    Args:
        step: a step, nested as you like.
        name: where it stands, for messages.

    Yields:
        A certificate or a mark.
    """
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return
    if type(step) in COMPOSITE:
        yield from _vouched(step, name)
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
    yield from _vouched(step, name)


def _vouched(step: Any, name: str) -> Iterator[str]:
    """The mark of a class that somebody else decorated."""
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
