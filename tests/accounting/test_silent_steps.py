"""Steps and blocks without noise: refused where they read records, free where they do not."""

import math
from dataclasses import replace

import pytest

from tacit.accounting import certify, last_iterate_mu, noisy_cyclic_delta, noisy_cyclic_mu
from tacit.errors import InvalidInput
from tacit.mechanism import BlockSweeps, FrozenArray, LastIterate, Mechanism, Schedule


def silent(noise_std, ratio, steps=2, **fields):
    view = LastIterate(lipschitz=Schedule.constant(0.9, steps), noise_std=Schedule(noise_std))
    return Mechanism(adjacency="replace-one", ratio=ratio, steps=steps, view=view, **fields)


@pytest.mark.parametrize("noise_std", [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
@pytest.mark.parametrize("ratio", [0.5, [0.5, 1e-300]])
def test_a_step_without_noise_that_reads_records_is_refused(noise_std, ratio):
    """Version 0.1 took Δ/σ by its word where σ = 0, and certified Δ = 0 there: the last step was free."""
    with pytest.raises(InvalidInput, match=r"view.noise_std is 0 at step \d, where the ratio Δ/σ is positive"):
        silent(noise_std, ratio)


def test_steps_without_noise_that_read_nothing_cost_nothing():
    """x₂ = φ₂(x₁) is post-processing; before the noise of x₂ a quiet step is a contraction like any other."""
    assert certify(silent([1.0, 0.0], [0.5, 0.0])).mu == pytest.approx(0.5)
    first = certify(silent([0.0, 1.0], [0.0, 0.5])).mu
    assert first == pytest.approx(0.5)
    loud = certify(silent([1.0, 0.0, 1.0], [0.5, 0.0, 0.0], steps=3)).mu
    assert loud == pytest.approx(last_iterate_mu(0.9, [0.5, 0.0, 0.0], [1.0, 0.0, 1.0]))
    assert loud < 0.5


@pytest.mark.parametrize("noise_std", [[1.0, -0.0], [1.0, 0.0]])
def test_nor_is_it_taken_by_the_formulas(noise_std):
    """``noisy_cyclic_mu`` and ``noisy_cyclic_delta`` took a step without noise as one that reads nothing."""
    for formula in (noisy_cyclic_mu, lambda *a, **k: noisy_cyclic_delta(*a, 1.0, **k)):
        with pytest.raises(InvalidInput, match="ratio is positive"):
            formula(2, 1, 0.9, 0.5, noise_std=noise_std)
        formula(2, 1, 0.9, [0.5, 0.0], noise_std=noise_std)


def test_mixed_steps_are_looked_at_one_by_one():
    with pytest.raises(InvalidInput, match="at step 0"):
        silent([0.0, 1.0, 0.0], [0.5, 0.0, 0.0], steps=3)
    with pytest.raises(InvalidInput, match="at step 2"):
        silent([1.0, 0.0, 0.0], Schedule([0.5, 0.0, 5e-324]), steps=3)
    plain = silent([1.0, 0.0], [0.5, 0.0])
    with pytest.raises(InvalidInput, match="at step 1"):
        replace(plain, ratio=Schedule.constant(0.5, 2))
    mapped = BlockSweeps(coupling=FrozenArray([[0.8, 0.1], [0.2, 0.7]]), noise_std=FrozenArray([1.0, -0.0]))
    for ratio in (Schedule.constant(0.5, 3), Schedule([0.0, 0.5] * 3), 1e-300):
        with pytest.raises(InvalidInput, match="at block 1"):
            Mechanism(adjacency="replace-one", steps=3, releases=2, view=mapped, ratio=ratio)


def test_a_block_without_noise_that_reads_records_is_refused():
    view = BlockSweeps(coupling=FrozenArray([[0.8, 0.1], [0.2, 0.7]]), noise_std=FrozenArray([1.0, 0.0]))
    common = {"adjacency": "replace-one", "steps": 3, "releases": 2, "view": view}
    for ratio in (0.5, Schedule([0.5, 0.1] * 3), Schedule([0.5, 0.0] * 2 + [0.5, 0.1])):
        with pytest.raises(InvalidInput, match=r"view.noise_std is 0 at block 1, where the ratio Δ/σ is positive"):
            Mechanism(**common, ratio=ratio)
    quiet = Mechanism(**common, ratio=Schedule([0.5, 0.0] * 3))
    assert certify(quiet).mu == pytest.approx(0.5 * math.sqrt(3))  # by composition; block shifts need noise everywhere
