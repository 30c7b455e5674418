"""Bad input to every public function: a valid number, or one of our own errors. Nothing else, ever."""

import functools
import inspect
import math

import numpy as np
import pytest
from papers import published

import tacit.accounting as accounting
from tacit.accounting import certify
from tacit.errors import InvalidInput, TacitError
from tacit.mechanism import Cyclic, FullBatch, LastIterate, Mechanism, Schedule, Selection, Trials

BAD = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "negative": -1.0,
    "zero": 0,
    "huge": 1e308,
    "tiny": 5e-324,
    "beyond": 10**400,
    "string": "1",
    "none": None,
    "bool": True,
    "complex": 1j,
    "list": [],
    "strings": ["a"],
    "nans": [math.nan, 1.0],
    "ragged": [[1.0], [1.0, 2.0]],
    "matrix": [[1.0, 2.0], [3.0, 4.0]],
    "array": np.ones(3),
    "object": object(),
    "dict": {},
}

# A valid call of each function: every argument is replaced by every bad value in turn.
CALLS = {
    accounting.gdp_delta: {"mu": 1.0, "epsilon": 1.0},
    accounting.gdp_epsilon: {"mu": 1.0, "delta": 1e-5},
    accounting.gdp_mu: {"epsilon": 1.0, "delta": 1e-5},
    accounting.last_iterate_mu: {"lipschitz": 0.9, "shift": [1.0, 0.5], "noise_std": 1.0, "diameter": 1.0},
    accounting.last_iterate_shifts: {"lipschitz": 0.9, "shift": [1.0, 0.5], "noise_std": 1.0, "diameter": 1.0},
    accounting.noisy_cyclic_mu: {
        "n_batches": 2,
        "epochs": 3,
        "contraction": 0.9,
        "ratio": 0.5,
        "position": 1,
        "noise_std": 1.0,
    },
    accounting.noisy_cyclic_delta: {
        "n_batches": 2,
        "epochs": 3,
        "contraction": 0.9,
        "ratio": 0.5,
        "epsilon": 1.0,
        "position": "average",
        "noise_std": 1.0,
        "weights": [0.5, 0.5],
    },
    accounting.block_sweep_mu: {
        "coupling": [[0.5, 0.1], [0.1, 0.5]],
        "shift": [[1.0, 1.0]] * 3,
        "noise_std": [1.0, 1.0],
    },
    accounting.poisson_epsilon: {
        "noise_multiplier": 2.0,
        "rate": 0.5,
        "steps": 2,
        "delta": 1e-3,
        "adjacency": "zero-out",
    },
    accounting.selection_epsilon: {"mu": 0.5, "mean_trials": 5.0, "delta": 1e-5, "method": "refined"},
    published.diffusion_rdp: {
        "lipschitz": 0.9,
        "step_size": 0.1,
        "noise": np.ones((3, 2)),
        "sensitivity": 1.0,
        "batch_size": 10,
        "position": 1,
    },
    published.diffusion_epochs: {
        "lipschitz": 0.9,
        "step_size": 0.1,
        "noise": np.ones((3, 2)),
        "sensitivity": 1.0,
        "batch_size": 10,
        "position": 1,
    },
    published.diffusion_mixture: {
        "lipschitz": 0.9,
        "step_size": 0.1,
        "noise": np.ones((3, 2)),
        "sensitivity": 1.0,
        "batch_size": 10,
        "alpha": 2.0,
    },
    accounting.banded_noise_multiplier: {
        "epsilon": 1.0,
        "delta": 1e-3,
        "n": 100,
        "batch_size": 50,
        "steps": 2,
        "bands": 2,
        "adjacency": "zero-out",
    },
}
CASES = [(function, name) for function, arguments in CALLS.items() for name in arguments]


def acceptable(call):
    """Whether a call returns a number in range or raises one of our own errors, with a message."""
    try:
        value = call()
    except TacitError as error:
        return bool(str(error))
    return value is None or isinstance(value, str) or in_range(value)


def in_range(value):
    found = value.mu if isinstance(value, accounting.OptimalShifts) else value
    array = np.asarray(found, float)
    return bool((array >= 0).all()) and not np.isnan(array).any()


