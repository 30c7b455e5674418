"""Objective perturbation against the exact density of the minimiser: in one and two dimensions it can be integrated."""

import itertools
import json
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import integrate, stats

from tacit._codec import decode, encode
from tacit.accounting import Certificate, calibrate, certify, gdp_delta, gdp_epsilon, objective_perturbation_delta
from tacit.accounting.perturbation import _best_split, _one_tail, _two_tails, perturbation_curve
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Evidence, Mechanism, ObjectivePerturbation, Plan, Selection, Trials
from tacit.run.newton import newton_minimise

DELTA = 1e-5


def mechanism(**change):
    fields = {
        "adjacency": "replace-one",
        "slope_bound": 1.0,
        "smoothness": 0.25,
        "feature_norm": 1.0,
        "l2": 1.0,
        "noise_std": 10.0,
        "tolerance": 1e-10,
        "output_std": 1e-3,
        "signed_slopes": True,
    }
    return ObjectivePerturbation(**{**fields, **change})


# -- the oracle: densities of the exact minimiser ------------------------------------------------------------


@dataclass
class Loss:
    """φ of a kind, with slopes in [0, C] (signed) or [−C, C], a given β, and its bend at ``at``."""

    kind: str
    beta: float
    at: float
    C: float = 1.0

    @property
    def signed(self):
        return self.kind in ("logistic", "hinge")

    def slope(self, t):
        t, b, C = t - self.at, self.beta, self.C
        return {
            "logistic": lambda: C * 0.5 * (1 + np.tanh(2 * b / C * t)),  # C·expit(4βt/C): curvature ≤ β
            "hinge": lambda: np.clip(b * t, 0, C),
            "tanh": lambda: C * np.tanh(b / C * t),
            "huber": lambda: np.clip(b * t, -C, C),
        }[self.kind]()

    def curvature(self, t):
        s, b, C = self.slope(t), self.beta, self.C
        return {
            "logistic": lambda: 4 * b * (s / C) * (1 - s / C),
            "hinge": lambda: b * ((s > 0) & (s < C)),
            "tanh": lambda: b * (1 - (s / C) ** 2),
            "huber": lambda: b * (np.abs(s) < C),
        }[self.kind]()


def density(w, records, *, l2, sigma, pull=0.0):
    """Of the minimiser at the points w (m, p); each record is (x, loss)."""
    G, logdet = l2 * w - pull, np.zeros(len(w))
    H = np.broadcast_to(l2 * np.eye(w.shape[1]), (len(w), w.shape[1], w.shape[1])).copy()
    for x, loss in records:
        t = w @ x
        G = G + loss.slope(t)[:, None] * x
        H += loss.curvature(t)[:, None, None] * np.outer(x, x)
    logdet = np.linalg.slogdet(H)[1]
    p = w.shape[1]
    return np.exp(-(G**2).sum(1) / (2 * sigma**2) + logdet) / (2 * math.pi * sigma**2) ** (p / 2)


def line(records, l2, sigma, pull):
    """Midpoints and widths of cells that resolve the bends."""
    reach = (9 * sigma + 2) / l2
    parts = [np.linspace(pull / l2 - reach, pull / l2 + reach, 4001)]
    for x, loss in records:
        bend = (np.array([-4.0, 4.0]) * loss.C / loss.beta + loss.at) / x[0]
        parts.append(np.linspace(*np.sort(bend), 4001))
    w = np.unique(np.concatenate(parts))
    return (w[1:] + w[:-1])[:, None] / 2, np.diff(w)


def exact(p_records, q_records, *, l2, sigma, pull=0.0):
    """ε ↦ δ of two one-dimensional data sets, by quadrature."""
    w, h = line(p_records + q_records, l2, sigma, pull)
    P = density(w, p_records, l2=l2, sigma=sigma, pull=pull) * h
    Q = density(w, q_records, l2=l2, sigma=sigma, pull=pull) * h
    assert P.sum() == pytest.approx(1, abs=2e-4)
    assert Q.sum() == pytest.approx(1, abs=2e-4)
    return lambda e: float(np.maximum(P / P.sum() - math.exp(e) * Q / Q.sum(), 0).sum())


