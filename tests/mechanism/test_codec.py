"""The codec: whatever is described reads back as it was written, and files are measured before they are believed.

The first part comes to every described class of Tacit by itself; a class says ``examples()`` and is in no list here.
"""

import importlib
import json
import math
import time
import tracemalloc
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tacit
from tacit import _codec, solvers
from tacit._codec import decode, described, digest, encode, leaf, parse, registered
from tacit.errors import InvalidInput
from tacit.estimators import stored
from tacit.maps import FeatureBounds
from tacit.mechanism import (
    Adjacency,
    CorrelatedNoise,
    Cyclic,
    FrozenArray,
    FullBatch,
    LastIterate,
    Mechanism,
    Noise,
    Plan,
    Poisson,
    Sampling,
    Schedule,
    Separated,
    View,
)
from tacit.mechanism.sampling import Partition
from tacit.problem import ElasticNet, losses
from tacit.problem.blocks import Block, GradientStep
from tacit.problem.layers import Convolution, ConvolutionMap, Dense, DenseMap
from tacit.problem.network import Architecture, Connection
from tacit.solvers import network, nmf
from tacit.solvers.blocks import BlockPlan
from tacit.solvers.hidden import CyclicNumbers
from tacit.solvers.schedules import Optimised

SRC = Path(tacit.__file__).parent


def _import_everything_described() -> None:
    for path in SRC.rglob("*.py"):
        if "@described(" in path.read_text() or "@leaf(" in path.read_text():
            importlib.import_module(".".join(("tacit", *path.relative_to(SRC).with_suffix("").parts)))


_import_everything_described()
EVERY = {tag: cls for tag, cls in registered().items() if cls.__module__.startswith("tacit.")}
IN_PLANS = ("tacit.mechanism", "tacit.noise")
"""What names a promise; the records of models are below (``RECORDS``)."""
OURS = {tag: cls for tag, cls in EVERY.items() if cls.__module__.startswith(IN_PLANS) or hasattr(cls, "examples")}
EACH = pytest.mark.parametrize("cls", OURS.values(), ids=list(OURS))


def examples(cls):
    """Objects of a described class: every member of an Enum, else what the class itself gives."""
    if issubclass(cls, Enum):
        return tuple(cls)
    if not hasattr(cls, "examples"):
        try:
            return (cls(),)
        except TypeError:
            pass
        pytest.fail(
            f"{cls.__name__} is described but gives no examples to the contract tests: write a classmethod "
            "examples(cls) -> tuple[Self, ...] that returns objects with every field away from its default once",
            pytrace=False,
        )
    try:
        return cls.examples()
    except NotImplementedError as missing:
        pytest.fail(str(missing), pytrace=False)


# -- the contract -----------------------------------------------------------------------------------------------


@EACH
def test_every_described_class_reads_back_as_it_was_written(cls):
    found = examples(cls)
    assert found
    for value in found:
        assert type(value) is cls, f"{cls.__name__}.examples() makes a {type(value).__name__}: use cls(...)"
        again = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
        assert type(again) is cls
        if cls.__eq__ is not object.__eq__:  # records of arrays are equal to nothing but themselves
            assert again == value
            assert hash(again) == hash(value)
        assert digest(again) == digest(value)


@EACH
def test_different_examples_have_different_digests(cls):
    found = examples(cls)
    assert len({digest(value) for value in found}) == len(found)


@EACH
def test_what_is_not_of_the_class_is_refused_in_one_line(cls):
    data = encode(examples(cls)[0])
    wrong = [{**data, "surprise": 1}, {**data, next(iter(data)): "Nothing"}, {**data, next(iter(data)): [1]}]
    for edited in wrong:
        with pytest.raises(InvalidInput) as refusal:
            decode(edited)
        assert "\n" not in str(refusal.value)


def test_a_class_without_examples_is_told_what_to_write():
    @described("test.Bare")
    @dataclass(frozen=True)
    class Bare:
        size: int

    with pytest.raises(pytest.fail.Exception, match=r"Bare is described but gives no examples.*write a classmethod"):
        examples(Bare)


def descendants(cls):
    for child in cls.__subclasses__():
        yield child
        yield from descendants(child)


