"""Hidden chains in exact arithmetic: proven rounding errors, states on a lattice, and nothing to see modulo one."""

from __future__ import annotations

import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from lattice_attack import recovered
from scipy import sparse

from tacit.accounting import certify
from tacit.audit import audit_gdp
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import AllIterates, Arithmetic, BlockSweeps, FrozenArray, Mechanism, Partition, Rounding, Schedule
from tacit.problem import (
    ElasticNet,
    Gamma,
    Huber,
    Logistic,
    Loss,
    OneVsRest,
    Penalty,
    Poisson,
    SmoothedHinge,
    Softmax,
    Squared,
    SquaredOutputs,
)
from tacit.records import InMemory, Rows
from tacit.release import BlockChain, GradientChain, open_session
from tacit.release import channel as channel_module
from tacit.release.chain import in_ball
from tacit.release.queries import GatedOutputs, LinearOutputs, LossGradient, VectorSum

U = 2.0**-53
LOSSES = [Squared(), Huber(0.7), Logistic(), SmoothedHinge(0.5), Poisson(), Gamma(1.5)]


@pytest.fixture(autouse=True)
def _precision():
    with mp.workdps(60):
        yield


def real(a) -> np.ndarray:
    """As numbers of sixty digits."""
    return np.array([mp.mpf(float(x)) for x in np.ravel(a)], object).reshape(np.shape(a))


def length(v) -> mp.mpf:
    return mp.sqrt(sum((x * x for x in np.ravel(v)), mp.mpf(0)))


# -- ideal sums -----------------------------------------------------------------------------------------------------


def ideal_slope(loss: Loss, f: mp.mpf, y: mp.mpf) -> mp.mpf:
    """φ′ in sixty digits."""
    if isinstance(loss, Squared):
        return f - y
    if isinstance(loss, Huber):
        return max(min(f - y, mp.mpf(loss.parameter)), -mp.mpf(loss.parameter))
    if isinstance(loss, Logistic):
        return -y / (1 + mp.exp(y * f))
    if isinstance(loss, SmoothedHinge):
        return -y * max(min((1 - y * f) / mp.mpf(loss.parameter), mp.mpf(1)), mp.mpf(0))
    if isinstance(loss, Poisson):
        return mp.exp(min(f, mp.mpf(0))) - y
    return 1 - y * mp.exp(-max(f, -mp.mpf(loss.reach)))


def ideal_gradients(query: LossGradient, X, y, v) -> np.ndarray:
    """Σ of contributions of which bound and smoothness speak; rows that are not finite count as nothing."""
    C, R, total = mp.mpf(query.bound), mp.mpf(query.row_norm), real(np.zeros(X.shape[1]))
    for row, target in zip(X, y, strict=True):
        if not np.isfinite(row).all() or not row.any():
            continue
        x = real(row)
        x = x * min(mp.mpf(1), R / length(x))
        cap = C / length(x)
        total = total + max(min(ideal_slope(query.loss, x @ real(v), mp.mpf(float(target))), cap), -cap) * x
    return total


def ideal_outputs(query: LinearOutputs, X, y, W) -> np.ndarray:
    loss, K, R, total = query.loss, query.loss.outputs, mp.mpf(query.row_norm), 0
    for row, target in zip(X, y, strict=True):
        x = real(row)
        norm = length(x)
        if norm > R * (1 - mp.mpf(2) ** -32):  # ``kernels.rows.shortened``
            x = x * min(mp.mpf(1), R * (1 - mp.mpf(2) ** -16) / norm)
        z = real(W.reshape(K, -1)) @ x
        if isinstance(loss, SquaredOutputs):
            g = z - real(target)
            g = g * min(mp.mpf(1), mp.mpf(loss.clip) / length(g)) if length(g) > 0 else g
        elif isinstance(loss, Softmax):
            e = np.array([mp.exp(a - max(z)) for a in z])
            g = e / sum(e)
            away = sum(g[k] for k in range(K) if k != target)
            g[target] = -away
            g = g * (min(mp.mpf(1), mp.mpf(loss.clip) / away) if away > 0 else 1)
        else:
            g = np.array([1 / (1 + mp.exp(-a)) for a in z])
            g[target] -= 1
            g = np.array([max(min(a, mp.mpf(loss.clip)), -mp.mpf(loss.clip)) for a in g])
        total = total + np.outer(g, x).ravel()
    return total * (1 - mp.mpf(2) ** -14)  # ``queries.outputs.KEPT``


