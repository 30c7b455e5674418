"""Exact arithmetic: integers of one record to the bit, sums that no order changes, and bounds without a tolerance."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from tacit.accounting import certify
from tacit.errors import MechanismMismatch
from tacit.kernels.lattice import FLUSH
from tacit.mechanism import Adjacency, Mechanism
from tacit.problem import ElasticNet, Gamma, Logistic, Poisson, Squared
from tacit.records import InMemory, Rows
from tacit.release import QUERIES, Sweep, open_session, sensitivity
from tacit.release.queries import Blocks, CoordinateSweep, VectorSum, coordinates
from tacit.release.query import Query

SWEEPS = {name: cls for name, cls in QUERIES.items() if issubclass(cls, Sweep)}
EXACT = {name: cls for name, cls in QUERIES.items() if not issubclass(cls, Sweep) and name != "per-record-gradients"}
RATIOS = (0.003, 0.4, 20.0)


def settings(cls, rng, records):
    """An example with a grid for one of several budgets."""
    example = cls.example(rng, records=records)
    m = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
    return example, example.query.grid(sensitivity(m, example.query) / RATIOS[rng.integers(3)])


def moved(query, grid, here, there) -> Fraction:
    """‖D·g·(q − q′)‖², exactly."""
    D = query.scales(here.shape[1])
    weights = [Fraction(1)] * here.shape[1] if D is None else [Fraction(d) ** 2 for d in D]
    steps = (here[0].astype(object) - there[0].astype(object)).tolist()
    return Fraction(grid.unit) ** 2 * sum(w * s * s for w, s in zip(weights, steps, strict=True))


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_integers_never_move_further_than_declared(name, adjacency):
    """Computed in fractions: there is no tolerance, and 99 % is reached."""
    rng, worst = np.random.default_rng(3), 0.0
    everyone, others = np.ones((1, 5), bool), np.array([[False, True, True, True, True]])
    m = Mechanism(adjacency=adjacency, ratio=1.0, steps=1)
    for _ in range(200):
        (query, here, there, state), grid = settings(EXACT[name], rng, 5)
        a = query.total(here, state, everyone, grid)
        replaced = adjacency is Adjacency.REPLACE_ONE
        b = query.total(there, state, everyone, grid) if replaced else query.total(here, state, others, grid)
        assert a.dtype == np.int64
        square, limit = moved(query, grid, a, b), Fraction(sensitivity(m, query)) ** 2
        assert square <= limit
        worst = max(worst, float(square / limit))
    assert worst**0.5 > 0.99


@pytest.mark.parametrize("name", sorted(EXACT))
def test_integers_are_the_sum_that_floats_approximate(name):
    rng = np.random.default_rng(5)
    for _ in range(40):
        (query, rows, _, state), _ = settings(EXACT[name], rng, 7)
        grid = query.grid(query.bound / 20)
        members = rng.random((1, 7)) < rng.choice([0.5, 1.0])
        q, plain = query.total(rows, state, members, grid), query.total(rows, state, members)
        D = query.scales(q.shape[1])
        np.testing.assert_allclose(q * grid.unit * (1.0 if D is None else D), plain, atol=1e-4 * query.bound, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_no_order_and_no_partition_changes_a_bit(name):
    """A record's integers do not depend on its place, on its neighbours, or on how many there are."""
    rng = np.random.default_rng(7)
    for _ in range(15):
        n = int(rng.integers(1, 40))
        (query, rows, _, state), grid = settings(EXACT[name], rng, n)
        everyone = np.ones((1, n), bool)
        whole = query.total(rows, state, everyone, grid)
        cuts = np.array_split(rng.permutation(n), int(rng.integers(1, n + 1)))
        parts = [query.total(rows.take(cut), state, np.ones((1, len(cut)), bool), grid) for cut in cuts if len(cut)]
        np.testing.assert_array_equal(np.sum(parts, axis=0), whole)
        masks = [np.isin(np.arange(n), cut)[None] for cut in cuts]
        np.testing.assert_array_equal(np.sum([query.total(rows, state, m, grid) for m in masks], axis=0), whole)


def exact(steps: int = 1, ratio: float = 0.5, **more) -> Mechanism:
    return Mechanism(adjacency="replace-one", ratio=ratio, steps=steps, arithmetic="exact", **more)


def test_a_release_lies_on_its_grid_and_has_the_certified_noise():
    X = np.random.default_rng(0).normal(size=(50, 2000)) / 100
    with open_session(certify(exact()), InMemory(X), random_state=0) as session:
        sigma = session.noise_std(VectorSum(1.0))
        found = session.release(VectorSum(1.0))
    unit = VectorSum(1.0).grid(sigma).unit
    assert (found / unit == np.rint(found / unit)).all()
    noise = found - np.array([x * min(1, 1 / np.linalg.norm(x)) for x in X]).sum(axis=0)
    assert 0.93 * sigma < noise.std() < 1.07 * sigma