@pytest.mark.parametrize("function", list(CALLS), ids=lambda f: f.__name__)
def test_the_valid_call_is_valid(function):
    assert set(CALLS[function]) <= set(inspect.signature(function).parameters)
    assert in_range(function(**CALLS[function]))


@pytest.mark.parametrize("kind", list(BAD))
@pytest.mark.parametrize(("function", "name"), CASES, ids=[f"{f.__name__}-{n}" for f, n in CASES])
def test_a_bad_argument_gives_a_number_in_range_or_our_own_error(function, name, kind):
    assert acceptable(lambda: function(**{**CALLS[function], name: BAD[kind]}))


@pytest.mark.parametrize("position", [-1, 2, 5])
def test_a_batch_that_does_not_exist_is_refused(position):
    for function in (published.diffusion_rdp, published.diffusion_epochs):
        with pytest.raises(InvalidInput, match="position"):
            function(0.9, 0.1, np.ones((3, 2)), 1.0, 10, position)


# -- certificates ----------------------------------------------------------------------------------------------


@functools.cache
def certificate():
    return certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=4))


@pytest.mark.parametrize("kind", list(BAD))
@pytest.mark.parametrize("method", ["epsilon", "delta", "describe"])
def test_certificates_answer_or_refuse(method, kind):
    assert acceptable(lambda: getattr(certificate(), method)(BAD[kind]))


@pytest.mark.parametrize("delta", [None, 0.0, 1.0, -1e-5, math.nan, "1e-5"])
def test_delta_must_be_given_and_lie_inside(delta):
    with pytest.raises(InvalidInput, match="delta"):
        certificate().epsilon(delta)


@pytest.mark.parametrize("plan", [None, "training", 3, [], (), {}, object(), Schedule([1.0])])
def test_only_plans_are_certified(plan):
    with pytest.raises(InvalidInput):
        certify(plan)


@pytest.mark.parametrize("theorem", ["", "nonsense", 3, object()])
def test_unknown_theorems_are_named(theorem):
    with pytest.raises(InvalidInput, match="theorem"):
        certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=4), theorem=theorem)


def test_unknown_theorems_are_named_for_selections():
    base = Mechanism(adjacency="replace-one", ratio=0.5, steps=4)
    with pytest.raises(TacitError):
        certify(Selection(base=(base,), trials=Trials(3)), theorem="nonsense").epsilon(1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda m: LastIterate(lipschitz=0.9, noise_std=1.0),
        lambda m: Mechanism(
            adjacency="replace-one", ratio=0.5, steps=4, view=LastIterate(lipschitz=0.9, noise_std=1.0)
        ),
        lambda m: Cyclic(2, weights=[0.5, 0.5]),
        lambda m: Selection(base=m, trials=Trials(3)),
        lambda m: certify(Selection(base=(m,), trials=3)),
        lambda m: Mechanism(adjacency="replace-one", ratio=0.5, steps=10**30),
        lambda m: Mechanism(adjacency="replace-one", ratio=0.5, steps=10**400),
        lambda m: certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=4, sampling=FullBatch)),
        lambda m: certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=4, sampling=["poisson"])),
    ],
)
def test_mistakes_in_a_description_are_ours_to_explain(make):
    mechanism = Mechanism(adjacency="replace-one", ratio=0.5, steps=4)
    assert acceptable(lambda: make(mechanism) and None)


@pytest.mark.parametrize("name", ["epsilon", "delta", "lower", "upper"])
@pytest.mark.parametrize("kind", ["nan", "negative", "zero", "string", "none", "beyond", "array"])
def test_calibrate_refuses_bad_targets(name, kind):
    arguments = {"epsilon": 1.0, "delta": 1e-5, "lower": 1e-3, "upper": 1e9, name: BAD[kind]}
    with pytest.raises(InvalidInput):
        accounting.calibrate(lambda x: Mechanism(adjacency="zero-out", ratio=1 / x, steps=1), **arguments)


@pytest.mark.parametrize("ratio", [0.0, 1e-300, 1e-160, 1e10, 1e160, 1e300])
def test_extreme_ratios_give_a_number_or_a_refusal(ratio):
    for adjacency in ("zero-out", "replace-one"):
        assert acceptable(lambda a=adjacency: certify(Mechanism(adjacency=a, ratio=ratio, steps=3)).epsilon(1e-5))
