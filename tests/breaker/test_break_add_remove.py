"""Counterexamples to claim 3: the true number of records, un-noised, where it is secret."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import DPRidge
from tacit.cli import app
from tacit.errors import InvalidInput
from tacit.problem import ElasticNet, Squared
from tacit.records import Rows
from tacit.release.queries import Blocks, CoordinateSweep, LossGradient


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


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [1e10, 1e15, 1e28])
def test_one_record_more_moves_the_sum_of_a_diverged_run_by_its_own_contribution(scale, kind):
    """Xw by a library's product rounds a record by its place: equal records moved the sum by seven times the clip."""
    rng = np.random.default_rng(0)
    blocks = Blocks(np.array([0, 1, 2, 3, 0]), np.array([4, 1]))
    worst = 0.0
    for _ in range(200):
        x, w = rng.normal(size=4), rng.normal(size=4)
        w[-1] = -(x[:-1] @ w[:-1]) / x[-1]  # xᵀw is rounding alone
        sums = []
        for n in (30, 31):
            rows, ones = Rows(np.tile(3 * x / np.abs(x).max(), (n, 1)).astype(kind), np.zeros(n)), np.ones(4)
            sweep = CoordinateSweep(Squared(), ElasticNet.of(4), blocks, clips=ones, steps=ones, divisor=50)
            stepped = sweep.apply(rows, sweep.start(rows, np.zeros(4)), -25 * scale * w, 0)
            far = sweep.start(rows, scale * w)
            sums.append([sweep.clipped_sum(rows, far, 1), sweep.clipped_sum(rows, stepped, 1)])
        worst = max(worst, float(np.abs(np.subtract(*sums)).max()))
    assert worst <= 1 + 1e-9


@pytest.mark.parametrize(("clip", "length"), [(1e-7, 1.0), (1e-2, 1e4), (1.0, 1e6)])
def test_so_does_a_gradient(clip, length):
    """Small clips of long records see the last bits of xᵀw: one record more moved the sum by seven clips."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        signs, x = rng.choice([-1.0, 1.0], size=4), rng.normal(size=4)
        x[-1] = -(x[:-1] * signs[:-1]).sum() * signs[-1]
        x *= length / np.linalg.norm(x)
        n = int(rng.integers(1, 60))
        sums = [
            LossGradient(Squared(), clip).total(
                Rows(np.tile(x, (m, 1)), np.zeros(m)), 1e30 * signs[None], np.ones((1, m), bool)
            )
            for m in (n, n + 1)
        ]
        worst = max(worst, float(np.linalg.norm(sums[0] - sums[1])))
    assert worst <= clip * (1 + 1e-6)
