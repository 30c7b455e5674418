"""Several feature maps side by side, with weights and one bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.metaestimators import _BaseComposition

from tacit import _validate
from tacit.errors import InvalidInput, NotCovered
from tacit.maps.certified import feature_norm, joint_norm
from tacit.maps.feature_map import FeatureMap, records, width_of
from tacit.maps.fourier import RandomFourier
from tacit.maps.scaling import NormScaler
from tacit.maps.steps import composite_step

__all__ = ["Join"]


def _parts_of(join: Any) -> list[tuple[str, Any]]:
    return list(getattr(join, "maps_", join.maps))


@composite_step(_parts_of)
class Join(FeatureMap, _BaseComposition):  # type: ignore[misc]
    """x ↦ (w₁φ₁(x), …, w_kφ_k(x)), of norm √(Σ wⱼ²·normⱼ²).

    Inner products add: ⟨z, z′⟩ = Σ wⱼ²⟨φⱼ(x), φⱼ(x′)⟩, so maps of norm 1 with squared weights that sum to 1 give one of
    norm 1.

    *Formal guarantee.* Every row is within ``norm``; a part that certifies none is refused in ``fit``. The joint map is
    public if all its parts are, which ``row_local`` and ``certificate_of`` check. See ``FeatureMap``.

    *Assumptions.* See ``FeatureMap``.

    Args:
        maps: a list of (name, map); a map may be a Pipeline that ends in one.
        weights: a positive number per name; 1 for those not named, or for all if None.

    Attributes:
        maps_: the fitted clones, with their names.
        certificate_: None.
        n_features_in_: p.

    >>> from tacit.maps import NormScaler, RandomFourier
    >>> both = Join([("pixels", NormScaler()), ("kernel", RandomFourier(8))], weights={"pixels": 0.6, "kernel": 0.8})
    >>> both.fit_transform([[3.0, 4.0]]).shape, round(both.norm, 9)
    ((1, 10), 1.0)
    """

    def __init__(self, maps: Any = None, weights: Mapping[str, float] | None = None) -> None:
        self.maps = maps
        self.weights = weights

    @property
    def norm(self) -> float:
        """The bound √(Σ wⱼ²·normⱼ²)."""
        return self._norm(None)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; if deep, also those of the maps, as name__parameter.

        Args:
            deep: whether to go into the maps.

        Returns:
            Names and values.
        """
        return dict(self._get_params("maps", deep=deep))

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also of the maps (name__parameter) or whole maps (name).

        Args:
            **params: names and values.

        Returns:
            Itself.
        """
        self._set_params("maps", **params)
        return self

    def fit(self, X: Any, y: object = None) -> Self:
        """Fit a clone of each map: read the number of columns.

        Args:
            X: (n, p).
            y: ignored.

        Returns:
            Itself.
        """
        weights, p = self._weights(), width_of(X)
        values = records(self, X, reset=True)
        self.maps_ = [(name, clone(part).fit(values)) for name, part in self._listed()]
        self._frozen = weights
        self._norm(None)
        probe = np.zeros((1, p or 1))
        self._widths = [np.shape(part.transform(probe))[1] for _, part in self.maps_]
        self._n_features_out = sum(self._widths)
        self.certificate_ = None
        return self

    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        out, first = np.empty((len(x), self._n_features_out), x.dtype), 0
        shrink = 1 - 4 * np.finfo(x.dtype).eps  # rounding must not lengthen
        for (_, part), weight, width in zip(self.maps_, self._frozen, self._widths, strict=True):
            here = out[:, first : first + width]
            here[:] = part.transform(x)
            if weight != 1.0:
                here *= x.dtype.type(weight * shrink)
            first += width
        return out

    def _listed(self) -> list[tuple[str, Any]]:
        if not isinstance(self.maps, list | tuple) or not self.maps:
            raise InvalidInput("maps must be a list of (name, map), e.g. [('pixels', NormScaler())]")
        for entry in self.maps:
            if not isinstance(entry, list | tuple) or len(entry) != 2 or not hasattr(entry[1], "transform"):
                raise InvalidInput(f"maps must hold pairs (name, map), got {type(entry).__name__}: name every map")
        self._validate_names([name for name, _ in self.maps])
        return list(self.maps)

    def _weights(self) -> list[float]:
        names = [name for name, _ in self._listed()]
        given = {} if self.weights is None else dict(self.weights)
        if unknown := sorted(set(given) - set(names)):
            raise InvalidInput(f"weights names {unknown[0]!r}, which is no map: the maps are {', '.join(names)}")
        return [_validate.positive(**{f"weights[{name!r}]": given.get(name, 1.0)}) for name in names]

    def _norm(self, input_norm: float | None) -> float:
        norms = []
        fitted = hasattr(self, "maps_")
        for name, part in self.maps_ if fitted else self._listed():
            try:
                norms.append(feature_norm(part, input_norm))
            except NotCovered as error:
                raise NotCovered(f"map {name!r} of Join has no bound: {error}", axis=name) from None
        return joint_norm(norms, self._frozen if fitted else self._weights())

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[FeatureMap, Any]:
        """Two maps, one of them with a weight."""
        join = cls([("scaled", NormScaler(2.0)), ("kernel", RandomFourier(8))], weights={"scaled": 0.5})
        return join.fit(np.zeros((1, 3))), rng.normal(size=(40, 3)) * 10.0 ** rng.integers(-3, 4, size=(40, 1))