def test_a_query_without_integer_sums_is_refused():
    class Plain(Query):
        bound = 1.0

        def contributions(self, rows, state):
            return np.ones((1, len(rows), 1))

        @classmethod
        def example(cls, rng, records):
            raise NotImplementedError

        def total(self, rows, state, members, grid=None):
            return members.sum(axis=1, keepdims=True).astype(float)

    Plain.name = "plain-for-this-test"
    QUERIES[Plain.name] = Plain
    try:
        with (
            open_session(certify(exact()), InMemory(np.ones((3, 1)))) as session,
            pytest.raises(MechanismMismatch, match="no integer sums"),
        ):
            session.release(Plain())
    finally:
        del QUERIES[Plain.name]


# -- sweeps -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["compiled", "numpy"])
def code(request, monkeypatch):
    """Losses as they are, then as if none had compiled code."""
    if request.param == "numpy":
        monkeypatch.setattr(coordinates, "COMPILED", {})
    return request.param


def swept(cls, rng, records):
    """As ``settings``, for a sweep."""
    example = cls.example(rng, records=records)
    m = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
    return example, example.query.grid(sensitivity(m, example.query) / RATIOS[rng.integers(3)])


def integer_noise(sweep, rng, grid):
    """Noise of a size that moves coefficients, in units of the grid."""
    return np.rint(rng.normal(size=int(sweep.sizes.sum())) / grid.unit).astype(np.int64)


def of_release(sweep, k, noise):
    first = int(sweep.sizes[:k].sum())
    return noise[first : first + int(sweep.sizes[k])]


def replayed(sweep, rows, w, grid, released):
    """The integer sums of these rows along a path of released numbers, and the state at its end."""
    state, sums = sweep.start(rows, w), []
    for k, noisy in enumerate(released):
        sums.append(sweep.clipped_sum(rows, state, k, grid))
        state = sweep.apply(rows, state, noisy, k)
    return sums, state


def path(sweep, rng, scale=1.0):
    return [scale * rng.normal(size=int(size)) for size in sweep.sizes]


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_integers_of_a_sweep_never_move_further_than_declared(name, adjacency, code):
    """At every release, after the same releases on either side; in fractions."""
    rng, worst, limit = np.random.default_rng(3), Fraction(0), None
    for _ in range(200):
        (sweep, here, there, w), grid = swept(SWEEPS[name], rng, 5)
        limit = Fraction(sensitivity(Mechanism(adjacency=adjacency, ratio=1.0, steps=1), sweep)) ** 2
        other = there if adjacency is Adjacency.REPLACE_ONE else here.take(np.arange(1, 5))
        released = path(sweep, rng)
        for a, b in zip(*(replayed(sweep, rows, w, grid, released)[0] for rows in (here, other)), strict=True):
            assert a.dtype == b.dtype == np.int64
            worst = max(worst, moved(sweep, grid, a[None], b[None]))
            assert worst <= limit
    assert worst > Fraction(99, 100) ** 2 * limit


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_integers_of_a_sweep_are_what_floats_approximate(name, code):
    rng = np.random.default_rng(5)
    for _ in range(40):
        (sweep, rows, _, w), _ = swept(SWEEPS[name], rng, 7)
        grid, state = sweep.grid(0.1), sweep.start(rows, w)
        for k, noisy in enumerate(path(sweep, rng)):
            q, plain = (sweep.clipped_sum(rows, state, k, one) for one in (grid, None))
            np.testing.assert_allclose(q * grid.unit, plain, atol=1e-8)
            state = sweep.apply(rows, state, noisy, k)


@pytest.mark.parametrize("name", sorted(SWEEPS))
@pytest.mark.parametrize("orders", [1, 2, 7])
def test_no_order_of_the_records_changes_a_bit_of_a_sweep(name, orders, code):
    """The same noise on permuted records: the same coefficients, and the same prediction for each record."""
    rng = np.random.default_rng(orders)
    for n in (1, 2, *rng.integers(3, 90, 12), FLUSH + 3):
        (sweep, rows, _, w), grid = swept(SWEEPS[name], rng, int(n))
        noise = integer_noise(sweep, rng, grid)
        end = sweep.run(rows, sweep.start(rows, w), noise, grid)
        for _ in range(orders):
            order = rng.permutation(n)
            found = sweep.run(rows.take(order), sweep.start(rows.take(order), w), noise, grid)
            assert sweep.released(found).tobytes() == sweep.released(end).tobytes()
            assert found.z.tobytes() == end.z[order].tobytes()


