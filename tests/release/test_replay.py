"""Record and replay: swap one record, freeze everything else, and see how far each release moves."""

from __future__ import annotations

import numpy as np
import pytest
from contracts import made, nothing_escapes, told

from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency, Mechanism, Poisson
from tacit.problem import Squared
from tacit.records import Rows
from tacit.release import QUERIES, Bounded, Query, Sweep, register, sensitivity
from tacit.release import query as module
from tacit.release.queries import CoordinateSweep, GramSum, LossGradient, VectorSum

PAIRS = 200
ONE = {name: cls for name, cls in QUERIES.items() if not issubclass(cls, Sweep)}
SWEEPS = {name: cls for name, cls in QUERIES.items() if issubclass(cls, Sweep)}


def example(cls, rng, records):
    return made(
        cls,
        lambda: cls.example(rng, records=records),
        "example(cls, rng, records) must return Example(query, here, there, state), neighbours that differ in record 0",
    )


def moves(cls, adjacency: Adjacency, pairs: int = PAIRS) -> np.ndarray:
    """|sum on D − sum on D′| for random neighbours, over the declared sensitivity."""
    rng = np.random.default_rng(0)
    m = Mechanism(adjacency=adjacency, ratio=1.0, steps=1)
    everyone, others = np.ones((1, 5), bool), np.array([[False, True, True, True, True]])
    out = []
    for _ in range(pairs):
        query, here, there, state = example(cls, rng, 5)
        a = query.total(here, state, everyone)
        b = query.total(there, state, everyone)
        if adjacency is not Adjacency.REPLACE_ONE:  # the record contributes nothing
            b = query.total(here, state, others)
        out.append(np.linalg.norm(a - b) / sensitivity(m, query))
    return np.array(out)


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(ONE))
def test_no_query_moves_further_than_declared_and_each_gets_there(name, adjacency):
    ratio, kind = moves(ONE[name], adjacency), ONE[name].__name__
    told(
        ratio.max() <= 1 + 1e-9,
        f"the sum of {kind} moves by {ratio.max():.3g} times its declared sensitivity under {adjacency.value}: raise "
        "bound or diameter, or let total() clip every contribution",
    )
    told(
        ratio.max() >= 0.99,
        f"the sum of {kind} never moves by more than {ratio.max():.3g} of its declared sensitivity under "
        f"{adjacency.value}: declare less, or let example() return records that reach it (long ones, mirrored)",
    )


@pytest.mark.parametrize("name", sorted(ONE))
def test_a_total_is_the_sum_of_clipped_contributions(name):
    """Whatever product a query uses, it is the default one: contributions, clipped, added over the members."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        query, rows, _, state = example(ONE[name], rng, 7)
        members = rng.random((1, 7)) < rng.choice([0.5, 1.0])
        plain = module.Query.total(query, rows, state, members)
        told(
            np.allclose(query.total(rows, state, members), plain, rtol=1e-7, atol=1e-9),
            f"total() of {ONE[name].__name__} is not the sum of its clipped contributions: leave it out, or mend it",
        )


@pytest.mark.parametrize("name", sorted(ONE))
def test_contributions_belong_to_one_record_and_leave_no_trace(name):
    """A record contributes the same alone and among others, and asking twice changes nothing."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        query, rows, _, state = example(ONE[name], rng, 6)
        whole, again = query.contributions(rows, state), query.contributions(rows, state)
        told(
            whole.ndim == 3 and whole.shape[:2] == (1, 6),
            f"contributions() of {ONE[name].__name__} has shape {whole.shape}: return (replicas, records, size)",
        )
        told(np.array_equal(whole, again), f"contributions() of {ONE[name].__name__} differs when it is asked twice")
        if whole.shape[2] % 6 == 0 and name == "person-factors":
            continue  # a place of its own for each record: contributions are as long as the table
        for i in (0, 3):
            alone = query.contributions(rows.take(np.array([i])), state)
            told(
                np.allclose(alone[:, 0], whole[:, i], rtol=1e-7, atol=1e-9),
                f"contributions() of {ONE[name].__name__} mixes records: entry i must depend on record i alone",
            )


def test_the_harness_notices_a_query_that_forgets_to_clip(monkeypatch):
    monkeypatch.setattr(module, "clipped_total", lambda G, members, bound: (G * members[:, :, None]).sum(axis=1))
    assert moves(VectorSum, Adjacency.REPLACE_ONE, 20).max() > 1.5


def test_every_query_is_replayed():
    nothing_escapes(Bounded, {*QUERIES.values(), Query, Sweep}, "decorate it with @register(name)")


class _Ones(GramSum):
    """A subclass with contributions of its own: a one in the first place."""

    def contributions(self, rows, state):
        out = np.zeros((len(state), len(rows), self.bound_size))
        out[:, :, 0] = 1.0
        return out

    bound_size = 3


