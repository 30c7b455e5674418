"""One schema for Python and the shell: patterns, roles, a public step of pipelines, a form to fill in."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from tacit import DPLogisticRegression, Schema, certificate_of, load_model, open_records, save_model
from tacit.errors import InvalidInput

RAW = {
    "features": {
        "age": {"bounds": [18, 90], "missing": 40, "unit": "years"},
        "plan": {"categories": ["basic", "full", "unknown"], "missing": "unknown"},
        "lab_*": {"bounds": [-1, 1]},
    },
    "target": {"column": "sick", "classes": ["no", "yes"]},
    "person": "patient",
    "ignore": ["note*"],
}
SCHEMA = Schema.from_dict(RAW)


def frame(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.uniform(10, 100, n)
    out = pd.DataFrame({"patient": rng.integers(0, n // 2, n), "age": age})
    out["plan"] = rng.choice(["basic", "full", "other", None], n)
    out["lab_1"], out["lab_2"] = rng.uniform(-2, 2, n), rng.uniform(-1, 1, n)
    out["sick"] = np.where(age / 40 + out["lab_2"] + rng.normal(size=n) > 2, "yes", "no")
    out["note_a"] = "text"
    out.loc[::7, "age"] = np.nan
    return out


def test_a_schema_survives_its_file(tmp_path):
    SCHEMA.write(tmp_path / "schema.json")
    assert Schema.read(tmp_path / "schema.json") == SCHEMA
    assert Schema.read(str(tmp_path / "schema.json")).to_dict() == RAW


def test_patterns_stand_for_columns_that_nothing_else_names():
    names = ["lab_2", "patient", "age", "lab_1", "plan", "sick", "note_a", "other"]
    assert SCHEMA.resolved(names).outputs == ("age", "plan=basic", "plan=full", "plan=unknown", "lab_2", "lab_1")
    assert SCHEMA.resolved(names).resolved(names) == SCHEMA.resolved(names)
    with pytest.raises(InvalidInput, match=r"no column fits 'lab_\*'"):
        SCHEMA.resolved(["age", "plan"])
    both = Schema.from_dict({"features": {"a1": {"bounds": [0, 9]}, "a*": {"bounds": [0, 1]}}}).resolved(["a2", "a1"])
    assert [(f.name, f.high) for f in both.features] == [("a1", 9.0), ("a2", 1.0)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"person": 3}, "person must be"),
        ({"person": "age"}, "both a feature and the person"),
        ({"target": {"column": "age", "classes": ["a", "b"]}}, "both a feature and the target"),
        ({"target": {"column": 1, "classes": ["a", "b"]}}, "column must be a name"),
        ({"features": {"age": {"bounds": [0, 1], "unit": 3}}}, "unit must be a word"),
    ],
)
def test_faults_are_named(change, said):
    with pytest.raises(InvalidInput, match=said) as error:
        Schema.from_dict(RAW | change)
    assert "\n" not in str(error.value)


def forms(table: pd.DataFrame):
    polars = pytest.importorskip("polars")
    return {"pandas": table, "arrow": pa.Table.from_pandas(table), "polars": polars.from_pandas(table)}


@pytest.mark.parametrize("form", ["pandas", "arrow", "polars"])
def test_raw_frames_become_features_within_bounds(form):
    table = frame()
    encoder = SCHEMA.transformer()
    X = encoder.fit_transform(forms(table)[form])
    assert list(encoder.get_feature_names_out()) == ["age", "plan=basic", "plan=full", "plan=unknown", "lab_1", "lab_2"]
    low, high = encoder.feature_bounds_
    assert ((low <= X) & (high >= X)).all()
    np.testing.assert_array_equal(X[::7, 0], 40.0)
    np.testing.assert_array_equal(X[:, 1:4].sum(axis=1), (table["plan"] != "other").astype(float))
    np.testing.assert_array_equal(X[:, 4], table["lab_1"].clip(-1, 1))


def pipeline():
    encoder = SCHEMA.transformer().fit(frame(10))
    model = DPLogisticRegression(
        epsilon=2.0, delta=1e-6, feature_bounds=encoder.feature_bounds_, classes=["no", "yes"], random_state=0
    )
    return make_pipeline(SCHEMA.transformer(), model)


def test_a_pipeline_takes_raw_frames_also_after_it_was_saved(tmp_path):
    table = frame()
    fitted = pipeline().fit(table, table["sick"], dplogisticregression__groups=table["patient"])
    assert certificate_of(fitted).unit == "person"
    save_model(fitted, tmp_path / "model.json")
    loaded = load_model(tmp_path / "model.json")
    new = frame(50, seed=1)[["plan", "lab_2", "lab_1", "age"]]  # other columns in another order
    np.testing.assert_array_equal(loaded.predict(new), fitted.predict(new))
    assert loaded[0].schema == SCHEMA
    assert clone(loaded[0]).schema == SCHEMA


def test_open_records_find_target_and_person_in_the_schema():
    table = frame()
    records = open_records(table, schema=SCHEMA)
    assert records.has_persons
    low, high = SCHEMA.resolved(list(table)).bounds
    model = DPLogisticRegression(epsilon=2.0, delta=1e-6, feature_bounds=(low, high), random_state=0)
    assert model.fit(records).certificate_.unit == "person"
    new = open_records(table.drop(columns=["sick", "patient"]), schema=SCHEMA)
    assert model.predict(new).shape == (len(table),)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.zeros((3, 2)), "no names of columns"),
        (pd.DataFrame({"age": [1.0]}), "no column"),
        (pd.DataFrame({"age": ["x"], "plan": ["full"], "lab_1": [0.0]}), "words"),
        (3, "int"),
    ],
)
def test_tables_that_do_not_fit_are_refused_in_one_line(data, said):
    with pytest.raises(InvalidInput, match=said) as error:
        SCHEMA.transformer().fit(data)
    assert "\n" not in str(error.value)


def test_a_template_knows_names_and_types_only():
    table = frame()
    for j in range(5):
        table[f"pixel_{j}"] = 0.5
    table["vip"] = True
    made = Schema.template(table, target="sick", person="patient")
    found = json.loads(made)
    assert found["features"]["pixel_*"] == {"bounds": [None, None]}
    assert found["features"]["vip"] == {"categories": [False, True]}
    assert found["features"]["plan"] == {"categories": None}
    assert found["features"]["lab_1"] == {"bounds": [None, None]}  # two are too few for a pattern
    assert found["person"] == "patient"
    assert found["target"] == {"column": "sick", "classes": None}
    assert made == Schema.template(table.head(1), target="sick", person="patient")
    with pytest.raises(InvalidInput, match="does not name a column 'x'"):
        Schema.template(table, target="x")


def test_a_filled_template_is_a_schema(tmp_path):
    table = frame()[["age", "lab_1", "sick"]]
    table.to_csv(tmp_path / "data.csv", index=False)
    found = json.loads(Schema.template(tmp_path / "data.csv", target="sick"))
    for entry in found["features"].values():
        entry["bounds"] = [0, 1]
    found["target"]["classes"] = ["no", "yes"]
    assert Schema.from_dict(found).outputs == ("age", "lab_1")
