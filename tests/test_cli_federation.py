"""``tacit federation``: certificates for a trial, and a node that serves a file until it is told to stop."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import DPLogisticRegression, Ledger
from tacit.cli import app
from tacit.errors import InvalidInput
from tacit.federation import TLS, FactorNode, FederatedLinear, LinearNode, connect
from tacit.records import Schema
from tacit.tables.nodes import table_node

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
runner = CliRunner()
TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
SCHEMA = {
    "features": {"age": {"bounds": [0, 100]}, "job": {"categories": ["a", "b"]}},
    "target": {"classes": ["no", "yes"]},
    "ignore": ["who"],
}


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "age", "job", "rich"])
        for i in range(400):
            age, job = rng.integers(0, 100), rng.integers(2)
            rows.writerow([f"p{i // 2}", age, "ab"[job], "yes" if age + 20 * job > 60 else "no"])
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def node(files: Path, target: str | None = "rich", **options: Any) -> Any:
    schema = Schema.read(files / "schema.json")
    own = {name: options.pop(name) for name in ("person", "row_norm") if name in options}
    return table_node(files / "rows.csv", schema, target, terms={**TERMS, **options}, **own)


def test_init_makes_certificates_and_says_what_they_are_for(tmp_path: Path) -> None:
    place = tmp_path / "trial"
    done = runner.invoke(app, ["federation", "init", str(place), "--node", "a", "--node", "b"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("For trials: certificates of server, a, b in ")
    assert TLS.read(place, "b").certificate.startswith(b"-----BEGIN CERTIFICATE")
    assert (place / "a.key").stat().st_mode & 0o777 == 0o600
    again = runner.invoke(app, ["federation", "init", str(place), "--node", "a"])
    assert again.exit_code != 0


def test_a_node_is_made_from_a_file_by_its_schema(files: Path) -> None:
    linear = node(files)
    assert isinstance(linear, LinearNode)
    assert (linear.shape, linear.unit, linear.classes) == ((400, 3), "record", ("no", "yes"))
    assert linear.statement()["feature_bounds"] == [[0.0, 0.0, 0.0], [100.0, 1.0, 1.0]]
    persons = node(files, person="who")
    assert (persons.shape, persons.unit) == ((200, 3), "person")
    schema = {**SCHEMA, "ignore": ["who", "rich"]}
    (files / "schema.json").write_text(json.dumps(schema))
    factors = node(files, None, row_norm=100.0)
    assert isinstance(factors, FactorNode)
    assert factors.shape == (400, 3)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (None, {}, "a node takes part in one of them"),
        ("rich", {"row_norm": 1.0}, "a node takes part in one of them"),
        ("rich", {"person": "whom"}, "no column 'whom'"),
        ("poor", {}, "no column 'poor'"),
    ],
)
def test_what_does_not_fit_is_explained(files: Path, target: Any, options: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        node(files, target, **options)


def test_a_node_serves_a_file_until_it_is_told_to_stop(files: Path) -> None:
    place, ledger = files / "trial", files / "a.ledger"
    runner.invoke(app, ["federation", "init", str(place), "--node", "a"])
    Ledger(ledger, epsilon=3.0, delta=1e-5)
    arguments = [
        "federation",
        "node",
        "rows.csv",
        "--target",
        "rich",
        "--schema",
        "schema.json",
        "--ledger",
        "a.ledger",
    ]
    arguments += ["--epsilon", "1", "--delta", "1e-6", "--tls", "trial", "--name", "a", "--address", "127.0.0.1:0"]
    command = [sys.executable, "-m", "tacit.cli", *arguments, "--person", "who"]
    process = subprocess.Popen(
        command, cwd=files, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("a serves 200 persons at 127.0.0.1:")
        address = line.split(" at ")[1].split(" ")[0]
        with connect(address, tls=TLS.read(place, "server"), node="a") as link:
            model = FederatedLinear(DPLogisticRegression(), timeout=60).fit([link])
        assert model.certificate_.unit == "person"
        assert len(Ledger(ledger).entries()) == 1
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.communicate()


def test_a_node_without_a_ledger_file_is_refused_in_one_line(files: Path) -> None:
    runner.invoke(app, ["federation", "init", str(files / "trial"), "--node", "a"])
    command = [sys.executable, "-m", "tacit.cli", "federation", "node", "rows.csv", "--schema", "schema.json"]
    command += ["--ledger", "no.ledger", "--epsilon", "1", "--delta", "1e-6", "--tls", "trial", "--name", "a"]
    done = subprocess.run([*command, "--target", "rich"], cwd=files, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no ledger at no.ledger")
    assert done.stderr.count("\n") == 1