def bound(adjacency, loss, *, l2, sigma):
    return lambda e: objective_perturbation_delta(
        e, ratio=loss.C / sigma, curvature=loss.beta / l2, adjacency=adjacency, signed_slopes=loss.signed
    )


ONE, MINUS = np.array([1.0]), np.array([-1.0])
KINDS = ("logistic", "hinge", "tanh", "huber")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.25, 3.0, 60.0])
@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_exact_pairs_stay_below_the_bound(kind, beta, sigma):
    for at, other in itertools.product((-2.0 * sigma, 0.0, 3.0 * sigma), repeat=2):
        first, second = Loss(kind, beta, at), Loss(kind, beta, other)
        for p, q, adjacency in (
            ([(ONE, first)], [], "add-remove"),
            ([], [(ONE, first)], "zero-out"),
            ([(ONE, first)], [(ONE, second)], "replace-one"),
            ([(ONE, first)], [(MINUS, second)], "replace-one"),
        ):
            truth, claim = exact(p, q, l2=1.0, sigma=sigma), bound(adjacency, first, l2=1.0, sigma=sigma)
            for e in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0):
                assert truth(e) <= claim(e) * (1 + 1e-3) + 1e-9, (e, at, other, adjacency)


def test_random_pairs_stay_below_the_bound():
    rng = np.random.default_rng(5)
    for _ in range(150):
        kind, l2, sigma = rng.choice(KINDS), 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-0.3, 1)
        beta, pull = 10 ** rng.uniform(-1, 2), rng.normal() * sigma

        def record(kind=kind, beta=beta, pull=pull, sigma=sigma, l2=l2):
            x = rng.choice([-1, 1]) * rng.choice([1.0, rng.uniform(0.3, 1)])
            return np.array([x]), Loss(kind, beta, x * (pull + 3 * sigma * rng.normal()) / l2)

        common, first, second = record(), record(), record()
        e = rng.uniform(0, math.log1p(beta / l2) + 6 / sigma)
        for p, q, adjacency in (
            ([first], [], "zero-out"),
            ([], [first], "zero-out"),
            ([first], [second], "replace-one"),
        ):
            truth = exact([*p, common], [*q, common], l2=l2, sigma=sigma, pull=pull)(e)
            assert truth <= bound(adjacency, first[1], l2=l2, sigma=sigma)(e) * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("kind", ["logistic", "tanh"])
@pytest.mark.parametrize("angle", [0.5, 2.0, 2.9])
def test_pairs_in_the_plane_stay_below_the_bound(kind, angle):
    sigma, grid = 2.0, np.linspace(-18, 18, 361)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    cell = (grid[1] - grid[0]) ** 2
    for beta, at, other in itertools.product((0.25, 2.0), (-6.0, 0.0), (-20.0, 2.0)):
        first, second = Loss(kind, beta, at), Loss(kind, beta, other)
        P = density(w, [(np.array([1.0, 0.0]), first)], l2=1.0, sigma=sigma) * cell
        Q = density(w, [(np.array([math.cos(angle), math.sin(angle)]), second)], l2=1.0, sigma=sigma) * cell
        assert P.sum() == pytest.approx(1, abs=1e-5)
        claim = bound("replace-one", first, l2=1.0, sigma=sigma)
        for e in (0.2, 1.0, 2.0, 3.0):
            assert np.maximum(P - math.exp(e) * Q, 0).sum() <= claim(e) * (1 + 1e-3) + 1e-9


def test_the_density_is_that_of_the_code():
    rng = np.random.default_rng(3)
    first, second = (ONE, Loss("logistic", 2.0, 0.3)), (np.array([0.5]), Loss("logistic", 2.0, -1.0))

    def solve(b):
        g = lambda w: w + b + sum(x * loss.slope(w @ x) for x, loss in (first, second))  # noqa: E731
        h = lambda w: np.eye(1) + sum(np.outer(x, x) * loss.curvature(w @ x) for x, loss in (first, second))  # noqa: E731
        return newton_minimise(g, h, np.zeros(1), tolerance=1e-10)[0][0]

    drawn = [solve(1.5 * rng.normal(size=1)) for _ in range(1500)]
    w, h = line([first, second], 1.0, 1.5, 0.0)
    cdf = np.cumsum(density(w, [first, second], l2=1.0, sigma=1.5) * h)
    law = lambda x: np.interp(x, w[:, 0], cdf)  # noqa: E731
    assert stats.kstest(drawn, law).pvalue > 1e-3
    assert stats.kstest(np.array(drawn) * 1.2, law).pvalue < 1e-3