def adversarial(rng, n: int, p: int) -> np.ndarray:
    """Rows of all lengths, with cancelling entries, and one that is not finite."""
    X = rng.normal(size=(n, p)) * 10.0 ** rng.choice([-200, -8, 0, 3, 12, 200], size=(n, 1))
    X[0] = np.where(np.arange(p) % 2, -1.0, 1.0) * (1 + rng.integers(0, 8, p) * 2.0**-50)
    X[1] = 1e308 / p
    X[2, 0] = np.inf
    X[3] = 0.0
    return X


def corners(rng, p: int, B: float) -> list[np.ndarray]:
    """States of norm B that make predictions large, cancelling, or both."""
    one, alternate = np.zeros(p), np.where(np.arange(p) % 2, -1.0, 1.0) / math.sqrt(p)
    one[0] = 1.0
    random = rng.normal(size=p)
    return [B * one, B * alternate, B * np.ones(p) / math.sqrt(p), B * random / np.linalg.norm(random), 1e-9 * one]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_error_of_a_gradient_sum_is_within_its_bound(loss):
    rng, worst = np.random.default_rng(1), 0.0
    n, p = 9, 7
    for B in (1.0, 1e4, 1e8):
        for C, R in ((0.5, 2.0), (30.0, 4.0), (1e-3, 1e-2)):
            X, query = adversarial(rng, n, p), LossGradient(loss, C, R)
            low, high = loss.target_range
            y = rng.choice([-1.0, 1.0], n) if loss.labels else rng.uniform(low, high, n)
            if isinstance(loss, Squared | Huber):
                y[4:6] = 1e300, -1e9
            bound = query.rounding_error(n, p, B)
            for v in corners(rng, p, B):
                found = query.total(Rows(X, y), v[None], np.ones((1, n), bool))[0]
                error = length(real(found) - ideal_gradients(query, X, y, v))
                worst = max(worst, float(error / bound))
    assert worst <= 1
    assert worst > 1e-4  # the data do reach roundings of this size


@pytest.mark.parametrize("p", [200, 3000])
def test_long_rows_are_within_the_bound_in_extended_precision(p):
    """64 digits of the mantissa against 53: enough for sums of many terms."""
    rng, n, B = np.random.default_rng(p), 40, 1e3
    X = (rng.normal(size=(n, p))).astype(np.float64)
    y, query = rng.choice([-1.0, 1.0], n), LossGradient(Logistic(), 1.0, 5.0)
    v = rng.normal(size=p)
    v *= B / np.linalg.norm(v)
    v -= X[0] * (X[0] @ v) / (X[0] @ X[0])  # cancels in the first row
    found = query.total(Rows(X, y), v[None], np.ones((1, n), bool))[0]
    wide, s = X.astype(np.longdouble), v.astype(np.longdouble)
    norms = np.sqrt((wide * wide).sum(axis=1))
    wide *= np.minimum(1, 5 / norms)[:, None]
    slope = -y / (1 + np.exp(y * (wide @ s)))
    cap = 1 / np.sqrt((wide * wide).sum(axis=1))
    ideal = np.clip(slope, -cap, cap) @ wide
    assert float(np.linalg.norm((found - ideal).astype(float))) <= query.rounding_error(n, p, B)


@pytest.mark.parametrize(
    "loss", [Softmax(3), Softmax(3, 1e-3), OneVsRest(3, 0.4), SquaredOutputs(3, 0.7)], ids=lambda loss: loss.name
)
def test_the_error_of_output_sums_is_within_its_bound(loss):
    rng, worst = np.random.default_rng(2), 0.0
    n, p = 8, 5
    for B in (1.0, 1e3, 1e7):
        query = LinearOutputs(loss, 1.5)
        X = rng.normal(size=(n, p)) * rng.choice([1e-6, 1.0, 1e9], size=(n, 1))
        y = rng.normal(size=(n, 3)) * 10 if isinstance(loss, SquaredOutputs) else rng.integers(3, size=n)
        bound = query.rounding_error(n, 3 * p, B)
        for v in corners(rng, 3 * p, B):
            found = query.total(Rows(X, y), v[None], np.ones((1, n), bool))[0]
            worst = max(worst, float(length(real(found) - ideal_outputs(query, X, y, v)) / bound))
    assert 1e-6 < worst <= 1


