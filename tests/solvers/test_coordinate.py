"""DP-CD and DP-SkGD: what they reduce to, where they end, when they may diverge, and what their noise is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.linear_model import Lasso, LogisticRegression
from solving import PRIVATE, SILENT, certified, curvature, dense, many, objective, problem, solve

from tacit.accounting import certify, gdp_mu
from tacit.errors import InvalidInput
from tacit.mechanism import Plan
from tacit.problem import Logistic
from tacit.records import InMemory, Rows
from tacit.release import open_session
from tacit.release.queries import Blocks, CoordinateSweep, LossGradient
from tacit.solvers import Budget, CoordinateDescent, NoisyGradientDescent
from tacit.solvers import coordinate as module
from tacit.solvers.coordinate import SAMPLINGS, draw_blocks, overapproximation


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 4)) * [0.1, 1.0, 3.0, 1.0]
    return problem(X, X @ [3.0, -1.0, 0.5, 0.0] + rng.normal(size=60), l1=0.01)


# -- the family's ends ----------------------------------------------------------------------------------------------


def same_law(small, a, b):
    """The least p-value over coordinates of a comparison of distributions, and one of spreads."""
    task, records = small
    one, two = (many(s, task, records, PRIVATE, seeds).T for s, seeds in ((a, range(200)), (b, range(1000, 1200))))
    tests = (stats.ks_2samp, stats.levene)
    return min(test(x, y)[1] for x, y in zip(one, two, strict=True) for test in tests)


PAIRS = {
    "nice 1 = uniform": (CoordinateDescent("nice", 1, passes=3), CoordinateDescent("uniform", passes=3)),
    "nice p = full": (CoordinateDescent("nice", 4, passes=3), CoordinateDescent("full", passes=3)),
    "partition p = full": (CoordinateDescent("partition", 4, passes=3), CoordinateDescent("full", passes=3)),
    "independent p = full": (CoordinateDescent("independent", 4, passes=3), CoordinateDescent("full", passes=3)),
}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_reductions_have_one_law(name, small):
    assert same_law(small, *PAIRS[name]) > 1e-4


def test_and_the_comparison_can_tell_laws_apart(small):
    """A step that is half as long again, or other probabilities."""
    M = curvature(*small)
    nice, full = CoordinateDescent("nice", 4, passes=3), CoordinateDescent("full", passes=3, step=1.5)
    assert same_law(small, nice, full) < 1e-4
    uniform, importance = (CoordinateDescent(s, passes=3, smoothness=M) for s in ("uniform", "importance"))
    assert same_law(small, uniform, importance) < 1e-4


@pytest.mark.parametrize("sampling", ["nice", "partition", "independent"])
def test_blocks_of_all_coordinates_are_the_full_step(sampling, small):
    """Without noise they agree to the bit of a sum in another order."""
    task, records = small
    both = [
        solve(CoordinateDescent(s, 4, passes=5, clip=1e3, smoothness="public"), task, records)
        for s in (sampling, "full")
    ]
    np.testing.assert_allclose(both[0], both[1], rtol=0, atol=1e-4 * np.abs(both[1]).max())


def test_the_full_step_is_noisy_gradient_descent(small):
    """In coordinates scaled by √M: the other end of DP-SkGD, with the clip and the step it stands for."""
    task, records = small
    C, T = 5.0, 6
    full = CoordinateDescent("full", passes=T, clip=C, smoothness="public")
    gradient = NoisyGradientDescent(steps=T, clip=C * math.sqrt(task.facts.size / np.square(task.facts.reach).sum()))
    np.testing.assert_allclose(solve(full, task, records), solve(gradient, task, records), rtol=0, atol=1e-5)
    assert same_law(small, full, gradient) > 1e-4


def test_a_block_is_clipped_as_a_vector(small):
    """The sum of a block is that of a gradient in whitened columns, of norm at most 1 per record."""
    task, records = small
    clips = np.array([0.1, 0.5, 2.0, 0.7])
    U = np.array([2, 0, 3])
    blocks = Blocks(U, np.array([3]))
    sweep = CoordinateSweep(task.loss, task.penalty, blocks, clips=clips, steps=np.ones(4), divisor=60)
    w = np.array([1.0, 0.0, -1.0, 2.0])
    (rows,) = records.parts()
    rest = rows.y - rows.design.dot(w)  # φ′ is the residual: move what the block does not hold aside
    whitened = Rows(dense(records)[:, U] / clips[U], rest)
    total = LossGradient(task.loss, math.sqrt(3.0)).total(whitened, np.zeros((1, 3)), np.ones((1, 60), bool))
    found = sweep.clipped_sum(rows, sweep.start(rows, w), 0)
    np.testing.assert_allclose(found, total[0] / math.sqrt(3.0), rtol=1e-12)


# -- how blocks are drawn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 3, 7])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_coordinate_is_drawn_as_often_as_stated(sampling, tau):
    p, steps = 7, 20_000
    M = np.array([1e-3, 1.0, 2.0, 4.0, 0.5, 0.0, 0.1])
    blocks = draw_blocks(sampling, tau, steps, M, np.random.default_rng(0))
    assert len(blocks.sizes) == steps
    assert blocks.members.min() >= 0
    assert blocks.members.max() < p
    for first, size in zip(blocks.starts[:200], blocks.sizes[:200], strict=True):
        assert len(set(blocks.members[first : first + size])) == size  # distinct
    rate = {
        "uniform": np.full(p, 1 / p),
        "shuffled": np.full(p, 1 / p),
        "importance": M / M.sum(),
        "full": np.ones(p),
        "nice": np.full(p, tau / p),
        "independent": np.full(p, tau / p / (1 - (1 - tau / p) ** p)),  # given that the block is not empty
        "partition": np.full(p, 1 / -(-p // tau)),
    }[sampling]
    counts = np.bincount(blocks.members, minlength=p)
    assert (np.abs(counts - steps * rate) <= 5 * np.sqrt(steps * rate * (1 - np.minimum(rate, 1))) + 1e-9).all()


def test_a_partition_has_parts_of_the_stated_size():
    blocks = draw_blocks("partition", 3, 500, np.ones(7), np.random.default_rng(1))
    parts = {tuple(sorted(blocks.members[a : a + s])) for a, s in zip(blocks.starts, blocks.sizes, strict=True)}
    assert sorted(j for part in parts for j in part) == list(range(7))
    assert max(map(len, parts)) == 3


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_blocks_do_not_depend_on_records(sampling, monkeypatch):
    rng = np.random.default_rng(0)
    seen = []
    monkeypatch.setattr(module, "draw_blocks", lambda *a: seen.append(draw_blocks(*a)) or seen[-1])
    for scale in (1.0, 0.01):  # other records, same public bounds
        X = rng.normal(size=(40, 5)).clip(-1, 1) * scale
        task, records = problem(X, rng.normal(size=40), reach=2.0)
        solve(CoordinateDescent(sampling, 2, passes=4, smoothness="public"), task, records, PRIVATE)
    np.testing.assert_array_equal(seen[0].members, seen[1].members)
    np.testing.assert_array_equal(seen[0].sizes, seen[1].sizes)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_all_read_the_data_equally_often(sampling, small):
    task, _ = small
    solver = CoordinateDescent(sampling, 2, passes=6)
    tau = {"uniform": 1, "shuffled": 1, "importance": 1, "full": 4}.get(sampling, 2)
    assert solver.updates(task, PRIVATE) == 6 * 4 // tau


# -- step sizes (E15) -----------------------------------------------------------------------------------------------


def start_and_end(solver, X, y, **more):
    task, records = problem(X, y)
    given = CoordinateDescent(**{**solver.__dict__, "smoothness": curvature(task, records), "clip": 1e4, **more})
    end = solve(given, task, records)
    return objective(task, records, np.zeros(task.facts.size)), objective(task, records, end)


def duplicates(rng):
    x = rng.normal(size=(100, 1))
    return np.repeat(x, 5, axis=1), 3 * x[:, 0] + 0.1 * rng.normal(size=100)


def test_constants_of_the_over_approximation():
    assert overapproximation("uniform", 1, 50, 100) == overapproximation("importance", 1, 50, 100) == 1
    assert overapproximation("nice", 5, 5, 100) == pytest.approx(1 + 4 * 4 / 99)  # 1.16: too small for a fixed block
    assert overapproximation("nice", 100, 7, 100) == pytest.approx(7)
    assert overapproximation("nice", 1, 7, 100) == overapproximation("nice", 1, 1, 1) == 1
    assert overapproximation("independent", 5, 21, 100) == pytest.approx(2)
    assert overapproximation("partition", 5, 100, 100) == overapproximation("full", 5, 100, 100) == 5
    assert overapproximation("partition", 5, 3, 100) == 3


def test_a_block_of_duplicates_needs_five_times_its_smoothness():
    X, y = duplicates(np.random.default_rng(0))
    block = CoordinateDescent("partition", 5, passes=60)
    before, after = start_and_end(block, X, y)
    assert after < 0.01 * before
    for factor in (1.16, 1.0):  # the τ-nice constant of E15; the published Γ = PM⁻¹
        before, after = start_and_end(block, X, y, step=5 / factor)
        assert after > 100 * before


@pytest.mark.parametrize("tau", [2, 5, 12])
@pytest.mark.parametrize("sampling", ["nice", "independent", "partition", "full"])
def test_correlated_designs_never_diverge(sampling, tau):
    """The mean objective over draws of blocks decreases, whatever the columns have in common."""
    rng = np.random.default_rng(tau)
    for rho in (0.5, 0.95, 1.0):
        X = (math.sqrt(rho) * rng.normal(size=(80, 1)) + math.sqrt(1 - rho) * rng.normal(size=(80, 12))) * rng.uniform(
            0.1, 3, 12
        )
        task, records = problem(X, X @ rng.normal(size=12) + rng.normal(size=80))
        M = curvature(task, records)
        means = [objective(task, records, np.zeros(12))]
        for passes in (1, 4, 16):
            solver = CoordinateDescent(sampling, tau, passes=passes, clip=1e4, smoothness=M)
            means.append(np.mean([objective(task, records, v) for v in many(solver, task, records, SILENT, range(5))]))
        assert (np.diff(means) <= 1e-6 * means[0]).all()


def test_rows_of_few_nonzeros_allow_longer_steps():
    """ω is what counts: one-hot rows have ω = 1 and blocks cost nothing."""
    rng = np.random.default_rng(0)
    X = np.eye(6)[rng.integers(6, size=300)]
    y = X @ np.arange(6.0)
    task, records = problem(X, y, row_nonzeros=1)
    solver = CoordinateDescent("full", passes=1, clip=1e3, smoothness=curvature(task, records))
    np.testing.assert_allclose(solve(solver, task, records), np.arange(6.0), atol=1e-3)  # one step


# -- where they end -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6)) * (rng.random((300, 6)) < 0.5) * [0.3, 1.0, 2.0, 1.0, 5.0, 1.0]
    score = X @ [2.0, -1.0, 0.5, 0.0, 0.1, 0.0]
    return X, score + 0.3 * rng.normal(size=300), np.where(score + rng.logistic(size=300) > 0, 1.0, -1.0)


@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_without_noise_every_sampling_finds_the_optimum(sampling, form, data):
    X, y, labels = data
    solver = CoordinateDescent(sampling, 3, passes=300, clip=100.0, smoothness="private")
    task, records = problem(X, y, form=form, l1=0.05)
    w = Lasso(0.05, fit_intercept=False, tol=1e-12, max_iter=10**5).fit(X, y).coef_
    np.testing.assert_allclose(solve(solver, task, records), w, atol=2e-3)
    task, records = problem(X, labels, Logistic(), form=form, l2=0.01)
    model = LogisticRegression(C=1 / (300 * 0.01), fit_intercept=False, tol=1e-10, max_iter=1000).fit(X, labels)
    best = objective(task, records, model.coef_[0])
    assert objective(task, records, solve(solver, task, records)) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array])
@pytest.mark.parametrize("sampling", ["shuffled", "nice"])
def test_exact_arithmetic_ends_where_floats_end(sampling, form, data):
    """Also with the private smoothness, whose sum is one of integers, too."""
    X, y, labels = data
    solver = CoordinateDescent(sampling, 3, passes=40, clip=100.0, smoothness="private")
    for task, records in (problem(X, y, form=form, l1=0.05), problem(X, labels, Logistic(), form=form, l2=0.01)):
        ends = []
        for arithmetic in ("exact", "float"):
            parts = [replace(part, arithmetic=arithmetic) for part in solver.plan(task, SILENT)]
            with open_session(certify(Plan.of(*parts), delta=SILENT.delta), records, random_state=0) as session:
                ends.append(solver.solve(task, SILENT, session).v)
        np.testing.assert_allclose(*ends, atol=2e-4)  # noise of their own, at a budget that leaves almost none
        assert np.abs(ends[0]).max() > 0.1


def test_averaging_replaces_the_iterate_by_its_rounds_mean(small):
    task, records = small
    rng = np.random.default_rng(0)
    order = rng.integers(4, size=12)
    settings = {"clips": np.full(4, 5.0), "steps": 0.5 / curvature(task, records), "divisor": 60}
    args, (rows,) = (task.loss, task.penalty), records.parts()
    noise = 0.1 * rng.normal(size=12)
    averaged = CoordinateSweep(*args, Blocks(order, np.ones(12, np.int64)), inner=4, **settings)
    end = averaged.run(rows, averaged.start(rows, np.zeros(4)), noise)
    w = np.zeros(4)
    for start in range(0, 12, 4):
        iterates = []
        for k in range(start, start + 4):
            one = CoordinateSweep(*args, Blocks(order[[k]], np.ones(1, np.int64)), **settings)
            w = one.run(rows, one.start(rows, w), noise[[k]]).w
            iterates.append(w)
        w = np.mean(iterates, axis=0)
    np.testing.assert_allclose(end.w, w, rtol=1e-10)


def test_rounds_keep_the_number_of_releases_whole(small):
    task, records = small
    solver = CoordinateDescent(passes=5, rounds=3, smoothness="public")
    assert solver.updates(task, PRIVATE) == 21  # 20, rounded up to a multiple of 3
    assert np.isfinite(solve(solver, task, records, PRIVATE)).all()
    with pytest.raises(InvalidInput):
        certified(CoordinateDescent(rounds=0), task, PRIVATE)


def test_averaging_calms_the_last_iterate(small):
    """Where noise dominates, a mean of iterates varies less than the last of them."""
    task, records = small
    plain, mean = (
        many(
            CoordinateDescent(passes=30, rounds=r, smoothness=curvature(task, records)),
            task,
            records,
            PRIVATE,
            range(60),
        )
        for r in (None, 1)
    )
    assert mean.var(axis=0).sum() < 0.7 * plain.var(axis=0).sum()


# -- smoothness and clips -------------------------------------------------------------------------------------------


def released(task, records, budget, seed=0):
    solver = CoordinateDescent(passes=1)
    with open_session(certified(solver, task, budget), records, random_state=seed) as session:
        return solver._smoothness(task, budget, session)


def test_private_smoothness_is_close_to_the_truth_with_much_budget(data):
    task, records = problem(data[0], data[1])
    np.testing.assert_allclose(released(task, records, SILENT), curvature(task, records), rtol=1e-4)
    task, records = problem(data[0], data[2], Logistic())
    np.testing.assert_allclose(released(task, records, SILENT), curvature(task, records), rtol=1e-4)


def test_and_floored_where_it_cannot_be_resolved():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 4)) * 1e-4  # far inside its bounds
    task, records = problem(X, rng.normal(size=2000), reach=1.0)
    floor = 3 * 2 / (PRIVATE.mu * math.sqrt(0.1)) / 2000  # three deviations: √p over μ and n
    found = np.array([released(task, records, PRIVATE, seed) for seed in range(30)])
    assert found.min() == pytest.approx(floor)
    assert (found >= floor * (1 - 1e-12)).all()
    X[:] = 1.0  # and never above what the bounds allow
    task, records = problem(X, rng.normal(size=2000), reach=1.0)
    assert max(released(task, records, PRIVATE, seed).max() for seed in range(30)) <= 1.0


def test_e16_one_gaussian_release_instead_of_laplace_noise_for_each():
    """Values in [0, 1]: ℓ2 sensitivity √p/n; DP-CD takes 2/n for each of p values, Laplace noise and a factor p."""
    n, p = 4000, 8
    X = np.random.default_rng(0).choice([-1.0, 1.0], (n, p)) * math.sqrt(0.5)  # every square is 1/2
    task, records = problem(X, np.zeros(n) + 1, reach=1.0)
    noise = np.array([released(task, records, PRIVATE, seed) for seed in range(200)]) - 0.5
    sigma = math.sqrt(p) / n / (gdp_mu(PRIVATE.epsilon, PRIVATE.delta) * math.sqrt(0.1))
    assert noise.std() == pytest.approx(sigma, rel=0.06)
    assert abs(noise.mean()) < 4 * sigma / math.sqrt(noise.size)
    published = math.sqrt(2) * 2 * p / (n * 0.1 * PRIVATE.epsilon)
    assert noise.std() < published / 5


def test_clips_never_exceed_what_loss_and_bounds_allow(data):
    task, records = problem(data[0], data[2], Logistic(), reach=2.0 * np.abs(data[0]).max(axis=0))
    M = curvature(task, records)

    def clips(C):
        return CoordinateDescent(clip=C, smoothness=M)._clips(task, M)

    np.testing.assert_allclose(clips(1e9), task.facts.reach)  # |φ′| ≤ 1
    np.testing.assert_allclose(clips(1e-3), 1e-3 * np.sqrt(M / M.sum()))
    np.testing.assert_allclose(np.linalg.norm(clips(1e-3)), 1e-3)  # together C
    ends = [solve(CoordinateDescent(passes=2, clip=C, smoothness=M), task, records, PRIVATE) for C in (1e9, 1e12)]
    np.testing.assert_array_equal(*ends)
    task, records = problem(data[0], data[1])  # an unbounded slope caps nothing
    large = CoordinateDescent(clip=1e9)._clips(task, M)
    np.testing.assert_allclose(large, 1e9 * np.sqrt(M / M.sum()))


@pytest.mark.parametrize("given", [[1.0], [0.0] * 6, [1.0, 1, 1, 1, 1, -1], [np.nan] * 6, "guessed"])
def test_smoothness_that_makes_no_sense_is_refused(given, data):
    with pytest.raises(InvalidInput):
        certified(CoordinateDescent(smoothness=given), problem(data[0], data[1])[0], PRIVATE)


# -- noise and certificates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothness", ["private", "public"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_plan_spends_exactly_the_budget(sampling, smoothness, small):
    task, _ = small
    for budget in (PRIVATE, Budget(8.0, 1e-3), Budget(1.0, 1e-6, "zero-out")):
        certificate = certified(CoordinateDescent(sampling, 2, passes=7, smoothness=smoothness), task, budget)
        assert certificate.mu == pytest.approx(gdp_mu(budget.epsilon, budget.delta), rel=1e-9)
        assert certificate.epsilon(budget.delta) <= budget.epsilon


@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array])
def test_e14_noise_has_the_stated_standard_deviation_also_in_empty_columns(form):
    """One full step from 0 on records without features: w_j = −step_j √p clip_j z_j/n, z_j ~ N(0, (2/μ)²)."""
    n, p = 50, 3
    task, records = problem(np.zeros((n, p)), np.ones(n), form=form, reach=1.0)
    M, C = np.array([1.0, 4.0, 0.25]), 2.0
    v = many(CoordinateDescent("full", passes=1, clip=C, smoothness=M), task, records, PRIVATE, range(2000))
    sigma = 2 / gdp_mu(PRIVATE.epsilon, PRIVATE.delta)
    expected = 1 / (p * M) * math.sqrt(p) * C * np.sqrt(M / M.sum()) * sigma / n
    np.testing.assert_allclose(v.std(axis=0), expected, rtol=0.06)
    assert (np.abs(v.std(axis=0) / (expected / sigma * math.sqrt(sigma)) - 1) > 0.5).all()  # σ is not a variance
    assert max(stats.kstest(v[:, j] / expected[j], "norm")[0] for j in range(p)) < 0.045


@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array])
def test_single_coordinates_are_noised_alike_dense_or_sparse(form):
    """An empty column among others: as many of its updates, as much noise."""
    X = np.zeros((30, 2))
    X[:, 0] = 1.0
    task, records = problem(X, np.zeros(30), form=form, reach=1.0)
    v = many(CoordinateDescent(passes=1, clip=0.1, smoothness=[1.0, 1.0]), task, records, PRIVATE, range(400))
    clip, sigma = 0.1 / math.sqrt(2), 2 * math.sqrt(2) / gdp_mu(PRIVATE.epsilon, PRIVATE.delta)
    assert v[:, 1].std() == pytest.approx(clip * sigma / 30, rel=0.15)  # two updates of two coordinates: one on average


def test_blocks_of_any_size_have_the_same_ratio(small):
    """Noise on whitened sums does not depend on |U|, so random sizes cost nothing and reveal nothing."""
    task, records = small
    noises = {}
    for tau in (1, 2, 4):
        solver = CoordinateDescent("nice", tau, passes=tau / 4, clip=1e-9, smoothness=[1.0] * 4)
        v = many(solver, task, InMemory(dense(records), np.zeros(60)), PRIVATE, range(250))
        step = 1 / overapproximation("nice", tau, 4, 4)
        noises[tau] = np.sqrt((v**2).sum(axis=1).mean()) / (step * 0.5e-9 / 60) / tau
    assert noises[2] == pytest.approx(noises[1], rel=0.12)
    assert noises[4] == pytest.approx(noises[1], rel=0.12)


def test_shuffled_coordinates_are_each_drawn_once_per_pass():
    blocks = draw_blocks("shuffled", 1, 23, np.ones(5), np.random.default_rng(0))
    assert blocks.single
    for first in range(0, 20, 5):
        assert sorted(blocks.members[first : first + 5]) == list(range(5))
    assert overapproximation("shuffled", 1, 5, 5) == 1.0