# -- how tight -----------------------------------------------------------------------------------------------


def test_additions_attain_their_bound():
    saturated, steep = Loss("hinge", 0.5, -200.0), Loss("huber", 50.0, 0.0)
    for loss in (saturated, steep):
        truth, claim = exact([], [(ONE, loss)], l2=1.0, sigma=5.0), bound("zero-out", loss, l2=1.0, sigma=5.0)
        assert claim(0.5) >= truth(0.5)
        tails = (1 if loss.signed else 2) * gdp_delta(0.2, 0.5)
        assert truth(0.5) == pytest.approx(tails, rel=2e-3)


def largest_epsilon(pairs, delta, **common):
    def epsilon(p, q):
        truth = exact(p, q, **common)
        low, high = 0.0, 60.0
        for _ in range(45):
            middle = (low + high) / 2
            low, high = (middle, high) if truth(middle) > delta else (low, middle)
        return low

    return max(epsilon(p, q) for p, q in pairs)


@pytest.mark.parametrize(("sigma", "beta", "near"), [(10.0, 0.1, 0.85), (10.0, 10.0, 0.9), (10 / 3, 0.1, 0.95)])
def test_replacements_come_close_to_their_bound(sigma, beta, near):
    full = (MINUS, Loss("hinge", beta, -1e3))
    ramps = [(ONE, Loss("hinge", beta, at)) for at in np.linspace(-8, 4, 13) * sigma]
    truth = largest_epsilon([([ramp], [full]) for ramp in ramps], DELTA, l2=1.0, sigma=sigma)
    claim = certify(mechanism(noise_std=sigma, smoothness=beta, tolerance=1e-12)).epsilon(DELTA)
    assert near * claim < truth < claim


# -- mutants: each simpler formula is exceeded by an explicit pair --------------------------------------------


def test_dropping_the_determinant_is_wrong():
    loss = Loss("hinge", 10.0, 0.0)
    truth = exact([(ONE, loss)], [], l2=1.0, sigma=10.0)
    assert truth(1.0) > 100 * gdp_delta(0.1, 1.0)
    assert truth(1.0) <= bound("add-remove", loss, l2=1.0, sigma=10.0)(1.0)


def test_dropping_the_second_tail_is_wrong_for_slopes_of_both_signs():
    loss = Loss("huber", 0.5, 0.0)
    truth = exact([], [(ONE, loss)], l2=1.0, sigma=3.0)
    e = 1.6  # beyond J + what one tail gives
    assert truth(e) > 1.9 * gdp_delta(1 / 3, e)
    assert truth(e) > 1.9 * objective_perturbation_delta(
        e, ratio=1 / 3, curvature=0.0, adjacency="zero-out", signed_slopes=True
    )
    assert truth(e) <= bound("zero-out", loss, l2=1.0, sigma=3.0)(e)


def test_the_constants_of_zero_out_are_wrong_for_replace_one():
    first, second = (ONE, Loss("logistic", 0.25, -400.0)), (MINUS, Loss("logistic", 0.25, -400.0))
    truth = exact([first], [second], l2=1.0, sigma=5.0)
    assert truth(1.0) > 30 * bound("zero-out", first[1], l2=1.0, sigma=5.0)(1.0)
    assert truth(1.0) == pytest.approx(gdp_delta(0.4, 1.0), rel=2e-3)


def test_dropping_the_noise_along_the_record_is_wrong():
    # Without the term zS the loss would never exceed J + (2μ)²/2, and δ would be zero beyond.
    first, second = (ONE, Loss("logistic", 0.25, -400.0)), (MINUS, Loss("logistic", 0.25, -400.0))
    beyond = math.log1p(0.25) + 0.4**2 / 2
    assert exact([first], [second], l2=1.0, sigma=5.0)(beyond) > 0.05


