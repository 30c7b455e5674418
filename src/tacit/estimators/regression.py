"""Private linear regression, under the names people know."""

from __future__ import annotations

from typing import Any

from tacit.estimators.linear import LinearRegressor, Units
from tacit.inputs.parameters import check_magnitude
from tacit.ledger import Ledger
from tacit.maps import target_bounds
from tacit.problem import ElasticNet, Huber, Loss, Penalty, Squared, elastic_net
from tacit.solvers import Solver

__all__ = ["DPElasticNet", "DPHuberRegressor", "DPLasso", "DPLinearRegression", "DPRidge"]

KNEE = 1 / 3
"""Where Huber's loss turns linear by default, in units of half of the range of the target."""
EFFICIENT = 1.35
"""The same in standard deviations of a residual, in scikit-learn: 95 % as efficient as least squares on normal ones."""


class _InBounds(LinearRegressor):
    """Where scikit-learn's default strength makes no sense under bounds."""

    def _penalty(self, size: int, units: Units) -> Penalty:
        """The default is on coefficients in units of the bounds, w·r/s, beside a mean loss in units of s²."""
        if self.alpha is not None:
            return super()._penalty(size, units)
        unit = elastic_net(size, self._default_alpha(units), self.l1_ratio)
        return unit.rescaled(units.features / units.target, units.target**2)


