"""What a file of a model by block coordinate descent holds beside its weights, and how the rest is made again.

The plan is a function of public parameters, of n and of the noise, which is that of the certificate. So a file has n, a
sample of the public start, the updates of the blocks at the fit and, of networks, their layers: most of that leaves no
trace in a certificate, which is about ratios. On the way out and on the way in everything is made again and compared.
Nothing is made before it is known to be as large as the weights that the file holds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators._labels import class_list
from tacit.estimators._maps import agrees, sample_of_rows
from tacit.estimators._rebuilt import LONGEST_RUN
from tacit.estimators.block_networks import DPBlockMLPClassifier, DPBlockMLPRegressor
from tacit.estimators.nmf import DPNMF
from tacit.estimators.plain import from_plain, to_plain
from tacit.mechanism import Mechanism, Plan
from tacit.mechanism.serialise import from_json, to_json
from tacit.problem import Penalty, TargetUnits
from tacit.problem.layers import Convolution, ConvolutionMap, Dense, LayerMap
from tacit.problem.network import Architecture
from tacit.problem.blocks import Block
from tacit.solvers.blocks import BlockPlan
from tacit.solvers.schedules import Optimised

__all__ = [
    "BlockModel",
    "check_length",
    "describe_blocks",
    "layers_from_plain",
    "layers_to_plain",
    "rebuild_blocks",
    "schedule_from_plain",
    "schedule_to_plain",
]

NetworkModel = DPBlockMLPClassifier | DPBlockMLPRegressor
BlockModel = DPNMF | NetworkModel
LAYERS: dict[str, type[Dense | Convolution]] = {cls.__name__: cls for cls in (Dense, Convolution)}
LARGEST_RECORD = 10**8
"""Numbers that a network makes of one record: kernels are small, whatever the picture that they are for."""
ROUNDING = 1e-9
"""Of the numbers of a plan that is made again, possibly on another machine."""
_CHANGED = "parameters were changed after fit; set them back, or fit again"


# -- parameters that are more than numbers and words --------------------------------------------------------------


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


def layers_to_plain(layers: Any) -> Any:
    """Hidden layers as plain data.

    Args:
        layers: a size, a ``Dense``, a ``Convolution``, or a tuple or list of them.

    Returns:
        What ``layers_from_plain`` reads.

    Raises:
        InvalidInput: for anything else.
    """
    if isinstance(layers, tuple):
        return {"tuple": [layers_to_plain(layer) for layer in layers]}
    if isinstance(layers, list):
        return [layers_to_plain(layer) for layer in layers]
    kind = type(layers).__name__
    if LAYERS.get(kind) is type(layers):
        return {"layer": kind, "fields": {name: to_plain(value, name) for name, value in vars(layers).items()}}
    if isinstance(layers, bool) or not isinstance(layers, int | np.integer):
        raise InvalidInput(
            f"hidden_layer_sizes holds a {kind}, which a model file cannot hold: use whole numbers, tacit.Dense and "
            "tacit.Convolution"
        )
    return int(layers)


def layers_from_plain(data: Any) -> Any:
    """The inverse of ``layers_to_plain``; whether the layers fit each other is checked with the plan.

    Args:
        data: parsed JSON, possibly edited.

    Returns:
        The layers.

    Raises:
        InvalidInput: if it is not what ``layers_to_plain`` writes.
    """
    if isinstance(data, list):
        return [layers_from_plain(layer) for layer in data]
    if isinstance(data, dict) and data.keys() == {"tuple"}:
        return tuple(layers_from_plain(layer) for layer in data["tuple"])
    if isinstance(data, dict) and data.keys() == {"layer", "fields"} and data["layer"] in LAYERS:
        cls, fields = LAYERS[data["layer"]], data["fields"]
        if fields.keys() == {field.name for field in dataclasses.fields(cls)} and _are_whole(*fields.values()):
            return cls(**fields)
    if not _are_whole(data):
        raise InvalidInput("its hidden_layer_sizes are neither whole numbers nor layers that this version knows")
    return data


def _are_whole(*values: Any) -> bool:
    return all(type(value) is int for value in values)


# -- what a file holds of the plan --------------------------------------------------------------------------------


def check_length(certificate: Any) -> None:
    """Refuse a plan that would be laid out in memory as more numbers than a file holds, before it is certified.

    Args:
        certificate: parsed JSON, possibly edited.

    Raises:
        InvalidInput: if it has more than a million steps or releases.
    """
    plan = from_json(certificate["plan"])
    if not isinstance(plan, Plan):
        raise InvalidInput("it has no plan")
    for part in plan:
        if isinstance(part, Mechanism):
            _check_short(part)


def _check_short(part: Mechanism) -> None:
    if part.steps > LONGEST_RUN:
        raise InvalidInput(
            f"its plan has {part.steps} steps, and files hold at most {LONGEST_RUN}: take larger batches"
        )
    if len(part.ratio) > LONGEST_RUN:
        raise InvalidInput(
            f"its plan has {len(part.ratio)} releases in all steps, and files hold at most {LONGEST_RUN}: take larger "
            "batches"
        )


def describe_blocks(model: BlockModel) -> dict[str, Any]:
    """What ``rebuild_blocks`` needs and checks.

    Args:
        model: fitted.

    Returns:
        Plain data.
    """
    plan: BlockPlan = model.plan_
    described = {
        "plan": {"n": int(plan.n)},
        "start": [sample_of_rows(block.start) for block in plan.blocks],
        "blocks": [_described(block) for block in plan.blocks],
    }
    return described if isinstance(model, DPNMF) else {**described, "network": _facts(model.network_)}


def rebuild_blocks(model: BlockModel, public: Any) -> None:
    """Set the plan of a model that has parameters, weights and certificate, and its network; refuse what does not fit.

    Formal guarantee: afterwards ``plan_`` is the plan that ``certificate_`` certifies. There are people's factors of a
    factorisation if and only if that plan pays for them.

    Args:
        model: as loaded, or a copy of one that is to be saved; its plan and network are replaced.
        public: what ``describe_blocks`` returned, possibly edited.

    Raises:
        InvalidInput: if something is not what it was at the fit.
    """
    n = _validate.positive_int(n=public["plan"]["n"])
    if isinstance(model, DPNMF):
        _check_factors(model, n)
        first = _certified_part(model, n, 1)
        found, _ = model._planned(n, model.n_features_in_, _noise(first))
    else:
        K = _check_weights(model)
        first = _certified_part(model, n, len(model.coefs_))
        found, _, network = model._planned(n, model.n_features_in_, K, _noise(first))
        _check_network(model, network, public["network"])
    if not _alike(to_json(found.certificate.plan), to_json(model.certificate_.plan)):
        raise InvalidInput(f"its plan is not the one that was certified (plan_, certificate_): {_CHANGED}")
    _check_marks(model)
    _check_starts(found.blocks, public["start"])
    if not _alike([_described(block) for block in found.blocks], public["blocks"]):
        raise InvalidInput(f"its blocks are not bounded or updated as it was planned (plan_): {_CHANGED}")
    ratio = first.ratio.to_array().reshape(found.ratio.shape)
    model.plan_ = dataclasses.replace(found, ratio=ratio, certificate=model.certificate_)


def _certified_part(model: BlockModel, n: int, blocks: int) -> Mechanism:
    """The releases of all blocks: as many as the parameters say, and not too many to be laid out; nothing is made."""
    part = model.certificate_.plan.parts[0]
    if not isinstance(part, Mechanism):
        raise InvalidInput(
            "its certificate is not that of one run of block coordinate descent: save a model of one fit"
        )
    _check_short(part)
    stated = (n if model.batch_size is None else model.batch_size) if isinstance(model, DPNMF) else model._batch(n)
    batch, epochs = _validate.positive_int(batch_size=stated), _validate.positive_int(epochs=model.epochs)
    if max(1, round(n / batch)) * epochs != part.steps:
        raise InvalidInput(f"its plan does not have the {part.steps} steps that were certified: {_CHANGED}")
    if part.releases != blocks or len(part.ratio) != part.steps * blocks:
        raise InvalidInput(
            f"its plan does not have the {part.releases} releases a step that were certified: {_CHANGED}"
        )
    return part


def _noise(part: Mechanism) -> float:
    """The noise multiplier: Δ/σ of all blocks of the step with the least noise is its inverse."""
    largest = _validate.positive(ratio=part.ratio.max)
    relative = part.ratio.to_array().reshape(part.steps, part.releases) / largest
    return 1 / (largest * math.sqrt((relative**2).sum(axis=1).max()))


def _check_marks(model: BlockModel) -> None:
    """What a certificate must say besides its numbers."""
    marks: tuple[str, ...] = ()
    if isinstance(model, DPNMF):
        marks = (model._mark(),)
    elif isinstance(model, DPBlockMLPClassifier):
        stated, marks = class_list(model.classes, model.classes_)
        if not np.array_equal(stated, model.classes_):
            raise InvalidInput(f"classes_ is not what classes says: {_CHANGED}")
    if not set(marks) <= set(model.certificate_.marks):
        raise InvalidInput(
            "its certificate does not say to whom, or under which declaration, it is a promise: fit again"
        )


def _check_starts(blocks: tuple[Block, ...], stored: Any) -> None:
    found = [sample_of_rows(block.start) for block in blocks]
    if not isinstance(stored, list) or len(stored) != len(found) or not all(map(agrees, found, stored)):
        raise InvalidInput(
            "its start is not the one that it was fitted from: set back init_seed, load it with the version that wrote "
            "it, or fit again"
        )


# -- factors ------------------------------------------------------------------------------------------------------


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
        if not (_is_table(value, shape) and (np.asarray(value) >= 0).all()):
            raise InvalidInput(
                f"{name} must hold finite, non-negative numbers of shape {shape}: set back the parameters that were "
                "changed after fit"
            )


def _is_table(value: Any, shape: tuple[int, ...]) -> bool:
    fits = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == shape
    return fits and bool(np.isfinite(value).all())


# -- networks -----------------------------------------------------------------------------------------------------


def _check_weights(model: NetworkModel) -> int:
    """K, after shapes and numbers were checked: the file must hold as much as it asks to be made."""
    _check_inputs(model)
    weights = getattr(model, "coefs_", None)
    if not isinstance(weights, list) or not weights:
        raise InvalidInput("coefs_ must be a list of the weights of each layer: fit again")
    K = _outputs(model, weights)
    network = model._network(model.n_features_in_, K)
    _check_room(network)
    shapes = [c.map.weights for c in network.connections]
    if len(weights) != len(shapes):
        raise InvalidInput(f"coefs_ must hold {len(shapes)} weight matrices, not {len(weights)}: {_CHANGED}")
    for j, (value, shape) in enumerate(zip(weights, shapes, strict=True)):
        if not _is_table(value, shape):
            raise InvalidInput(
                f"coefs_[{j}] must hold finite numbers of shape {shape}: set back the parameters that were changed "
                "after fit"
            )
    return K


def _check_inputs(model: NetworkModel) -> None:
    """Parameters that the plan does not ask about; none of them may stand for more numbers than it lists."""
    for name, value in model.get_params(deep=False).items():
        labels = name == "classes" and isinstance(value, range) and len(value) == len(model.classes_)
        if _holds_range(value) and not labels:
            raise InvalidInput(f"{name} holds a range, which a model file does not lay out: list its numbers")
    if not isinstance(model.input_shape, tuple | list | np.ndarray | None):
        raise InvalidInput("input_shape must be a sequence of whole numbers, e.g. (1, 28, 28)")
    for side in () if model.input_shape is None else model.input_shape:
        _validate.positive_int(input_shape=side)
    bounds, p = model.feature_bounds, model.n_features_in_
    ends = bounds if isinstance(bounds, tuple | list | np.ndarray) else ()
    widest = max((np.size(end) for end in ends), default=1)
    if widest not in (1, p):
        raise InvalidInput(f"feature_bounds must hold numbers, or one for each of {p} features: {_CHANGED}")
    model._units(widest)  # no wider: what they are for is in no file
    if isinstance(model, DPBlockMLPRegressor):
        TargetUnits.of(model.target_bounds)


def _holds_range(value: Any) -> bool:
    return isinstance(value, range) or (isinstance(value, tuple | list) and any(map(_holds_range, value)))


def _outputs(model: NetworkModel, weights: list[Any]) -> int:
    """K, by the classes or by the weights."""
    if isinstance(model, DPBlockMLPClassifier):
        return len(model.classes_)
    if type(getattr(model, "single_target_", None)) is not bool:
        raise InvalidInput("single_target_ must be True or False")
    last = model._network(model.n_features_in_, 1).depth
    K = len(weights[last]) if last < len(weights) and np.ndim(weights[last]) == 2 else 0
    if K < 1 or (model.single_target_ and K > 1):
        raise InvalidInput(f"coefs_ must hold weights for every output: {_CHANGED}")
    return K


def _check_room(network: Architecture) -> None:
    """States first: the sizes of layers are products of theirs, and must not overflow."""
    fits = all(math.prod(shape) <= LARGEST_RECORD for shape in network.shapes)
    if not fits or sum(_size(c.map) for c in network.connections) > LARGEST_RECORD:
        raise InvalidInput(
            f"its layers make more than {LARGEST_RECORD} numbers of a single record: set back the parameters that were "
            "changed after fit, or fit with larger strides"
        )


def _size(layer: LayerMap) -> int:
    """Of one record's design and, of a convolution, of the picture with its padding."""
    size = layer.patches * layer.weights[1]
    if isinstance(layer, ConvolutionMap):
        c, h, w = layer.pooled
        size += c * (h + 2 * layer.padding) * (w + 2 * layer.padding)
    return size


