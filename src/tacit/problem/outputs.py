"""Losses of K outputs z = Wx at once, clipped so that they stay gradients of convex functions.

Hidden-state theorems need more of a clipped gradient than a bound: the *field* g(z) must be the gradient of a convex,
smooth function. Radial clipping keeps that for squared loss and for single outputs, not for softmax with three or more
classes (errata, E2). Each loss below states sup‖g‖ and the smoothness in z; the gradient in W is g·xᵀ, so that with
‖x‖ ≤ R the contribution is at most slope·R and its smoothness curvature·R².
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.logistic import logistic
from tacit.kernels.rows import row_squares
from tacit.kernels.softmax import softmax_gradient

__all__ = ["OUTPUT_LOSSES", "OneVsRest", "OutputLoss", "Softmax", "SquaredOutputs"]

Rows = NDArray[Any]  # float32 or float64
SMALLEST = 1e-6
"""Clips below drown in the rounding of float32."""


class OutputLoss(ABC):
    """A clipped loss of K outputs.

    Attributes:
        name: for messages.
        outputs: K.
        clip: a.
        slope: sup ‖g‖.
        curvature: β in z: g is the gradient of a convex β-smooth function.
        gradient_error: e: in float64 ``gradient`` is within e·u of g for all finite outputs, u = 2⁻⁵³; None where that
            is not proven. Exact hidden chains need it.
    """

    name: ClassVar[str]
    outputs: int
    clip: float
    slope: float
    curvature: float
    gradient_error: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "gradient" in vars(cls) and "gradient_error" not in vars(cls):
            cls.gradient_error = None  # what was proven of a parent is not about another gradient

    @abstractmethod
    def __init__(self, outputs: int, clip: float = 1.0) -> None: ...

    @abstractmethod
    def gradient(self, Z: Rows, target: Rows) -> Rows:
        """The clipped gradient g for each row of outputs; may overwrite Z.

        Args:
            Z: (records, K).
            target: (records,) class numbers, or (records, K) values.

        Returns:
            (records, K), in the type of Z.
        """

    @abstractmethod
    def value(self, Z: Rows, target: Rows) -> Rows:
        """The convex function whose gradient g is, (records,)."""


def _share(clip: object) -> float:
    """A clip of slopes that are at most 1."""
    a = _validate.positive(clip=clip)
    if not SMALLEST <= a <= 1:
        raise InvalidInput(f"clip must lie between {SMALLEST:g} and 1, got {clip!r}: 1 does not clip")
    return a


def _softmax(Z: Rows) -> Rows:
    Z = Z - Z.max(axis=1, keepdims=True)
    np.exp(Z, out=Z)
    Z /= Z.sum(axis=1, keepdims=True)
    return Z


class Softmax(OutputLoss):
    """Cross-entropy with the sound softmax clip: g = (p − e_y)·min(1, a/(1 − p_y)), p = softmax(z).

    g is the gradient of f_a(z) = max{⟨q − e_y, z⟩ + H(q) : q in the simplex, q_y ≥ 1 − a}. The maximum is attained at
    q = p if p_y ≥ 1 − a, and else at q_y = 1 − a with the rest in proportion to p, where q − e_y = (p − e_y)·a/(1−p_y).
    A maximum of linear functions is convex. ‖q − e_y‖ ≤ √2·(1 − q_y) ≤ √2·a. The Hessian is diag(q) − qqᵀ on what is
    free, at most ½, and at most 2a(1 − a) for a ≤ ½.

    Args:
        outputs: K.
        clip: a in (0, 1]; 1 does not clip.
    """

    name = "softmax"

    def __init__(self, outputs: int, clip: float = 1.0) -> None:
        self.outputs = _validate.positive_int(outputs=outputs)
        self.clip = _share(clip)
        self.slope = float(np.sqrt(2)) * self.clip
        self.curvature = 2 * self.clip * (1 - self.clip) if self.clip <= 0.5 else 0.5

    @property
    def gradient_error(self) -> float:  # type: ignore[override]
        """8K + 96, from an exp within 16u: 8u of Padé's quotient, 8u of rounding (``kernels.softmax``).

        e_k = exp(z_k − top), a_k = top − z_k, is off by (a_k + 17)u·e_k, the total by (Σ a_k e_k + 17 + K)u relative to
        it, and a·e^{−a} < ½. So p is off by (1.5K + 36)u, 1 − p_y by (3K + 36)u; the clip, which divides by at least
        itself, adds the two.
        """
        return 8.0 * self.outputs + 96

    def gradient(self, Z: Rows, target: Rows) -> Rows:
        """(p − e_y)·min(1, a/(1 − p_y))."""
        return softmax_gradient(Z, target, self.clip)

    def value(self, Z: Rows, target: Rows) -> Rows:
        """f_a."""
        P = _softmax(Z)
        at = np.arange(len(P)), target
        away = 1 - P[at]
        clipped = away > self.clip
        Q = P * np.where(clipped, self.clip / np.maximum(away, 1e-300), 1.0)[:, None]
        Q[at] = np.where(clipped, 1 - self.clip, P[at])
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.where(Q > 0, Q * np.log(Q), 0.0).sum(axis=1)
        return np.asarray((Q * Z).sum(axis=1) - Z[at] + entropy)


class OneVsRest(OutputLoss):
    """Σ_k log(1 + e^{−s_k z_k}), s_y = 1 and −1 elsewhere, each slope clipped to ±a by itself.

    A clipped slope of one number is the slope of another convex function (continued linearly), and sums over heads stay
    so: ‖g‖ ≤ √K·a, curvature ¼ (a(1 − a) for a ≤ ½). Clipping the heads *jointly* would not be a gradient (E2).

    Args:
        outputs: K.
        clip: a in (0, 1]; 1 does not clip.
    """

    name = "one-vs-rest"

    def __init__(self, outputs: int, clip: float = 1.0) -> None:
        self.outputs = _validate.positive_int(outputs=outputs)
        self.clip = _share(clip)
        self.slope = float(np.sqrt(self.outputs)) * self.clip
        self.curvature = self.clip * (1 - self.clip) if self.clip <= 0.5 else 0.25

    @property
    def gradient_error(self) -> float:  # type: ignore[override]
        """16√K: each head is off by p(1 − p)·16u ≤ 4u in exp, 3u in the quotient, and 1u in the difference."""
        return 16 * float(np.sqrt(self.outputs))

    def gradient(self, Z: Rows, target: Rows) -> Rows:
        """Sigmoid(z_k) − 1(k = y), clipped to ±a."""
        P = logistic(Z).astype(Z.dtype)
        P[np.arange(len(P)), target] -= 1
        return np.asarray(np.clip(P, -self.clip, self.clip))

    def value(self, Z: Rows, target: Rows) -> Rows:
        """Σ_k φ_a(z_k): logistic, continued linearly where its slope exceeds a."""
        S = np.array(-Z)
        S[np.arange(len(Z)), target] *= -1  # margins
        if self.clip >= 1:
            return np.asarray(np.logaddexp(0, -S).sum(axis=1))
        knee = np.log((1 - self.clip) / self.clip)  # where the slope of the margin is −a
        bend = np.logaddexp(0, -knee) + self.clip * (knee - S)
        return np.asarray(np.where(knee > S, bend, np.logaddexp(0, -S)).sum(axis=1))


class SquaredOutputs(OutputLoss):
    """½‖z − y‖², clipped radially: g = r·min(1, a/‖r‖), r = z − y: the gradient of a Moreau–Huber function, β = 1.

    Args:
        outputs: K.
        clip: a > 0.
    """

    name = "squared"

    def __init__(self, outputs: int, clip: float = 1.0) -> None:
        self.outputs = _validate.positive_int(outputs=outputs)
        self.clip = self.slope = _validate.positive(clip=clip)
        if not SMALLEST <= self.clip <= 1 / SMALLEST:
            raise InvalidInput(
                f"clip must lie between {SMALLEST:g} and {1 / SMALLEST:g}, got {clip!r}: scale the targets"
            )
        self.curvature = 1.0

    @property
    def gradient_error(self) -> float:  # type: ignore[override]
        """(K + 16)·a: relative errors of the difference, the norm and the quotient, of what is at most a long."""
        return (self.outputs + 16) * self.clip

    def gradient(self, Z: Rows, target: Rows) -> Rows:
        """r·min(1, a/‖r‖); nothing where a target is not finite."""
        R = np.asarray(Z, np.float64) - target
        top = np.maximum(np.abs(R).max(axis=1, initial=0.0, keepdims=True), 1e-300)
        norm = top * np.sqrt(row_squares(R / top))[:, None]
        R *= np.where(norm > self.clip, self.clip / np.maximum(norm, 1e-300), 1.0)
        R[~np.isfinite(norm[:, 0])] = 0.0
        return R.astype(Z.dtype)

    def value(self, Z: Rows, target: Rows) -> Rows:
        """½‖r‖² inside of a, a‖r‖ − a²/2 beyond."""
        norm = np.sqrt(((Z - target) ** 2).sum(axis=1))
        return np.asarray(np.where(norm > self.clip, self.clip * norm - self.clip**2 / 2, norm**2 / 2))


OUTPUT_LOSSES: dict[str, type[OutputLoss]] = {cls.name: cls for cls in (Softmax, OneVsRest, SquaredOutputs)}
"""Losses of several outputs whose clip is sound, by name."""