class DPElasticNet(_InBounds):
    """Least squares with an elastic net, private.

        minimise  1/(2n)·‖y − Xw − b‖² + α·ρ·‖w‖₁ + α(1 − ρ)/2·‖w‖²     (ρ = l1_ratio; as scikit-learn's ElasticNet)

    Formal guarantee: ``certificate_`` is (ε, δ)-DP under ``adjacency``, for each row of X. With ``solver="auto"`` and
    ``view="all_iterates"`` it is exact Gaussian composition over everything that the solver releases on its way, all of
    which may be shown; with ``view="final_model"`` it covers the final model alone. A solver that is named has the
    theorem that its class states (``tacit.solvers``). A plan that costs more than ε is not run.

    Assumptions: bounds, penalty, clip and every setting of the solver are public, not read off the data (declared by
    you); values are clipped to the bounds and contributions to the solver's clip (enforced). Under "replace-one" and
    "zero-out" n is public. That the table is finite and of the right shape is a precondition outside the guarantee.

    Args:
        alpha: α; the penalty stands beside the mean loss, on coefficients in the units of X. None for 1/n, on
            coefficients of features and target in units of half of their bounds: scikit-learn's 1.0 would leave nothing
            of most models.
        l1_ratio: ρ.
        epsilon: ε.
        delta: δ; required, 1/n² is a common choice.
        feature_bounds: (low, high), public, numbers or one per feature; values outside are clipped silently.
        target_bounds: (low, high), public; values outside are clipped silently.
        adjacency: "replace-one", "zero-out", or "add-remove" (a noisy count then comes first).
        fit_intercept: whether to fit b (never penalised).
        solver: "auto", a name of ``tacit.solvers.SOLVERS``, or a solver object.
        view: "all_iterates", or "final_model" for a guarantee about the final model only (all that solver
            "cyclic" has).
        max_passes: how often the data may be read; None for the solver's rule, for solvers of one release
            ("statistics"), and for a solver object.
        clip: the solver's clip; None for its rule, and for a solver object.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        memory: how much a fit may hold beside the table for what it derives from it, in bytes or as "500 MB"; None for
            about half of the table (docs/memory.md).
        ledger: a ``tacit.Ledger``; every fit reserves there before it reads a record.
        random_state: None for private noise; an integer makes fits repeatable and marks the certificate "not private:
            seeded".

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 3))
    >>> y = X @ [1.0, -2.0, 0.0] + rng.normal(0, 0.1, 5000)
    >>> model = DPElasticNet(
    ...     alpha=1e-3, epsilon=1.0, delta=1e-7, feature_bounds=(-1, 1), target_bounds=(-4, 4), random_state=0
    ... )
    >>> model.fit(X, y).certificate_.epsilon(1e-7) <= 1.0
    True
    >>> bool(abs(model.coef_ - [1.0, -2.0, 0.0]).max() < 0.1)
    True
    """

    default_loss = Squared()

    def __init__(
        self,
        alpha: float | None = None,
        *,
        l1_ratio: float = 0.5,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        adjacency: str = "replace-one",
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        view: str = "all_iterates",
        max_passes: float | None = None,
        clip: float | None = None,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        memory: str | float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.view = view
        self.max_passes = max_passes
        self.clip = clip
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.memory = memory
        self.ledger = ledger
        self.random_state = random_state


class DPLasso(_InBounds):
    """Least squares with an ℓ1 penalty, private.

        minimise  1/(2n)·‖y − Xw − b‖² + α‖w‖₁     (as scikit-learn's Lasso)

    Formal guarantee: as ``DPElasticNet``.

    Assumptions: as ``DPElasticNet``.

    Args:
        alpha: α; the penalty stands beside the mean loss, on coefficients in the units of X. None for 1/n, on
            coefficients of features and target in units of half of their bounds (as ``DPElasticNet``).

    Everything else is as in ``DPElasticNet``.
    """

    default_loss = Squared()
    l1_ratio = 1.0

    def __init__(
        self,
        alpha: float | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        adjacency: str = "replace-one",
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        view: str = "all_iterates",
        max_passes: float | None = None,
        clip: float | None = None,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        memory: str | float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.view = view
        self.max_passes = max_passes
        self.clip = clip
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.memory = memory
        self.ledger = ledger
        self.random_state = random_state


class DPRidge(LinearRegressor):
    """Least squares with an ℓ2 penalty, private.

        minimise  1/(2n)·‖y − Xw − b‖² + α/2·‖w‖²     (scikit-learn's Ridge with its alpha = n·α)

    Formal guarantee: as ``DPElasticNet``.

    Assumptions: as ``DPElasticNet``. The ridge is no part of the proof: α = 0 has the same guarantee.

    Args:
        alpha: α; the penalty stands beside the mean loss, on coefficients in the units of X. None for 1/n, which is
            scikit-learn's default alpha = 1.0.

    Everything else is as in ``DPElasticNet``.
    """

    default_loss = Squared()

    def __init__(
        self,
        alpha: float | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        adjacency: str = "replace-one",
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        view: str = "all_iterates",
        max_passes: float | None = None,
        clip: float | None = None,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        memory: str | float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.view = view
        self.max_passes = max_passes
        self.clip = clip
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.memory = memory
        self.ledger = ledger
        self.random_state = random_state


class DPLinearRegression(LinearRegressor):
    """Least squares, private.

        minimise  1/(2n)·‖y − Xw − b‖²

    Formal guarantee: as ``DPElasticNet``.

    Assumptions: as ``DPElasticNet``.

    Every parameter is as in ``DPElasticNet``.
    """

    default_loss = Squared()

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        adjacency: str = "replace-one",
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        view: str = "all_iterates",
        max_passes: float | None = None,
        clip: float | None = None,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        memory: str | float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.view = view
        self.max_passes = max_passes
        self.clip = clip
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.memory = memory
        self.ledger = ledger
        self.random_state = random_state

    def _penalty(self, size: int, units: Units) -> Penalty:
        return ElasticNet.of(size)


class DPHuberRegressor(LinearRegressor):
    """Regression that large residuals pull no harder than ``huber_delta``, private.

        minimise  1/n·Σ huber(y − xᵀw − b) + α/2·‖w‖²,   huber(r) = r²/2 up to |r| = huber_delta, then linear

    Formal guarantee: as ``DPElasticNet``.

    Assumptions: as ``DPElasticNet``; ``huber_delta`` is public, too.

    Args:
        alpha: α; the penalty stands beside the mean loss, on coefficients in the units of X. None for scikit-learn's
            default, 1e-4·σ/n with its σ = huber_delta/1.35.
        huber_delta: where the loss turns linear, in the units of y; public. None for a third of half the range that
            ``target_bounds`` leave: with bounds that are too wide it becomes least squares.

    Everything else is as in ``DPElasticNet``.
    """

    def __init__(
        self,
        alpha: float | None = None,
        *,
        huber_delta: float | None = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        adjacency: str = "replace-one",
        fit_intercept: bool = True,
        solver: str | Solver = "auto",
        view: str = "all_iterates",
        max_passes: float | None = None,
        clip: float | None = None,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        memory: str | float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.huber_delta = huber_delta
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.view = view
        self.max_passes = max_passes
        self.clip = clip
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.memory = memory
        self.ledger = ledger
        self.random_state = random_state

    def _loss(self) -> Loss:
        if self.huber_delta is not None:
            return Huber(check_magnitude(huber_delta=self.huber_delta))
        bounds = target_bounds(self.target_bounds)
        return Huber((bounds.high - bounds.low) / 2 * KNEE or 1.0)

    def _default_alpha(self, units: Units) -> float:
        """scikit-learn minimises Σ 2/σ·huber(r) + 1e-4·‖w‖², with the corner at 1.35·σ."""
        return 1e-4 * self._loss().slope / EFFICIENT / units.n
