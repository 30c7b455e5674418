"""Private linear classification, under the names people know."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tacit.estimators.linear import LinearClassifier
from tacit.inputs.parameters import check_magnitude
from tacit.ledger import Ledger
from tacit.problem import Logistic, Loss, SmoothedHinge
from tacit.solvers import Solver

__all__ = ["DPLinearSVC", "DPLogisticRegression"]

Array = NDArray[np.float64]


class DPLogisticRegression(LinearClassifier):
    """Logistic regression, private; more than two classes are fitted one-vs-rest under one certificate.

        minimise  1/n·Σ log(1 + exp(−y(xᵀw + b))) + α·ρ·‖w‖₁ + α(1 − ρ)/2·‖w‖²     (ρ = l1_ratio, y = ±1)

    scikit-learn's LogisticRegression with C = 1/(n·α) has the same optimum.

    Formal guarantee: ``certificate_`` is (ε, δ)-DP under ``adjacency``, for each row of X. With ``solver="auto"`` and
    ``view="all_iterates"`` it is exact Gaussian composition over everything that the solver releases on its way, all of
    which may be shown; with ``view="final_model"`` it covers the final model alone. A solver that is named has the
    theorem that its class states (``tacit.solvers``). All heads of a one-vs-rest fit are parts of one plan. A plan that
    costs more than ε is not run.

    Assumptions: bounds, penalty, clip and every setting of the solver are public, not read off the data (declared by
    you), and so is the set of classes; if it is read off the data, the certificate carries a mark. Values are clipped
    to the bounds and contributions to the solver's clip (enforced). Under "replace-one" and "zero-out" n is public.
    That the table is finite and of the right shape is a precondition outside the guarantee.

    Args:
        alpha: α; the penalty stands beside the mean loss, on coefficients in the units of X. None for 1/n, which is
            scikit-learn's default C = 1.
        l1_ratio: ρ.
        epsilon: ε.
        delta: δ; required, 1/n² is a common choice.
        feature_bounds: (low, high), public, numbers or one per feature; values outside are clipped silently.
        classes: the labels, public; if None they are read off the data, which the certificate then says.
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
    >>> X = rng.uniform(-1, 1, (5000, 2))
    >>> y = np.where(X @ [3.0, -2.0] + rng.logistic(size=5000) > 0, "yes", "no")
    >>> model = DPLogisticRegression(
    ...     alpha=1e-3, epsilon=1.0, delta=1e-7, feature_bounds=(-1, 1), classes=["no", "yes"], random_state=0
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.7)
    True
    """

    default_loss = Logistic()

    def __init__(
        self,
        alpha: float | None = None,
        *,
        l1_ratio: float = 0.0,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        classes: Any = None,
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
        self.classes = classes
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

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes; one-vs-rest scores are normalised."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.column_stack([special.expit(-scores), special.expit(scores)])
        heads = np.asarray(special.expit(scores))
        sums = heads.sum(axis=1, keepdims=True)
        return np.where(sums > 0, heads / np.where(sums > 0, sums, 1.0), 1 / heads.shape[1])

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))


class DPLinearSVC(LinearClassifier):
    """A linear support vector classifier with a smoothed hinge, private.

        minimise  1/n·Σ hinge(y(xᵀw + b)) + α/2·‖w‖²,   the hinge's corner replaced by a parabola of width ``width``

    Formal guarantee: as ``DPLogisticRegression``.

    Assumptions: as ``DPLogisticRegression``; ``width`` is public, too.

    Args:
        alpha: α; the penalty stands beside the mean loss, on coefficients in the units of X. None for 1/n, which is
            scikit-learn's default C = 1.
        width: of the smoothed corner; public.

    Everything else is as in ``DPLogisticRegression``.
    """

    shell_name = "svc"

    def __init__(
        self,
        alpha: float | None = None,
        *,
        width: float = 0.5,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        classes: Any = None,
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
        self.width = width
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.classes = classes
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
        return SmoothedHinge(check_magnitude(width=self.width))