def test_a_subclass_with_other_contributions_runs_neither_the_product_nor_the_claims_of_its_parent():
    rows, state = Rows(np.ones((4, 2))), np.zeros((1, 1))
    query = _Ones(2.0)
    assert query.total(rows, state, np.ones((1, 4), bool)).tolist() == [[4.0, 0.0, 0.0]]
    assert GramSum(2.0).diameter < 2 * GramSum(2.0).bound
    assert query.diameter == 2 * query.bound
    assert type("Louder", (VectorSum,), {"contributions": VectorSum.contributions})(1.0).smoothness is None


class _Idle(CoordinateSweep):
    """A sweep whose steps go nowhere."""

    def apply(self, rows, state, noisy, k):
        return state.copy()


def test_a_sweep_with_other_steps_does_not_run_compiled_code():
    rng = np.random.default_rng(0)
    for _ in range(10):
        sweep, rows, _, w = _Idle.example(rng, records=5)
        end = sweep.run(rows, sweep.start(rows, w), np.ones(int(sweep.sizes.sum())))
        np.testing.assert_array_equal(end.w, w)


def test_registering_another_class_under_a_name_is_refused():
    class Other(VectorSum):
        pass

    with pytest.raises(InvalidInput, match="exists already"):
        register("vectors")(Other)


def test_non_finite_contributions_count_as_nothing():
    rows = Rows(np.array([[1.0], [1.0]]), np.array([0.0, 1e308]))
    query = LossGradient(Squared(), 1.0, 1.0)
    total = query.total(rows, np.array([[-1e308]]), np.ones((1, 2), bool))
    assert np.isfinite(total).all()
    assert abs(total[0, 0]) <= 2 + 1e-12


@pytest.mark.parametrize("scale", [1e-160, 1e160, 1e307])
def test_clipping_neither_over_nor_underflows(scale):
    rows = Rows(np.array([[3.0, 4.0]]) * scale)
    total = VectorSum(1.0).total(rows, np.zeros((1, 2)), np.ones((1, 1), bool))
    expected = [0.6, 0.8] if scale > 1 else [3e-160, 4e-160]
    np.testing.assert_allclose(total[0], expected, rtol=1e-12)


def test_diameters_count_only_where_every_record_is_read():
    full = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
    sampled = Mechanism(adjacency="replace-one", ratio=1.0, steps=1, sampling=Poisson(0.5))
    assert sensitivity(full, GramSum(2.0)) == pytest.approx(4 * np.sqrt(2))
    assert sensitivity(sampled, GramSum(2.0)) == 8.0  # the theorem compares with a batch that holds neither record


# -- sweeps -----------------------------------------------------------------------------------------------------


def sweep_moves(cls: type[Sweep], adjacency: Adjacency, pairs: int = PAIRS) -> np.ndarray:
    """As ``moves``, for every release of a sweep, at the same coefficients on either side."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(pairs):
        sweep, here, there, w = cls.example(rng, records=5)
        m = Mechanism(adjacency=adjacency, ratio=1.0, steps=len(sweep.sizes))
        left, right = sweep.start(here, w), sweep.start(there, w)
        alone = here.take(np.array([0]))
        for k in range(len(sweep.sizes)):
            a, b = sweep.clipped_sum(here, left, k), sweep.clipped_sum(there, right, k)
            if adjacency is not Adjacency.REPLACE_ONE:
                b = a - sweep.clipped_sum(alone, sweep.start(alone, left.w), k)
            out.append(np.linalg.norm(a - b) / sensitivity(m, sweep))
            noisy = a + 0.1 * rng.normal(size=a.shape)
            left, right = sweep.apply(here, left, noisy, k), sweep.apply(there, right, noisy, k)
            # What is released is all that moves the coefficients.
            np.testing.assert_array_equal(sweep.released(left), sweep.released(right))
    return np.array(out)


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_no_release_of_a_sweep_moves_further_than_declared_and_each_gets_there(name, adjacency):
    ratio = sweep_moves(SWEEPS[name], adjacency)
    assert ratio.max() <= 1 + 1e-9
    assert ratio.max() >= 0.99


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_a_sweep_is_its_two_parts(name):
    rng = np.random.default_rng(3)
    for _ in range(40):
        sweep, rows, _, w = SWEEPS[name].example(rng, records=7)
        noise = rng.normal(size=int(sweep.sizes.sum()))
        fused = sweep.run(rows, sweep.start(rows, w), noise)
        state, first = sweep.start(rows, w), 0
        for k, size in enumerate(sweep.sizes):
            state = sweep.apply(rows, state, sweep.clipped_sum(rows, state, k) + noise[first : first + size], k)
            first += size
        np.testing.assert_allclose(fused.w, state.w, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(fused.z, state.z, rtol=1e-8, atol=1e-10)
