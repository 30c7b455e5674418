"""Schedules and frozen arrays: run-length, hashable, read-only, cheap when constant."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidInput
from tacit.mechanism import FrozenArray, Schedule

SETTINGS = settings(deadline=None, derandomize=True, max_examples=100)
VALUES = st.lists(st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-300, 1e300]), min_size=1, max_size=30)


@SETTINGS
@given(VALUES)
def test_runs_hold_the_same_values(values):
    schedule = Schedule(values)
    assert schedule.to_array().tolist() == values
    assert len(schedule) == len(values)
    assert [schedule[k] for k in range(len(values))] == values
    assert (schedule.min, schedule.max) == (min(values), max(values))
    runs, counts = schedule.runs
    assert (runs[1:] != runs[:-1]).all()
    assert counts.sum() == len(values)


@SETTINGS
@given(VALUES)
def test_round_trips_keep_equality_and_hash(values):
    schedule = Schedule(values)
    for again in (
        Schedule.from_json(schedule.to_json()),
        pickle.loads(pickle.dumps(schedule)),
        copy.deepcopy(schedule),
        Schedule(np.array(values)),
    ):
        assert again == schedule
        assert hash(again) == hash(schedule)


def test_equality_is_by_content():
    assert Schedule.constant(0.5, 3) == Schedule([0.5, 0.5, 0.5]) == Schedule([0.5, 0.5], [1, 2])
    assert Schedule([0.5, 1.0]) != Schedule([1.0, 0.5])
    assert Schedule.constant(0.5, 3) != Schedule.constant(0.5, 4)
    assert Schedule([0.0]) == Schedule([-0.0])
    assert Schedule([1.0]) != FrozenArray([1.0])
    assert Schedule([1.0]) != [1.0]


def test_ten_million_equal_steps_are_one_run():
    schedule = Schedule.constant(0.5, 10_000_000)
    assert schedule.is_constant
    assert len(schedule) == 10_000_000
    assert schedule.runs[0].size == 1
    assert schedule.sum_of_squares() == 0.25 * 10_000_000
    assert schedule[9_999_999] == 0.5
    assert len(pickle.dumps(schedule)) < 1000


def test_sum_of_squares_is_exact():
    assert Schedule([1e8, 1.0], [1, 4]).sum_of_squares() == math.fsum([1e16, 4.0])
    assert Schedule([0.1], [10]).sum_of_squares() == pytest.approx(0.1, rel=1e-15)
    assert Schedule([3.0, 4.0]).sum_of_squares() == 25.0


def test_scaled():
    assert Schedule([1.0, 2.0]).scaled(0.5) == Schedule([0.5, 1.0])


def test_schedules_are_read_only():
    source = np.array([1.0, 2.0])
    schedule = Schedule(source)
    source[0] = 9.0
    assert schedule[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        schedule.runs[0][0] = 5.0
    with pytest.raises(AttributeError):
        schedule._values = np.ones(2)
    schedule.to_array()[0] = 7.0  # a copy
    assert schedule[0] == 1.0


@pytest.mark.parametrize("step", [-1, 3, 10**9])
def test_index_out_of_range(step):
    with pytest.raises(IndexError):
        Schedule([1.0, 2.0, 3.0])[step]


def test_of_accepts_numbers_arrays_and_schedules():
    assert Schedule.of(0.5, 4) == Schedule.constant(0.5, 4)
    assert Schedule.of(np.float32(0.5), 4) == Schedule.constant(0.5, 4)
    assert Schedule.of([1, 2], 2) == Schedule([1.0, 2.0])
    assert Schedule.of(Schedule([1.0]), 1) == Schedule([1.0])
    with pytest.raises(InvalidInput, match="steps"):
        Schedule.of([1.0, 2.0], 3)


@pytest.mark.parametrize("bad", [[], [-1.0], [math.nan], [math.inf], ["a"], [None], [1j], [True], "x", None, object()])
def test_bad_values_are_refused(bad):
    with pytest.raises(InvalidInput):
        Schedule(bad)


@pytest.mark.parametrize("bad", [[[1.0], [1.0, 2.0]]])
def test_ragged_values_are_refused(bad):
    with pytest.raises(InvalidInput):
        Schedule(bad)
    with pytest.raises(InvalidInput):
        FrozenArray(bad)


@pytest.mark.parametrize("counts", [[0], [-1], [1, 2], [1.5], ["a"], [10**30], [math.nan]])
def test_bad_counts_are_refused(counts):
    with pytest.raises(InvalidInput):
        Schedule([1.0], counts)


def test_scaling_beyond_the_range_of_floats_is_refused():
    with np.errstate(over="ignore"), pytest.raises(InvalidInput):
        Schedule([1e300]).scaled(1e300)


def test_frozen_array():
    array = FrozenArray([[1.0, 2.0]])
    assert array == FrozenArray(np.array([[1.0, 2.0]]))
    assert array != FrozenArray([1.0, 2.0])
    assert hash(array) == hash(pickle.loads(pickle.dumps(array)))
    with pytest.raises(ValueError, match="read-only"):
        array.values[0, 0] = 3.0
    with pytest.raises(AttributeError):
        array._values = 0
    for bad in ([math.nan], ["a"], None, [1j]):
        with pytest.raises(InvalidInput):
            FrozenArray(bad)


def test_more_steps_than_memory_are_refused_only_when_laid_out():
    endless = Schedule.constant(0.5, 10**11)
    assert endless.sum_of_squares() == pytest.approx(0.25e11)
    with pytest.raises(InvalidInput, match="memory"):
        endless.to_array()


def test_a_few_bytes_cannot_ask_for_gigabytes():
    """A forged file: two runs that stand for 10⁹ steps."""
    short = Schedule([0.1, 0.2], [500_000_000, 500_000_000])
    assert len(short) == 10**9
    with pytest.raises(InvalidInput, match="cannot be laid out"):
        short.to_array()