@pytest.mark.parametrize("base", [Sampling, Noise, View])
def test_every_axis_value_of_ours_is_described(base):
    for cls in descendants(base):
        if cls.__module__.startswith("tacit."):
            assert cls in OURS.values(), f'{cls.__name__} has no name in files: decorate it with @described("...")'


def test_the_contract_comes_to_every_kind_of_description():
    assert {"Plan", "Mechanism", "Selection", "Factorised", "Poisson", "LastIterate", "Adjacency"} <= set(OURS)


# -- plain values and arrays ------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=12,
)


def same(a, b):
    """Equal, of the same types all the way down."""
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(deadline=None, max_examples=200)
@given(VALUES)
def test_plain_values_read_back_with_their_types(value):
    assert same(decode(json.loads(json.dumps(encode(value), allow_nan=False))), value)


@settings(deadline=None, max_examples=200)
@given(
    arrays.arrays(
        st.sampled_from(["?", "i1", "<i2", ">i4", "<i8", "u1", ">u8", "<f2", ">f4", "<f8", ">f8", "<c16"]),
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_arrays_read_back_to_the_bit(value):
    data = json.loads(json.dumps(encode(value), allow_nan=False))
    again = decode(data)
    assert again.shape == value.shape
    assert again.dtype == value.dtype.newbyteorder("<")
    assert again.tobytes() == value.astype(value.dtype.newbyteorder("<")).tobytes()
    assert again.flags.writeable
    assert again.flags.c_contiguous


def test_arrays_are_written_in_c_order_whatever_their_memory():
    value = np.arange(6.0).reshape(2, 3)
    assert encode(np.asfortranarray(value)) == encode(value)
    assert encode(value[::-1, ::2])["shape"] == [2, 2]
    assert np.array_equal(decode(encode(value[::-1, ::2])), value[::-1, ::2])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_floats_that_json_does_not_have_read_back(value):
    again = decode(json.loads(json.dumps(encode(value), allow_nan=False)))
    assert again == value or (math.isnan(again) and math.isnan(value))


@pytest.mark.parametrize("value", [np.float64(0.1), np.int64(3), np.bool_(True), np.str_("a")])
def test_numpy_scalars_are_written_as_what_they_are(value):
    assert same(decode(json.loads(json.dumps(encode(value)))), value.item())


class Word(StrEnum):
    A = "a"


@dataclass(frozen=True)
class Silent:
    size: int = 1


class Louder(Poisson):
    pass


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, {1, 2}, b"x", Silent(), Louder(0.5), Word.A, np.array([b"a"]), np.array([object()]), 1j]
)
def test_what_could_not_be_read_back_is_not_written(value):
    for outer in (value, (value,), [value], {"inside": value}):
        with pytest.raises(InvalidInput) as refusal:
            encode(outer)
        assert "\n" not in str(refusal.value)


# -- records of models ------------------------------------------------------------------------------------------

ONES, PART = np.ones(2), DenseMap((3,), 1, 2)
NETWORK = Architecture((Connection(0, 1, PART, "layer 1"),), ((3,), (2,)), (1.0, 0.5), "squared", 2, 3.0)
BLOCK = Block("items", np.eye(2), 0.5, GradientStep(0.25, ElasticNet.of(1, l1=0.5), nmf.UnitRows(7)), 3, 0.75)
RECORDS = [
    BLOCK.update,
    BLOCK,
    losses.Squared(),
    losses.Huber(2.0),
    losses.Logistic(),
    losses.SmoothedHinge(),
    losses.Poisson(),
    losses.Gamma(),
    FeatureBounds(-ONES, ONES, 0 * ONES, ONES, True, 0.5),
    Dense(3, 2),
    Convolution(3, 2, 2, 1, 2),
    PART,
    ConvolutionMap((1, 4, 4), 2, 3, 2, 2, 1),
    NETWORK.connections[0],
    NETWORK,
    solvers.ConstantModel(),
    solvers.CoordinateDescent(block_size=2, passes=2.0, clip=0.5, smoothness=ONES),
    solvers.MetricDescent(4, 1.5),
    solvers.NoisyCyclicDescent(epochs=3, clip=0.5),
    solvers.NoisyGradientDescent(5, 0.5, 2.0, False),
    solvers.NoisyStatistics(0.5, 2.0),
    solvers.ProximalSGD(10, 3.0, 0.5),
    Optimised(1.5),
    BlockPlan((BLOCK,), 10, 2, 3, "cyclic", np.ones((6, 1)), None, "all_iterates", "jacobi"),
    CyclicNumbers(
        10, 2, 1, 1.5, 0.5, 0.1, ONES, 2.0, ONES, "final_model", Adjacency.ZERO_OUT, Partition.SECRET, "person"
    ),
    nmf.NMFOptions(0.5, Optimised(2.0), None, 0.1, 0.2, 0.3, None, 0.4),
    nmf.UnitRows(7),
    nmf.ItemSolve(0.5, True, 0.1, 0.2, 0.3, 0.4, 0.5, nmf.UnitRows(7)),
    network.Falling(2.0, 0.1),
    network.LayerSolve(0.5, 1.0, 0.1, 0.2, 0.3),
    stored.Stored("DPRidge", {"alpha": 1.0}, {"coef_": ONES}),
    stored._Certified(1),
    stored._Slice((0, None, 2)),
    stored._Type("float32", True),
    stored._Distribution("loguniform", (0.5,), {"b": 1.0}),
]


