"""Hidden chains on a lattice: the price of rounding against a QP, linear chains, and laws computed on the lattice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize
from scipy.stats import norm

from tacit._codec import digest, encode
from tacit.accounting import (
    block_sweep_mu,
    certify,
    compare_theorems,
    cyclic,
    gdp_delta,
    last_iterate_mu,
    noisy_cyclic_mu,
)
from tacit.accounting.last_iterate import LastIterateMinorant
from tacit.errors import InvalidInput, NotCovered
from tacit.kernels import minorant
from tacit.mechanism import (
    BlockSweeps,
    Cyclic,
    FrozenArray,
    FullBatch,
    LastIterate,
    Mechanism,
    Partition,
    Rounding,
    Schedule,
)


def lattice(steps: int, unit: float = 2.0**-4, size: int = 3, error=0.01) -> Rounding:
    return Rounding(unit=unit, sizes=(size,), radius=10.0, error=Schedule.of(error, steps))


def chain(c, s, ratio, rounding: Rounding | None, sampling=None, **view) -> Mechanism:
    steps = len(c)
    seen = LastIterate(lipschitz=Schedule(c), noise_std=Schedule(s), rounding=rounding, **view)
    return Mechanism(
        adjacency="replace-one",
        ratio=Schedule.of(ratio, steps),
        steps=steps,
        sampling=sampling or FullBatch(),
        view=seen,
        arithmetic="float" if rounding is None else "exact",
    )


def qp_mu(c, d, s) -> float:
    """min Σ a²/s², z_k = c_k z_{k−1} + d_k − a_k ≥ 0, z_t = 0: non-negative least squares in z."""
    t = len(d)
    A = np.zeros((t, max(t - 1, 1)))
    for k in range(1, t):
        A[k, k - 1], A[k - 1, k - 1] = c[k], -1.0
    return math.sqrt(optimize.nnls(A / s[:, None], -d / s)[1] ** 2)


def shifts(c, s, ratio, rounding: Rounding, j: int, k: int):
    """d_k + (1 + c_k)g√d + 2ρ_k, in every step."""
    d = (1 + c) * rounding.unit * math.sqrt(rounding.sizes[0]) + 2 * rounding.error.to_array()
    d[j::k] += (ratio * s)[j::k]
    return d


# -- the bound ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_the_worst_position_equals_the_quadratic_program(seed):
    rng = np.random.default_rng(seed)
    k, t = int(rng.integers(1, 5)), int(rng.integers(4, 14))
    c, s, ratio = rng.uniform(0.4, 1.2, t), rng.uniform(0.3, 2, t), rng.uniform(0.1, 2, t)
    rounding = lattice(t, 2.0 ** -int(rng.integers(2, 12)), error=rng.uniform(0, 0.1, t))
    found = certify(chain(c, s, ratio, rounding, Cyclic(k) if k > 1 else None)).mu
    each = [qp_mu(c, shifts(c, s, ratio, rounding, j, k), s) for j in range(k)]
    assert found == pytest.approx(max(each), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_linear_chain_that_is_pushed_at_every_step_stays_below(seed):
    """Rounding and float errors that always push one way move the mean of x_k = c·x_{k−1} + …; c = 1 attains it."""
    rng = np.random.default_rng(seed)
    k, t = 3, 12
    c = np.ones(t) if seed % 2 else rng.uniform(0.7, 1.1, t)
    s, ratio, rounding = rng.uniform(0.5, 1, t), rng.uniform(0.1, 1, t), lattice(t)
    mus = []
    for j in range(k):
        mean = variance = 0.0
        for step, noise, a in zip(shifts(c, s, ratio, rounding, j, k), s, c, strict=True):
            mean, variance = a * mean + step, a * a * variance + noise**2
        mus.append(mean / math.sqrt(variance))
    assert max(mus) <= certify(chain(c, s, ratio, rounding, Cyclic(k))).mu * (1 + 1e-12)


def law(phi, start: int, s: float, steps: int, cells: int = 400):
    """The law of the lattice chain X ← phi_k(X) + ⌊sZ⌉ (g = 1), as probabilities of −cells … cells."""
    at = np.arange(-cells, cells + 1)
    p = (at == start).astype(float)
    for k in range(steps):
        mean = np.array([phi(int(x), k) for x in at])
        away = at[None, :] - mean[:, None]
        p = p @ (norm.cdf((away + 0.5) / s) - norm.cdf((away - 0.5) / s))
    return p


def hockey_stick(p, q, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize(("slope", "push", "s"), [(0.5, 0.02, 3.0), (1.0, 0.3, 4.0), (0.9, 2.0, 5.0), (0.3, 0.01, 1.5)])
def test_laws_on_the_lattice_satisfy_the_bound_and_not_the_bound_of_reals(slope, push, s):
    """A push far below g turns a rounding and moves the chain by a whole g: computed exactly, without sampling."""
    steps, k = 6, 2
    c, noise, ratio = np.full(steps, slope), np.full(steps, s), np.full(steps, push / s)
    exact = certify(
        chain(c, noise, ratio, Rounding(unit=1.0, sizes=(1,), radius=300.0, error=Schedule.of(0.0, steps)), Cyclic(k))
    )
    real = certify(chain(c, noise, ratio, None, Cyclic(k)))
    worst_exact = worst_real = 0.0
    for j in range(k):
        for offset in (0.5 - push / 2, 0.5 - 1e-9, 0.0):  # where roundings turn

            def phi(x, step, sign, j=j, offset=offset):
                shift = sign * push if step % k == j else 0.0
                return math.floor(slope * x + offset + shift + 0.5)

            p, q = (law(lambda x, step, sign=sign: phi(x, step, sign), 0, s, steps) for sign in (0, 1))
            for epsilon in (0.0, 0.05, 0.3, 1.0):
                moved = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
                worst_exact = max(worst_exact, moved - float(gdp_delta(exact.mu, epsilon)))
                worst_real = max(worst_real, moved - float(gdp_delta(real.mu, epsilon)))
    assert worst_exact <= 1e-12
    if push < 0.1:
        assert worst_real > 0.01


def test_rounding_counts_before_the_next_visit_too():
    """Charged when the record is read only, the bound would be smaller: a mutant of the kernel."""
    t, k = 12, 4
    c, s, ratio, rounding = np.ones(t), np.ones(t), np.full(t, 0.1), lattice(t)
    found = certify(chain(c, s, ratio, rounding, Cyclic(k))).mu
    only = max(
        last_iterate_mu(c, np.where((np.arange(t) - j) % k == 0, shifts(c, s, ratio, rounding, j, k), 0), s)
        for j in range(k)
    )
    assert found > 1.5 * only


def test_a_step_without_noise_keeps_its_rounding():
    c, s, ratio = np.ones(4), np.array([1.0, 0.0, 1.0, 1.0]), np.array([0.5, 0.0, 0.5, 0.5])
    rounding = lattice(4)
    found = certify(chain(c, s, ratio, rounding)).mu
    # the silent step hands its shift on to the next noisy one
    d = shifts(c, s, ratio, rounding, 0, 1)
    merged = np.array([d[0], d[1] + d[2], d[3]])
    assert found == pytest.approx(last_iterate_mu(np.ones(3), merged, np.ones(3)), rel=1e-9)
    assert certify(chain(c[:2], s[:2], ratio[:2], lattice(2))).mu == math.inf


@pytest.mark.parametrize("seed", range(10))
def test_a_bounded_domain_starts_no_better_than_its_best_restart(seed):
    rng = np.random.default_rng(seed)
    t, D = 8, 0.7
    c, s, ratio, rounding = rng.uniform(0.5, 1.1, t), rng.uniform(0.3, 1, t), rng.uniform(0.1, 1, t), lattice(t)
    d = shifts(c, s, ratio, rounding, 0, 1)
    found = certify(chain(c, s, ratio, rounding, diameter=D)).mu
    assert found == pytest.approx(last_iterate_mu(c, d, s, diameter=D), rel=1e-9)


def test_blocks_pay_for_every_block_they_read():
    L, s, sizes, errors = np.array([[0.8, 0.1], [0.2, 0.7]]), np.array([1.0, 2.0]), (4, 9), [0.01, 0.02]
    rounding = Rounding(unit=2.0**-5, sizes=sizes, radius=9.0, error=Schedule(errors))
    view = BlockSweeps(coupling=FrozenArray(L), noise_std=FrozenArray(s), rounding=rounding)
    m = Mechanism(
        adjacency="replace-one", ratio=0.3, steps=4, releases=2, sampling=Cyclic(2), view=view, arithmetic="exact"
    )
    expected = []
    for j in range(2):
        d = np.zeros((4, 2))
        d[j::2] = 0.3 * s
        for i in range(2):
            d[:, i] += (
                2.0**-5 * (math.sqrt(sizes[i]) + sum(L[i, q] * math.sqrt(sizes[q]) for q in range(2))) + 2 * errors[i]
            )
        expected.append(block_sweep_mu(L, d, s))
    assert certify(m).mu == pytest.approx(max(expected), rel=1e-9)
    plain = replace(m, view=replace(view, rounding=None), arithmetic="float")
    assert certify(plain).mu < certify(m).mu


# -- nothing else changes -------------------------------------------------------------------------------------------


def test_without_rounding_numbers_and_files_are_those_of_before():
    c, s, ratio = np.full(12, 0.9), np.ones(12), np.full(12, 0.4)
    m = chain(c, s, ratio, None, Cyclic(3))
    assert certify(m).mu == noisy_cyclic_mu(3, 4, 0.9, 0.4)  # to the bit
    assert "rounding" not in str(encode(m))
    assert digest(m) != digest(chain(c, s, ratio, lattice(12), Cyclic(3)))


def test_vanishing_rounding_costs_nothing():
    rng = np.random.default_rng(0)
    t, k = 60, 5
    c, s, ratio = rng.uniform(0.8, 1.05, t), rng.uniform(0.5, 1, t), rng.uniform(0.1, 1, t)
    tiny = lattice(t, 2.0**-900, error=0.0)
    for partition in Partition:
        way = Cyclic(k, partition)
        with_it, without = certify(chain(c, s, ratio, tiny, way)), certify(chain(c, s, ratio, None, way))
        assert with_it.epsilon(1e-5) == pytest.approx(without.epsilon(1e-5), rel=1e-12)


def test_no_other_theorem_overlooks_rounding():
    """Composition knows the ratio of a sum; a state that is rounded moves farther."""
    m = chain(np.ones(6), np.ones(6), np.full(6, 0.5), lattice(6))
    covering = {theorem.id for theorem, found in compare_theorems(m) if not isinstance(found, NotCovered)}
    assert covering == {"last-iterate"}
    with pytest.raises(NotCovered, match="rounding"):
        certify(m, theorem="gaussian-composition")


def test_arithmetic_and_rounding_belong_together():
    c = np.ones(3)
    good = chain(c, c, c, lattice(3))
    with pytest.raises(InvalidInput, match=r"state view\.rounding"):
        replace(good, view=replace(good.view, rounding=None))
    with pytest.raises(InvalidInput, match="describes an exact chain"):
        replace(good, arithmetic="float")
    with pytest.raises(InvalidInput, match="one error per step"):
        chain(c, c, c, lattice(4))
    with pytest.raises(InvalidInput, match="power of two"):
        lattice(3, 0.3)


def test_certificates_say_that_rounding_is_part_of_the_bound():
    text = "\n".join(map(str, certify(chain(np.ones(3), np.ones(3), np.ones(3), lattice(3))).assumptions))
    assert "lattice" in text
    assert "part of the bound [checked]" in text


@pytest.mark.parametrize("k", [1, 3])
def test_the_kernel_equals_pool_for_every_position(k):
    rng = np.random.default_rng(k)
    t = 17
    c, s = rng.uniform(0, 1.3, t) * (rng.random(t) < 0.95), rng.uniform(0.1, 2, t) * (rng.random(t) < 0.8)
    visit, extra = rng.uniform(0, 1, t) * (s > 0), rng.uniform(0, 0.2, t)
    log_c = minorant.log_products(c)
    found = minorant.rounded_energies(visit, extra, s, log_c, k)
    for j in range(k):
        d = extra.copy()
        d[j::k] += visit[j::k]
        assert found[j] == pytest.approx(minorant.pool(*minorant.increments(d, s, log_c))[0], rel=1e-9)


def test_many_steps_and_batches_are_bounded_from_above_in_short_time(monkeypatch):
    rng, t, k = np.random.default_rng(0), 120, 10
    c, s, ratio = rng.uniform(0.9, 1.0, t), rng.uniform(0.5, 1, t), rng.uniform(0.1, 1, t)
    m = chain(c, s, ratio, lattice(t, 2.0**-16, error=1e-6), Cyclic(k))
    plain = certify(chain(c, s, ratio, None, Cyclic(k))).mu
    monkeypatch.setattr(cyclic, "MAX_INCREMENTS", 1)
    quick = LastIterateMinorant().curve(m).mu
    monkeypatch.undo()
    assert plain < certify(m).mu <= quick <= plain * 1.005
