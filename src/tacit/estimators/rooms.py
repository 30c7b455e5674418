"""What a file asks to be made: how much that takes, before it is made, and whether it is still the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import PolynomialFeatures

from tacit.errors import InvalidInput
from tacit.maps.feature_map import FeatureMap
from tacit.maps.join import Join
from tacit.problem.layers import ConvolutionMap, LayerMap
from tacit.problem.network import Architecture

__all__ = ["check_network_room", "check_room", "same_steps", "sample_of"]

LEAST_ROOM, ROOM = 2**18, 128
"""Numbers that a map may draw: a quarter of a million, or 128 for each byte of its file."""
LARGEST_RECORD = 10**8
"""Numbers that the layers of a network may make of a single record."""
SCALES, SUMS = (1.0, 16.0, 256.0), 8


def check_room(step: Any, columns: int, size: int) -> int:
    """Refuse a map that would draw far more numbers than its file can be for; nothing is drawn.

    Args:
        step: not fitted.
        columns: of the records.
        size: of the file, in bytes.

    Returns:
        About how many columns it makes.

    Raises:
        InvalidInput: if it would.
    """
    room = max(LEAST_ROOM, ROOM * size)
    if type(columns) is not int or not 0 < columns <= room:
        raise InvalidInput(f"its features would need {columns!r} columns, far more than its weights can be for")
    drawn, width = 0, columns
    if isinstance(step, Pipeline):
        for _, part in step.steps:
            width = check_room(part, width, size)
    elif isinstance(step, FeatureUnion | Join):
        listed = step.transformer_list if isinstance(step, FeatureUnion) else step.maps
        width = sum(check_room(part, columns, size) for _, part in listed)
    elif isinstance(step, PolynomialFeatures):
        degree = int(step.degree if isinstance(step.degree, int) else max(step.degree))
        width = math.comb(columns + degree, min(degree, columns)) if degree <= 64 else room + 1
    elif hasattr(step, "n_features"):
        width = int(step.n_features)
        drawn = width * (columns + 1)
    elif hasattr(step, "n_gates"):
        width = drawn = int(step.n_gates) * columns
    if max(drawn, width) > room:
        raise InvalidInput(f"its features would draw {max(drawn, width)} numbers, far more than its weights can be for")
    return width


def sample_of(step: Any) -> NDArray[np.float64]:
    """What a fitted feature map makes of three made-up records of different size: 8 sums each of all its columns.

    Args:
        step: fitted.

    Returns:
        (3, 8); nothing of a step that is no feature map.
    """
    if not isinstance(step, FeatureMap):
        return np.zeros((0, SUMS))
    probe = (_weights(len(SCALES), step.n_features_in_) + 0.5) * np.array(SCALES)[:, None]
    made = np.asarray(step(probe), np.float64)
    return made @ _weights(made.shape[1], SUMS) / max(float(np.linalg.norm(made)), 1e-300)


def _weights(rows: int, columns: int) -> NDArray[np.float64]:
    """Fixed numbers in [−½, ½), none of them zero: every entry counts."""
    products = np.arange(1, rows + 1)[:, None] * np.arange(1, columns + 1)
    return np.asarray((products * 0.6180339887498949) % 1.0 - 0.5, np.float64)


def same_steps(stated: Any, fitted: Any) -> bool:
    """Whether fitted steps are clones of stated ones: the same classes with the same parameters.

    Args:
        stated: steps, or a value of theirs.
        fitted: what became of them.

    Returns:
        True or False.
    """
    if type(stated) is not type(fitted):
        return False
    if isinstance(stated, tuple | list):
        return len(stated) == len(fitted) and all(map(same_steps, stated, fitted))
    if hasattr(stated, "get_params"):
        here, there = stated.get_params(deep=False), fitted.get_params(deep=False)
        return here.keys() == there.keys() and all(same_steps(here[name], there[name]) for name in here)
    if isinstance(stated, np.ndarray):
        return np.array_equal(stated, fitted)
    return bool(stated is fitted or stated == fitted)


def check_network_room(network: Architecture) -> None:
    """Refuse layers that would make too much of a single record."""
    # States first: the sizes of layers are products of theirs.
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
