"""Penalties: the prox minimises, units change nothing, and a penalty of the user's own is the one that runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from contracts import made, nothing_escapes, ours, told
from scipy import optimize

from tacit._codec import decode, encode, is_described
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators.generalized import DPGeneralizedLinear
from tacit.problem import PENALTIES, ElasticNet, Penalty
from tacit.solvers.stages import minimise


@dataclass(frozen=True)
class GroupLasso(Penalty):
    """α·Σ_g ‖(scale·w)_g‖: groups of coefficients vanish together (as on the page about linear models)."""

    alpha: float
    groups: tuple[tuple[int, ...], ...]
    size: int
    scale: tuple[float, ...] | float = 1.0

    @classmethod
    def examples(cls):
        groups = ((0, 1), (2, 3))
        return cls(0.4, groups, 4), cls(0.4, groups, 4, (1.0, 3.0, 0.2, 0.2))

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


KINDS = {name: PENALTIES[name] for name in ours(PENALTIES)} | {"GroupLasso": GroupLasso}
EACH = pytest.mark.parametrize("name", sorted(KINDS))


def penalties(name):
    found = made(KINDS[name], KINDS[name].examples, "examples(cls) must return a tuple of penalties")
    told(found, f"{name}.examples() is empty: return at least one penalty")
    return found


@EACH
def test_the_prox_is_no_worse_than_its_neighbourhood(name):
    rng = np.random.default_rng(0)
    for penalty in penalties(name):
        for step in (0.0, 0.3, 2.0):
            v = rng.normal(size=penalty.size)
            w = penalty.prox(v, step)
            best = 0.5 * np.sum((w - v) ** 2) + step * penalty.value(w)
            for size in (1e-3, 1e-1, 1.0):
                for other in w + size * rng.normal(size=(500, penalty.size)):
                    u = penalty.prox(other, 0.0)  # within the box, where there is one
                    told(
                        0.5 * np.sum((u - v) ** 2) + step * penalty.value(u) >= best - 1e-9,
                        f"prox(v, step) of {name} is not argmin ½‖w − v‖² + step·value(w): for v = {v.round(3)} and "
                        f"step = {step:g} it returns {w.round(3)}, and {u.round(3)} is better",
                    )


@EACH
def test_a_penalty_is_saved_with_its_model(name):
    if name == "GroupLasso":
        return  # this test's own
    for penalty in penalties(name):
        told(
            is_described(penalty),
            f'{name} has no name in files: put @described("{name}") above @dataclass(frozen=True)',
        )
        again = decode(json.loads(json.dumps(encode(penalty))))
        assert type(again) is type(penalty)
        assert encode(again) == encode(penalty)


@EACH
def test_units_change_nothing(name):
    rng = np.random.default_rng(1)
    for penalty in penalties(name):
        scale = rng.uniform(0.2, 3.0, penalty.size)
        other = penalty.rescaled(scale, 0.7)
        told(
            type(other) is type(penalty),
            f"rescaled of {name} makes a {type(other).__name__}, whose prox would run: use dataclasses.replace(self)",
        )
        for v in rng.normal(size=(20, penalty.size)) * 0.1:
            told(
                other.value(v) == pytest.approx(0.7 * penalty.value(scale * v), rel=1e-12),
                f"rescaled(scale, weight) of {name} is not v ↦ weight·value(scale·v): models would be fitted with "
                "another penalty than the user's",
            )


@EACH
def test_a_free_intercept_stays_where_it_is(name):
    rng = np.random.default_rng(2)
    for penalty in penalties(name):
        free, v = penalty.with_free_intercept(), rng.normal(size=penalty.size + 1)
        w = free.prox(v, 0.5)
        assert w[0] == v[0]
        np.testing.assert_allclose(w[1:], penalty.prox(v[1:], 0.5))
        assert free.value(v) == pytest.approx(penalty.value(v[1:]))
        doubled = free.rescaled(np.full(penalty.size + 1, 2.0))
        assert doubled.value(v) == pytest.approx(penalty.rescaled(2.0).value(v[1:]))


@EACH
def test_quadratics_are_minimised_with_any_penalty(name):
    rng = np.random.default_rng(3)
    for penalty in penalties(name):
        B = rng.normal(size=(penalty.size + 2, penalty.size))
        A, b = B.T @ B / 6 + 0.1 * np.eye(penalty.size), rng.normal(size=penalty.size)
        w = minimise(A, b, penalty)
        step = 1 / np.linalg.eigvalsh(A)[-1]
        np.testing.assert_allclose(penalty.prox(w - step * (A @ w - b), step), w, atol=1e-9)  # a fixed point


def test_every_penalty_gets_these_tests():
    nothing_escapes(Penalty, set(PENALTIES.values()), "derive it from Penalty under a name of its own")


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
    model = DPGeneralizedLinear("squared", groups, solver, view=view, random_state=0, **budget)
    if solver == "cyclic":
        with pytest.raises(NotCovered, match="arithmetic='float'"):
            model.planned_certificate(4000, 6)
        model.set_params(arithmetic="float")
    model.fit(X, y)
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
