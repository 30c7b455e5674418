"""The space of a search: lists and distributions of parameters, and the points in it. No record comes near."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.errors import InvalidInput

__all__ = ["RESERVED", "Space", "corners", "point_of", "spaces_of"]

Space = Mapping[str, Any]
RESERVED = ("epsilon", "delta", "adjacency", "ledger", "random_state", "classes", "target_bounds", "progress")
"""Parameters that the search sets for its candidates, or that their scores rest on."""
MOST_CORNERS = 64
"""Grids up to this size are checked whole before a candidate is drawn."""


def spaces_of(estimator: Any, distributions: object) -> list[Space]:
    """The search space, checked: one or several mappings from parameters to lists or distributions.

    Args:
        estimator: has the parameters.
        distributions: as the user gave them.

    Returns:
        The mappings.

    Raises:
        InvalidInput: if they are anything else.
    """
    spaces = [distributions] if isinstance(distributions, Mapping) else distributions
    if not isinstance(spaces, list | tuple) or not spaces or not all(isinstance(one, Mapping) for one in spaces):
        raise InvalidInput("param_distributions must map parameters to lists or distributions, or list such mappings")
    known = estimator.get_params()
    for name, values in (item for one in spaces for item in one.items()):
        if name in RESERVED:
            raise InvalidInput(f"param_distributions must not hold {name!r}: it is the same for all candidates")
        if name not in known:
            raise InvalidInput(f"param_distributions names {name!r}, which {type(estimator).__name__} does not have")
        if not _listed(values) and not callable(getattr(values, "rvs", None)):
            raise InvalidInput(f"param_distributions[{name!r}] must be a list, or a distribution that has rvs()")
    return list(spaces)


def point_of(spaces: Sequence[Space], rng: np.random.Generator) -> dict[str, Any]:
    """One point of the search space, whatever the others were.

    Args:
        spaces: one of them is drawn first.
        rng: that no record enters.

    Returns:
        A value for each parameter.
    """
    space = spaces[int(rng.integers(len(spaces)))]
    return _plain(
        {
            name: values.rvs(random_state=rng) if hasattr(values, "rvs") else values[int(rng.integers(len(values)))]
            for name, values in space.items()
        }
    )


def corners(spaces: Sequence[Space]) -> Iterator[dict[str, Any]]:
    """Every point of the spaces that are small grids: a bad one is then refused by rule, not by the luck of a draw.

    Args:
        spaces: those with distributions, or with more than 64 points, are left to the draw.

    Yields:
        Points.
    """
    for space in spaces:
        if all(map(_listed, space.values())) and math.prod(map(len, space.values())) <= MOST_CORNERS:
            for values in itertools.product(*space.values()):
                yield _plain(dict(zip(space, values, strict=True)))


def _listed(values: Any) -> bool:
    return isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) and len(values) > 0


def _plain(point: dict[str, Any]) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in point.items()}