def test_every_other_described_class_is_among_the_records():
    """A class that came later has examples(), or can be made without arguments."""
    for cls in {cls for tag, cls in EVERY.items() if tag not in OURS} - {type(value) for value in RECORDS}:
        (value,) = examples(cls)
        test_records_of_models_read_back_as_they_were_written(value)


@pytest.mark.parametrize("value", RECORDS, ids=lambda value: type(value).__name__)
def test_records_of_models_read_back_as_they_were_written(value):
    written = encode(value)
    again = decode(json.loads(json.dumps(written, allow_nan=False)))
    assert type(again) is type(value)
    assert encode(again) == written
    assert digest(again) == digest(value)
    with pytest.raises(InvalidInput, match="has no 'odd'"):
        decode({**written, "odd": 1})


# -- registration -----------------------------------------------------------------------------------------------


def test_only_frozen_dataclasses_and_enums_are_described():
    @dataclass
    class Loose:
        size: int = 1

    class Plain:
        pass

    class Child(Poisson):  # a dataclass, but not one of its own
        extra: int = 1

    @dataclass(frozen=True)
    class Typed:
        type: str = "x"

    for cls in (Loose, Plain, Child):
        with pytest.raises(TypeError, match="frozen dataclass"):
            described("test.Wrong")(cls)
    with pytest.raises(TypeError, match="rename it"):
        described("test.Wrong")(Typed)
    with pytest.raises(TypeError, match="choose another one"):
        leaf("list")(Plain)
    assert "test.Wrong" not in registered()


def test_a_tag_belongs_to_one_class_but_a_class_may_be_defined_again():
    def define(size):
        @described("test.Again")
        @dataclass(frozen=True)
        class Again:
            count: int = size

        return Again

    first, second = define(1), define(2)
    assert registered()["test.Again"] is second
    assert decode(encode(first(5))) == second(5)
    with pytest.raises(TypeError, match=r"'Poisson' already names tacit\.mechanism\.sampling\.Poisson"):
        described("Poisson")(second)
    assert registered()["Poisson"] is Poisson


def test_a_field_that_is_absent_leaves_no_trace():
    @described("test.Grown")
    @dataclass(frozen=True)
    class Grown:
        old: int = 1
        new: int | None = field(default=None, metadata={"absent": None})

    assert encode(Grown()) == {"type": "test.Grown", "old": 1}
    assert decode(encode(Grown(2))) == Grown(2)
    assert decode(encode(Grown(2, 3))) == Grown(2, 3)


def test_renaming_a_class_changes_no_file():
    noise = CorrelatedNoise.toeplitz([1.0, 0.5])
    assert encode(noise) == {"type": "Factorised", "bands": {"array": [[1.0, 0.5]]}}
    assert type(decode({"type": "Factorised", "bands": {"array": [[1.0, 0.5]]}})) is CorrelatedNoise


