"""Whether public steps are finite for every finite record: one that raises or overflows would tell of a record.

In ``features=`` of an estimator a record on which the steps fail counts as zero (``PublicSteps``). In scikit-learn's
own pipelines nothing stands between a step and the next one: a single value may end the fit, and that is an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf, log10
from typing import Any

from sklearn import preprocessing as sk
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.pipeline import FeatureUnion, Pipeline

from tacit.errors import NotCovered
from tacit.maps.feature_map import FeatureMap
from tacit.maps.one_hot import PublicOneHotEncoder
from tacit.maps.steps import NORMS, is_public

__all__ = ["check_finite"]

Span = tuple[float, float]
"""Ends of an interval that holds every entry of a table; infinite ends: finite entries of any size."""
ANY: Span = (-inf, inf)
MOST = 1e37
"""Entries up to this size are certified not to overflow; float32 ends at 3.4e38."""


def check_finite(model: Any, name: str) -> Iterator[str]:
    """Refuse public steps that can fail, overflow or warn on one finite record.

    Args:
        model: fitted: a step, nested as you like.
        name: where it stands, for messages.

    Yields:
        Marks of functions that the user declares finite.

    Raises:
        NotCovered: naming the step and the remedy.
    """
    marks: list[str] = []
    _after(model, ANY, name, marks)
    yield from marks


def _after(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    """The interval of a step's output, given that of its input."""
    if step is None or isinstance(step, str):  # "passthrough"
        return span
    if type(step) is Pipeline:
        for inner, part in step.steps:
            span = _after(part, span, f"{name} → {inner}", marks)
        return span
    if type(step) is FeatureUnion:
        weights = step.transformer_weights or {}
        return _hull(
            _scaled(_after(part, span, f"{name} → {inner}", marks), weights.get(inner, 1.0))
            for inner, part in step.transformer_list
            if not _dropped(part)
        )
    if type(step) is ColumnTransformer:
        listed = [(inner, part) for inner, part, _ in step.transformers_]
        return _hull(_after(part, span, f"{name} → {inner}", marks) for inner, part in listed if not _dropped(part))
    if type(step) in _SPANS:
        return _SPANS[type(step)](step, span, name, marks)
    return _of_norm(step)


def _dropped(part: Any) -> bool:
    return isinstance(part, str) and part == "drop"


def _of_norm(step: Any) -> Span:
    """Within the norm that a step certifies; steps of Tacit are finite for finite tables, also without one."""
    norm = inf
    if isinstance(step, FeatureMap) and is_public(step):
        norm = step._norm(None)
    elif type(step) in NORMS:
        norm = NORMS[type(step)](step)
    return -norm, norm


def _hull(spans: Iterable[Span]) -> Span:
    found = list(spans) or [(0.0, 0.0)]
    return min(low for low, _ in found), max(high for _, high in found)


def _scaled(span: Span, weight: float) -> Span:
    ends = [end * weight if weight else 0.0 for end in span]
    return min(ends), max(ends)


def _size(span: Span) -> float:
    return max(1.0, -span[0], span[1])


def _refused(step: Any, name: str, why: str, remedy: str) -> NotCovered:
    return NotCovered(
        f"step {name!r} ({type(step).__name__}) {why}, so that one record can end the fit, which tells of it: {remedy}",
        axis=name,
    )


_BOUND_IT = "put BoundsScaler with public bounds before it"


def _function(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    if step.func is None:
        return span
    marks.append(f"declared: the function of step {name!r} has a finite value for every finite record")
    return ANY


def _normalizer(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    if step.norm == "l1" and _size(span) > MOST:  # its sum warns of overflow
        raise _refused(step, name, "with norm='l1' can overflow", _BOUND_IT)
    return (0.0 if span[0] >= 0 else -2.0), 2.0  # 1 in exact arithmetic


def _polynomial(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    degree = int(step.degree if isinstance(step.degree, int) else max(step.degree))
    if degree * log10(_size(span)) > log10(MOST):
        raise _refused(step, name, "can overflow", _BOUND_IT)
    size = _size(span) ** degree
    return (0.0 if span[0] >= 0 else -size), size


def _chi_squared(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    if span[0] < 0 or _size(span) > MOST:
        why = "raises on a value below zero and can overflow"
        raise _refused(step, name, why, "use RandomFourier, or a public step before it whose values are in [0, 1]")
    return ANY


def _hasher(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    if step.input_type != "string":
        why = "adds up a record's own numbers, which can overflow"
        raise _refused(step, name, why, "count words instead, with input_type='string'")
    return ANY


def _imputer(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    value = step.fill_value
    return _hull([span, (float(value), float(value))]) if isinstance(value, int | float) else ANY


def _zero_or_one(step: Any, span: Span, name: str, marks: list[str]) -> Span:
    return 0.0, 1.0


_SPANS: dict[type, Callable[[Any, Span, str, list[str]], Span]] = {
    sk.FunctionTransformer: _function,
    sk.Normalizer: _normalizer,
    sk.Binarizer: _zero_or_one,
    sk.PolynomialFeatures: _polynomial,
    AdditiveChi2Sampler: _chi_squared,
    FeatureHasher: _hasher,
    sk.OneHotEncoder: _zero_or_one,
    PublicOneHotEncoder: _zero_or_one,
    SimpleImputer: _imputer,
}
"""Intervals by exact type; what is not listed is finite of any size, unless it certifies a norm."""
