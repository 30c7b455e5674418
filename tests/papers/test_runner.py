"""Figure 1 of DP-MBCD from the runner's schedules, against the recursion written out again, and against a run."""

from __future__ import annotations

import io
import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from papers import runner
from papers.runner import SCHEDULES, figure_1_plan, figure_1_runner, plan_noise, runner_series
from scipy.stats import norm

from tacit.errors import InvalidInput
from tacit.problem.blocks import Block, GradientStep
from tacit.records import InMemory
from tacit.release import PROBLEMS, BlockProblem, open_session
from tacit.solvers.blocks import BlockDescent

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "block_figures.py"
ETA, S, B, BATCHES, LIPSCHITZ, ALPHA, DELTA = 0.05, 1.0, 100, 25, 0.98, 10.0, 1e-5
NOISE = {
    "constant noise": [1e-5] * 20,
    "adaptive noise": [0.6e-5] * 12 + [3e-5] * 8,
}


def recursion(noise: list[float], position: int, only: int | None = None) -> float:
    """Corollary 4.5 with Lemma C.3, per unit of α; the prox counts as 1 (E8)."""
    rate = spread = 0.0
    for epoch, o in enumerate(noise):
        for batch in range(BATCHES):
            moved = LIPSCHITZ**2 * spread
            if batch == position:
                rate += ETA * S**2 / (4 * B**2 * o) if only in (None, epoch) else 0.0
            else:
                rate *= moved / (moved + 2 * ETA * o)
            spread = moved + 2 * ETA * o
    return rate


def mixture(noise: list[float]) -> float:
    total = sum(math.exp((ALPHA - 1) * ALPHA * recursion(noise, j)) for j in range(BATCHES)) / BATCHES
    return math.log(total) / (ALPHA - 1)


@pytest.mark.parametrize("label", SCHEDULES)
@pytest.mark.parametrize("epochs", [1, 2, 12, 13, 20])
def test_the_paper_s_total_is_its_recursion(label: str, epochs: int) -> None:
    found = runner_series(label).published[epochs - 1]
    assert found == pytest.approx(mixture(NOISE[label][:epochs]), rel=1e-9)


@pytest.mark.parametrize("label", SCHEDULES)
def test_the_paper_s_epochs_are_its_recursion(label: str) -> None:
    found = runner_series(label).published_epochs
    wanted = [np.mean([recursion(NOISE[label], j, only=k) for j in range(BATCHES)]) for k in range(20)]
    assert found == pytest.approx(ALPHA * np.array(wanted), rel=1e-9)
    whole = ALPHA * np.mean([recursion(NOISE[label], j) for j in range(BATCHES)])
    assert found.sum() == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("label", SCHEDULES)
def test_the_certificate_composes(label: str) -> None:
    series = runner_series(label)
    alone = ALPHA * ETA * S**2 / (4 * B**2 * np.array(NOISE[label]))
    assert series.certified_epochs == pytest.approx(alone, rel=1e-9)
    assert series.certified == pytest.approx(np.cumsum(alone), rel=1e-9)
    for k in (1, 13, 20):
        mu, epsilon = math.sqrt(2 * alone[:k].sum() / ALPHA), series.certified_epsilon[k - 1]
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize("label", SCHEDULES)
@pytest.mark.parametrize("epochs", [1, 13, 20])
def test_the_printed_epsilon_is_that_of_the_worst_batch(label: str, epochs: int) -> None:
    rate = max(recursion(NOISE[label][:epochs], j) for j in range(BATCHES))
    orders = 1 + np.geomspace(1e-3, 1e3, 20_001)
    values = orders * rate + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    assert runner_series(label).published_epsilon[epochs - 1] == pytest.approx(values.min(), rel=1e-5)


@pytest.mark.parametrize("label", SCHEDULES)
def test_the_paper_prints_less_than_the_certificate(label: str) -> None:
    series = runner_series(label)
    assert (series.published < series.certified).all()
    assert (series.published_epochs < series.certified_epochs).all()
    assert (series.published_epsilon[1:] < series.certified_epsilon[1:]).all()
    assert series.certified[-1] > 10 * series.published[-1]


def test_the_sharp_rise_is_at_epoch_13() -> None:
    series = runner_series("adaptive noise")
    assert (np.flatnonzero(np.diff(series.noise)) + 2).tolist() == [13]
    assert series.noise == pytest.approx(NOISE["adaptive noise"])
    assert series.published[12] < 0.5 * series.published[11]  # the paper's "significant phase"
    assert (np.diff(series.certified) > 0).all()  # what was shown stays shown
    constant = runner_series("constant noise")
    assert constant.published[19] == pytest.approx(constant.published[14], rel=1e-3)  # "equilibrium"
    steps = np.diff(np.log(constant.published_epochs))[4:]
    assert np.ptp(steps) < 0.02 * steps.mean()  # "near-linear" on a logarithmic axis


class _Silent(BlockProblem):
    """Records that contribute nothing, so that the state is the sum of all noise."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self.blocks = blocks

    def contributions(self, block, values, rows):
        return np.zeros((len(rows), self.blocks[block].release_size))

    @classmethod
    def example(cls, rng, records):
        raise NotImplementedError


@pytest.mark.parametrize("label", SCHEDULES)
def test_the_runner_adds_this_noise(label: str, monkeypatch) -> None:
    """Standard deviations of 10 000 increments of the state in each epoch: √(2η·o(k)), to 1 % or so."""
    monkeypatch.setitem(PROBLEMS, "_Silent", _Silent)
    plan, moved = figure_1_plan(label, 20), []
    step = plan.blocks[0].update
    assert isinstance(step, GradientStep)

    def recording(value, noisy, at):
        new = step(value, noisy, at)
        moved.append((new - value).copy())
        return new

    wide = (Block("theta", np.zeros(400), plan.blocks[0].bound, recording),)
    with open_session(plan.certificate, InMemory(np.zeros((2500, 1))), random_state=1) as session:
        BlockDescent(replace(plan, blocks=wide), _Silent(wide)).solve(session)
    found = np.array(moved).reshape(20, -1).std(axis=1)
    assert found == pytest.approx(np.sqrt(2 * ETA * np.array(NOISE[label])), rel=0.04)
    assert plan_noise(plan) == pytest.approx(np.repeat(np.array(NOISE[label])[:, None], BATCHES, axis=1))


def test_a_schedule_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="label"):
        figure_1_plan("no noise", 3)


def test_the_picture_is_not_empty() -> None:
    figure, buffer = figure_1_runner(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    pixels = matplotlib.image.imread(buffer)
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 50
    left, right = figure.axes[:2]
    for ax, names in ((left, ("certified", "published")), (right, ("certified_epochs", "published_epochs"))):
        drawn = [line.get_ydata() for line in ax.get_lines()]
        wanted = [getattr(runner_series(label), name) for label in SCHEDULES for name in names]
        for one, other in zip(drawn, wanted, strict=True):
            assert np.array_equal(one, other)
        assert ax.get_ylabel()
    assert right.get_yscale() == "log"
    assert runner.DELTA == DELTA


def test_the_benchmark_writes(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["block_figures.py", str(tmp_path / "new")])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert stopped.value.code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["certified"] for line in lines] == [runner_series(label).certified[-1] for label in SCHEDULES]
    assert all((tmp_path / "new" / line["file"]).stat().st_size > 20_000 for line in lines)
