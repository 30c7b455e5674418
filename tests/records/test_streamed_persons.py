"""Persons in streams: the same bits as ``groups=``, from every source, and what a person costs in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tacit
from tacit.errors import InvalidInput
from tacit.estimators import private_mean
from tacit.records import Persons, open_records
from tacit.records.owners import people_of
from tacit.records.persons import id_tags

N, P, NAMES = 20_000, 3, ["a", "b", "c"]
RNG = np.random.default_rng(2)
IDS = RNG.integers(0, 6000, N) ** 2
FRAME = pd.DataFrame(RNG.uniform(-1, 1, (N, P)), columns=NAMES)
FRAME["y"] = FRAME[NAMES] @ [1.0, -2.0, 0.5] + RNG.normal(0, 0.1, N)
FRAME["who"] = IDS


def ridge(**more) -> tacit.DPRidge:
    options = {"epsilon": 1, "delta": 1e-6, "feature_bounds": (-1, 1), "target_bounds": (-3, 3), "random_state": 3}
    return tacit.DPRidge(**options | more)


def forms(folder) -> dict[str, object]:
    words = FRAME.assign(who=[f"person {one}" for one in IDS])
    FRAME.sample(frac=1, random_state=0).to_parquet(folder / "one.parquet", index=False)
    FRAME.to_csv(folder / "one.csv", index=False)
    return {
        "pandas": FRAME,
        "parquet": folder / "one.parquet",
        "lazy": pl.scan_parquet(folder / "one.parquet"),
        "float ids": FRAME.astype({"who": float}),
        "reader": pa.Table.from_pandas(FRAME, preserve_index=False).to_reader(1000),
        "csv": folder / "one.csv",
        "words": words,
        "categories": words.astype({"who": "category"}),
        "polars words": pl.from_pandas(words),
    }


@pytest.mark.parametrize("options", [{}, {"weighting": "rows", "max_rows": 4}], ids=["person", "rows"])
def test_the_same_bits_as_groups(options: dict, tmp_path) -> None:
    expected = ridge(**options).fit(FRAME[NAMES], FRAME["y"], groups=IDS)
    schema = {"features": {name: {"bounds": [-1, 1]} for name in NAMES}}
    for name, source in forms(tmp_path).items():
        model = ridge(**options).fit(open_records(source, "y", "who", schema))
        assert np.array_equal(model.coef_, expected.coef_), name
        assert model.certificate_.unit == "person"
        assert model.certificate_.digest == expected.certificate_.digest
    assert open_records(FRAME, "y", "who").header.names == tuple(NAMES)


def test_a_statistic_of_persons(tmp_path) -> None:
    options = {"epsilon": 1, "delta": 1e-6, "random_state": 1}
    expected, _ = private_mean(FRAME[NAMES], (-1, 1), groups=IDS, **options)
    found, certificate = private_mean(open_records(FRAME[[*NAMES, "who"]], person="who"), (-1, 1), **options)
    assert np.array_equal(found, expected)
    assert certificate.unit == "person"


@pytest.mark.parametrize("memory", [0, "1 GB"])
def test_batches_are_of_persons(memory) -> None:
    options = {"epsilon": 2, "delta": 1e-6, "feature_norm": 2.0, "classes": [0, 1], "epochs": 1, "batch_size": 400}
    options |= {"random_state": 0, "view": "all_iterates", "arithmetic": "exact"}
    y = (FRAME["y"] > 0).astype(int)
    expected = tacit.DPSoftmaxRegression(**options).fit(FRAME[NAMES], y, groups=IDS)
    records = open_records(FRAME.assign(y=y), "y", "who", scratch=True, memory=memory)
    assert np.array_equal(tacit.DPSoftmaxRegression(**options).fit(records).coef_, expected.coef_)


def test_a_row_without_an_id_counts_as_nothing() -> None:
    options = {"epsilon": 1e9, "delta": 1e-6, "random_state": 1}
    frame = FRAME[[*NAMES, "who"]].astype({"who": float})
    frame.loc[:99, "who"] = np.nan
    found, _ = private_mean(open_records(frame, person="who"), (-1, 1), **options)
    kept = frame.iloc[100:]
    expected, _ = private_mean(kept[NAMES], (-1, 1), groups=kept["who"], **options)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_parameters_about_persons_need_them() -> None:
    with pytest.raises(InvalidInput, match="has no effect without groups"):
        ridge(weighting="rows", max_rows=3).fit(open_records(FRAME[[*NAMES, "y"]], "y"))
    with pytest.raises(InvalidInput, match="max_rows is missing"):
        ridge(weighting="rows").fit(open_records(FRAME, "y", "who"))


def test_people_are_found_and_counted_exactly() -> None:
    """Also where first words of tags are equal: then the second ones tell persons apart."""
    tags = id_tags(IDS)
    tags[:, 0] %= 50
    people = people_of(np.array_split(tags, 37))
    distinct, counts = np.unique(tags, axis=0, return_counts=True)
    assert np.array_equal(people.tags, distinct)
    assert np.array_equal(people.counts, counts)
    assert np.array_equal(people.tags[people.find(tags)], tags)
    absent = np.array([[7, 3], [10**6, 0], [0, 2**63]], np.uint64)
    assert people.find(absent).tolist() == [-1, -1, -1]


def test_a_person_takes_24_bytes_and_numbers_are_those_of_memory() -> None:
    from tacit.records.owners import Owners

    tags = id_tags(IDS)
    people, persons = people_of([tags]), Persons.of(IDS, N)
    owners = Owners(people, 1)
    owners.key(np.random.default_rng(5))
    held = people.tags.nbytes + people.counts.nbytes + owners._number.nbytes
    assert held == 24 * persons.n
    found, lost = owners.shares(tags, np.zeros(N, bool))
    expected = persons.shares(np.random.default_rng(5))
    assert np.array_equal(found.person, expected.person)
    assert np.array_equal(found.weight, expected.weight)
    assert not lost.any()