def _check_network(model: NetworkModel, network: Architecture, stored: Any) -> None:
    if not _alike(_facts(network), stored):
        raise InvalidInput(f"its layers are not those that it was fitted with (network_): {_CHANGED}")
    model.network_ = network


# -- plain facts --------------------------------------------------------------------------------------------------


def _described(block: Block) -> dict[str, Any]:
    """All but the start."""
    return {"constants": _facts(block.constants), "update": _facts(block.update)}


def _facts(value: Any) -> Any:
    """Public records as plain data that compares; it is never read back."""
    if isinstance(value, tuple | list):
        return [_facts(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, Penalty):  # a penalty holds arrays
        fields = {field.name: _facts(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    return to_plain(value, "plan_")


def _alike(found: Any, stated: Any) -> bool:
    """Whether plain data is equal but for rounding of its numbers."""
    if isinstance(found, dict) and isinstance(stated, dict):
        return found.keys() == stated.keys() and all(_alike(found[key], stated[key]) for key in found)
    if isinstance(found, list) and isinstance(stated, list):
        return len(found) == len(stated) and all(map(_alike, found, stated))
    if isinstance(found, float) and isinstance(stated, float):
        return math.isclose(found, stated, rel_tol=ROUNDING)
    return type(found) is type(stated) and bool(found == stated)
