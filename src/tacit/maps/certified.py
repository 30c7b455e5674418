"""What a chain of steps certifies: the norm of its rows, and that each is a function of its own record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, nextafter, sqrt
from typing import Any

from sklearn.pipeline import FeatureUnion, Pipeline

from tacit.accounting import Certificate
from tacit.errors import InvalidInput, NotCovered
from tacit.maps.feature_map import FeatureMap
from tacit.maps.lengths import public_norm
from tacit.maps.steps import NORMS, is_public, parts

__all__ = ["feature_norm", "joint_norm", "row_local"]


@dataclass(frozen=True)
class Unbounded:
    """No norm is certified, and whose fault it is."""

    name: str
    kind: str


Bound = float | Unbounded


def feature_norm(model: Any, input_norm: float | None = None) -> float:
    """The norm that no row of ``model.transform(X)`` exceeds, whatever X: what a private estimator may rely on.

    A pipeline has the norm of its last step (gates pass on what is known of the step before them); a union or a
    ``Join`` has √(Σ w²·norm²).

    Formal guarantee: for every finite table the rows of the output are within the returned norm.

    Assumptions: only exact types that Tacit knows are trusted; a subclass of one is not.

    Args:
        model: a feature map, Pipeline, FeatureUnion or ``Join``; nested as you like.
        input_norm: a public bound on the norm of the records, if something else enforces one.

    Returns:
        The norm.

    Raises:
        NotCovered: if there is none, naming the step that loses it.
        InvalidInput: if a step is no transformer, or has to be fitted first.

    >>> from sklearn.pipeline import make_pipeline
    >>> from tacit.maps import NormScaler, ReluGates
    >>> feature_norm(make_pipeline(NormScaler(0.5), ReluGates(8)))
    0.5
    """
    start: Bound = Unbounded("input", "records") if input_norm is None else public_norm(input_norm=input_norm)
    bound = _after(model, start, type(model).__name__)
    if isinstance(bound, Unbounded):
        what = "the input" if bound.name == "input" else f"step {bound.name!r} ({bound.kind})"
        raise NotCovered(f"{what} certifies no norm of its rows: put NormScaler() behind it", axis=bound.name)
    return bound


def row_local(model: Any) -> tuple[str, ...]:
    """Check that each row of the output is a function of its own record, public constants and certified releases.

    Args:
        model: a feature map or Pipeline of them; fitted, if any step is private.

    Returns:
        What the user vouches for: one sentence per FunctionTransformer, to be put on the certificate as a mark.

    Raises:
        NotCovered: if a step learned from all records without a certificate, naming it.

    >>> from tacit.maps import RandomFourier
    >>> row_local(RandomFourier())
    ()
    """
    found = parts(model, type(model).__name__)
    return tuple(mark for mark in found if not isinstance(mark, Certificate))


def joint_norm(norms: Iterable[float], weights: Iterable[float]) -> float:
    """√(Σ w²·norm²), rounded up.

    Args:
        norms: of the parts.
        weights: of the parts.

    Returns:
        The norm of their weighted concatenation.
    """
    return _up(sqrt(sum((weight * norm) ** 2 for weight, norm in zip(weights, norms, strict=True))))


def _after(step: Any, before: Bound, name: str) -> Bound:
    """The bound behind a step, given the one before it."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return before
    if type(step) is Pipeline:
        for inner, part in step.steps:
            before = _after(part, before, f"{name} → {inner}")
        return before
    if type(step) is FeatureUnion:
        return _union(step, before, name)
    if isinstance(step, FeatureMap) and is_public(step):
        return step._norm(None if isinstance(before, Unbounded) else before)
    if not hasattr(step, "transform"):
        raise InvalidInput(
            f"step {name!r} ({type(step).__name__}) makes no features: pass the steps before it, model[:-1]"
        )
    if type(step) not in NORMS:
        return Unbounded(name, type(step).__name__)
    _fitted(step)
    return _up(NORMS[type(step)](step))


def _union(step: Any, before: Bound, name: str) -> Bound:
    weights = step.transformer_weights or {}
    kept = [(inner, part) for inner, part in step.transformer_list if not (isinstance(part, str) and part == "drop")]
    bounds = [_after(part, before, f"{name} → {inner}") for inner, part in kept]
    for bound in bounds:
        if isinstance(bound, Unbounded):
            return bound
    joint = joint_norm([b for b in bounds if isinstance(b, float)], [abs(weights.get(i, 1.0)) for i, _ in kept])
    return joint * (1 + 1e-6) if weights else joint  # its products with weights are rounded to float32


def _fitted(step: Any) -> None:
    if not hasattr(step, "n_features_in_"):
        raise InvalidInput(
            f"{type(step).__name__} is not fitted: its norm depends on the number of columns, fit it first"
        )


def _up(value: float) -> float:
    return nextafter(value * (1 + 4e-16), inf)