def test_the_error_of_a_sum_of_vectors_is_within_its_bound():
    rng, worst = np.random.default_rng(3), 0.0
    for C in (1.0, 1e-3):
        X, query = adversarial(rng, 9, 6), VectorSum(C)
        found = query.total(Rows(X), np.zeros((1, 6)), np.ones((1, 9), bool))[0]
        rows = [real(row) for row in X if np.isfinite(row).all() and row.any()]
        ideal = sum(x * min(mp.mpf(1), mp.mpf(C) / length(x)) for x in rows)
        worst = max(worst, float(length(real(found) - ideal) / query.rounding_error(9, 6, 1.0)))
    assert 1e-3 < worst <= 1


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_derivatives_are_as_exact_as_losses_state(loss):
    """Among them: exp and expit within four units in the last place."""
    rng, (relative, absolute) = np.random.default_rng(4), loss.derivative_error
    f = np.concatenate([rng.normal(size=300) * 10.0**k for k in (-6, 0, 1, 2)] + [np.linspace(-745, 745, 301)])
    low, high = loss.target_range
    y = rng.choice([-1.0, 1.0], f.size) if loss.labels else rng.uniform(low, high, f.size)
    for a, b, found in zip(f, y, loss.derivative(f, y), strict=True):
        ideal = ideal_slope(loss, mp.mpf(float(a)), mp.mpf(float(b)))
        assert abs(mp.mpf(float(found)) - ideal) <= U * (relative * abs(ideal) + absolute) + mp.mpf(2) ** -1000


class Tilted(Logistic):
    """A derivative of its own: what is proven of its parent is not about it."""

    name = "tilted-for-this-test"

    def derivative(self, f, y):
        return super().derivative(f, y) + 1e-3


def test_what_is_not_proven_is_refused():
    size = {"arithmetic": "exact", "size": 3}
    for query in (LossGradient(Tilted(), 1.0, 1.0), GatedOutputs(Softmax(3), 1.0, np.ones((2, 1)))):
        assert query.rounding_error(10, 3, 1.0) is None
    gated = GatedOutputs(Softmax(3), 1.0, np.ones((2, 1)))
    with pytest.raises(InvalidInput, match="no proven rounding error"):
        GradientChain(Schedule.constant(0.1, 4), 0.0, 1, 10).mechanism(gated, 2.0, **size)
    with pytest.raises(InvalidInput, match="size"):
        GradientChain(Schedule.constant(0.1, 4), 0.0, 1, 10).mechanism(VectorSum(1.0), 2.0, arithmetic="exact")


