"""Calibration: what it returns satisfies the target, and a little less noise does not."""

import math

import pytest

from tacit.accounting import banded_noise_multiplier, calibrate, certify, gdp_mu, max_feasible
from tacit.errors import InvalidInput
from tacit.mechanism import (
    BlockSweeps,
    CorrelatedNoise,
    Cyclic,
    CyclicPoisson,
    FrozenArray,
    LastIterate,
    Mechanism,
    Partition,
    Plan,
    Poisson,
    Schedule,
    Selection,
    Trials,
)

DELTA = 1e-5
STEPS = 12


def mechanism(level, adjacency="replace-one", **fields):
    return Mechanism(adjacency=adjacency, ratio=2.0 / level, steps=STEPS, **fields)


def hidden():
    return LastIterate(lipschitz=Schedule.constant(0.9, STEPS), noise_std=Schedule.constant(1.0, STEPS))


def blocks():
    return BlockSweeps(coupling=FrozenArray([[0.8, 0.1], [0.2, 0.7]]), noise_std=FrozenArray([1.0, 1.0]))


MAKERS = {
    "gaussian": lambda x: mechanism(x),
    "poisson": lambda x: mechanism(x, sampling=Poisson(0.1)),
    "last-iterate": lambda x: mechanism(x, sampling=Cyclic(3), view=hidden()),
    "averaged": lambda x: mechanism(x, sampling=Cyclic(3, Partition.SECRET), view=hidden()),
    "blocks": lambda x: mechanism(x, releases=2, view=blocks()),
    "factorised": lambda x: mechanism(x, noise=CorrelatedNoise.toeplitz([0.8, 0.6])),
    "banded": lambda x: mechanism(x, sampling=CyclicPoisson(3, 0.2), noise=CorrelatedNoise.toeplitz([0.8, 0.6])),
    "selection": lambda x: Selection(base=(mechanism(x),), trials=Trials(5)),
    "plan": lambda x: Plan.of(mechanism(x), mechanism(2 * x, sampling=Poisson(0.1))),
}


QUICK = ("gaussian", "last-iterate", "averaged", "blocks", "factorised")


@pytest.mark.parametrize(("name", "epsilon"), [(n, 1.0) for n in MAKERS] + [(n, 6.0) for n in QUICK])
def test_the_target_is_met_and_hardly_more(name, epsilon):
    found = calibrate(MAKERS[name], epsilon=epsilon, delta=DELTA)
    assert found.certificate.epsilon(DELTA) <= epsilon
    assert certify(MAKERS[name](found.value), delta=DELTA).epsilon(DELTA) <= epsilon
    assert certify(MAKERS[name](found.value * 0.999), delta=DELTA).epsilon(DELTA) > epsilon


def test_gaussian_calibration_is_the_closed_form():
    found = calibrate(MAKERS["gaussian"], epsilon=1.0, delta=DELTA).value
    assert found == pytest.approx(2.0 * math.sqrt(STEPS) / gdp_mu(1.0, DELTA), rel=2e-6)


def test_bounds_of_the_search_are_respected():
    exact = 2.0 * math.sqrt(STEPS) / gdp_mu(1.0, DELTA)
    assert calibrate(MAKERS["gaussian"], epsilon=1.0, delta=DELTA, lower=2 * exact).value == pytest.approx(2 * exact)
    with pytest.raises(InvalidInput, match="no noise up to"):
        calibrate(MAKERS["gaussian"], epsilon=1.0, delta=DELTA, upper=exact / 2)


@pytest.mark.parametrize("epsilon", [1e-3, 1e2])
def test_extreme_targets(epsilon):
    found = calibrate(MAKERS["gaussian"], epsilon=epsilon, delta=DELTA)
    assert found.certificate.epsilon(DELTA) == pytest.approx(epsilon, rel=1e-4)
    assert found.certificate.epsilon(DELTA) <= epsilon


def test_large_targets_with_sampling():
    found = calibrate(lambda x: mechanism(x, sampling=Poisson(0.5)), epsilon=60.0, delta=DELTA)
    assert 59 < found.certificate.epsilon(DELTA) <= 60


@pytest.mark.parametrize("sampling", [None, Poisson(0.5)])
def test_max_feasible_steps_are_the_largest_that_fit(sampling):
    def make(steps):
        fields = {} if sampling is None else {"sampling": sampling}
        return Mechanism(adjacency="zero-out", ratio=0.5, steps=steps, **fields)

    found = max_feasible(make, epsilon=4.0, delta=DELTA, limit=100)
    assert isinstance(found.value, int)
    assert found.certificate.epsilon(DELTA) <= 4.0
    assert certify(make(found.value + 1)).epsilon(DELTA) > 4.0


def test_max_feasible_stops_at_the_limit():
    def make(steps):
        return Mechanism(adjacency="zero-out", ratio=1e-6, steps=steps)

    assert max_feasible(make, epsilon=1.0, delta=DELTA, limit=1000).value == 1000


def test_smallest_sufficient_batch_size():
    def make(batch):  # the shift of a mean falls with the batch
        return Mechanism(adjacency="replace-one", ratio=20.0 / batch, steps=10)

    found = max_feasible(make, epsilon=1.0, delta=DELTA, smallest=True)
    assert found.certificate.epsilon(DELTA) <= 1.0
    assert certify(make(found.value - 1)).epsilon(DELTA) > 1.0
    assert max_feasible(make, epsilon=1e4, delta=DELTA, smallest=True).value == 1


@pytest.mark.parametrize("smallest", [False, True])
def test_nothing_max_feasible_is_said_so(smallest):
    def make(count):
        return Mechanism(adjacency="zero-out", ratio=50.0, steps=1)

    with pytest.raises(InvalidInput):
        max_feasible(make, epsilon=0.1, delta=DELTA, limit=100, smallest=smallest)


@pytest.mark.parametrize(
    ("epsilon", "bands", "adjacency", "expected"),
    [
        (2, 10, "zero-out", 2.8646),
        (8, 10, "zero-out", 1.0927),
        (5, 1, "zero-out", 0.7394),
        (5, 10, "replace-one", 2.3888),
    ],
)
def test_banded_noise_multiplier(epsilon, bands, adjacency, expected):
    found = banded_noise_multiplier(
        epsilon, DELTA, n=50_000, batch_size=450, steps=2223, bands=bands, adjacency=adjacency
    )
    assert found == pytest.approx(expected, rel=1e-3)


def test_more_bands_than_records_allow_are_refused():
    with pytest.raises(InvalidInput, match="bands"):
        banded_noise_multiplier(1.0, DELTA, n=100, batch_size=20, steps=10, bands=6, adjacency="zero-out")


@pytest.mark.parametrize(("find", "argument"), [(calibrate, "noise"), (max_feasible, "count")])
def test_a_finished_plan_is_not_a_function(find, argument):
    for made, name in ((mechanism(1.0), "Mechanism"), (Plan.of(mechanism(1.0)), "Plan"), (None, "NoneType")):
        with pytest.raises(
            InvalidInput, match=f"make_plan must be a function, got {name}: .*lambda {argument}: Mechanism"
        ):
            find(made, epsilon=1.0, delta=DELTA)
