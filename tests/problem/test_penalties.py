"""Penalties: the prox minimises, units change nothing, and a penalty of the user's own is the one that runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import optimize

from tacit.errors import InvalidInput
from tacit.estimators.generalized import DPGeneralizedLinear
from tacit.problem import ElasticNet, Penalty
from tacit.solvers.stages import minimise


@dataclass(frozen=True)
class GroupLasso(Penalty):
    """α·Σ_g ‖(scale·w)_g‖: groups of coefficients vanish together (as on the page about linear models)."""

    alpha: float
    groups: tuple[tuple[int, ...], ...]
    size: int
    scale: tuple[float, ...] | float = 1.0

    def _norms(self, w, scale):
        return [float(np.linalg.norm((scale * w)[list(group)])) for group in self.groups]

    def value(self, w):
        return self.alpha * sum(self._norms(w, np.broadcast_to(self.scale, self.size)))

    def prox(self, v, step):
        s2 = np.square(np.broadcast_to(np.asarray(self.scale, float), self.size))
        w = np.array(v, float)
        for group in map(list, self.groups):
            w[group] = _shrunk(w[group], s2[group], float(np.max(step)) * self.alpha)
        return w

    def rescaled(self, scale, weight=1.0):
        s = np.broadcast_to(self.scale, self.size) * np.broadcast_to(scale, self.size)
        return replace(self, alpha=weight * self.alpha, scale=tuple(map(float, s)))


def _shrunk(v, s2, t):
    """argmin ½‖w − v‖² + t·√(Σ s²w²): w = v/(1 + t·s²/ρ), ρ = √(Σ s²w²), one equation for ρ."""
    if t == 0 or not v.any() or np.sqrt(np.sum(v * v / s2)) <= t:
        return v if t == 0 else 0.0 * v
    rest = lambda rho: np.sqrt(np.sum(s2 * np.square(v / (rho + t * s2)))) - 1  # noqa: E731
    rho = optimize.brentq(rest, 0.0, np.sqrt(np.sum(s2 * v * v)), xtol=1e-15)
    return v * rho / (rho + t * s2)


PENALTIES = {
    "ridge": ElasticNet.of(4, l2=0.7),
    "lasso": ElasticNet.of(4, l1=[0.0, 0.3, 0.3, 1.0]),
    "elastic net": ElasticNet.of(4, l1=0.2, l2=0.5),
    "box": ElasticNet.of(4, l2=0.1, low=-0.5, high=[0.1, 0.2, 0.3, np.inf]),
    "group lasso": GroupLasso(0.4, ((0, 1), (2, 3)), 4),
    "group lasso, scaled": GroupLasso(0.4, ((0, 1), (2, 3)), 4, (1.0, 3.0, 0.2, 0.2)),
}


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_the_prox_is_no_worse_than_its_neighbourhood(name):
    penalty, rng = PENALTIES[name], np.random.default_rng(0)
    inside = (lambda w: np.clip(w, penalty.low, penalty.high)) if isinstance(penalty, ElasticNet) else (lambda w: w)
    for step in (0.0, 0.3, 2.0):
        v = rng.normal(size=4)
        w = penalty.prox(v, step)
        best = 0.5 * np.sum((w - v) ** 2) + step * penalty.value(w)
        for size in (1e-3, 1e-1, 1.0):
            other = inside(w + size * rng.normal(size=(500, 4)))
            values = [0.5 * np.sum((u - v) ** 2) + step * penalty.value(u) for u in other]
            assert min(values) >= best - 1e-9


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_units_change_nothing(name):
    penalty, rng = PENALTIES[name], np.random.default_rng(1)
    scale = rng.uniform(0.2, 3.0, 4)
    other = penalty.rescaled(scale, 0.7)
    assert type(other) is type(penalty)  # a subclass keeps its own prox
    for _ in range(20):
        v = rng.normal(size=4) * 0.1
        assert other.value(v) == pytest.approx(0.7 * penalty.value(scale * v), rel=1e-12)


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_a_free_intercept_stays_where_it_is(name):
    penalty, rng = PENALTIES[name], np.random.default_rng(2)
    free, v = PENALTIES[name].with_free_intercept(), rng.normal(size=5)
    w = free.prox(v, 0.5)
    assert w[0] == v[0]
    np.testing.assert_allclose(w[1:], penalty.prox(v[1:], 0.5))
    assert free.value(v) == pytest.approx(penalty.value(v[1:]))
    assert free.rescaled(np.full(5, 2.0)).value(v) == pytest.approx(penalty.rescaled(2.0).value(v[1:]))


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_quadratics_are_minimised_with_any_penalty(name):
    penalty, rng = PENALTIES[name], np.random.default_rng(3)
    B = rng.normal(size=(6, 4))
    A, b = B.T @ B / 6 + 0.1 * np.eye(4), rng.normal(size=4)
    w = minimise(A, b, penalty)
    step = 1 / np.linalg.eigvalsh(A)[-1]
    np.testing.assert_allclose(penalty.prox(w - step * (A @ w - b), step), w, atol=1e-9)  # a fixed point


class _Doubled(ElasticNet):
    """A subclass whose prox is its own."""

    def prox(self, v, step):
        return super().prox(v, 2 * np.asarray(step))


def test_a_subclass_of_a_built_in_penalty_keeps_its_prox():
    """Version 0.1 replaced it by its parent's: neither rescaling nor compiled code may."""
    mine = _Doubled(*(np.full(3, x) for x in (0.3, 0.1, -np.inf, np.inf)))
    for other in (mine.rescaled(2.0), mine.with_free_intercept(), mine.on(np.array([0, 2]))):
        assert type(other) is _Doubled
    A, b = np.eye(3), np.array([2.0, 1.0, 0.1])
    assert not np.allclose(minimise(A, b, mine), minimise(A, b, ElasticNet.of(3, l1=0.3, l2=0.1)))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 6))
    return X, X @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.0] + 0.1 * rng.normal(size=4000)


@pytest.mark.parametrize("solver", ["metric", "gradient", "sgd", "cyclic", "statistics"])
def test_a_group_lasso_of_the_users_own_drops_whole_groups(solver, data):
    X, y = data
    groups = GroupLasso(0.05, ((0, 1, 2), (3, 4, 5)), 6)
    view = "final_model" if solver == "cyclic" else "all_iterates"
    budget = {"epsilon": 1e4, "delta": 1e-6, "feature_bounds": (-1, 1), "target_bounds": (-3, 3)}
    model = DPGeneralizedLinear("squared", groups, solver, view=view, random_state=0, **budget).fit(X, y)
    assert (model.coef_[3:] == 0).all()
    assert np.abs(model.coef_[:3]).min() > 0.2


def test_coordinate_descent_refuses_what_is_not_separable(data):
    X, y = data
    groups = GroupLasso(0.05, ((0, 1, 2), (3, 4, 5)), 6)
    model = DPGeneralizedLinear(
        "squared", groups, "coordinate", epsilon=1.0, delta=1e-6, feature_bounds=(-1, 1), target_bounds=(-3, 3)
    )
    with pytest.raises(InvalidInput, match="not separable"):
        model.fit(X, y)
