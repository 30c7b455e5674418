"""What a file of a model with several outputs holds beside its weights, and how the rest is made again.

Maps, gates and plan are functions of public parameters, so they are not stored: a file has two numbers of the plan (n
and the noise) and samples of maps and gates. On the way out and on the way in they are made again and compared, so that
a parameter that was changed after ``fit``, or a later version that draws other numbers, is noticed. Models of blocks
have a module of their own (``_rebuilt_blocks``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators._maps import agrees, leaves, sample_of_maps, sample_of_rows, width_of
from tacit.estimators.multi_output import OutputModel
from tacit.mechanism import Mechanism, Selection

__all__ = ["LONGEST_RUN", "REBUILT", "describe", "rebuild"]

LONGEST_RUN = 10**6
"""Steps of a plan that is laid out in memory: those of a selected model, which the search's certificate does not tell,
and releases of blocks, which a file may state as one long run."""
REBUILT = ("features_", "gates_", "network_", "plan_")
"""Fitted attributes that a file does not hold."""


def describe(model: OutputModel) -> dict[str, Any]:
    """What ``rebuild`` needs and checks.

    Args:
        model: fitted.

    Returns:
        Plain data.
    """
    gates = getattr(model, "gates_", None)
    return {
        "plan": {"n": int(model.plan_.n), "noise_multiplier": float(model.plan_.noise_multiplier)},
        "features": None if model.features_ is None else sample_of_maps(model.features_, model.n_features_in_),
        "gates": None if gates is None else sample_of_rows(gates),
    }


def rebuild(model: OutputModel, public: Any) -> None:
    """Set maps, gates and plan of a model that has parameters, weights and certificate; refuse what does not fit.

    Formal guarantee: afterwards ``plan_`` is the plan that ``certificate_`` certifies or, of a selected model, one that
    is within what the search certifies of a candidate.

    Args:
        model: as loaded; its features, gates and plan are replaced.
        public: what ``describe`` returned, possibly edited.

    Raises:
        InvalidInput: if something is not what it was at the fit.
    """
    n = _validate.positive_int(n=public["plan"]["n"])
    _check_sizes(model, n)
    _check_features(model, public["features"])
    K = _outputs(model)
    plan = model._plan(
        n,
        model._loss_of(K),
        model.feature_norm_,
        _validate.positive(noise_multiplier=public["plan"]["noise_multiplier"]),
    )
    if not _certifies(model, plan.certificate):
        raise InvalidInput(
            "its plan is not the one that was certified (plan_, certificate_): parameters were changed after fit; set "
            "them back, or fit again"
        )
    if hasattr(model, "n_gates"):
        _check_gates(model, public["gates"])
    model._certified(model.certificate_, plan)


def _check_sizes(model: OutputModel, n: int) -> None:
    """A small file must not ask for much work: what it describes is measured by what it holds."""
    coef = getattr(model, "coef_", None)
    if not isinstance(coef, np.ndarray) or coef.ndim not in (2, 3):
        raise InvalidInput("coef_ must be a table of numbers")
    room = max(2**16, 64 * coef.size)
    widest = max([model.n_features_in_, *(width_of(part, model.n_features_in_) for part in leaves(model.features))])
    if widest > room:
        raise InvalidInput(f"its features are {widest} wide, far more than its {coef.size} weights can be for")
    (part, *_) = model.certificate_.plan.parts
    most = part.steps if isinstance(part, Mechanism) else LONGEST_RUN
    batch, epochs = _validate.positive_int(batch_size=model._batch(n)), _validate.positive_int(epochs=model.epochs)
    if max(1, round(n / batch)) * epochs > most:
        raise InvalidInput(
            f"its plan has more steps than the {most} that were certified: epochs or batch_size was changed after fit"
        )


def _check_features(model: OutputModel, stored: Any) -> None:
    """Maps, the norm that they certify, and the number of weights for them."""
    found = model._prepared(model.n_features_in_)
    lengths = {"coef_": _shape(model, found.width)}
    if hasattr(model, "intercept_"):
        lengths["intercept_"] = (_outputs(model),)
    for name, shape in lengths.items():
        value = getattr(model, name, None)
        fits = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == shape
        if not (fits and np.isfinite(np.asarray(value)).all()):
            raise InvalidInput(
                f"{name} must hold finite numbers of shape {shape}: set back the parameters that were changed after fit"
            )
    _, norm = model._lifted(found.width, found.norm)  # only now: it draws gates, as many as there are weights for
    if type(model.feature_norm_) is not float or model.feature_norm_ != norm:
        raise InvalidInput("feature_norm_ is not what features and feature_norm give: they were changed after fit")
    if found.maps is not None and not agrees(sample_of_maps(found.maps, model.n_features_in_), stored):
        raise InvalidInput(
            "its features are not those that it was fitted with: load it with the version that wrote it, or fit again"
        )
    model.features_ = found.maps


def _check_gates(model: Any, stored: Any) -> None:
    gates = model._open_gates(model.coef_.shape[2])
    if not agrees(sample_of_rows(gates), stored):
        raise InvalidInput(
            "its gates are not those that it was fitted with: load it with the version that wrote it, or fit again"
        )
    model.gates_ = gates


def _outputs(model: Any) -> int:
    """K, by the classes or by the weights."""
    if is_classifier(model):
        return len(model.classes_)
    if type(getattr(model, "single_target_", None)) is not bool:
        raise InvalidInput("single_target_ must be True or False")
    coef = getattr(model, "coef_", None)
    if not isinstance(coef, np.ndarray) or coef.ndim != 3 or (model.single_target_ and len(coef) != 1):
        raise InvalidInput("coef_ must hold numbers for every output")
    return len(coef)


def _shape(model: Any, width: int) -> tuple[int, ...]:
    if not hasattr(model, "n_gates"):
        return _outputs(model), width
    return _outputs(model), _validate.positive_int(n_gates=model.n_gates), width


def _certifies(model: OutputModel, found: Any) -> bool:
    """Whether the model's certificate is about this plan."""
    whole = model.certificate_.plan
    if whole == found.plan:
        return True
    (part, *more) = whole.parts
    if more or not isinstance(part, Selection) or not isinstance(part.base[0], Mechanism) or found.mu is None:
        return False
    within = found.mu <= part.base[0].ratio.max and math.isfinite(found.mu)
    return within and (found.adjacency, found.unit) == (part.adjacency, part.unit)
