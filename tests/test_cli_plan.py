"""``tacit plan`` without ``--sigma``: what it prints is what ``tacit.plan_cyclic`` finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.accounting import poisson_epsilon
from tacit.cli import app
from tacit.report.plan import rounded_up
from tacit.solvers.hidden import plan_cyclic

runner = CliRunner()
PLAN = ["plan", "--n", "600", "--batch", "100", "--epochs", "5", "--delta", "1e-5", "--target-epsilon", "2"]
SIZES = {"n": 600, "batch_size": 100, "epochs": 5}


def run(*args: str, columns: int = 80):
    return runner.invoke(app, list(args), env={"COLUMNS": str(columns), "TERM": "dumb"})


def answer(*args: str) -> dict:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def one_line(result) -> str:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# -- numbers ------------------------------------------------------------------------------------------------


def test_json_has_the_numbers_of_plan_cyclic() -> None:
    plans = {found["id"]: found for found in answer(*PLAN)["plans"]}
    wanted = {"balanced": {}, "constant": {"decay": False}, "poisson": {"view": "all_iterates"}}
    assert list(plans) == list(wanted)
    for name, options in wanted.items():
        plan, found = plan_cyclic(2.0, 1e-5, **SIZES, **options), plans[name]
        assert (found["sigma"], found["noise_multiplier"]) == (plan.sigma, plan.noise_multiplier)
        assert (found["clip"], found["smoothness"], found["step_size"]) == (2**0.5, 0.5, 4.0)
        assert (found["batches"], found["steps"], found["l2"]) == (6, 30, 0.0)
        again = plan_cyclic(None, 1e-5, **SIZES, **options, noise_multiplier=found["noise_multiplier"])
        assert 2 * (1 - 1e-3) <= again.certificate.epsilon(1e-5) == found["epsilon"] <= 2
        assert found["assumptions"][0].keys() == {"text", "evidence"}
    assert plans["balanced"]["contraction"] == 1.0
    assert plans["poisson"]["contraction"] is None


def test_options_are_respected() -> None:
    options = ["--clip", "3", "--l2", "0.1", "--lr", "1.5", "--smoothness", "0.25", "--adjacency", "ZERO_OUT"]
    data = answer(*PLAN, *options, "--secret-partition")
    plan = plan_cyclic(
        2.0, 1e-5, **SIZES, bound=3.0, l2=0.1, step_size=1.5, smoothness=0.25, adjacency="zero-out", partition="secret"
    )
    balanced = data["plans"][0]
    assert balanced["sigma"] == plan.sigma
    assert balanced["contraction"] == plan.contraction
    assert balanced["theorem"] == "last-iterate-averaged"
    assert (data["inputs"]["adjacency"], data["inputs"]["secret_partition"]) == ("zero-out", True)


def test_with_sigma_the_clip_is_one() -> None:
    assert answer(*PLAN, "--sigma", "4")["inputs"]["clip"] == 1.0
    assert "covered" in answer(*PLAN, "--sigma", "4")


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_text(columns: int) -> None:
    result = run(*PLAN, columns=columns)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= columns
    for options in ({}, {"decay": False}, {"view": "all_iterates"}):
        plan = plan_cyclic(2.0, 1e-5, **SIZES, **options)
        assert rounded_up(plan.noise_multiplier) in result.stdout
        assert rounded_up(plan.sigma) in result.stdout
    for words in ("Noise, steps and ridge for ε ≤ 2 at δ = 1e-05", "[declared]", "poisson-gaussian"):
        assert words in " ".join(result.stdout.split())


# -- the plot -----------------------------------------------------------------------------------------------


def test_plot_with_json_reports_the_curves(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    data = answer(*PLAN, "--plot", str(path))
    assert data["plot"] == str(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    for found in data["plans"][:2]:
        curves = [curve for curve in data["curves"] if curve["plan"] == found["id"]]
        (own,) = [curve for curve in curves if curve["of_the_plan"]]
        assert (own["epochs"][-1], own["epsilon"][-1]) == (5, found["epsilon"])
        (sampled,) = [curve for curve in curves if curve["sampling"] == "poisson"]
        expected = poisson_epsilon(found["noise_multiplier"], 1 / 6, 30, 1e-5, adjacency="replace-one")
        assert sampled["epsilon"][-1] == expected
        assert len({curve["step_size_times_l2"] for curve in curves}) == len(curves) >= 4


def test_plot_as_text(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    result = run(*PLAN, "--plot", str(path))
    assert "Plot written to" in result.stdout
    assert list(tmp_path.iterdir()) == [path]


# -- errors -------------------------------------------------------------------------------------------------


def test_neither_noise_nor_target() -> None:
    message = one_line(run(*PLAN[:-2]))
    assert all(word in message for word in ("--sigma", "--target-epsilon", "follows from the other", "give"))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--adjacency", "add-remove", "use replace-one or zero-out"),
        ("--adjacency", "neighbours", "adjacency must be one of"),
        ("--lr", "4.5", "such a step expands"),
        ("--lr", "0", "lr must be positive"),
        ("--l2", "-1", "l2"),
        ("--clip", "0", "clip must be positive"),
        ("--smoothness", "nan", "smoothness is NaN"),
        ("--diameter", "1", "--diameter is not used"),
        ("--batch", "601", "lower the batch"),
        ("--n", "1e12", "steps are more than"),
        ("--delta", "1", "delta"),
        ("--target-epsilon", "0", "target_epsilon must be positive"),
        ("--target-epsilon", "nan", "target_epsilon is NaN"),
        ("--plot", "out.bmp", "plot must end in"),
    ],
)
def test_a_bad_value_is_one_line(option: str, value: str, words: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in one_line(run(*PLAN, *([] if option == "--plot" else ["--plot", "ok.png"]), option, value))
    assert not list(tmp_path.iterdir())


def test_a_missing_delta_is_suggested() -> None:
    at = PLAN.index("--delta")
    assert "1/n²" in one_line(run(*PLAN[:at], *PLAN[at + 2 :]))
