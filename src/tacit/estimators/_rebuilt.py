"""What a file of a model with several outputs, or of factors, holds beside its weights, and how the rest is made again.

Maps, gates and plan are functions of public parameters, so they are not stored: a file has two numbers of the plan (n
and the noise) and samples of maps and gates. On the way out and on the way in they are made again and compared, so that
a parameter that was changed after ``fit``, or a later version that draws other numbers, is noticed. A factorisation has
n and a sample of its public start; the noise of its plan is that of its certificate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators._maps import agrees, leaves, sample_of_maps, sample_of_rows, width_of
from tacit.estimators._outputs import OutputModel
from tacit.estimators.factorise import DPNMF
from tacit.estimators.plain import from_plain, to_plain
from tacit.mechanism import Mechanism, Plan, Selection
from tacit.mechanism.serialise import from_json, to_json
from tacit.problem import Penalty
from tacit.run.blocks import Block
from tacit.solvers.blocks import BlockPlan
from tacit.solvers.schedules import Optimised

__all__ = [
    "REBUILT",
    "check_length",
    "describe",
    "describe_factors",
    "rebuild",
    "rebuild_factors",
    "schedule_from_plain",
    "schedule_to_plain",
]

LONGEST_RUN = 10**6
"""Steps of a plan that is laid out in memory: those of a selected model, which the search's certificate does not tell,
and those of a factorisation, which a file may state as one long run."""
ROUNDING = 1e-9
"""Of the ratios of a plan that is made again, possibly on another machine."""
_CHANGED = "parameters were changed after fit; set them back, or fit again"
REBUILT = ("features_", "gates_", "plan_")
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


# -- factors ------------------------------------------------------------------------------------------------------


def schedule_to_plain(schedule: Any) -> Any:
    """A noise schedule as plain data.

    Args:
        schedule: a name, or an ``Optimised``.

    Returns:
        What ``schedule_from_plain`` reads.

    Raises:
        InvalidInput: if it is a function.
    """
    if type(schedule) is Optimised:
        return {"optimised": to_plain(schedule.half_life, "half_life")}
    if callable(schedule):
        raise InvalidInput(
            "noise_schedule is a function, which a model file cannot hold: fit with a schedule by name, or with "
            "Optimised(half_life), to save the model"
        )
    return to_plain(schedule, "noise_schedule")


def schedule_from_plain(data: Any) -> Any:
    """The inverse of ``schedule_to_plain``; whether there is such a schedule is checked with the plan."""
    if isinstance(data, dict) and data.keys() == {"optimised"}:
        return Optimised(from_plain(data["optimised"]))
    return from_plain(data)


def check_length(certificate: Any) -> None:
    """Refuse a plan that would be laid out in memory as more numbers than a file holds, before it is certified.

    Args:
        certificate: parsed JSON, possibly edited.

    Raises:
        InvalidInput: if it has more steps than a million.
    """
    plan = from_json(certificate["plan"])
    if not isinstance(plan, Plan):
        raise InvalidInput("it has no plan")
    for part in plan:
        _short_enough(part.steps if isinstance(part, Mechanism) else 0)


def _short_enough(steps: int) -> None:
    if steps > LONGEST_RUN:
        raise InvalidInput(f"its plan has {steps} steps, and files hold at most {LONGEST_RUN}: take larger batches")


def describe_factors(model: DPNMF) -> dict[str, Any]:
    """What ``rebuild_factors`` needs and checks.

    Args:
        model: fitted.

    Returns:
        Plain data.
    """
    return {"plan": {"n": int(model.plan_.n)}, "start": sample_of_rows(model.plan_.blocks[0].start)}


def rebuild_factors(model: DPNMF, public: Any) -> None:
    """Set the plan of a factorisation that has parameters, factors and certificate; refuse what does not fit.

    Formal guarantee: afterwards ``plan_`` is the plan that ``certificate_`` certifies, and there are people's factors
    if and only if that plan pays for them.

    Args:
        model: as loaded, or a copy of one that is to be saved; its plan is replaced.
        public: what ``describe_factors`` returned, possibly edited.

    Raises:
        InvalidInput: if something is not what it was at the fit.
    """
    n = _validate.positive_int(n=public["plan"]["n"])
    _check_factors(model, n)
    first = model.certificate_.plan.parts[0]
    _check_steps(model, n, first)
    assert isinstance(first, Mechanism)  # it has steps
    found, _ = model._planned(n, model.n_features_in_, 1 / first.ratio.max)
    if not _alike(to_json(found.certificate.plan), to_json(model.certificate_.plan)):
        raise InvalidInput(f"its plan is not the one that was certified (plan_, certificate_): {_CHANGED}")
    if model._mark() not in model.certificate_.marks:
        raise InvalidInput("its certificate does not say to whom it is a promise: fit again")
    fitted: BlockPlan | None = getattr(model, "plan_", None)
    if fitted is not None and _described(fitted.blocks[0]) != _described(found.blocks[0]):
        raise InvalidInput(f"its items are not updated as it was planned (plan_): {_CHANGED}")
    if not agrees(sample_of_rows(found.blocks[0].start), public["start"]):
        raise InvalidInput(
            "its start is not the one that it was fitted from: set back init_seed, load it with the version that wrote "
            "it, or fit again"
        )
    ratio = first.ratio.to_array().reshape(found.ratio.shape)
    model.plan_ = replace(found, ratio=ratio, certificate=model.certificate_)


def _described(block: Block) -> tuple[Any, ...]:
    """All but the start; penalties hold arrays, which only compare as plain data."""
    parts = {name: to_plain(x, name) if isinstance(x, Penalty) else x for name, x in vars(block.update).items()}
    return block.constants, type(block.update), parts


def _check_factors(model: DPNMF, n: int) -> None:
    """Shapes and numbers, before anything of their size is made."""
    k = _validate.positive_int(n_components=model.n_components)
    shapes = {"components_": (k, model.n_features_in_)}
    if model.release == "both":
        shapes["person_factors_"] = (n, k)
    elif hasattr(model, "person_factors_"):
        raise InvalidInput("it holds person_factors_, but release='items' does not pay for them: fit again")
    for name, shape in shapes.items():
        value = getattr(model, name, None)
        fits = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == shape
        if not (fits and (np.asarray(value) >= 0).all() and np.isfinite(np.asarray(value)).all()):
            raise InvalidInput(
                f"{name} must hold finite, non-negative numbers of shape {shape}: set back the parameters that were "
                "changed after fit"
            )


def _check_steps(model: DPNMF, n: int, part: Any) -> None:
    """As many as were certified, and not too many to be laid out; nothing is made yet."""
    if not isinstance(part, Mechanism):
        raise InvalidInput("its certificate is not that of a factorisation: fit again")
    _short_enough(part.steps)
    batch = n if model.batch_size is None else _validate.positive_int(batch_size=model.batch_size)
    epochs = _validate.positive_int(epochs=model.epochs)
    if max(1, round(n / batch)) * epochs != part.steps:
        raise InvalidInput(f"its plan does not have the {part.steps} steps that were certified: {_CHANGED}")


def _alike(found: Any, certified: Any) -> bool:
    """Whether two plans, as plain data, are equal but for rounding of their numbers."""
    if isinstance(found, dict) and isinstance(certified, dict):
        return found.keys() == certified.keys() and all(_alike(found[key], certified[key]) for key in found)
    if isinstance(found, list) and isinstance(certified, list):
        return len(found) == len(certified) and all(map(_alike, found, certified))
    if isinstance(found, float) and isinstance(certified, float):
        return math.isclose(found, certified, rel_tol=ROUNDING)
    return type(found) is type(certified) and bool(found == certified)
