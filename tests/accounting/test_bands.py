"""How many bands: σ against dp_accounting's own accountant, the choice against all candidates, and bad input."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from tacit.accounting import banded_noise_multiplier, certify, choose_bands
from tacit.accounting.bands import _rough_multiplier
from tacit.errors import InvalidInput
from tacit.mechanism import CorrelatedNoise, CyclicPoisson, FrozenArray, Groups, Mechanism
from tacit.noise import noisecurve_workload, optimise, prefix_sum, sgd_workload

DELTA = 1e-5
LARGE = {"n": 50_000, "batch_size": 450, "steps": 2223}
SMALL = {"n": 20_000, "batch_size": 200, "steps": 500}
CHOICES = [("zero-out", 0.5), ("zero-out", 2.0), ("replace-one", 2.0)]
KNOWN = [  # ε, bands, relation, σ/C
    (2, 10, "zero-out", 2.8646),
    (5, 10, "zero-out", 1.4521),
    (8, 10, "zero-out", 1.0927),
    (2, 1, "zero-out", 1.1096),
    (5, 1, "zero-out", 0.7394),
    (8, 1, "zero-out", 0.6320),
    (2, 10, "replace-one", 5.3536),
    (5, 10, "replace-one", 2.3888),
    (8, 10, "replace-one", 1.6093),
]
RELATIONS = {
    "zero-out": NeighboringRelation.REPLACE_SPECIAL,
    "replace-one": NeighboringRelation.REPLACE_ONE,
    "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
}


def oracle(sigma, bands, adjacency, n, batch_size, steps):
    """ε of ⌈T/b⌉ Poisson-sampled Gaussians by dp_accounting's PLDAccountant."""
    accountant = PLDAccountant(RELATIONS[adjacency])
    accountant.compose(PoissonSampledDpEvent(batch_size * bands / n, GaussianDpEvent(sigma)), math.ceil(steps / bands))
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(("epsilon", "bands", "adjacency", "sigma"), KNOWN)
def test_the_known_multipliers_by_another_accountant(epsilon, bands, adjacency, sigma):
    """Four of them are held against ``banded_noise_multiplier`` in test_calibrate, one more below."""
    assert oracle(sigma, bands, adjacency, **LARGE) == pytest.approx(epsilon, rel=1e-3)


def test_the_multiplier_is_the_known_one():
    found = banded_noise_multiplier(2, DELTA, **LARGE, bands=10, adjacency="replace-one")
    assert found == pytest.approx(5.3536, rel=1e-3)


@pytest.fixture(scope="module")
def chosen():
    return {case: choose_bands(case[1], DELTA, **SMALL, adjacency=case[0]) for case in CHOICES}


@pytest.fixture(scope="module")
def added():
    return choose_bands(0.5, DELTA, **SMALL, adjacency="add-remove", candidates=[3])


def test_the_choice_is_certified_and_not_wasteful(chosen, added):
    for (adjacency, epsilon), found in {**chosen, ("add-remove", 0.5): added}.items():
        b, C = found.bands, found.optimum.strategy
        groups = Groups.INDEPENDENT if adjacency == "add-remove" else Groups.FIXED
        factor = 2 if adjacency == "replace-one" else 1

        def run(sigma, adjacency=adjacency, b=b, C=C, groups=groups, factor=factor):
            return Mechanism(
                adjacency=adjacency,
                ratio=factor / sigma,
                steps=SMALL["steps"],
                sampling=CyclicPoisson(b, SMALL["batch_size"] * b / SMALL["n"], groups),
                noise=CorrelatedNoise(FrozenArray(C.bands)),
            )

        spent = certify(run(found.noise_multiplier), delta=DELTA).epsilon(DELTA)
        assert 0.9999 * epsilon < spent <= epsilon * (1 + 1e-9)
        assert oracle(found.noise_multiplier, b, adjacency, **SMALL) == pytest.approx(epsilon, rel=1e-3)
        assert (C.n_bands, C.steps) == (b, SMALL["steps"])
        assert found.optimum.gap <= 1e-5


def test_the_table_by_brute_force(chosen):
    found = chosen["zero-out", 0.5]
    exact = {}
    for row in found.table:
        sigma = banded_noise_multiplier(0.5, DELTA, **SMALL, bands=row.bands, adjacency="zero-out")
        error = optimise(prefix_sum(SMALL["steps"]), row.bands).error
        assert row.noise_multiplier == pytest.approx(sigma, rel=1e-3)
        assert row.error == pytest.approx(error, rel=3e-3)
        assert row.noise == row.noise_multiplier * math.sqrt(row.error)
        exact[row.bands] = sigma * math.sqrt(error)
    assert found.bands == min(exact, key=exact.get)
    assert [row.bands for row in found.table] == [1, 2, 3, 5, 10, 14]
    mine = next(row for row in found.table if row.bands == found.bands)
    assert (mine.noise_multiplier, mine.error) == (found.noise_multiplier, found.optimum.error)
    assert mine.noise == min(row.noise for row in found.table)


