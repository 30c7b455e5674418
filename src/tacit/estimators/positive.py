"""Private regression of counts and positive amounts: Poisson and Gamma, with a logarithmic link."""

from __future__ import annotations

from typing import Any

from tacit.estimators.linear import LinearRegressor, Units
from tacit.ledger import Ledger
from tacit.maps import target_bounds
from tacit.problem import Gamma, Loss, Poisson
from tacit.solvers import Solver

__all__ = ["DPGammaRegressor", "DPPoissonRegressor"]


class DPPoissonRegressor(LinearRegressor):
    """Poisson regression, private: counts whose mean is exp(xᵀw + b).

        minimise  1/n·Σ (e^{f_i} − y_i·f_i) + α/2·‖w‖²,   f_i = x_iᵀw + b     (as scikit-learn's PoissonRegressor)

    Beyond the logarithm of the upper target bound the loss is continued linearly, which leaves the optimum where it is.

    Formal guarantee: as ``DPElasticNet``.

    Assumptions: as ``DPElasticNet``; ``target_bounds`` start at 0 or above.

    Args:
        alpha: α, on coefficients in the units of X, beside the mean loss of counts in units of their upper bound. None
            for scikit-learn's default, 1.0 beside the mean loss of counts themselves.

    Everything else is as in ``DPElasticNet``.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20000, 2))
    >>> y = rng.poisson(np.exp(X @ [0.8, -0.5] + 0.3))
    >>> model = DPPoissonRegressor(
    ...     alpha=1e-4, epsilon=1.0, delta=1e-9, feature_bounds=(-1, 1), target_bounds=(0, 12), random_state=0
    ... )
    >>> bool(abs(model.fit(X, y).coef_ - [0.8, -0.5]).max() < 0.1)
    True
    """

    default_loss = Poisson()

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

    def _default_alpha(self, units: Units) -> float:
        """1.0 beside Σ (e^f − y·f)/n, the loss of counts in their own units."""
        return 1 / units.target

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class DPGammaRegressor(DPPoissonRegressor):
    """Gamma regression, private: positive amounts whose mean is exp(xᵀw + b).

        minimise  1/n·Σ (y_i·e^{−f_i} + f_i) + α/2·‖w‖²,   f_i = x_iᵀw + b     (as scikit-learn's GammaRegressor)

    Below the logarithm of the lower target bound the loss is continued linearly.

    Formal guarantee: as ``DPElasticNet``.

    Assumptions: as ``DPElasticNet``; ``target_bounds`` start above 0.

    Args:
        alpha: α, on coefficients in the units of X, beside the mean loss. None for scikit-learn's default, 1.0.

    Everything else is as in ``DPElasticNet``.
    """

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
        super().__init__(
            alpha,
            epsilon=epsilon,
            delta=delta,
            feature_bounds=feature_bounds,
            target_bounds=target_bounds,
            adjacency=adjacency,
            fit_intercept=fit_intercept,
            solver=solver,
            view=view,
            max_passes=max_passes,
            clip=clip,
            arithmetic=arithmetic,
            weighting=weighting,
            max_rows=max_rows,
            max_sample_weight=max_sample_weight,
            ledger=ledger,
            random_state=random_state,
        )

    def _loss(self) -> Loss:
        bounds = target_bounds(self.target_bounds)
        return Gamma.for_targets(bounds.low, bounds.high) if 0 < bounds.low <= bounds.high else Gamma()

    def _default_alpha(self, units: Units) -> float:
        """1.0: the loss has no units."""
        return 1.0