# -- one step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [None, ElasticNet.of(6, l1=0.3, l2=0.2, low=-50.0)], ids=["plain", "elastic-net"])
def test_a_step_is_within_its_certified_error(penalty):
    """Ball, prox, sum and step against sixty digits, from states inside of the ball, at its edge and beyond."""
    rng, worst, p, n = np.random.default_rng(5), 0.0, 6, 8
    X, y = rng.normal(size=(n, p)), rng.choice([-1.0, 1.0], n)
    query = LossGradient(Logistic(), 1.0, 1.5)
    chain = GradientChain(Schedule([0.7, 0.3]), 0.05, 1, n, penalty=penalty)
    rounding = chain.mechanism(query, 2.0, arithmetic="exact", size=p).view.rounding
    B, g = rounding.radius, rounding.unit
    chain, eta = chain.within(B), mp.mpf(0.3)
    for factor in (1e-6, 0.5, 1.0, 1 + 1e-15, 3.0, 1e4):
        for state in corners(rng, p, B * factor):
            X0 = np.rint(np.clip(state / g, -(2.0**61), 2.0**61)).astype(np.int64)
            x = chain.query_state(X0[None] * g, 1, 0)
            found = chain.advance(x, query.total(Rows(X, y), x, np.ones((1, n), bool)), 1, 0)[0]
            ideal = np.array([mp.mpf(int(i)) * mp.mpf(g) for i in X0])
            ideal = np.array([max(min(v, mp.mpf(B)), -mp.mpf(B)) for v in ideal])
            ideal = ideal * min(mp.mpf(1), mp.mpf(B) / length(ideal))
            if penalty is not None:
                t, low = mp.mpf(0.7), mp.mpf(-50)
                soft = [mp.sign(v) * max(abs(v) - t * mp.mpf(0.3), mp.mpf(0)) / (1 + t * mp.mpf(0.2)) for v in ideal]
                ideal = np.array([max(v, low) for v in soft])
            total = 0
            for row, target in zip(X, y, strict=True):
                u = real(row) * min(mp.mpf(1), mp.mpf(1.5) / length(real(row)))
                cap = 1 / length(u)
                total = total + max(min(ideal_slope(query.loss, u @ ideal, mp.mpf(target)), cap), -cap) * u
            ideal = ideal * (1 - eta * mp.mpf(0.05)) - eta / n * total
            worst = max(worst, float(length(real(found) - ideal) / rounding.error[1]))
    assert 1e-5 < worst <= 1


def test_the_ball_leaves_what_is_inside_and_shortens_the_rest():
    x = np.array([[3.0, 4.0], [0.1, -0.2], [np.nan, np.inf], [6e300, 8e300]])
    found = in_ball(x, 5.0)
    np.testing.assert_array_equal(found[:2], x[:2])
    assert np.linalg.norm(found, axis=1).max() <= 5 * (1 + 1e-15)
    a, b = np.random.default_rng(0).normal(size=(2, 4000, 2)) * 8
    grown = np.linalg.norm(in_ball(a, 5.0) - in_ball(b, 5.0), axis=1) / np.linalg.norm(a - b, axis=1)
    assert grown.max() <= 1 + 1e-9


# -- runs -----------------------------------------------------------------------------------------------------------


def small(k: int = 2, n: int = 6, steps: int = 12, **change) -> GradientChain:
    return GradientChain(Schedule.constant(0.5, steps), 0.1, k, n, **change)


def data(n: int = 6, p: int = 3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, p)), rng.choice([-1.0, 1.0], n)


QUERY = LossGradient(Logistic(), 1.0, 1.0)


def end(chain, mechanism, table=None, y=None, query=QUERY, seed=0, size=3, **options):
    X, labels = data() if table is None else (table, y)
    with open_session(certify(mechanism), InMemory(X, labels), random_state=seed, **options) as session:
        return session.run_chain(chain, query, np.zeros(size))


def test_a_state_lies_on_its_lattice_and_a_seed_repeats_it():
    chain = small()
    m = chain.mechanism(QUERY, 3.0, arithmetic="exact", size=3)
    found = end(chain, m)
    g = m.view.rounding.unit
    assert (found / g == np.rint(found / g)).all()
    np.testing.assert_array_equal(found, end(chain, m))
    assert not np.array_equal(found, end(chain, m, seed=1))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("partition", list(Partition))
def test_an_exact_chain_ends_where_one_in_floating_point_does(k, partition):
    """Without noise to speak of, both find the same minimum."""
    chain = small(k, steps=400, penalty=ElasticNet.of(3, l1=1e-3))
    ends = []
    for arithmetic in Arithmetic:
        m = chain.mechanism(QUERY, 1e-9, partition=partition, arithmetic=arithmetic, size=3)
        ends.append(end(chain, m))
    np.testing.assert_allclose(ends[0], ends[1], atol=5e-2 if k > 1 else 1e-6)


