"""Sweeps through the channel: as many releases as certified, debited first, and noise that hides one thing only."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse, stats

from tacit.accounting import certify
from tacit.errors import BudgetExhausted, MechanismMismatch
from tacit.mechanism import Mechanism, Poisson, Schedule
from tacit.problem import Design, Penalty, Squared
from tacit.run import Channel, Streams, VectorSum
from tacit.run.sums.coordinates import Blocks, CoordinateSweep

STEPS = 6
CERTIFICATE = certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=STEPS))


def sweep(first: float = 1.0, steps: int = STEPS) -> CoordinateSweep:
    X = np.array([[first, 0.0], [0.5, 1.0], [0.0, -1.0]])
    blocks = Blocks(np.arange(steps) % 2, np.ones(steps, np.int64))
    settings = {"clips": np.ones(2), "steps": np.full(2, 0.1)}
    return CoordinateSweep(Design(X), np.ones(3), Squared(), Penalty.of(2), blocks, **settings)


def end(channel: Channel, one: CoordinateSweep) -> np.ndarray:
    return channel.sweep(one, one.start(np.zeros(2))).w


def test_a_sweep_takes_every_certified_step_and_no_more():
    channel = Channel(CERTIFICATE, 3)
    end(channel, sweep())
    assert channel.steps_left == 0
    with pytest.raises(MechanismMismatch, match="certified are 0"):
        end(channel, sweep())
    with pytest.raises(BudgetExhausted):
        channel.release(VectorSum(np.ones((3, 1)), 1.0), np.zeros((1, 1)))


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_sweep_of_another_length_is_refused(steps):
    with pytest.raises(MechanismMismatch, match="releases over"):
        end(Channel(CERTIFICATE, 3), sweep(steps=steps))


def test_sampled_mechanisms_and_unregistered_sweeps_are_refused():
    sampled = certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=STEPS, sampling=Poisson(0.5)))
    with pytest.raises(MechanismMismatch, match="reads all records"):
        end(Channel(sampled, 3), sweep())

    class Mine(CoordinateSweep):
        pass

    one = sweep()
    one.__class__ = Mine
    with pytest.raises(MechanismMismatch, match="not a registered sweep"):
        Channel(CERTIFICATE, 3).sweep(one, one.start(np.zeros(2)))


def test_the_budget_is_spent_before_the_sweep_runs(monkeypatch):
    channel = Channel(CERTIFICATE, 3)

    def interrupted(self, state, noise):
        raise KeyboardInterrupt

    monkeypatch.setattr(CoordinateSweep, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        end(channel, sweep())
    assert channel.steps_left == 0


def test_one_checkpoint_resumed_twice_repeats_or_draws_afresh():
    """The same records get the same noise, others get other noise: nothing can be averaged or subtracted."""
    channel = Channel(CERTIFICATE, 3)
    kept = channel.checkpoint()
    first = end(channel, sweep())
    again = end(Channel(CERTIFICATE, 3, resume=kept), sweep())
    np.testing.assert_array_equal(first, again)
    other, clean = end(Channel(CERTIFICATE, 3, resume=kept), sweep(0.9)), noiseless(sweep(0.9))
    assert np.abs((other - clean) - (first - noiseless(sweep()))).max() > 1e-3


def noiseless(one: CoordinateSweep) -> np.ndarray:
    return one.run(one.start(np.zeros(2)), np.zeros(STEPS)).w


def test_private_channels_never_share_noise():
    streams = Streams()
    a, b = (end(Channel(CERTIFICATE, 3, streams=streams), sweep()) for _ in range(2))
    assert not np.allclose(a, b)


def test_the_noise_has_the_certified_size():
    """With clips of 1 a release moves by 2 under replace-one, so its noise is 2/ratio; steps are 0.1/n."""
    ends = np.array([end(Channel(CERTIFICATE, 3, streams=Streams(i)), sweep()) for i in range(400)])
    # To first order each coordinate is the sum of three noises of deviation 4, times 0.1/3.
    expected = np.sqrt(3) * 4 * 0.1 / 3
    assert ends.std(axis=0) == pytest.approx([expected, expected], rel=0.15)


MANY = 100_000


@pytest.mark.parametrize("ratio", ["constant", "varying"])
@pytest.mark.parametrize("form", ["dense", "sparse", "one block"])
def test_a_hundred_thousand_released_numbers_have_the_certified_noise(form, ratio):
    """Records without features, each coordinate once: what it moves by is step·clip·noise/n, nothing else.

    The noise is that of the channel's stream, digit by digit, and a scale that is 3 % off would be seen.
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
    one = CoordinateSweep(Design(X), np.ones(3), Squared(), Penalty.of(MANY), blocks, clips=clips, steps=steps)
    start = one.start(np.zeros(MANY))
    w = Channel(certificate, 3, streams=Streams(7)).sweep(one, start).w

    noise = -(3 * w / (steps * clips * np.sqrt(MANY // releases)))[order]
    sigma = np.repeat(2 / ratios, MANY // releases)  # clips are 1 after whitening: replaced, a record moves a sum by 2
    stream = Streams(7).child(f"{certificate.digest}/0").at("sweep", 0, one.fingerprint(start))
    np.testing.assert_allclose(noise, sigma * stream.standard_normal(MANY), rtol=1e-12)
    z = noise / sigma
    assert z.std() == pytest.approx(1, abs=4.5 / np.sqrt(2 * MANY))
    assert stats.kstest(z, "norm").pvalue > 1e-2
    for wrong in (0.97, 1.03):
        assert stats.kstest(z, "norm", args=(0, wrong)).pvalue < 1e-3
