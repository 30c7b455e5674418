"""Sweeps: as many releases as certified, debited first, and noise that hides one thing only."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import sparse, stats

from tacit.accounting import certify
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.mechanism import Mechanism, Poisson, Schedule
from tacit.noise.rounded import rounded_normal
from tacit.problem import ElasticNet, Squared
from tacit.records import InMemory, Rows
from tacit.release import Streams, register
from tacit.release.queries import Blocks, CoordinateSweep, VectorSum
from tacit.release.query import Bounded, Grid

STEPS = 6
CERTIFICATE = certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=STEPS))


def table(first: float = 1.0) -> np.ndarray:
    return np.array([[first, 0.0], [0.5, 1.0], [0.0, -1.0]])


def sweep(steps: int = STEPS) -> CoordinateSweep:
    blocks = Blocks(np.arange(steps) % 2, np.ones(steps, np.int64))
    settings = {"clips": np.ones(2), "steps": np.full(2, 0.1), "divisor": 3}
    return CoordinateSweep(Squared(), ElasticNet.of(2), blocks, **settings)


def end(session, one: CoordinateSweep | None = None) -> np.ndarray:
    return session.sweep(sweep() if one is None else one, np.zeros(2))


@pytest.fixture
def three(opened):
    """A session over three records."""
    return lambda X=None, certificate=CERTIFICATE, **options: opened(
        certificate, table() if X is None else X, np.ones(3), **options
    )


def test_a_sweep_takes_every_certified_step_and_no_more(three):
    session = three()
    end(session)
    assert session.steps_left() == 0
    with pytest.raises(MechanismMismatch, match="0 are certified"):
        end(session)
    with pytest.raises(BudgetExhausted):
        session.release(VectorSum(1.0))


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_sweep_of_another_length_is_refused(three, steps):
    with pytest.raises(MechanismMismatch, match=f"makes {steps} releases"):
        end(three(), sweep(steps))


def test_sampled_mechanisms_and_unregistered_sweeps_are_refused(three):
    sampled = certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=STEPS, sampling=Poisson(0.5)))
    with pytest.raises(MechanismMismatch, match="reads all records"):
        end(three(certificate=sampled))

    class Mine(CoordinateSweep):
        pass

    one = sweep()
    one.__class__ = Mine
    with pytest.raises(MechanismMismatch, match="not a registered query"):
        end(three(), one)


def test_the_budget_is_spent_before_the_sweep_runs(three, monkeypatch):
    session = three()

    def interrupted(self, rows, state, noise, grid):
        raise KeyboardInterrupt

    monkeypatch.setattr(CoordinateSweep, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        end(session)
    assert session.steps_left() == 0


def test_one_checkpoint_resumed_twice_repeats_or_draws_afresh(three):
    """The same records get the same noise, others get other noise: nothing can be averaged or subtracted."""
    session = three()
    kept = session.checkpoint()
    first = end(session)
    np.testing.assert_array_equal(first, end(three(resume=kept)))
    other = end(three(table(0.9), resume=kept))
    assert np.abs((other - noiseless(table(0.9))) - (first - noiseless(table()))).max() > 1e-3


def noiseless(X: np.ndarray) -> np.ndarray:
    rows, one = Rows(X, np.ones(3)), sweep()
    return one.run(rows, one.start(rows, np.zeros(2)), np.zeros(STEPS)).w


def test_private_sessions_never_share_noise(three):
    assert not np.allclose(end(three()), end(three()))


def test_the_noise_has_the_certified_size(three):
    """With clips of 1 a release moves by 2 under replace-one, so its noise is 2/ratio; steps are 0.1/n."""
    ends = np.array([end(three(random_state=i)) for i in range(400)])
    # To first order each coordinate is the sum of three noises of deviation 4, times 0.1/3.
    expected = np.sqrt(3) * 4 * 0.1 / 3
    assert ends.std(axis=0) == pytest.approx([expected, expected], rel=0.15)


def test_a_sweep_needs_all_records_in_memory(opened):
    class _InTwoParts(InMemory):
        def whole(self):
            return None

    session = opened(CERTIFICATE, _InTwoParts(table(), np.ones(3)))
    with pytest.raises(MechanismMismatch, match="in memory"):
        end(session)


MANY = 100_000


@pytest.mark.parametrize("ratio", ["constant", "varying"])
@pytest.mark.parametrize("form", ["dense", "sparse", "one block"])
def test_a_hundred_thousand_released_numbers_have_the_certified_noise(opened, form, ratio):
    """Records without features, each coordinate once: what it moves by is step·clip·noise/n, nothing else.

    The noise is that of the session's stream, digit by digit, and a scale that is 3 % off would be seen.
    """
    releases = 1 if form == "one block" else MANY
    ratios = np.full(releases, 0.5)
    if ratio == "varying":
        ratios[::2] = 0.25
    certificate = certify(Mechanism(adjacency="replace-one", ratio=Schedule(ratios), steps=releases))
    order = np.random.default_rng(0).permutation(MANY)
    blocks = Blocks(order, np.full(releases, MANY // releases))
    rng = np.random.default_rng(1)
    clips, steps = rng.uniform(0.5, 2, MANY), rng.uniform(0.1, 1, MANY)
    X = np.zeros((3, MANY), order="F") if form == "dense" else sparse.csc_array((3, MANY))
    one = CoordinateSweep(Squared(), ElasticNet.of(MANY), blocks, clips=clips, steps=steps, divisor=3)
    records = InMemory(X, np.ones(3))
    session = opened(certificate, records, random_state=7)
    w = session.sweep(one, np.zeros(MANY))

    noise = -(3 * w / (steps * clips * np.sqrt(MANY // releases)))[order]
    sigma = np.repeat(2 / ratios, MANY // releases)  # clips are 1 after whitening: replaced, a record moves a sum by 2
    (rows,) = records.parts()
    content = one.fingerprint(rows, one.start(rows, np.zeros(MANY)))
    stream = Streams(7).child(f"{certificate.digest}/0").at("sweep", 0, content)
    np.testing.assert_allclose(noise, sigma * stream.standard_normal(MANY), rtol=1e-12)
    z = noise / sigma
    assert z.std() == pytest.approx(1, abs=4.5 / np.sqrt(2 * MANY))
    assert stats.kstest(z, "norm").pvalue > 1e-2
    for wrong in (0.97, 1.03):
        assert stats.kstest(z, "norm", args=(0, wrong)).pvalue < 1e-3


# -- exact ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", ["constant", "varying"])
@pytest.mark.parametrize("form", ["dense", "sparse", "one block"])
def test_exact_noise_is_that_of_the_stream_on_one_grid(opened, form, ratio):
    """Records without features: what moves a coordinate is step·clip·√|U|·g·R/n, R of the session's own stream."""
    p = 5000
    releases = 1 if form == "one block" else p
    ratios = np.full(releases, 0.5)
    if ratio == "varying":
        ratios[::2] = 0.03
    certificate = certify(
        Mechanism(adjacency="replace-one", ratio=Schedule(ratios), steps=releases, arithmetic="exact")
    )
    blocks = Blocks(np.random.default_rng(0).permutation(p), np.full(releases, p // releases))
    one = CoordinateSweep(Squared(), ElasticNet.of(p), blocks, clips=np.ones(p), steps=np.ones(p), divisor=4)
    records = InMemory(np.zeros((3, p), order="F") if form == "dense" else sparse.csc_array((3, p)), np.ones(3))
    w = opened(certificate, records, random_state=7).sweep(one, np.zeros(p))

    sigma = np.nextafter(2 / ratios, np.inf)
    grid = one.grid(sigma.max())
    scale = sigma / grid.unit
    assert scale.max() <= 2.0**36
    (rows,) = records.parts()
    content = one.fingerprint(rows, one.start(rows, np.zeros(p)))
    name = hashlib.sha256(repr(grid).encode() + scale.tobytes() + content).digest()
    stream = Streams(7).child(f"{certificate.digest}/0").at("sweep", 0, name)
    R = rounded_normal(stream, np.repeat(scale, p // releases))
    np.testing.assert_allclose(-4 * w[blocks.members] / np.sqrt(p // releases), R * grid.unit, rtol=1e-12)
    assert stats.kstest(R / np.repeat(scale, p // releases), "norm").pvalue > 1e-2


def test_names_of_exact_noise_hold_grid_and_scale(three):
    """One key and one content, other grids or bounds: no word is used again."""

    class Coarse(Bounded):
        def __init__(self, bound, unit):
            self.bound, self.unit = bound, unit

        def grid(self, sigma):
            return Grid(self.unit)

    certificate = certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=400, arithmetic="exact"))
    kept, sizes = three(certificate=certificate).checkpoint(), np.full(400, 10)
    drawn = {}
    for bound, unit in ((1.0, 0.25), (1.0, 0.5), (2.0, 0.25), (2.0, 0.5)):
        channel = three(certificate=certificate, resume=kept)._channel(0)
        noise, grid = channel.take_all(Coarse(bound, unit), sizes, lambda: b"content")
        assert grid == Grid(unit)
        assert channel.steps_left == 0
        drawn[bound, unit] = noise * unit / bound
    correlations = np.corrcoef(np.array(list(drawn.values())))[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 0.08
    again, _ = (
        three(certificate=certificate, resume=kept)._channel(0).take_all(Coarse(1.0, 0.25), sizes, lambda: b"content")
    )
    np.testing.assert_array_equal(again * 0.25, drawn[1.0, 0.25])


def test_an_exact_sweep_repeats_or_draws_afresh(three):
    certificate = certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=STEPS, arithmetic="exact"))
    session = three(certificate=certificate)
    kept = session.checkpoint()
    first = end(session)
    assert session.steps_left() == 0
    np.testing.assert_array_equal(first, end(three(certificate=certificate, resume=kept)))
    other = end(three(table(0.9), certificate, resume=kept))
    assert np.abs((other - noiseless(table(0.9))) - (first - noiseless(table()))).max() > 1e-3
    assert not np.allclose(end(three(certificate=certificate)), end(three(certificate=certificate)))


def test_a_sweep_is_registered_as_any_query():
    assert register("coordinates")(CoordinateSweep) is CoordinateSweep
