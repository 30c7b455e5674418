"""Under add/remove the number of records is secret: no output, message or default shows it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import DPRidge
from tacit.cli import app
from tacit.errors import InvalidInput


def _fit(tmp_path, n, *more):
    rng = np.random.default_rng(0)
    data, schema = tmp_path / "d.csv", tmp_path / "s.json"
    data.write_text("x,y\n" + "\n".join(f"{a},{b}" for a, b in rng.random((n, 2))) + "\n")
    schema.write_text(json.dumps({"features": {"x": {"bounds": [0, 1]}}, "target": {"bounds": [0, 1]}}))
    found = CliRunner().invoke(
        app,
        f"fit {data} --target y --model ridge --schema {schema} -o {tmp_path / 'm.json'} --epsilon 1 --delta 1e-6 "
        f"--adjacency add-remove {' '.join(more)}",
    )
    return found


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_command_line_does_not_print_a_secret_number_of_records(tmp_path, form):
    found = _fit(tmp_path, 1237, *form)
    if found.exit_code == 0:
        secret = json.loads(found.output).get("records") if form else "1237 records" in found.output
        assert secret not in (1237, True), "certified add-remove, and the exact n is printed"


def test_a_missing_delta_does_not_tell_n_under_add_remove():
    told = set()
    for n in (10, 11):
        with pytest.raises(InvalidInput) as caught:
            DPRidge(adjacency="add-remove", feature_bounds=(0, 1), target_bounds=(0, 1)).fit(
                np.zeros((n, 1)), np.zeros(n)
            )
        told.add(str(caught.value))
    assert len(told) == 1