def test_monotone(chosen):
    """More bands: more noise per ε and less error; more budget: more bands; replace-one: more noise, fewer bands."""
    for found in chosen.values():
        assert all(a.noise_multiplier < b.noise_multiplier for a, b in itertools.pairwise(found.table))
        assert all(a.error > b.error for a, b in itertools.pairwise(found.table))
    less, more = chosen["zero-out", 0.5], chosen["zero-out", 2.0]
    assert less.bands < more.bands
    replaced = chosen["replace-one", 2.0]
    assert replaced.bands <= more.bands
    assert all(a.noise_multiplier < b.noise_multiplier for a, b in zip(more.table, replaced.table, strict=False))


def test_bisection_finds_what_trying_every_candidate_finds(chosen):
    usual = [1, 2, 3, 5, 7, 10, 14, 20, 28, 40, 57, 80]
    for (adjacency, epsilon), found in chosen.items():
        every = choose_bands(epsilon, DELTA, **SMALL, adjacency=adjacency, candidates=usual, tolerance=1e-2)
        assert found.bands == every.bands
        tried = [row.bands for row in found.table]
        place = usual.index(found.bands)
        assert {1, *usual[max(place - 1, 0) : place + 2]} <= set(tried)
        assert len(tried) <= 8


def test_the_guess_of_an_experienced_caller_changes_nothing():
    how = {**SMALL, "bands": 3, "adjacency": "zero-out"}
    exact = banded_noise_multiplier(0.5, DELTA, **how)
    for start in (0.5 * exact, 1.01 * exact, 20.0):
        assert banded_noise_multiplier(0.5, DELTA, **how, start=start) == pytest.approx(exact, rel=2e-6)


def test_the_design_at_epsilon_two():
    """n = 50000, B = 450, 20 epochs: about ten bands, 15 % below DP-SGD."""
    found = choose_bands(2.0, DELTA, **LARGE)
    by_bands = {row.bands: row for row in found.table}
    assert found.bands in (7, 10)
    assert by_bands[10].noise_multiplier == pytest.approx(2.8646, rel=1e-3)
    assert by_bands[1].noise_multiplier == pytest.approx(1.1096, rel=1e-3)
    assert by_bands[found.bands].noise / by_bands[1].noise == pytest.approx(0.85, abs=0.01)


@pytest.mark.parametrize("name", ["curve", "momentum"])
def test_other_workloads(name):
    T = SMALL["steps"]
    workload = {
        "curve": noisecurve_workload(np.logspace(0, -4, 500), 0.5, T),
        "momentum": sgd_workload(T, momentum=0.9),
    }[name]
    found = choose_bands(2.0, DELTA, **SMALL, workload=workload, candidates=[8, 4, 8], tolerance=2e-2)
    assert [row.bands for row in found.table] == [4, 8]
    assert found.optimum.error == workload.value(found.optimum.strategy.bands)
    assert found.optimum.gap <= 2e-2
    assert found.bands in (4, 8)


def test_extremes():
    """Full batches leave one candidate, two steps two; a great deal of noise is found, too."""
    assert [row.bands for row in choose_bands(1.0, DELTA, n=10, batch_size=10, steps=5).table] == [1]
    assert [row.bands for row in choose_bands(0.1, DELTA, n=100, batch_size=40, steps=9).table] == [1, 2]
    assert [row.bands for row in choose_bands(0.1, DELTA, n=100, batch_size=10, steps=2).table] == [1, 2]
    assert choose_bands(1e-3, DELTA, n=100, batch_size=50, steps=10, candidates=[2]).noise_multiplier > 1000


def test_no_noise_suffices_or_next_to_none_does():
    assert _rough_multiplier(lambda x: 1.0, 2.0, None) == pytest.approx(1e-3)
    with pytest.raises(InvalidInput, match="no noise up to"):
        _rough_multiplier(lambda x: 3.0, 2.0, None)
    for guess in (None, 0.0, 3.0, -100.0):
        assert _rough_multiplier(lambda x: 7 * math.exp(-x), 2.0, guess) == pytest.approx(3.5, rel=1e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.5}, "delta"),
        ({"n": 0}, "n must"),
        ({"batch_size": 30_000}, "batch_size"),
        ({"steps": 2.5}, "steps"),
        ({"adjacency": "swap"}, "adjacency"),
        ({"candidates": []}, "at least one"),
        ({"candidates": [0]}, "candidates"),
        ({"candidates": [101]}, "lower bands"),
        ({"candidates": [501]}, "501 bands for 500 steps"),
        ({"candidates": 3}, "candidates"),
        ({"workload": prefix_sum(7)}, "7 steps"),
        ({"workload": "prefix"}, "workload"),
        ({"tolerance": 0.0}, "tolerance"),
    ],
)
def test_bad_input(changed, message):
    arguments = {"epsilon": 1.0, "delta": DELTA, **SMALL, **changed}
    with pytest.raises(InvalidInput, match=message) as caught:
        choose_bands(**arguments)
    assert "\n" not in str(caught.value)
