"""Models from files: what ``tacit schema``, ``fit``, ``predict`` and ``ledger`` do, and what newcomers get wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tacit import DPRidge, Ledger, load_model, save_model
from tacit.cli import app
from tacit.release import open_session

runner = CliRunner()
DOCS = Path(__file__).parent.parent / "docs" / "cli.md"
JOBS = ("clerk", "nurse", "pilot")
SCHEMA = {
    "features": {
        "age": {"bounds": [0, 100]},
        "job": {"categories": list(JOBS)},
        "hours": {"bounds": [0, 80], "missing": 40},
    },
    "target": {"classes": ["no", "yes"]},
    "ignore": ["id"],
}
REGRESSION = SCHEMA | {"target": {"bounds": [0, 200]}}
FIT = ("--target", "rich", "--model", "logistic", "--epsilon", "5", "--delta", "1e-6", "--schema", "schema.json")
OUT = ("-o", "model.json")


def records(n: int = 400) -> list[dict]:
    rng = np.random.default_rng(1)
    age, job, hours = rng.uniform(18, 90, n), rng.integers(0, 3, n), rng.uniform(0, 70, n)
    pay = np.clip(age + 20 * job + hours / 2, 0, 200)
    return [
        {
            "id": i,
            "age": f"{age[i]:.2f}",
            "job": JOBS[job[i]],
            "hours": f"{hours[i]:.3f}",
            "rich": "yes" if pay[i] > 95 else "no",
            "pay": f"{pay[i]:.2f}",
        }
        for i in range(n)
    ]


def as_csv(rows: list[dict], columns=("id", "age", "job", "hours", "rich"), **options) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", **({"lineterminator": "\n"} | options))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


ROWS = records()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory, monkeypatch) -> Path:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text(as_csv(ROWS))
    Path("schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def run(*args: str, columns: int = 80):
    return runner.invoke(app, list(args), env={"COLUMNS": str(columns), "TERM": "dumb"})


def ok(*args: str) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def one_line(result, code: int = 2) -> str:
    assert result.exit_code == code, result.stdout
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "SECRET" not in result.stderr
    assert "JSON" in result.stderr or not re.search(r"(row|line) \d", result.stderr)
    return result.stderr


def refused(*args: str, data: str = "data.csv") -> str:
    """The message of a fit that does not start; nothing is written."""
    before = sorted(p.name for p in Path().iterdir())
    message = one_line(run("fit", data, *FIT, *OUT, *args))
    assert sorted(p.name for p in Path().iterdir()) == before
    return message


def predictions(*args: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(ok("predict", "model.json", *args))))


# -- golden paths -----------------------------------------------------------------------------------------


def test_fit_and_predict() -> None:
    text = ok("fit", "data.csv", *FIT, *OUT)
    words = " ".join(text.split())
    assert "DPLogisticRegression for 'rich': 400 records, 5 features from 3 columns" in words
    assert "(5, 1e-06)-differentially private for each record" in words
    assert "[enforced]" in words
    assert "Saved to model.json" in words
    assert max(map(len, text.splitlines())) <= 80
    got = predictions("data.csv", "--proba")
    assert len(got) == 400
    assert got[0].keys() == {"rich", "P(rich=no)", "P(rich=yes)"}
    assert np.mean([a["rich"] == b["rich"] for a, b in zip(got, ROWS, strict=True)]) > 0.8
    assert float(got[0]["P(rich=no)"]) + float(got[0]["P(rich=yes)"]) == pytest.approx(1)


def test_the_model_in_python_gives_the_same() -> None:
    ok("fit", "data.csv", *FIT, *OUT)
    model = load_model("model.json")
    assert model.feature_names_in_.tolist() == ["age", "job=clerk", "job=nurse", "job=pilot", "hours"]
    assert model.random_state is None
    frame = pd.DataFrame(ROWS)
    X = pd.DataFrame({"age": frame.age.astype(float)})
    for job in JOBS:
        X[f"job={job}"] = (frame.job == job).astype(float)
    X["hours"] = frame.hours.astype(float)
    by_hand = model.predict_proba(X)[:, 1].tolist()
    got = [float(row["P(rich=yes)"]) for row in predictions("data.csv", "--proba")]
    assert got == pytest.approx(by_hand, rel=1e-12)  # a product's last digits depend on the layout of the matrix


@pytest.mark.parametrize(
    ("model", "extra"),
    [
        ("linear", []),
        ("ridge", ["--alpha", "0.01"]),
        ("lasso", ["--alpha", "0.01", "--solver", "coordinate", "--max-passes", "3"]),
        ("elasticnet", ["--alpha", "0.01", "--l1-ratio", "0.2", "--clip", "2"]),
        ("huber", ["--huber-delta", "20", "--adjacency", "zero-out", "--view", "final-model"]),
        ("poisson", ["--alpha", "0.01"]),
        ("gamma", ["--alpha", "0.01"]),
    ],
)
def test_regression(model: str, extra: list[str]) -> None:
    target = {"bounds": [1 if model == "gamma" else 0, 200]}
    Path("schema.json").write_text(json.dumps(REGRESSION | {"target": target}))
    Path("data.csv").write_text(as_csv(ROWS, ("pay", "hours", "age", "job")))
    args = ("--target", "pay", "--model", model, *FIT[4:], *OUT, *extra)
    found = json.loads(ok("fit", "data.csv", *args, "--json"))
    assert found["epsilon"] <= 5
    assert (found["records"], found["features"], found["saved"]) == (400, 5, "model.json")
    assert found["certificate"]["adjacency"] == ("zero-out" if model == "huber" else "replace-one")
    got = [float(row["pay"]) for row in predictions("data.csv")]
    assert got == pytest.approx(load_model("model.json").predict(_matrix()), rel=1e-12)
    assert "no probabilities" in one_line(run("predict", "model.json", "data.csv", "--proba"))


def _matrix() -> pd.DataFrame:
    frame = pd.DataFrame(ROWS)
    columns = {"age": frame.age.astype(float)} | {f"job={j}": (frame.job == j) * 1.0 for j in JOBS}
    return pd.DataFrame(columns | {"hours": frame.hours.astype(float)})


def test_seeds_repeat_and_are_marked() -> None:
    first = json.loads(ok("fit", "data.csv", *FIT, *OUT, "--seed", "7", "--json"))
    coef = load_model("model.json").coef_
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "7")
    assert (load_model("model.json").coef_ == coef).all()
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "8")
    assert (load_model("model.json").coef_ != coef).any()
    assert "not private: seeded" in first["description"]


FORMS = {
    "byte order mark": lambda: "\ufeff" + as_csv(ROWS),
    "windows": lambda: as_csv(ROWS, lineterminator="\r\n"),
    "old mac": lambda: as_csv(ROWS, lineterminator="\r"),
    "quotes": lambda: as_csv(ROWS, quoting=csv.QUOTE_ALL),
    "spaces": lambda: as_csv(ROWS).replace(",", ", "),
    "another order": lambda: as_csv(ROWS, ("rich", "hours", "job", "age")),
    "blank lines": lambda: as_csv(ROWS).replace("\n", "\n\n"),
    "no last line end": lambda: as_csv(ROWS).rstrip("\n"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_csv(form: str, folder: Path) -> None:
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "1")
    coef = load_model("model.json").coef_
    (folder / "form.csv").write_bytes(FORMS[form]().encode())
    ok("fit", "form.csv", *FIT, *OUT, "--seed", "1")
    assert (load_model("model.json").coef_ == coef).all()


def test_separators() -> None:
    Path("semi.csv").write_text(as_csv(ROWS, delimiter=";"))
    Path("tabs.tsv").write_text(as_csv(ROWS, delimiter="\t"))
    ok("fit", "semi.csv", *FIT, *OUT, "--separator", ";")
    ok("fit", "tabs.tsv", *FIT, *OUT, "--separator", "\t")
    assert "--separator ';'" in refused(data="semi.csv")
    assert "--separator" in refused(data="tabs.tsv")
    assert "--separator ','" in refused("--separator", ";")
    assert "one character" in refused("--separator", "::")


def test_quoted_commas_and_words_beyond_ascii() -> None:
    names = {"clerk": "Clerk, senior", "nurse": 'the "nurse"', "pilot": "Flugzeugführer"}
    rows = [row | {"job": names[row["job"]]} for row in ROWS]
    Path("data.csv").write_text(as_csv(rows), encoding="utf-8")
    features = SCHEMA["features"] | {"job": {"categories": list(names.values())}}
    Path("schema.json").write_text(json.dumps(SCHEMA | {"features": features}, ensure_ascii=False), encoding="utf-8")
    ok("fit", "data.csv", *FIT, *OUT)
    assert load_model("model.json").feature_names_in_[1] == "job=Clerk, senior"
    assert len(predictions("data.csv")) == 400


def test_parquet() -> None:
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "1")
    coef = load_model("model.json").coef_
    frame = pd.DataFrame(ROWS).astype({"age": float, "hours": float}).drop(columns="pay")
    frame.to_parquet("data.parquet")
    ok("fit", "data.parquet", *FIT, *OUT, "--seed", "1")
    assert (load_model("model.json").coef_ == coef).all()
    frame["job"] = frame["job"].astype("category")
    frame.set_index(frame.index * 2).to_parquet("any-name")
    ok("fit", "any-name", *FIT, *OUT, "--seed", "1")
    assert (load_model("model.json").coef_ == coef).all()
    assert predictions("data.parquet") == predictions("data.csv")


def test_folders_and_gzipped_files() -> None:
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "1")
    coef = load_model("model.json").coef_
    frame = pd.DataFrame(ROWS).astype({"age": float, "hours": float}).drop(columns="pay")
    for name in ("csv", "parquet", "zipped"):
        Path(name).mkdir()
    for k, rows in enumerate((frame[:150], frame[150:])):
        rows.to_parquet(f"parquet/{k}.parquet", index=False)
        rows.to_csv(f"csv/{k}.csv", index=False)
        rows.to_csv(f"zipped/{k}.csv.gz", index=False)
    for name in ("csv", "parquet", "zipped"):
        ok("fit", name, *FIT, *OUT, "--seed", "1")
        assert (load_model("model.json").coef_ == coef).all()
        assert predictions(name) == predictions("data.csv")


def test_persons() -> None:
    Path("data.csv").write_text(as_csv([row | {"id": i // 3} for i, row in enumerate(ROWS)]))
    words = " ".join(ok("fit", "data.csv", *FIT, *OUT, "--person", "id").split())
    assert "134 persons, 5 features" in words
    assert "400" not in words
    assert "for each person" in words
    assert load_model("model.json").certificate_.unit == "person"
    assert "no column 'whose'" in refused("--person", "whose")


def test_parquet_without_pyarrow(monkeypatch) -> None:
    pd.DataFrame(ROWS).to_parquet("data.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'tacit-dp[tables]'" in refused(data="data.parquet")
    ok("fit", "data.csv", *FIT, *OUT)


def test_parquet_of_wrong_types() -> None:
    frame = pd.DataFrame(ROWS).astype({"age": float, "hours": float}).drop(columns="pay")
    frame.assign(age=pd.Timestamp("2020-01-01")).to_parquet("a.parquet")
    assert "'age' is stored as timestamp" in refused(data="a.parquet")
    frame.assign(job=3).to_parquet("b.parquet")
    assert "'job' is stored as numbers" in refused(data="b.parquet")
    Path("c.parquet").write_bytes(Path("b.parquet").read_bytes()[:500])
    assert "Parquet file that can be read" in refused(data="c.parquet")
    frame.iloc[:0].to_parquet("d.parquet")
    assert "no records" in refused(data="d.parquet")


@pytest.mark.parametrize(
    ("classes", "spell"),
    [([0, 1], "{:d}"), ([0, 1], "{:d}.0"), ([False, True], "{!r}"), ([0.0, 3.0], None), ([True, False], "{!s:.1}")],
)
def test_labels_that_are_not_words(classes: list, spell: str | None) -> None:
    Path("schema.json").write_text(json.dumps(SCHEMA | {"target": {"classes": classes}}))
    yes = [row["rich"] == "yes" for row in ROWS]
    texts = [str(classes[y]) if spell is None else spell.format(y) for y in yes]
    Path("data.csv").write_text(as_csv([row | {"rich": text} for row, text in zip(ROWS, texts, strict=True)]))
    if spell == "{!s:.1}":
        assert "not in the schema" in refused()
        return
    ok("fit", "data.csv", *FIT, *OUT)
    model = load_model("model.json")
    assert model.classes_.tolist() == sorted(classes)
    assert type(model.predict(_matrix())[0].item()) is type(classes[0])
    assert {row["rich"] for row in predictions("data.csv")} <= {str(label) for label in classes}


def test_truths_and_numbers_in_parquet() -> None:
    frame = pd.DataFrame(ROWS).astype({"age": float, "hours": float}).drop(columns="pay")
    frame["rich"] = frame["rich"] == "yes"
    frame["job"] = frame["job"].map({"clerk": 1, "nurse": 2, "pilot": 3})
    frame.to_parquet("data.parquet")
    features = SCHEMA["features"] | {"job": {"categories": [3, 1, 2]}}
    Path("schema.json").write_text(json.dumps({**SCHEMA, "features": features, "target": {"classes": [False, True]}}))
    ok("fit", "data.parquet", *FIT, *OUT)
    assert load_model("model.json").feature_names_in_.tolist()[1:4] == ["job=3", "job=1", "job=2"]
    assert load_model("model.json").classes_.dtype == bool
    frame.loc[3, "job"] = None
    frame.to_parquet("gap.parquet")
    assert "'job' has missing values" in refused(data="gap.parquet")


def test_missing_and_unknown_values() -> None:
    for gap in ("", "NA", "nan", " null "):
        rows = [row | ({"hours": gap} if i % 7 == 0 else {}) for i, row in enumerate(ROWS)]
        Path("gaps.csv").write_text(as_csv(rows))
        ok("fit", "gaps.csv", *FIT, *OUT, "--seed", "2")
        filled = [row | ({"hours": "40"} if i % 7 == 0 else {}) for i, row in enumerate(ROWS)]
        Path("filled.csv").write_text(as_csv(filled))
        coef = load_model("model.json").coef_
        ok("fit", "filled.csv", *FIT, *OUT, "--seed", "2")
        assert (load_model("model.json").coef_ == coef).all()
        Path("data.csv").write_text(as_csv([row | ({"age": gap} if i == 9 else {}) for i, row in enumerate(ROWS)]))
        message = refused()
        assert "'age' has missing values" in message
        assert '"missing"' in message
    Path("data.csv").write_text(as_csv([row | ({"job": "SECRET"} if i == 9 else {}) for i, row in enumerate(ROWS)]))
    ok("fit", "data.csv", *FIT, *OUT)  # all zeros, silently
    model = load_model("model.json")
    zeros = _matrix().iloc[[9]].assign(**{f"job={j}": 0.0 for j in JOBS})
    assert predictions("data.csv")[9]["rich"] == model.predict(zeros)[0]


def test_a_missing_category_may_be_named() -> None:
    rows = [row | ({"job": ""} if i % 5 == 0 else {}) for i, row in enumerate(ROWS)]
    Path("data.csv").write_text(as_csv(rows))
    assert "'job' has missing values" in refused()
    job = {"categories": [*JOBS, "unknown"], "missing": "unknown"}
    Path("schema.json").write_text(json.dumps(SCHEMA | {"features": SCHEMA["features"] | {"job": job}}))
    ok("fit", "data.csv", *FIT, *OUT)
    job = {"categories": [*JOBS, "NA"]}
    Path("schema.json").write_text(json.dumps(SCHEMA | {"features": SCHEMA["features"] | {"job": job}}))
    Path("data.csv").write_text(as_csv([row | ({"job": "NA"} if i % 5 == 0 else {}) for i, row in enumerate(ROWS)]))
    ok("fit", "data.csv", *FIT, *OUT)


def test_many_records_are_read_in_chunks(monkeypatch) -> None:
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "2")
    coef = load_model("model.json").coef_
    monkeypatch.setattr("tacit.records.sources.files.BATCH", 7)
    ok("fit", "data.csv", *FIT, *OUT, "--seed", "2")
    assert (load_model("model.json").coef_ == coef).all()


def test_predict_needs_neither_the_target_nor_an_order() -> None:
    ok("fit", "data.csv", *FIT, *OUT)
    Path("new.csv").write_text(as_csv(ROWS, ("hours", "pay", "job", "age")))
    assert predictions("new.csv") == predictions("data.csv")
    assert "400 predictions written to out.csv" in ok("predict", "model.json", "new.csv", "-o", "out.csv")
    assert Path("out.csv").read_text() == ok("predict", "model.json", "new.csv")
    assert "is an input" in one_line(run("predict", "model.json", "new.csv", "-o", "new.csv"))
    Path("new.csv").write_text(as_csv(ROWS, ("hours", "pay", "age")))
    assert "no column 'job'" in one_line(run("predict", "model.json", "new.csv"))


# -- schema -----------------------------------------------------------------------------------------------


def test_the_template_reads_the_header_only() -> None:
    Path("data.csv").write_text("age,job,hours,rich\nSECRET,SECRET,SECRET,SECRET\nragged\n")
    text = ok("schema", "data.csv", "--target", "rich")
    data = json.loads(text)
    assert list(data["features"]) == ["age", "job", "hours"]
    assert data["target"] == {"bounds": [None, None], "classes": None}
    assert "SECRET" not in text
    ok("schema", "data.csv", "--target", "rich", "-o", "empty.json")
    assert json.loads(Path("empty.json").read_text()) == data
    assert "neither bounds nor categories" in refused("--schema", "empty.json")
    assert "exists" in one_line(run("schema", "data.csv", "--target", "rich", "-o", "empty.json"))


def test_a_filled_template_serves() -> None:
    text = ok("schema", "data.csv", "--target", "rich")
    data = json.loads(text)
    data["features"]["age"]["bounds"] = [0, 100]
    data["features"]["hours"]["bounds"] = [0, 80]
    data["features"]["job"]["categories"] = list(JOBS)
    data["target"]["classes"] = ["no", "yes"]
    data["ignore"] = ["id"]
    del data["features"]["id"]
    Path("schema.json").write_text(json.dumps(data))
    ok("fit", "data.csv", *FIT, *OUT)


@pytest.mark.parametrize("header", ["SECRET,3.5,rich", "SECRET,SECRET2", "rich,SECRET,", "rich,rich"])
def test_the_template_does_not_show_a_record(header: str) -> None:
    Path("data.csv").write_text(header + "\n1,2,3\n")
    one_line(run("schema", "data.csv", "--target", "rich"))


BAD_SCHEMAS = {
    "not JSON": ("{", "not JSON"),
    "a list": ("[]", "object"),
    "nothing": ("{}", "no features"),
    "no text": (b"\xff\xfe\x00", "UTF-8"),
    "deep": ("[" * 100_000, "nested"),
    "stated twice": ('{"features": {"age": {"bounds": [0, 1]}, "age": {"bounds": [0, 2]}}}', "'age' is stated twice"),
    "a typo": ({"feature": {}}, "unknown entry 'feature'"),
    "bounds missing": ({"features": {"age": {}}}, "neither bounds nor categories"),
    "both": ({"features": {"age": {"bounds": [0, 1], "categories": ["a"]}}}, "both bounds and categories"),
    "unknown key": ({"features": {"age": {"bound": [0, 1]}}}, "unknown entry 'bound'"),
    "not an object": ({"features": {"age": [0, 1]}}, "object"),
    "reversed": ({"features": {"age": {"bounds": [1, 0]}}}, "low ≤ high"),
    "one bound": ({"features": {"age": {"bounds": [1]}}}, "must be a pair (low, high)"),
    "words as bounds": ({"features": {"age": {"bounds": ["0", "1"]}}}, "must be a number"),
    "NaN": ('{"features": {"age": {"bounds": [NaN, 1]}}}', "must be finite"),
    "infinite": ('{"features": {"age": {"bounds": [0, 1e999]}}}', "must be finite"),
    "long number": ('{"features": {"age": {"bounds": [0, ' + "9" * 5000 + "]}}}", "too long"),
    "missing outside": ({"features": {"age": {"bounds": [0, 1], "missing": 2}}}, "within the bounds"),
    "missing not listed": ({"features": {"j": {"categories": ["a"], "missing": "b"}}}, "one of the categories"),
    "no categories": ({"features": {"j": {"categories": []}}}, "at least one label"),
    "a category twice": ({"features": {"j": {"categories": ["a", "a "]}}}, "once"),
    "mixed categories": ({"features": {"j": {"categories": ["a", 1]}}}, "all words"),
    "truth and number": ({"features": {"j": {"categories": [True, 1]}}}, "all words"),
    "ignored feature": ({**SCHEMA, "ignore": ["age"]}, "both a feature and ignored"),
    "ignore no list": ({**SCHEMA, "ignore": "id"}, "list of column names"),
    "no target": ({k: v for k, v in SCHEMA.items() if k != "target"}, '"classes"'),
    "target null": ({**SCHEMA, "target": {"bounds": [None, None], "classes": None}}, "neither bounds nor classes"),
    "bounds for classes": (REGRESSION, '"classes"'),
    "fractions as classes": ({**SCHEMA, "target": {"classes": [0.5, 1]}}, "whole numbers"),
    "one class": ({**SCHEMA, "target": {"classes": ["no"]}}, "at least two different labels"),
    "target is a feature": ({**SCHEMA, "features": {"rich": {"bounds": [0, 1]}}}, "among the features"),
    "same names": (
        {**SCHEMA, "features": {"a=b": {"bounds": [0, 1]}, "a": {"categories": ["b"]}}},
        "the same name",
    ),
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_a_bad_schema_is_explained(name: str) -> None:
    content, words = BAD_SCHEMAS[name]
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    Path("schema.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refused()


# -- what newcomers get wrong -----------------------------------------------------------------------------


def edited(**columns: str) -> str:
    return as_csv([row | (columns if i == 13 else {}) for i, row in enumerate(ROWS)])


BAD_DATA = {
    "empty": ("", "is empty"),
    "blank": ("\n\n", "is empty"),
    "header only": ("id,age,job,hours,rich\n", "no records"),
    "no header": (as_csv(ROWS).partition("\n")[2], "none of the expected columns"),
    "no header, with secrets": ("SECRET1,SECRET2,SECRET3\n", "none of the expected columns"),
    "a column missing": (as_csv(ROWS, ("age", "job", "rich")), "no column 'hours'"),
    "a column missing in a record for a header": ("age,SECRET,SECRET2,rich\n1,2,3,4\n", "no column 'job'"),
    "no target": (as_csv(ROWS, ("age", "job", "hours")), "no column 'rich'"),
    "a column too many": (as_csv(ROWS, ("id", "age", "job", "hours", "pay", "rich")), "'pay' is not in the schema"),
    "a column twice": (as_csv(ROWS).replace("id,", "age,", 1), "'age' occurs twice"),
    "a column without name": (as_csv(ROWS).replace("id,", ",", 1), "index=False"),
    "text for a number": (edited(age="SECRET"), "'age' holds text"),
    "a decimal comma": (edited(age="3,5"), "1.5 (not 1,5)"),
    "infinity": (edited(age="inf"), "'age' holds infinite values"),
    "too large": (edited(age="1e999"), "'age' holds infinite values"),
    "a label that is not listed": (edited(rich="SECRET"), "'rich' holds a label that is not in the schema"),
    "a target missing": (edited(rich=""), "'rich' has missing values"),
    "a field too many": (as_csv(ROWS) + "1,2,3,4,5,SECRET\n", "more or fewer fields"),
    "a field too few": (as_csv(ROWS) + "SECRET\n", "more or fewer fields"),
    "an open quote": (as_csv(ROWS) + '1,2,"SECRET\n', "unmatched"),
    "text after a quote": (as_csv(ROWS) + '1,2,"SEC"RET,3,no\n', "unmatched"),
    "a huge field": (as_csv(ROWS) + "SECRET" * 50_000 + "\n", "very long"),
    "UTF-16": (as_csv(ROWS).encode("utf-16"), "not UTF-8"),
    "Latin 1": (edited(job="SECRETÄ").encode("latin-1"), "not UTF-8"),
    "a spreadsheet": (b"PK\x03\x04SECRET", "spreadsheet or an archive"),
    "an archive": (b"\x1f\x8b\x08SECRET", "spreadsheet or an archive"),
    "no table": (b"PAR1SECRET", "Parquet"),
    "a picture": (b"\x89PNG\r\n\x1a\nSECRET", ""),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_explained_without_showing_it(name: str) -> None:
    content, words = BAD_DATA[name]
    Path("data.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert words in refused()


BAD_OPTIONS = {
    "no such file": (["--schema", "none.json"], "none.json: No such file"),
    "a folder": (["--schema", "."], "directory"),
    "data as schema": (["--schema", "data.csv"], "not JSON; write one with tacit schema"),
    "unknown model": (["--model", "forest"], "model must be one of 'elasticnet', 'gamma'"),
    "unknown target": (["--target", "poor"], "no column 'poor'"),
    "epsilon zero": (["--epsilon", "0"], "epsilon must be positive"),
    "epsilon nan": (["--epsilon", "nan"], "epsilon"),
    "epsilon text": (["--epsilon", "one"], "--epsilon"),
    "delta large": (["--delta", "1.5"], "delta must lie"),
    "add-remove with sgd": (["--adjacency", "add-remove", "--solver", "sgd"], "replace-one"),
    "unknown view": (["--view", "nothing"], "view must be one of"),
    "unknown solver": (["--solver", "magic"], "solver must be one of"),
    "l1 for svc": (["--model", "svc", "--l1-ratio", "0.5"], "has no --l1-ratio"),
    "huber delta for logistic": (["--huber-delta", "1"], "has no --huber-delta"),
    "negative alpha": (["--alpha", "-1"], "alpha"),
    "no folder": (["-o", "none/model.json"], "does not exist"),
    "output is a folder": (["-o", "."], "is a folder"),
    "output is the data": (["-o", "data.csv"], "is an input"),
    "output is the schema": (["-o", "schema.json"], "is an input"),
    "no ledger": (["--ledger", "none.ledger"], "tacit ledger none.ledger --epsilon"),
    "a ledger that is none": (["--ledger", "data.csv"], ""),
    "seed text": (["--seed", "x"], "--seed"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_explained(name: str) -> None:
    args, words = BAD_OPTIONS[name]
    assert words in refused(*args)


def test_a_missing_delta_is_suggested() -> None:
    args = [a for a in FIT if a not in ("--delta", "1e-6")]
    message = one_line(run("fit", "data.csv", *args, *OUT))
    assert "1/n² = 6" in message


@pytest.mark.parametrize("option", ["--target", "--model", "--epsilon", "--schema"])
def test_a_missing_option_is_named(option: str) -> None:
    at = FIT.index(option)
    assert option in one_line(run("fit", "data.csv", *FIT[:at], *FIT[at + 2 :], *OUT))
    assert "--output" in one_line(run("fit", "data.csv", *FIT))


def test_the_wrong_file() -> None:
    ok("fit", "data.csv", *FIT, *OUT)
    assert "No such file" in one_line(run("fit", "none.csv", *FIT, *OUT))
    assert "No such file" in one_line(run("predict", "none.json", "data.csv"))
    assert "No such file" in one_line(run("predict", "model.json", "none.csv"))
    assert "not a model" in one_line(run("predict", "data.csv", "model.json"))
    assert "not a model" in one_line(run("predict", "schema.json", "data.csv"))
    assert "not a CSV file" in one_line(run("predict", "model.json", "schema.json"))


def test_an_edited_model_is_refused() -> None:
    ok("fit", "data.csv", *FIT, *OUT)
    text = Path("model.json").read_text()
    Path("model.json").write_text(text.replace('"clerk"', '"clark"', 1))
    assert "edited" in one_line(run("predict", "model.json", "data.csv"))
    assert "edited" in one_line(run("report", "model.json"))


def test_a_model_of_python_has_no_schema() -> None:
    X = np.random.default_rng(0).uniform(0, 1, (100, 2))
    model = DPRidge(epsilon=1, delta=1e-5, feature_bounds=(0, 1), target_bounds=(0, 2)).fit(X, X.sum(axis=1))
    save_model(model, "model.json")
    assert "without a table's schema" in one_line(run("predict", "model.json", "data.csv"))
    for extra in ({"target": "y", "schema": {}}, {"target": "y", "schema": SCHEMA}, {"target": 3}, []):
        save_model(model, "model.json", extra=extra)
        one_line(run("predict", "model.json", "data.csv"))


def test_report_reads_models() -> None:
    ok("fit", "data.csv", *FIT, *OUT)
    words = " ".join(ok("report", "model.json").split())
    assert words.startswith("This computation is (5, 1e-06)-differentially private")


# -- the ledger, failures and interrupts ------------------------------------------------------------------


def test_a_ledger_is_charged_until_it_is_empty() -> None:
    assert "pass epsilon and delta" in one_line(run("ledger", "study.ledger"))
    assert "0 entries" in ok("ledger", "study.ledger", "--epsilon", "6", "--delta", "1e-5")
    ok("fit", "data.csv", *FIT, *OUT, "--ledger", "study.ledger")
    assert "1 entry" in ok("ledger", "study.ledger")
    before = Path("model.json").read_bytes()
    message = one_line(run("fit", "data.csv", *FIT, *OUT, "--ledger", "study.ledger"))
    assert "charged before" not in message
    assert Path("model.json").read_bytes() == before
    assert "1 entry" in ok("ledger", "study.ledger")
    (entry,) = Ledger("study.ledger").entries()
    assert entry.note == "DPLogisticRegression"
    for file in Path().glob("study.ledger*"):
        file.unlink()
    again = ("ledger", "study.ledger", "--epsilon", "6", "--delta", "1e-5")
    assert "held 1 entry" in one_line(run(*again))
    assert "0 entries" in ok(*again, "--new")


def test_faults_in_the_data_cost_nothing() -> None:
    ok("ledger", "study.ledger", "--epsilon", "6", "--delta", "1e-5")
    Path("data.csv").write_text(edited(age="SECRET"))
    refused("--ledger", "study.ledger")
    assert "0 entries" in ok("ledger", "study.ledger")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "aborted; the ledger"),
        (ValueError("SECRET"), 1, "internal: ValueError; please report"),
        (MemoryError(), 2, "MemoryError"),
    ],
)
def test_a_failure_after_the_charge_says_so(monkeypatch, error: BaseException, code: int, words: str) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    ok("ledger", "study.ledger", "--epsilon", "6", "--delta", "1e-5")
    monkeypatch.setattr("tacit.maps.FeatureBounds.__call__", broken)  # reads the first record
    result = run("fit", "data.csv", *FIT, *OUT, "--ledger", "study.ledger")
    assert result.exit_code == code
    assert words in result.stderr
    assert "was charged before (entry 1), and a charge is never given back" in result.stderr
    assert "SECRET" not in result.stderr
    assert not Path("model.json").exists()
    result = run("fit", "data.csv", *FIT, *OUT)
    assert result.exit_code == code
    assert "charged" not in result.stderr
    assert "SECRET" not in result.stderr


def test_an_interrupted_save_leaves_nothing(monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    before = sorted(p.name for p in Path().iterdir())
    assert run("fit", "data.csv", *FIT, *OUT).exit_code == 130
    assert sorted(p.name for p in Path().iterdir()) == before


def test_progress_reaches_the_estimator_and_is_not_saved(monkeypatch) -> None:
    seen = []

    def spy(certificate, records, **extra):
        seen.append(records._tick)
        return open_session(certificate, records, **extra)

    monkeypatch.setattr("tacit.estimators.base.open_session", spy)
    ok("fit", "data.csv", *FIT, *OUT)
    monkeypatch.setattr("tacit.cli.console.watched", lambda: True)
    result = run("fit", "data.csv", *FIT, *OUT)
    assert result.exit_code == 0
    assert seen[0] is None
    assert callable(seen[1])
    assert "_progress" not in vars(load_model("model.json"))
    assert "_progress" not in Path("model.json").read_text()


# -- the program ------------------------------------------------------------------------------------------


def test_help() -> None:
    for command in ("fit", "predict", "schema", "ledger", "demo"):
        assert command in run("--help").stdout
        assert run(command, "--help").exit_code == 0


def test_the_demo() -> None:
    text = ok("demo")
    assert "scikit-learn, not private" in text
    accuracies = {
        line.split("  ")[1].strip(): float(line.split()[-1])
        for line in text.splitlines()
        if "ε = " in line and line.split()[-1].startswith("0.")
    }
    assert accuracies.keys() == {"tacit, ε = 4, δ = 6e-06", "tacit, ε = 1, δ = 6e-06"}
    assert min(accuracies.values()) > 0.5
    assert "(1, 6e-06)-differentially private" in " ".join(text.split())


def test_the_bounds_of_the_demo_hold() -> None:
    """The claim that they are generous: next to nothing is clipped."""
    from sklearn.datasets import load_breast_cancer

    from tacit.report.demo import upper_bounds

    data = load_breast_cancer()
    assert (data.data <= upper_bounds(data.feature_names)).mean() > 0.999


def test_a_real_process() -> None:
    command = [sys.executable, "-m", "tacit.cli", "fit", "data.csv", *FIT, *OUT]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Saved to model.json" in done.stdout
    assert load_model("model.json").n_features_in_ == 5


# -- the documentation ------------------------------------------------------------------------------------


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", DOCS.read_text(), re.S)


def test_the_worked_example_is_what_the_commands_print() -> None:
    """Files are written, Python is run, commands are run, and every shown line is printed."""
    printed, commands = "", 0
    for kind, text in blocks():
        if kind == "python":
            exec(compile(text, "docs/cli.md", "exec"), {})
        elif kind == "json":
            Path("schema.json").write_text(text)
        elif kind == "console":
            for command in text.replace("\\\n", " ").splitlines():
                if command.startswith("$ tacit "):
                    result = run(*command[8:].split(), columns=100)
                    assert result.exit_code == 0, result.stderr
                    printed, commands = result.stdout, commands + 1
        elif kind == "text":
            lines = [line.rstrip() for line in printed.splitlines()]
            missing = [line for line in text.splitlines() if line.rstrip() not in lines and line != "…"]
            assert not missing
    assert commands >= 6


def test_the_options_are_documented() -> None:
    text = DOCS.read_text()
    for command in ("fit", "predict", "schema", "ledger"):
        for option in re.findall(r"(--[a-z][a-z0-9-]+)", run(command, "--help", columns=200).stdout):
            assert f"`{option}" in text or option == "--help", option


@pytest.mark.parametrize("command", ["fit", "schema", "predict"])
def test_a_reader_who_leaves_is_no_failure(command: str) -> None:
    """As in ``tacit fit ... | head``: the model is saved, nothing is said, nothing failed."""
    if command == "predict":
        ok("fit", "data.csv", *FIT, *OUT)
    args = {
        "fit": ("data.csv", *FIT, *OUT),
        "schema": ("data.csv", "--target", "rich"),
        "predict": ("model.json", "data.csv"),
    }
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tacit.cli", command, *args[command]],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    if command == "fit":
        assert load_model("model.json").certificate_.epsilon(1e-6) == pytest.approx(5.0, rel=1e-3)


def test_a_pipe_that_breaks_before_the_model_is_saved_is_a_failure(monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("tacit.tables.fitting.fit_table", broken)
    assert "Broken pipe" in one_line(run("fit", "data.csv", *FIT, *OUT))
    assert not Path("model.json").exists()