# -- what describes nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"a": 1, "b": 2},
        {"something": 1},
        {"type": "Unknown"},
        {"type": None},
        {"type": ["Poisson"]},
        {"type": "Adjacency"},
        {"type": "Poisson"},
        {"type": "Poisson", "rate": "0.5"},
        {"type": "Poisson", "rate": {"type": "Poisson", "rate": 0.5}},
        {"enum": "Poisson", "name": "rate"},
        {"enum": "Adjacency", "name": "NOBODY"},
        {"enum": "Adjacency", "name": ["ZERO_OUT"]},
        {"enum": "Adjacency", "name": "ZERO_OUT", "more": 1},
        {"schedule": {}},
        {"schedule": {"values": [1.0], "counts": ["a"]}},
        {"schedule": {"values": [1.0], "counts": [-3]}},
        {"schedule": {"values": [1.0], "counts": [math.inf]}},
        {"schedule": {"values": [1.0], "counts": [math.nan]}},
        {"schedule": {"values": [1.0], "counts": None}},
        {"schedule": {"values": ["a"], "counts": [1]}},
        {"array": [[1], [1, 2]]},
        {"float": "x"},
        {"float": None},
        {"list": 3},
        {"dict": [1]},
        {"ndarray": "<f8", "shape": [1], "data": "AAAA"},
        {"ndarray": "|O", "shape": [1], "data": "AAAAAAAAAAA="},
        {"ndarray": "<f8", "shape": [-1], "data": "AAAAAAAAAAA="},
        {"ndarray": "<f8", "shape": [1.0], "data": "AAAAAAAAAAA="},
        {"ndarray": "<f8", "shape": [True], "data": "AAAAAAAAAAA="},
        {"ndarray": "<f8", "shape": 1, "data": "AAAAAAAAAAA="},
        {"ndarray": "<f8", "shape": [1], "data": "*AAAAAAAAAA="},
        {"ndarray": "<f8", "shape": [1], "data": None},
        {"ndarray": ["<f8"], "shape": [1], "data": "AAAAAAAAAAA="},
    ],
    ids=str,
)
def test_json_that_describes_nothing_is_refused_in_one_line(data):
    for outer in (data, [data], {"list": [data]}, {"dict": {"a": data}}):
        with pytest.raises(InvalidInput) as refusal:
            decode(outer)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe{}", "[" * 100_000, "1" * 10_000, None])
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(InvalidInput) as refusal:
        parse(text)
    assert "\n" not in str(refusal.value)


def test_an_unknown_class_is_named_with_a_way_out():
    with pytest.raises(InvalidInput, match=r"no class is described as 'mine\.Sampling': import the module"):
        decode({"type": "mine.Sampling"})


# -- measured before built --------------------------------------------------------------------------------------


def plain(steps, **fields):
    return Mechanism(adjacency="zero-out", ratio=0.5, steps=steps, **fields)


HIDDEN = {"lipschitz": Schedule.constant(0.9, 1000), "noise_std": Schedule.constant(1.0, 1000)}


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ((1, 2, 3), 4),
        ([1, (2, 3)], 6),
        (Schedule.constant(1.0, 10**9), 10**9),
        (Schedule([1.0, 2.0], [5, 7]), 12),
        (FrozenArray(np.zeros((20, 30))), 600),
        (np.zeros((20, 30)), 600),
        (plain(1000), 1000),
        (plain(1000, view=LastIterate(**HIDDEN)), 3000),
        (Cyclic(10**9), 10**9),
    ],
    ids=str,
)
def test_short_forms_count_as_what_they_stand_for(value, size):
    data = encode(value)
    with pytest.raises(InvalidInput, match="stands for more than"):
        decode(data, limit=size - 1)
    decode(data, limit=size + 60)  # and a few for the words around them


@pytest.mark.parametrize("steps", [10**9, 1e12, 10**30])
def test_steps_count_even_if_no_schedule_spells_them_out(steps):
    """A bare number as ratio becomes a constant over all steps, and C is laid out over them."""
    data = encode(plain(5, noise=CorrelatedNoise.toeplitz([1.0, 0.5])))
    for ratio in (0.5, data["ratio"]):
        with pytest.raises(InvalidInput, match="more than 50,000,000 values"):
            decode({**data, "steps": steps, "ratio": ratio})


