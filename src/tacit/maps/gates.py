"""Gated copies of a record: what turns a two-layer ReLU network into a convex problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.kernels.exact import half_spaces
from tacit.maps.draws import gaussians, public_seed
from tacit.maps.feature_map import FeatureMap, blocks, records
from tacit.maps.lengths import public_norm, relative, scaled_down
from tacit.maps.steps import public_step

__all__ = ["ReluGates"]


@public_step
class ReluGates(FeatureMap):
    """x ↦ (1(uᵢᵀx ≥ 0)·x)ᵢ/√P, with public Gaussian gates u₁ … u_P; x first scaled down to ``norm``.

    A linear model ΣᵢVᵢᵀ(1(uᵢᵀx ≥ 0)x) on these features is the convex form of a two-layer ReLU network with fixed
    activation patterns (Pilanci & Ergen, *Neural networks are convex regularizers*, ICML 2020; with random gates in
    Kim & Pilanci 2024). The features of gate i are columns i·p … (i+1)·p − 1.

    ``transform`` makes (n, p·P) numbers. An estimator needs them only as a mask on top of the records: Z·V =
    Σᵢ diag(aᵢ)·X·Vᵢ/√P with a = ``active(X)``.

    *Formal guarantee.* ‖z‖² = ‖x‖²·(active gates)/P ≤ ‖x‖², so rows are within ``norm``, and within whatever bound is
    known of the records. See ``FeatureMap``.

    *Assumptions.* The gates are public: whoever sees the model may know them, and the seed is no secret. See
    ``FeatureMap``.

    Args:
        n_gates: P.
        gate_seed: a non-negative integer.
        norm: the bound; longer records are scaled down to it.

    Attributes:
        gates_: (P, p), float64, multiples of 2⁻²⁰.
        certificate_: None.
        n_features_in_: p.

    >>> gates = ReluGates(2, gate_seed=3).fit([[0.0, 0.0]])
    >>> gates.active([[1.0, 0.0], [-1.0, 0.0]]).tolist()
    [[True, True], [False, False]]
    >>> gates.transform([[0.6, 0.8]]).round(3).tolist()
    [[0.424, 0.566, 0.424, 0.566]]
    """

    def __init__(self, n_gates: int = 32, gate_seed: int = 0, norm: float = 1.0) -> None:
        self.n_gates = n_gates
        self.gate_seed = gate_seed
        self.norm = norm

    def active(self, X: Any) -> NDArray[np.bool_]:
        """Which gates are open for each record: 1(uᵢᵀx ≥ 0).

        Args:
            X: (n, p).

        Returns:
            (n, P) of booleans: one byte each instead of p numbers.
        """
        check_is_fitted(self)
        values = records(self, X, reset=False)
        out = np.empty((len(values), len(self.gates_)), np.bool_)
        for rows in blocks(len(values), max(out.shape[1], values.shape[1])):
            out[rows] = self._open(values[rows])
        return out

    def _open(self, x: NDArray[Any]) -> NDArray[np.bool_]:
        direction, _ = relative(x)
        return half_spaces(direction, self.gates_)

    def _prepare(self, p: int) -> int:
        count = _validate.positive_int(n_gates=self.n_gates)
        self.gates_ = gaussians(public_seed(gate_seed=self.gate_seed), 1, (count, p))
        return count * p

    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        mask = self._open(x)
        x = scaled_down(x, public_norm(norm=self.norm))
        x = x * x.dtype.type((1 - 4 * np.finfo(x.dtype).eps) / np.sqrt(mask.shape[1]))
        return np.asarray(mask[:, :, None] * x[:, None, :]).reshape(len(x), -1)

    def _norm(self, input_norm: float | None) -> float:
        norm = public_norm(norm=self.norm)
        return norm if input_norm is None else min(norm, input_norm)