@pytest.mark.parametrize("name", sorted(SWEEPS))
@pytest.mark.parametrize("scale", [1.0, 1e12])
def test_records_of_a_sweep_do_not_see_their_company(name, scale, code):
    """Any parts of any table: sums add up and predictions stay, to the bit, also where a run diverges."""
    rng = np.random.default_rng(11)
    for n in (2, *rng.integers(3, 90, 20), FLUSH + 5):
        (sweep, rows, _, w), grid = swept(SWEEPS[name], rng, int(n))
        released = path(sweep, rng, scale)
        sums, end = replayed(sweep, rows, w, grid, released)
        cuts = [cut for cut in np.array_split(rng.permutation(n), int(rng.integers(1, min(n, 9) + 1))) if len(cut)]
        parts = [replayed(sweep, rows.take(cut), w, grid, released) for cut in cuts]
        for k, whole in enumerate(sums):
            np.testing.assert_array_equal(np.sum([part[0][k] for part in parts], axis=0), whole)
        for cut, (_, state) in zip(cuts, parts, strict=True):
            assert state.z.tobytes() == end.z[cut].tobytes()


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_a_sweep_on_a_grid_is_its_two_parts_to_the_bit(name, code):
    rng = np.random.default_rng(13)
    for _ in range(40):
        (sweep, rows, _, w), grid = swept(SWEEPS[name], rng, int(rng.integers(1, 60)))
        noise = integer_noise(sweep, rng, grid)
        fused, state = sweep.run(rows, sweep.start(rows, w), noise, grid), sweep.start(rows, w)
        for k in range(len(sweep.sizes)):
            q = sweep.clipped_sum(rows, state, k, grid) + of_release(sweep, k, noise)
            state = sweep.apply(rows, state, q * grid.unit, k)
        assert (fused.w.tobytes(), fused.z.tobytes()) == (state.w.tobytes(), state.z.tobytes())


class _Shifted(ElasticNet):
    """A penalty without compiled code."""


def coordinate_sweep(loss, penalty, p, inner=None):
    members = np.random.default_rng(1).integers(p, size=12)
    settings = {"clips": np.linspace(0.1, 1.0, p), "steps": np.full(p, 0.7), "divisor": 50, "inner": inner}
    return CoordinateSweep(loss, penalty, Blocks(members, np.ones(12, np.int64)), **settings)


@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array], ids=["dense", "CSC"])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("penalty", [ElasticNet, _Shifted])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Poisson(), Gamma(2.0)], ids=lambda loss: loss.name)
def test_averages_other_penalties_and_losses_of_numpy_keep_their_bits(loss, penalty, kind, form):
    """Fused or not, in any order: every round starts from predictions at the mean, a product of nine columns."""
    rng, n, p = np.random.default_rng(0), 67, 9
    X = (rng.normal(size=(n, p)) * (rng.random((n, p)) < 0.6)).astype(kind)
    low, high = loss.target_range
    rows = Rows(form(X), rng.choice([low, high], size=n) if loss.labels else rng.uniform(max(low, 0.1), high, n))
    one = coordinate_sweep(loss, penalty.of(p, l1=0.01), p, inner=4)
    grid = one.grid(3.0)
    noise, start = integer_noise(one, rng, grid), np.zeros(p)
    end, state = one.run(rows, one.start(rows, start), noise, grid), one.start(rows, start)
    for k in range(12):
        q = one.clipped_sum(rows, state, k, grid) + noise[[k]]
        state = one.apply(rows, state, q * grid.unit, k)
    assert (state.w.tobytes(), state.z.tobytes()) == (end.w.tobytes(), end.z.tobytes())
    for _ in range(7):
        order = rng.permutation(n)
        found = one.run(rows.take(order), one.start(rows.take(order), start), noise, grid)
        assert (found.w.tobytes(), found.z.tobytes()) == (end.w.tobytes(), end.z[order].tobytes())


def test_a_sweep_without_integer_sums_is_refused_before_it_is_debited():
    class Plain(CoordinateSweep):
        def clipped_sum(self, rows, state, k):
            return np.zeros(1)

    one = coordinate_sweep(Squared(), ElasticNet.of(4), 4)
    one.__class__ = Plain
    Plain.name = "plain-for-this-test"
    QUERIES[Plain.name] = Plain
    try:
        with open_session(certify(exact(steps=12)), InMemory(np.ones((3, 4)), np.ones(3))) as session:
            with pytest.raises(MechanismMismatch, match="no integer sums"):
                session.sweep(one, np.zeros(4))
            assert session.steps_left() == 12
    finally:
        del QUERIES[Plain.name]
