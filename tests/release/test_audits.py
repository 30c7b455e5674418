"""Our own claims, attacked through the code that users call; and bugs planted there, which must be caught."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certificate as certificate_module
from tacit.accounting import certify
from tacit.accounting.block_sweeps import BlockShift
from tacit.accounting.curve import Gaussian
from tacit.accounting.cyclic import noisy_cyclic_mu
from tacit.audit import audit_gdp
from tacit.mechanism import (
    BlockSweeps,
    Cyclic,
    CyclicPoisson,
    Evidence,
    FrozenArray,
    Groups,
    Mechanism,
    Poisson,
    Schedule,
)
from tacit.mechanism.sampling import assign_batches
from tacit.records import InMemory
from tacit.release import Channel, GradientChain, open_session
from tacit.release import channel as channel_module
from tacit.release import query as query_module
from tacit.release.queries import VectorSum

N = 10_000
HERE, THERE = 11, 12
"""Seeds of the two sides: an audit of a right mechanism fails once in a while, but not at random times."""


QUERY = VectorSum(1.0)


def releases(mechanism: Mechanism, table: np.ndarray, statistic, seed: int) -> object:
    """A sampler of ``statistic`` of all releases of a mechanism, k runs at once."""
    certificate = certify(mechanism)

    def sample(k: int) -> np.ndarray:
        with open_session(certificate, InMemory(table), replicas=k, random_state=seed) as session:
            seen = [session.release(QUERY) for _ in range(mechanism.steps)]
        return statistic(np.stack(seen)[:, :, 0])

    return sample


def verdict(mechanism: Mechanism, here: np.ndarray, there: np.ndarray, statistic, claim=None):
    claim = claim or certify(mechanism)
    samplers = (releases(mechanism, table, statistic, seed) for table, seed in ((here, HERE), (there, THERE)))
    audit = audit_gdp(*samplers, N)
    return audit.verdict(claim)


def one(value: float, others: tuple[float, ...] = (0.0, 0.0)) -> np.ndarray:
    return np.array([[value], *[[x] for x in others]])


def summed(seen: np.ndarray) -> np.ndarray:
    return seen.sum(axis=0)


FULL = Mechanism(adjacency="replace-one", ratio=0.6, steps=4)


# -- what is right stays below its certificate, and comes near --------------------------------------------------


def test_full_batch_composition_is_attained():
    audit = audit_gdp(releases(FULL, one(1.0), summed, HERE), releases(FULL, one(-1.0), summed, THERE), N)
    truth = certify(FULL).mu
    assert not audit.verdict(certify(FULL)).violated
    assert 0.85 * truth <= audit.mu_lower <= truth


def test_a_chain_that_attains_the_last_iterate_bound():
    chain, here, there = gradient_chain()
    mechanism = chain.mechanism(QUERY, 4.0)
    audit = chain_audit(chain, here, there, mechanism)
    truth = certify(mechanism).mu
    assert not audit.verdict(certify(mechanism)).violated
    assert 0.85 * truth <= audit.mu_lower <= truth


def test_cyclic_batches_stay_below():
    chain, here, there = gradient_chain(k=4)
    mechanism = chain.mechanism(QUERY, 1.0)
    audit = chain_audit(chain, here, there, mechanism)
    truth = certify(mechanism).mu
    assert not audit.verdict(certify(mechanism)).violated
    assert 0.8 * truth <= audit.mu_lower <= truth  # a constant slope does not attain the cyclic bound, but nearly


def test_poisson_sampling_stays_below():
    m = Mechanism(adjacency="replace-one", ratio=2.0, steps=6, sampling=Poisson(0.3))
    assert not verdict(m, one(1.0), one(-1.0), summed).violated


# -- planted bugs ---------------------------------------------------------------------------------------------


def test_noise_too_small_by_30_percent_is_caught(monkeypatch):
    right = channel_module.noise_std
    monkeypatch.setattr(channel_module, "noise_std", lambda *a: 0.7 * right(*a))
    assert verdict(FULL, one(1.0), one(-1.0), summed).violated


def test_clipping_switched_off_is_caught(monkeypatch):
    loud = one(3.0), one(-3.0)
    assert not verdict(FULL, *loud, summed).violated
    monkeypatch.setattr(query_module, "clipped_total", lambda G, members, bound: (G * members[:, :, None]).sum(axis=1))
    assert verdict(FULL, *loud, summed).violated


def test_a_sensitivity_without_the_factor_two_is_caught(monkeypatch):
    monkeypatch.setattr(channel_module, "sensitivity", lambda mechanism, query: query.bound)
    assert verdict(FULL, one(1.0), one(-1.0), summed).violated


def test_fixed_size_batches_accounted_as_poisson_are_caught(monkeypatch):
    m = Mechanism(adjacency="replace-one", ratio=2.0, steps=30, sampling=Poisson(0.2))
    pair = one(1.0, (-1.0,) * 4), one(-1.0, (-1.0,) * 4)
    # If every batch holds one of five records, a step is N(−1) with the others, N(1) with the record: the best test.
    likelihood = lambda seen: np.log(0.8 + 0.2 * np.exp(2 * seen)).sum(axis=0)  # noqa: E731
    assert not verdict(m, *pair, likelihood).violated

    def fixed(self, n, replicas, streams):
        first = np.tile(np.arange(n) < round(self.rate * n), (replicas, 1))
        return lambda step: streams.at("batch", step).permuted(first, axis=1)

    monkeypatch.setattr(Poisson, "draw", fixed)
    assert verdict(m, *pair, likelihood).violated


def test_fixed_groups_under_add_remove_are_caught(monkeypatch):
    m = Mechanism(adjacency="add-remove", ratio=1.0, steps=4, sampling=CyclicPoisson(2, 1.0, Groups.INDEPENDENT))
    here, there = np.array([[-1.0], [0.0], [1.0], [0.0]]), np.array([[0.0], [1.0], [0.0]])
    contrast = lambda seen: 2 * (seen[0] + seen[2]) - (seen[1] + seen[3])  # noqa: E731
    assert not verdict(m, here, there, contrast).violated

    def by_order(self, n, replicas, streams):
        groups = assign_batches(n, self.n_groups, replicas, None)
        return lambda step: groups == step % self.n_groups

    monkeypatch.setattr(CyclicPoisson, "draw", by_order)
    assert verdict(m, here, there, contrast).violated


# -- resume -----------------------------------------------------------------------------------------------------


def resumed(table: np.ndarray, mechanism: Mechanism, seed: int):
    """Interrupt after every release and resume; the adversary subtracts neighbouring releases."""
    certificate = certify(mechanism)

    def sample(k: int) -> np.ndarray:
        records, seen = InMemory(table), []
        with open_session(certificate, records, replicas=k, random_state=seed) as session:
            point = session.checkpoint()
        for _ in range(mechanism.steps):
            with open_session(certificate, records, replicas=k, resume=point) as session:
                seen.append(session.release(QUERY)[:, 0])
                point = session.checkpoint()
        return seen[1] - seen[0]

    return sample


def test_noise_reused_on_resume_is_caught(monkeypatch):
    m = Mechanism(adjacency="replace-one", ratio=0.5, steps=2, sampling=Cyclic(2))
    pair = one(1.0, (0.0,)), one(-1.0, (0.0,))
    audit = audit_gdp(resumed(pair[0], m, HERE), resumed(pair[1], m, THERE), N)
    assert not audit.verdict(certify(m)).violated
    right = Channel._noise  # forgets the step, and what the noise hides
    monkeypatch.setattr(Channel, "_named", lambda self, *named: b"")
    monkeypatch.setattr(Channel, "_noise", lambda self, sigma, index, *rest: right(self, sigma, 0, *rest))
    audit = audit_gdp(resumed(pair[0], m, HERE), resumed(pair[1], m, THERE), N)
    assert audit.verdict(certify(m)).violated


# -- hidden chains ------------------------------------------------------------------------------------------------


def gradient_chain(k: int = 1, steps: int = 24, eta: float = 0.5, l2: float = 0.3):
    """θ ← (1−ηλ)θ − η(noisy mean): linear, so it attains the bound; the record sits in the last batch."""
    n = 4
    chain = GradientChain(Schedule.constant(eta, steps), l2, k, n)
    here, there = np.zeros((n, 1)), np.zeros((n, 1))
    here[-1], there[-1] = 1.0, -1.0
    return chain, here, there


def chain_audit(chain, here, there, mechanism, start=1):
    certificate = certify(mechanism)

    def sampler(table, seed):
        return lambda k: ends(chain, table, certificate, start, k, seed)[:, 0]

    return audit_gdp(sampler(here, HERE), sampler(there, THERE), N)


def ends(chain, table, certificate, size: int, k: int, seed: int) -> np.ndarray:
    """The last iterates of k runs of a chain."""
    with open_session(certificate, InMemory(table), replicas=k, random_state=seed) as session:
        return session.run_chain(chain, QUERY, np.zeros((k, size)))


def test_averaging_under_the_last_iterate_view_is_caught(monkeypatch):
    chain, here, there = gradient_chain(steps=40, l2=1.8)
    mechanism = chain.mechanism(QUERY, 4.0)
    right, past = GradientChain.advance, []

    def average(self, theta, noisy, k, release):
        if k == 0:
            past.clear()
        past.append(right(self, theta if k == 0 else past[-1], noisy, k, release))
        return np.mean(past, axis=0) if k == len(self.step_size) - 1 else past[-1]

    monkeypatch.setattr(GradientChain, "advance", average)
    assert chain_audit(chain, here, there, mechanism).verdict(certify(mechanism)).violated


def test_momentum_under_the_last_iterate_view_is_caught(monkeypatch):
    chain, here, there = gradient_chain(steps=40, l2=1.8)
    mechanism = chain.mechanism(QUERY, 4.0)
    velocity = {}

    def heavy(self, theta, noisy, k, release):
        v = 0.0 if k == 0 else velocity["v"]
        velocity["v"] = 0.9 * v + noisy / self.records + self.l2 * theta
        return theta - 0.1 * self.step_size[k] * velocity["v"]

    monkeypatch.setattr(GradientChain, "advance", heavy)
    assert chain_audit(chain, here, there, mechanism).verdict(certify(mechanism)).violated


class TwoBlocks:
    """Errata E6: Gauss–Seidel on ½ θᵀHθ + ⟨sum, θ⟩, H = [[1.8, 1.3], [1.3, 1.0]], η = ½; noise on every block."""

    H, eta = np.array([[1.8, 1.3], [1.3, 1.0]]), 0.5

    def check(self, mechanism, query, n):
        pass

    def query_state(self, theta, k, release):
        return theta

    def advance(self, theta, noisy, k, release):
        new = theta.copy()
        sign = 1.0 if release == 0 else -1.0  # the record pushes the blocks in opposite directions
        new[:, release] += -self.eta * theta @ self.H[release] + sign * self.eta * noisy[:, 0]
        return new

    def mechanism(self, sweeps: int) -> Mechanism:
        coupling = np.abs(np.eye(2) - self.eta * self.H)
        return Mechanism(
            adjacency="replace-one",
            ratio=1.0,
            steps=sweeps,
            releases=2,
            sampling=Cyclic(2),
            view=BlockSweeps(
                coupling=FrozenArray(coupling), noise_std=FrozenArray([1.0, 1.0]), evidence=Evidence.CHECKED
            ),
        )


def two_block_audit(sweeps: int):
    blocks, mechanism = TwoBlocks(), TwoBlocks().mechanism(sweeps)
    here, there = (np.array([[0.0], [v]]) for v in (1.0, -1.0))
    certificate = certify(mechanism)

    def sampler(table, seed):
        return lambda k: ends(blocks, table, certificate, 2, k, seed)

    return audit_gdp(sampler(here, HERE), sampler(there, THERE), N), certificate


def test_summing_hidden_state_bounds_over_blocks_is_caught(monkeypatch):
    audit, certificate = two_block_audit(40)
    assert not audit.verdict(certificate).violated

    def per_block(self, mechanism):
        L, epochs = mechanism.view.coupling.values, mechanism.steps // 2
        return Gaussian(np.hypot(*(noisy_cyclic_mu(2, epochs, L[i, i], 1.0) for i in range(2))))

    monkeypatch.setattr(BlockShift, "curve", per_block)
    certificate_module._bounds.cache_clear()
    wrong = certify(TwoBlocks().mechanism(40))
    certificate_module._bounds.cache_clear()
    assert wrong.mu**2 == pytest.approx(2.343, abs=1e-3)  # the claim of DP-MBCD
    assert audit.verdict(wrong).violated
