"""Mechanisms, plans and their JSON: what can be said, what cannot, and that saying it again is the same."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from tacit._codec import decode, digest, encode
from tacit.errors import InvalidInput
from tacit.mechanism import (
    Adjacency,
    AllIterates,
    BlockSweeps,
    CorrelatedNoise,
    Cyclic,
    CyclicPoisson,
    Evidence,
    FrozenArray,
    FullBatch,
    Groups,
    Independent,
    LastIterate,
    Mechanism,
    Memory,
    NoiseShape,
    Output,
    Partition,
    Plan,
    Poisson,
    Schedule,
    Selection,
    Separated,
    Shuffled,
    Start,
    Trials,
    WithoutReplacement,
)


def plain(**fields):
    return Mechanism(**{"adjacency": "replace-one", "ratio": 0.5, "steps": 6, **fields})


CHAIN = LastIterate(
    lipschitz=Schedule([0.9, 1.0], [3, 3]),
    noise_std=Schedule.constant(2.0, 6),
    diameter=3.0,
    output=Output.AVERAGE,
    memory=Memory.MOMENTUM,
    noise_shape=NoiseShape.COORDINATE,
    start=Start.RELEASED,
    evidence=Evidence.CHECKED,
)
BLOCKS = BlockSweeps(coupling=FrozenArray([[0.5, 0.1], [0.2, 0.4]]), noise_std=FrozenArray([1.0, 2.0]))
SAMPLINGS = [
    FullBatch(),
    Poisson(0.25),
    Cyclic(3, Partition.SECRET, Schedule([0.5, 0.25, 0.25])),
    Shuffled(3),
    WithoutReplacement(0.1),
    CyclicPoisson(2, 0.3, Groups.INDEPENDENT),
    Separated(2, 3),
]
EVERYTHING = [
    *(plain(sampling=s) for s in SAMPLINGS),
    plain(noise=CorrelatedNoise.toeplitz([1.0, 0.5])),
    plain(view=CHAIN),
    plain(view=BLOCKS, releases=2),
    plain(ratio=Schedule(np.arange(12.0)), releases=2, unit="person", label="both"),
    Selection(base=(plain(),), trials=Trials(3.0), holdout=(plain(steps=1),)),
    Selection(base=(plain(),), trials=Trials(3.0, 1.0)),
    Plan.of(plain(), Selection(base=(plain(),), trials=Trials(2.5, math.inf))),
]


@pytest.mark.parametrize("value", EVERYTHING, ids=lambda v: type(v).__name__)
def test_json_round_trip(value):
    text = json.dumps(encode(value), allow_nan=False)
    again = decode(json.loads(text))
    assert again == value
    assert hash(again) == hash(value)
    assert digest(again) == digest(value)


def test_a_view_of_all_iterates_holds_nothing_else():
    assert encode(AllIterates()) == {"type": "AllIterates"}
    with pytest.raises(InvalidInput, match="claimed"):  # of older files: what a paper would claim
        decode({"type": "AllIterates", "claimed": None})


def test_different_plans_have_different_digests():
    assert len({digest(value) for value in EVERYTHING}) == len(EVERYTHING)


@pytest.mark.parametrize(
    "data",
    [{}, {"type": "Unknown"}, {"type": "Poisson"}, {"enum": "Adjacency", "name": "NOBODY"}, {"schedule": {}}],
)
def test_json_that_describes_nothing_is_refused(data):
    with pytest.raises(InvalidInput):
        decode(data)


@pytest.mark.parametrize(
    "data", [{"float": "x"}, {"array": [[1], [1, 2]]}, {"schedule": {"values": ["a"], "counts": [1]}}]
)
def test_json_with_values_of_the_wrong_kind_is_refused(data):
    with pytest.raises(InvalidInput):
        decode(data)


def test_mechanisms_are_frozen_and_hashable():
    m = plain()
    with pytest.raises(FrozenInstanceError):
        m.steps = 7
    assert hash(m) == hash(plain())
    assert m == plain(ratio=Schedule.constant(0.5, 6))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("replace-one", Adjacency.REPLACE_ONE),
        ("REPLACE_ONE", Adjacency.REPLACE_ONE),
        (" Add_Remove ", Adjacency.ADD_REMOVE),
        (Adjacency.ZERO_OUT, Adjacency.ZERO_OUT),
    ],
)
def test_adjacency_parse(given, expected):
    assert Adjacency.parse(given) is expected


@pytest.mark.parametrize("bad", ["", "replace", None, 3, b"zero-out", ["zero-out"]])
def test_adjacency_refuses_what_it_does_not_know(bad):
    with pytest.raises(InvalidInput, match="replace-one"):
        Adjacency.parse(bad)


def test_adjacency_moves():
    assert [a.sum_factor for a in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)] == [1.0, 1.0, 2.0]
    assert all(a.sentence for a in Adjacency)


def test_step_ratio_joins_the_releases_of_a_step():
    assert plain(releases=4).step_ratio == Schedule.constant(1.0, 6)
    m = plain(ratio=Schedule([3.0, 4.0] * 6), releases=2)
    assert m.step_ratio.to_array() == pytest.approx(np.full(6, 5.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 0},
        {"steps": 1.5},
        {"steps": True},
        {"steps": "6"},
        {"releases": 0},
        {"ratio": -1.0},
        {"ratio": math.nan},
        {"ratio": math.inf},
        {"ratio": [0.5, 0.5]},
        {"ratio": "0.5"},
        {"ratio": None},
        {"adjacency": "nearby"},
        {"unit": ""},
        {"unit": None},
        {"sampling": Cyclic(7)},
        {"view": CHAIN, "releases": 2},
        {"view": CHAIN, "steps": 5},
        {"view": BLOCKS},
    ],
)
def test_mechanisms_that_make_no_sense_are_refused(fields):
    with pytest.raises(InvalidInput):
        plain(**fields)


@pytest.mark.parametrize("kind", [Poisson, WithoutReplacement])
@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan, math.inf, "0.1", None, True])
def test_rates_are_probabilities(kind, rate):
    with pytest.raises(InvalidInput):
        kind(rate)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cyclic(0),
        lambda: Cyclic(2, weights=Schedule([0.5, 0.6])),
        lambda: Cyclic(2, weights=Schedule([1.0])),
        lambda: Shuffled(-1),
        lambda: CyclicPoisson(0, 0.1),
        lambda: CyclicPoisson(2, 0.0),
        lambda: Separated(0, 1),
        lambda: Separated(1, 0),
        lambda: Trials(0.0),
        lambda: Trials(math.nan),
        lambda: Trials(3.0, -1.0),
        lambda: Trials(0.5, 1.0),
        lambda: CorrelatedNoise(FrozenArray([1.0])),
        lambda: CorrelatedNoise(FrozenArray([[0.0, 1.0]])),
        lambda: CorrelatedNoise.dense([[1.0, 1.0], [0.0, 1.0]]),
        lambda: CorrelatedNoise.dense([[1.0, 2.0]]),
        lambda: CorrelatedNoise.toeplitz([]),
        lambda: BlockSweeps(coupling=FrozenArray([[1.0]]), noise_std=FrozenArray([1.0, 1.0])),
        lambda: BlockSweeps(coupling=FrozenArray([[-1.0]]), noise_std=FrozenArray([1.0])),
        lambda: replace(CHAIN, diameter=0.0),
        lambda: Plan(()),
        lambda: Plan(("training",)),
        lambda: Plan.of(plain(), plain(adjacency="zero-out")),
        lambda: Plan.of(plain(), plain(unit="person")),
        lambda: Selection(base=(), trials=Trials(3)),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_plans_flatten_in_order():
    a, b = plain(label="a"), plain(label="b")
    plan = Plan.of(Plan.of(a), Plan.of(b, a))
    assert [m.label for m in plan] == ["a", "b", "a"]
    assert len(plan) == 3
    assert (plan.adjacency, plan.unit) == (Adjacency.REPLACE_ONE, "record")


def test_factorised_forms_agree():
    C = np.array([[1.0, 0, 0], [0.5, 1.0, 0], [0, 0.5, 1.0]])
    dense, toeplitz = CorrelatedNoise.dense(C), CorrelatedNoise.toeplitz([1.0, 0.5])
    assert dense.n_bands == toeplitz.n_bands == 2
    assert np.array_equal(dense.to_dense(3), C)
    assert np.array_equal(toeplitz.to_dense(3), C)
    with pytest.raises(InvalidInput):
        dense.columns(4)


def test_defaults_say_that_everything_is_seen():
    m = plain()
    assert (m.sampling, m.noise, m.view) == (FullBatch(), Independent(), AllIterates())
    assert CHAIN.evidence is Evidence.CHECKED
    assert LastIterate(lipschitz=Schedule([1.0]), noise_std=Schedule([1.0])).evidence is Evidence.DECLARED