# -- the formulas --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.05, 0.7, 3.0])
@pytest.mark.parametrize("x", [-2.0, -0.1, 0.0, 0.2, 1.0, 3.0])
def test_tails_are_the_stated_expectations(mu, x):
    def expectation(loss):
        f = lambda z: stats.norm.pdf(z) * max(0.0, -math.expm1(min(x - loss(z), 0.0)))  # noqa: E731
        edges = sorted({-12.0, -mu / 2, 0.0, 12.0, *(float(np.clip(s * (x / mu - mu / 2), -12, 12)) for s in (1, -1))})
        return sum(integrate.quad(f, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(edges))

    assert _one_tail(mu, x) == pytest.approx(expectation(lambda z: max(mu * z + mu**2 / 2, 0.0)), abs=1e-10)
    assert _two_tails(mu, x) == pytest.approx(expectation(lambda z: mu * abs(z) + mu**2 / 2), abs=1e-10)


@pytest.mark.parametrize("mu", [0.05, 0.7, 3.0])
@pytest.mark.parametrize("x", [0.0, 0.01, 0.3, 2.0, 12.0])
def test_replacements_are_the_best_split(mu, x):
    claim = lambda signed: objective_perturbation_delta(  # noqa: E731
        x, ratio=mu, curvature=0.0, adjacency="replace-one", signed_slopes=signed
    )
    splits = np.linspace(0, x, 401)
    one = min(_one_tail(mu, a) + math.exp(a) * _one_tail(mu, x - a) for a in splits)
    both = min(_two_tails(mu, a) + math.exp(a) * _one_tail(mu, x - a) for a in splits)
    assert claim(True) == pytest.approx(min(one, 1.0), rel=2e-3)
    assert claim(False) == pytest.approx(min(both, 1.0), rel=2e-3)
    assert claim(True) <= claim(False)
    assert 0 <= _best_split(mu, x) <= x


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("signed", [True, False])
def test_it_is_monotone_in_everything(adjacency, signed):
    claim = lambda e, ratio=0.3, curvature=0.5: objective_perturbation_delta(  # noqa: E731
        e, ratio=ratio, curvature=curvature, adjacency=adjacency, signed_slopes=signed
    )
    along = [claim(e) for e in np.linspace(-3, 12, 600)]
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(along))
    assert all(0 <= a <= 1 for a in along)
    for e in (0.1, 1.0, 3.0):
        for name, values in (("ratio", np.geomspace(1e-3, 10, 60)), ("curvature", np.geomspace(1e-3, 100, 60))):
            up = [claim(e, **{name: v}) for v in values]
            assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(up))
    assert claim(math.inf) == 0
    assert claim(1e4) <= 1e-300
    assert objective_perturbation_delta(0.5, ratio=0.0, curvature=0.0, adjacency=adjacency) == 0


# -- the solver's error --------------------------------------------------------------------------------------


def test_the_solvers_error_is_covered():
    loss, sigma, s, tau = Loss("logistic", 0.25, -400.0), 5.0, 0.5, 0.4
    m = mechanism(noise_std=sigma, tolerance=tau, output_std=s)
    assert m.solver_ratio == pytest.approx(2 * tau / s)
    # Saturated slopes: w* = −b ∓ 1; the solver errs by τ/Λ away from the neighbour's, in the worst case.
    apart, total = 2 * loss.C + 2 * tau, math.hypot(sigma, s)
    curve = perturbation_curve(m)
    for e in (0.5, 1.0, 2.0, 4.0):
        assert gdp_delta(apart / total, e) <= curve.delta(e)
    assert curve.epsilon(DELTA) > perturbation_curve(replace(m, tolerance=1e-12)).epsilon(DELTA) + 0.5


def test_a_sharp_solver_costs_nothing():
    m = mechanism()
    ideal = math.log1p(0.25) + gdp_epsilon(0.2, DELTA)
    assert ideal <= certify(m).epsilon(DELTA) <= ideal * (1 + 1e-5)