def test_neighbours_move_apart_by_no_more_than_is_paid_for():
    """‖⌊φ̂(X)⌉ − ⌊φ̂′(X′)⌉‖ ≤ c·‖X − X′‖ + d + (1 + c)g√d + 2ρ, where the record is read and where it is not."""
    rng, p, n, closest = np.random.default_rng(8), 3, 6, 0.0
    for trial in range(200):
        query = LossGradient([Squared(), Logistic()][trial % 2], 0.6, 1.0)
        chain = GradientChain(Schedule.constant(rng.choice([0.3, 1.9]), 4), 0.0, 2, n)
        m = chain.mechanism(query, 2.0, arithmetic="exact", size=p)
        view, c = m.view, m.view.lipschitz[0]
        g, chain = view.rounding.unit, chain.within(view.rounding.radius)
        X, y = rng.normal(size=(n, p)) * 3, rng.choice([-1.0, 1.0], n)
        X2, y2 = X.copy(), y.copy()
        X2[0], y2[0] = X[0], -y[0]
        a = rng.integers(-(2**40), 2**40, p)
        b = a + rng.integers(-3, 4, p) * int(rng.choice([1, 2**30]))
        for batch in range(2):
            members = (np.arange(n) % 2 == batch)[None]
            moved = []
            for table, labels, state in ((X, y, a), (X2, y2, b)):
                x = chain.query_state(state[None] * g, 0, 0)
                sums = query.total(Rows(table, labels), x, members)
                moved.append(np.rint(chain.advance(x, sums, batch, 0) / g).astype(np.int64)[0])
            apart = math.sqrt(sum(int(i) ** 2 for i in moved[0] - moved[1])) * g
            before = math.sqrt(sum(int(i) ** 2 for i in a - b)) * g
            d = m.ratio[batch] * view.noise_std[batch] if batch == 0 else 0.0
            paid = c * before + d + view.rounding_shift()[batch]
            assert apart <= paid * (1 + 1e-15)
            closest = max(closest, apart / paid)
    assert closest > 0.9


def test_the_noise_on_the_state_has_the_certified_deviation():
    size, chain = 4000, GradientChain(Schedule.constant(0.5, 1), 0.0, 1, 3)
    m = chain.mechanism(VectorSum(1.0), 2.0, arithmetic="exact", size=size)
    found = end(chain, m, np.zeros((3, size)), None, VectorSum(1.0), size=size)
    assert found.std() == pytest.approx(m.view.noise_std[0], rel=0.05)


def test_a_record_that_is_not_finite_counts_as_nothing():
    chain, (X, y) = small(k=1), data()
    m = chain.mechanism(QUERY, 3.0, arithmetic="exact", size=3)
    zero, bad, huge = X.copy(), X.copy(), X.copy()
    zero[2], bad[2], huge[2] = 0.0, np.inf, 1e308
    np.testing.assert_array_equal(end(chain, m, bad, y), end(chain, m, zero, y))
    assert np.isfinite(end(chain, m, huge, y)).all()


def test_rows_out_of_range_are_the_same_stored_sparsely():
    X, y = adversarial(np.random.default_rng(0), 9, 4), np.tile([-1.0, 1.0, 1.0], 3)
    X[4] = 0.3, 0.0, 0.0, -0.1
    v, everyone = np.array([[1.0, -2.0, 0.5, 3.0]]), np.ones((1, 9), bool)
    dense, thin = (QUERY.total(Rows(table, y), v, everyone) for table in (X, sparse.csr_array(X)))
    assert np.isfinite(dense).all()
    np.testing.assert_allclose(dense, thin, atol=9 * QUERY.rounding_error(9, 4, 4.0))


def test_every_mismatch_is_refused():
    chain = small()
    m = chain.mechanism(QUERY, 3.0, arithmetic="exact", size=3)
    rounding = m.view.rounding

    def other(**change) -> Mechanism:
        view = dataclasses.replace(m.view, rounding=dataclasses.replace(rounding, **change))
        return dataclasses.replace(m, view=view)

    for wrong, words in (
        (other(error=rounding.error.scaled(0.5)), "certified rounding error"),
        (other(radius=rounding.radius * 8), "certified rounding error|too fine"),
        (other(unit=rounding.unit / 8), "too fine"),
        (other(sizes=(2,)), "2 coordinates|rounding error"),
    ):
        with pytest.raises(MechanismMismatch, match=words):
            end(chain, wrong)
    end(chain, other(error=rounding.error.scaled(2.0), unit=rounding.unit * 4))  # both are paid for


