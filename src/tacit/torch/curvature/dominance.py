"""Test whether one Hessian is bounded by another (NoiseCurve, Theorem 5.1)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.torch.curvature.pretraining import prepare
from tacit.torch.curvature.products import dense_hessian
from tacit.torch.curvature.spectrum import FULL_LIMIT, in_double
from tacit.torch.objective import LossFunction, RecordLoss

__all__ = ["dominance", "hessian", "positive_part"]

Array = NDArray[np.float64]


def dominance(H: ArrayLike, H_hat: ArrayLike, *, tolerance: float = 1e-6) -> float:
    """ρ(H, Ĥ) = sup_v vᵀHv / vᵀĤv with 0/0 = 0: the factor by which Ĥ must grow to bound H.

    Theorem 5.1 of NoiseCurve: H ⪯ Ĥ if and only if ρ ≤ 1, for Ĥ ⪰ 0. On the range R of Ĥ and its null space N,
    with H_NN ⪯ 0, maximising over the null part leaves ρ = λ_max(Ĥ_R^{−1/2} (H_RR − H_RN H_NN⁺ H_NR) Ĥ_R^{−1/2}). It is
    infinite if H has positive curvature in N, or couples R to directions of N where it has none.

    Formal guarantee: exact for the two matrices, with curvature up to ``tolerance`` taken for zero.

    Assumptions: both matrices come from public data (declared). A ρ computed from private records has no certificate:
    show it only for runs that are marked as not private.

    Args:
        H: symmetric, (p, p).
        H_hat: symmetric and positive semi-definite up to ``tolerance``.
        tolerance: eigenvalues up to this are zero.

    Returns:
        ρ, possibly infinite.

    Raises:
        InvalidInput: if a matrix is not square, symmetric and finite, or Ĥ has negative curvature.
    """
    small = _validate.positive(tolerance=tolerance)
    A, B = _symmetric("H", H), _symmetric("H_hat", H_hat)
    if A.shape != B.shape:
        raise InvalidInput(f"H is {A.shape} and H_hat {B.shape}: they must belong to the same parameters")
    scale, basis = np.linalg.eigh(B)
    if scale[0] < -small:
        raise InvalidInput(f"H_hat has the eigenvalue {scale[0]:.3g}: Theorem 5.1 needs it ⪰ 0, see positive_part")
    seen = scale > small
    A = basis.T @ A @ basis
    A_rr, A_rn, A_nn = A[np.ix_(seen, seen)], A[np.ix_(seen, ~seen)], A[np.ix_(~seen, ~seen)]
    rest, ratio = A_rr, -np.inf
    if (~seen).any():
        value, vector = np.linalg.eigh(A_nn)
        coupling = A_rn @ vector
        flat = np.abs(value) <= small
        if value[-1] > small or (flat.any() and np.abs(coupling[:, flat]).max(initial=0.0) > small):
            return float("inf")
        rest = A_rr - (coupling[:, ~flat] / value[~flat]) @ coupling[:, ~flat].T
        ratio = 0.0 if flat.any() else -np.inf  # 0/0 = 0
    if seen.any():
        root = np.sqrt(scale[seen])
        ratio = max(ratio, float(np.linalg.eigvalsh(rest / root[:, None] / root)[-1]))
    return ratio


def _symmetric(name: str, matrix: ArrayLike) -> Array:
    out = _validate.real_array(name, matrix)
    if out.ndim != 2 or out.shape[0] != out.shape[1] or out.size == 0:
        raise InvalidInput(f"{name} must be a square matrix, got shape {out.shape}")
    if not np.isfinite(out).all() or not np.allclose(out, out.T, rtol=1e-6, atol=1e-9 + 1e-6 * np.abs(out).max()):
        raise InvalidInput(f"{name} must be finite and symmetric")
    return np.asarray((out + out.T) / 2)


def positive_part(H: ArrayLike) -> Array:
    """H with its negative eigenvalues set to 0: the Ĥ of NoiseCurve, section 5.1.

    Args:
        H: symmetric.

    Returns:
        The nearest positive semi-definite matrix.
    """
    value, vector = np.linalg.eigh(_symmetric("H", H))
    return np.asarray((vector * np.maximum(value, 0.0)) @ vector.T)


def hessian(
    model: nn.Module,
    loss_fn: LossFunction | RecordLoss,
    data: object,
    *,
    classes: int | None = None,
    random_labels: bool = False,
    pretrain_epochs: int = 0,
    learning_rate: float = 1e-3,
    chunk_size: int = 64,
    random_state: int = 0,
) -> Array:
    """The full Hessian over PUBLIC records, at the model's parameters or at the end of random-label pre-training.

    Assumptions: ``data`` and the parameters are public (declared).

    Args:
        model: small; not changed.
        loss_fn: as in ``hessian_spectrum``.
        data: as in ``hessian_spectrum``, with labels unless ``random_labels``.
        classes: number of classes, for random labels.
        random_labels: whether labels are drawn at random.
        pretrain_epochs: passes of pre-training before the Hessian is computed.
        learning_rate: learning rate of Adam.
        chunk_size: records differentiated at once.
        random_state: seed of labels and batches.

    Returns:
        (p, p), in the order of the trainable parameters.

    Raises:
        InvalidInput: if the model has more than 5000 trainable parameters, or as ``hessian_spectrum``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        ready = prepare(
            model,
            loss_fn,
            data,
            classes=classes,
            random_labels=random_labels,
            pretrain_epochs=pretrain_epochs,
            learning_rate=learning_rate,
            random_state=random_state,
        )
        if ready.objective.size > FULL_LIMIT:
            raise InvalidInput(
                f"the model has {ready.objective.size} trainable parameters, above {FULL_LIMIT}: its Hessian is not "
                "formed; freeze layers, or look at hessian_spectrum"
            )
        return dense_hessian(in_double(ready, chunk_size))
