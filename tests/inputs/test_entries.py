"""Dates, masks and complex numbers at every entry of scalers, statistics and maps, before anything is spent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tacit import Ledger
from tacit.errors import InvalidInput
from tacit.estimators import DPQuantileScaler, DPStandardScaler, private_mean, private_quantiles, private_variance
from tacit.inputs.tables import check_entries
from tacit.maps import BoundsScaler, PublicOneHotEncoder, RandomFourier

X = np.random.default_rng(0).uniform(0, 1, (40, 2))
DAYS = np.datetime64("2020-01-01") + np.arange(80).reshape(40, 2).astype("timedelta64[D]")
BOUNDS, PROMISE = (0, 1), {"epsilon": 1.0, "delta": 1e-5}
BAD = {
    "dates": (DAYS, "holds dates or times"),
    "durations": (DAYS - DAYS[0, 0], "holds dates or times"),
    "a frame": (pd.DataFrame({"when": DAYS[:, 0], "x": X[:, 0]}), "holds dates or times"),
    "masked": (np.ma.masked_array(X, X > 0.5), "is a masked array"),
    "complex": (X + 1j, "Complex data not supported"),
}
PRIVATE = {
    "standard": lambda x, **more: DPStandardScaler(feature_bounds=BOUNDS, **PROMISE, **more).fit(x),
    "quantile transformer": lambda x, **more: DPQuantileScaler(feature_bounds=BOUNDS, **PROMISE, **more).fit(x),
    "mean": lambda x, **more: private_mean(x, BOUNDS, **PROMISE, **more),
    "variance": lambda x, **more: private_variance(x, BOUNDS, **PROMISE, **more),
    "quantiles": lambda x, **more: private_quantiles(x, [0.5], BOUNDS, **PROMISE, **more),
}
PUBLIC = {
    "bounds": lambda x: BoundsScaler(BOUNDS).fit(x),
    "bounds, transform": lambda x: BoundsScaler(BOUNDS).fit(X).transform(x),
    "back": lambda x: BoundsScaler(BOUNDS).fit(X).inverse_transform(x),
    "features": lambda x: RandomFourier(10).fit(X).transform(x),
}


@pytest.mark.parametrize("form", BAD)
@pytest.mark.parametrize("name", PRIVATE)
def test_private_steps_refuse_them_before_they_spend(name, form, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-3)
    table, words = BAD[form]
    with pytest.raises(InvalidInput, match=words) as caught:
        PRIVATE[name](table, ledger=ledger)
    assert "\n" not in str(caught.value)
    assert ledger.entries() == ()


@pytest.mark.parametrize("form", BAD)
@pytest.mark.parametrize("name", PUBLIC)
def test_public_steps_refuse_them(name, form):
    table, words = BAD[form]
    with pytest.raises(InvalidInput, match=words):
        PUBLIC[name](table)


def test_entries_of_lists_are_looked_at_where_records_are_read():
    with pytest.raises(InvalidInput, match="dates"):
        private_mean(list(DAYS[:, 0]), BOUNDS, **PROMISE)
    with pytest.raises(InvalidInput, match="dates"):
        BoundsScaler(BOUNDS).fit(X).transform([[DAYS[0, 0], 1.0]])


def test_dates_may_be_categories_but_masks_hide_none():
    days = DAYS[:2, :1].astype(object)
    found = PublicOneHotEncoder([days.ravel().tolist()], sparse_output=False).fit_transform(days)
    assert found.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(InvalidInput, match="masked"):
        PublicOneHotEncoder([["a", "b"]]).fit_transform(np.ma.masked_array([["a"], ["b"]], [[0], [1]]))


@pytest.mark.parametrize(
    "stated", ["timestamp[ns][pyarrow]", "duration[s]", "date32[day][pyarrow]", "Datetime", "time64"]
)
def test_types_of_other_libraries_are_known_by_name(stated):
    class Frame:
        dtypes = ("double[pyarrow]", stated)

    with pytest.raises(InvalidInput, match=r"^table holds dates"):
        check_entries("table", Frame())


def test_plain_tables_pass():
    for table in (
        X,
        X.tolist(),
        pd.DataFrame(X),
        pd.DataFrame(X).astype("Float64"),
        X.astype(object),
        [],
        None,
    ):
        check_entries("X", table)