# -- certificates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("signed", [True, False])
def test_contract(adjacency, signed):
    m = mechanism(adjacency=adjacency, signed_slopes=signed)
    certificate = certify(m, delta=DELTA)
    values = [certificate.epsilon(d) for d in (1e-8, 1e-5, 1e-2)]
    assert values[0] > values[1] > values[2] > 0
    for d in (1e-7, 1e-5, 1e-3):
        assert certificate.delta(certificate.epsilon(d)) <= d * (1 + 1e-6)
    assert certify(replace(m, noise_std=20.0)).epsilon(DELTA) < values[1]
    assert certify(replace(m, l2=2.0)).epsilon(DELTA) < values[1]
    assert certify(replace(m, noise_std=1e-4)).epsilon(DELTA) > 1e5
    twice = certify(Plan.of(m, m)).epsilon(DELTA)
    assert values[1] < twice <= 2 * certificate.epsilon(DELTA / 2) * (1 + 1e-9)
    assert certificate.view == "the final model"
    assert all(a.evidence is Evidence.DECLARED for a in certificate.assumptions)
    assert certificate.published_epsilon(DELTA) is None


def test_relations_and_signs_are_ordered():
    def cost(adjacency, signed):
        return certify(mechanism(adjacency=adjacency, signed_slopes=signed)).epsilon(DELTA)

    for signed in (True, False):
        assert cost("zero-out", signed) == cost("add-remove", signed) < cost("replace-one", signed)
    assert cost("replace-one", True) < cost("replace-one", False)
    assert cost("zero-out", True) == cost("zero-out", False)  # here the removal with its J is the dearer direction


def test_round_trips():
    m = mechanism(unit="person", evidence=Evidence.ENFORCED)
    assert decode(json.loads(json.dumps(encode(m)))) == m
    plan = Plan.of(Mechanism(adjacency="replace-one", ratio=0.1, steps=1, unit="person"), m)
    certificate = certify(plan, delta=DELTA)
    for again in (Certificate.from_json(certificate.to_json()), pickle.loads(pickle.dumps(certificate))):
        assert again == certificate
        assert again.epsilon(DELTA) == certificate.epsilon(DELTA)
    assert "objective perturbation" in certificate.describe(DELTA)
    assert "monotone" in certificate.describe(DELTA)


def test_calibration_finds_the_noise_and_refuses_below_the_determinant():
    found = calibrate(lambda sigma: mechanism(noise_std=sigma), epsilon=1.0, delta=DELTA)
    assert found.certificate.epsilon(DELTA) <= 1
    assert certify(mechanism(noise_std=found.value * (1 - 1e-4))).epsilon(DELTA) > 1
    with pytest.raises(InvalidInput, match="no noise"):
        calibrate(lambda sigma: mechanism(noise_std=sigma), epsilon=0.2, delta=DELTA)  # J = 0.223
    both = calibrate(lambda sigma: mechanism(noise_std=sigma, l2=sigma / 10), epsilon=0.2, delta=DELTA)
    assert both.certificate.epsilon(DELTA) <= 0.2


def test_it_may_be_selected_but_not_under_another_theorem():
    m = mechanism(noise_std=100.0)
    chosen = Selection(base=(m,), trials=Trials(5))
    assert certify(chosen).epsilon(DELTA) > certify(m).epsilon(DELTA)
    assert decode(encode(chosen)) == chosen
    with pytest.raises(InvalidInput, match="objective-perturbation"):
        certify(m, theorem="gaussian-composition")
    assert certify(m, theorem="objective-perturbation").epsilon(DELTA) == certify(m).epsilon(DELTA)
    with pytest.raises((InvalidInput, NotCovered)):
        certify(Mechanism(adjacency="replace-one", ratio=0.1, steps=1), theorem="objective-perturbation")
    with pytest.raises(InvalidInput, match="never compose"):
        Plan.of(m, mechanism(adjacency="zero-out"))


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("slope_bound", "smoothness", "feature_norm", "l2", "noise_std", "tolerance",
                                     "output_std") for value in (0.0, -1.0, math.nan, math.inf, "1", None)),
        {"signed_slopes": 1}, {"evidence": "enforced"}, {"unit": ""}, {"label": None}, {"adjacency": "nearby"},
        {"noise_std": 1e-300, "slope_bound": 1e300}, {"l2": 1e-300, "output_std": 1e-300},
    ],
)  # fmt: skip
def test_descriptions_that_make_no_sense_are_refused(change):
    with pytest.raises(InvalidInput):
        mechanism(**change)