def bomb(depth, width=10):
    """10^depth nodes in a value of depth·10 pointers: as text it is as long as it is, in memory it is shared."""
    value = [1.0]
    for _ in range(depth):
        value = [value] * width
    return value


def nested(depth, kind):
    value = 1.0
    for _ in range(depth):
        value = [value] if kind == "list" else {kind: value if kind == "dict" else [value]}
        if kind == "dict":
            value = {"dict": {"a": value}}
    return value


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("depth", [66, 900, 100_000])
def test_deep_nesting_is_refused_before_python_gives_up(kind, depth):
    with pytest.raises(InvalidInput, match="nested more than 64 levels deep"):
        decode(nested(depth, kind))


def test_what_we_write_is_nowhere_near_as_deep():
    assert all(_codec._size(encode(value), 50, math.inf) for cls in OURS.values() for value in examples(cls))


@pytest.mark.parametrize(
    "data",
    [
        {"schedule": {"values": [1.0], "counts": [10**12]}},
        {"schedule": {"values": [1.0], "counts": [10**400]}},
        {"schedule": {"values": [1.0, 1.0], "counts": [10**9, -(10**9)]}},
        {"ndarray": "<f8", "shape": [10**5, 10**5], "data": ""},
        {"ndarray": "<f8", "shape": [10**400], "data": ""},
        {"type": "Cyclic", "n_batches": 10**12},
        {"type": "Plan", "parts": [{"schedule": {"values": [1.0], "counts": [10**8]}}] * 3},
        {"dict": {"parts": {"list": [{"schedule": {"values": [1.0], "counts": [2 * 10**7]}}] * 3}}},
    ],
    ids=lambda data: str(data)[:60],
)
def test_a_file_that_stands_for_too_much_costs_nothing(data):
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(InvalidInput, match="more than 50,000,000 values"):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert time.process_time() - began < 2


def test_nothing_is_built_before_everything_is_measured(monkeypatch):
    built = []
    monkeypatch.setattr(Poisson, "__post_init__", lambda self: built.append(self))
    data = [encode(FullBatch()), {"type": "Poisson", "rate": 0.5}, {"schedule": {"values": [1.0], "counts": [10**9]}}]
    with pytest.raises(InvalidInput, match="limit"):
        decode(data)
    assert not built
    decode(data[:2])
    assert built


def test_wide_values_count_by_their_nodes():
    assert _codec._size(bomb(3), 0, math.inf) == 1 + 10 + 100 + 1000 + 1000
    with pytest.raises(InvalidInput, match="more than 1,000,000 values"):
        decode(bomb(20), limit=10**6)
    for data in ([1.0] * 1000, {"list": [1.0] * 1000}, {"dict": {str(i): 1.0 for i in range(1000)}}):
        with pytest.raises(InvalidInput, match="more than 1,000 values"):
            decode(data, limit=1000)


def test_the_limit_is_the_readers():
    plan = Plan.of(plain(1000), plain(1000, sampling=Separated(2, 3)))
    assert decode(encode(plan), limit=math.inf) == plan
    with pytest.raises(InvalidInput, match="more than 500 values"):
        decode(encode(plan), limit=500)


# -- digests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Adjacency.REPLACE_ONE, {"enum": "Adjacency", "name": "REPLACE_ONE"}),
        (Schedule([0.5, 0.25], [2, 1]), {"schedule": {"values": [0.5, 0.25], "counts": [2, 1]}}),
        (FrozenArray([[1.0, 2.0]]), {"array": [[1.0, 2.0]]}),
        ((1, None, "a", math.inf), [1, None, "a", {"float": "inf"}]),
        (Poisson(0.25), {"type": "Poisson", "rate": 0.25}),
    ],
    ids=str,
)
def test_the_form_is_that_of_version_0_1(value, expected):
    """Digests name plans in ledgers: neither tags nor forms may change (whole ledgers: tests/ledger)."""
    assert encode(value) == expected


def test_the_digest_of_a_plan_is_that_of_version_0_1():
    m = Mechanism(adjacency="replace-one", ratio=0.5, steps=6, sampling=Cyclic(3), unit="person")
    assert digest(Plan.of(m)) == "754b92cc1bd94a09236a7809d7c339de14731214bf7d25f2f1b3a47d214d6769"