class Ridge(Penalty):
    """Of a user."""

    size = 3

    def value(self, w):
        return 0.0

    def prox(self, v, step):
        return v / (1 + step)

    def rescaled(self, scale, weight=1.0):
        return self


def test_a_prox_whose_rounding_is_unknown_is_refused():
    m = small().mechanism(QUERY, 3.0, arithmetic="exact", size=3)
    for change in ({"penalty": Ridge()}, {"penalty": ElasticNet.of(3, low=0.5)}):
        with pytest.raises(MechanismMismatch, match="rounding of this prox"):
            end(small(**change), m)
    declared = small(prox=lambda w: w)
    with pytest.raises(MechanismMismatch, match="rounding of this prox"):
        end(declared, declared.mechanism(QUERY, 3.0, arithmetic="exact", size=3))


def test_float32_outputs_are_refused():
    X, chain, query = np.ones((6, 2), np.float32), small(), LinearOutputs(Softmax(2), 1.0)
    m = chain.mechanism(query, 3.0, arithmetic="exact", size=4)
    y = np.zeros(6, int)
    with pytest.raises(MechanismMismatch, match="float64 features, these are float32"):
        end(chain, m, X, y, query, size=4)
    end(chain, m, X.astype(np.float64), y, query, size=4)


def test_other_chains_and_blocks_are_refused():
    @dataclasses.dataclass(frozen=True)
    class Own(GradientChain):
        """May do anything."""

    chain = Own(Schedule.constant(0.5, 12), 0.1, 2, 6)
    with pytest.raises(MechanismMismatch, match="rounding of Own is not known"):
        end(chain, chain.mechanism(QUERY, 3.0, arithmetic="exact", size=3))
    rounding = Rounding(unit=0.5, sizes=(1, 1), radius=9.0, error=Schedule([0.0, 0.0]))
    view = BlockSweeps(coupling=FrozenArray(np.eye(2)), noise_std=FrozenArray([1.0, 1.0]), rounding=rounding)
    m = Mechanism(adjacency="replace-one", ratio=1.0, steps=2, releases=2, view=view, arithmetic="exact")
    with pytest.raises(MechanismMismatch, match="rounding of block problems"):
        BlockChain((), 6, 1).check(m, (), 6)


def test_a_channel_of_an_exact_chain_releases_no_sum():
    m = small().mechanism(VectorSum(1.0), 3.0, arithmetic="exact", size=3)
    with open_session(certify(m), InMemory(data()[0])) as session:
        with pytest.raises(MechanismMismatch, match="hides"):
            session.release(VectorSum(1.0))
        with pytest.raises(MechanismMismatch, match="shows no sums"):
            session._release(VectorSum(1.0), None, 0)


def test_a_chain_in_floating_point_does_not_move_on_a_lattice():
    m = small().mechanism(VectorSum(1.0), 3.0)
    with (
        open_session(certify(m), InMemory(data()[0])) as session,
        pytest.raises(MechanismMismatch, match="no chain on"),
    ):
        session._channel(0).move(lambda members: np.zeros((1, 3), np.int64))


# -- attacked -------------------------------------------------------------------------------------------------------

N = 2000
FACTOR = 2.0**-37
"""1 − ηλ: so strong a contraction that the first of two steps leaves nothing; the record is read in the first."""


def forgetful(arithmetic="exact"):
    """Two steps on two batches; the first has little noise, the second much."""
    chain = GradientChain(Schedule.constant(0.5, 2), (1 - FACTOR) / 0.5, 2, 4, noise=Schedule([1.0, 40.0]))
    m = chain.mechanism(VectorSum(1.0), 0.1, arithmetic=arithmetic, size=1)
    tables = []
    for sign in (1.0, -1.0):
        table = np.zeros((4, 1))
        table[0] = sign
        tables.append(table)
    return chain, m, tables


def hidden_runs(chain, mechanism, table, seed, k):
    with open_session(certify(mechanism), InMemory(table), replicas=k, random_state=seed) as session:
        return session.run_chain(chain, VectorSum(1.0), np.zeros((k, 1)))[:, 0]


def through_releases(chain, mechanism, table, seed, k):
    """The mutant: each step asks for an exact release of its sum. Returns the last state, and the one before it."""
    shown = dataclasses.replace(mechanism, view=AllIterates(), arithmetic="exact")
    x = before = np.zeros((k, 1))
    with open_session(certify(shown), InMemory(table), replicas=k, random_state=seed) as session:
        for step in range(2):
            before = x
            x = chain.advance(x, session.release(VectorSum(1.0), x), step, 0)
    return x[:, 0], before[:, 0]


def lattice_of_release(chain, mechanism) -> float:
    """η·g/b of the last step's exact release."""
    sigma = 2.0 / mechanism.ratio[1]
    return 0.5 * VectorSum(1.0).grid(float(np.nextafter(sigma, np.inf))).unit / 2


def test_a_chain_through_exact_releases_shows_its_hidden_state():
    chain, m, (here, _) = forgetful()
    last, before = through_releases(chain, m, here, 1, N)
    found = recovered(last, FACTOR, lattice_of_release(chain, m))
    resolution = np.abs(last).max() * 2.0**-52 / FACTOR
    assert (np.abs(found - before) <= resolution + 1e-2).all()  # in every run
    assert np.abs(before).mean() > 0.1


def attacked(runs, unit: float):
    chain, m, tables = forgetful()

    def sampler(table, seed):
        return lambda k: recovered(runs(chain, m, table, seed, k), FACTOR, unit)

    return audit_gdp(sampler(tables[0], 1), sampler(tables[1], 2), N).verdict(certify(m))


def test_the_attack_catches_the_mutant_and_not_the_chain():
    chain, m, _ = forgetful()
    unit = lattice_of_release(chain, m)
    assert certify(m).mu < 0.6
    assert attacked(lambda *a: through_releases(*a)[0], unit).violated
    g = m.view.rounding.unit
    for lattice in (unit, g, g * 2.0**20, m.view.noise_std[1] * 0.5):
        assert not attacked(hidden_runs, lattice).violated


@pytest.mark.parametrize("k", [1, 2])
def test_an_exact_chain_stays_below_its_certificate_and_comes_near(k):
    chain = GradientChain(Schedule.constant(0.5, 12), 0.3, k, 4)
    m = chain.mechanism(VectorSum(1.0), 4.0, arithmetic="exact", size=1)
    tables = np.zeros((2, 4, 1))
    tables[:, -1, 0] = 1.0, -1.0

    def sampler(table, seed):
        return lambda count: hidden_runs(chain, m, table, seed, count)

    audit = audit_gdp(sampler(tables[0], 1), sampler(tables[1], 2), N)
    assert not audit.verdict(certify(m)).violated
    assert audit.mu_lower > 0.4 * certify(m).mu


def test_an_audit_catches_noise_that_is_too_small(monkeypatch):
    right = channel_module.rounded_normal
    monkeypatch.setattr(channel_module, "rounded_normal", lambda rng, scale, shape: right(rng, scale / 4, shape))
    chain = GradientChain(Schedule.constant(0.5, 12), 0.3, 1, 4)
    m = chain.mechanism(VectorSum(1.0), 4.0, arithmetic="exact", size=1)
    tables = np.zeros((2, 4, 1))
    tables[:, -1, 0] = 1.0, -1.0
    audit = audit_gdp(*(lambda n, t=t: hidden_runs(chain, m, t, 1, n) for t in tables), N)
    assert audit.verdict(certify(m)).violated


# -- the price ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [10, 1000, 20_000])
@pytest.mark.parametrize(("steps", "k"), [(100, 1), (6000, 60)])
def test_exact_arithmetic_costs_less_than_two_per_thousand(d, steps, k):
    R = 1.5 * math.sqrt(d)
    query = LossGradient(Logistic(), R, R)
    chain = GradientChain(Schedule.constant(1.5 / query.smoothness, steps), 0.0, k, max(20 * d, 6000))
    plain = certify(chain.mechanism(query, 5.0)).mu
    m = chain.mechanism(query, 5.0, arithmetic="exact", size=d)
    assert 1 < certify(m).mu / plain < 1.002
    assert m.view.rounding.radius * R > 100  # margins of 10 are large: no fit comes near
