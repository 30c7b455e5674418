"""The command line: what it prints, and that every failure is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.accounting import certify, gdp_epsilon, noisy_cyclic_mu, poisson_epsilon
from tacit.cli import app
from tacit.mechanism import Adjacency, Mechanism, Poisson, Schedule

runner = CliRunner()
PLAN = ["plan", "--n", "600", "--batch", "100", "--epochs", "5", "--sigma", "4", "--delta", "1e-5"]
CHAIN = ["--lr", "0.1", "--l2", "0.01", "--smoothness", "0.5"]


def run(*args: str, columns: int = 80):
    return runner.invoke(app, list(args), env={"COLUMNS": str(columns), "TERM": "dumb"})


def answer(*args: str) -> dict:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# -- plan -----------------------------------------------------------------------------------------------


def test_json_has_the_numbers_of_the_library() -> None:
    data = answer(*PLAN, *CHAIN, "--target-epsilon", "1")
    rows = {r["id"]: r for r in data["covered"]}
    assert rows["poisson"]["epsilon"] == poisson_epsilon(4.0, 1 / 6, 30, 1e-5, adjacency="replace-one")
    assert rows["cyclic"]["epsilon"] == pytest.approx(gdp_epsilon(0.5 * 5**0.5, 1e-5), rel=1e-12)
    mu = noisy_cyclic_mu(6, 5, 0.999, 0.5)
    assert rows["cyclic-final"]["mu"] == pytest.approx(mu, rel=1e-9)
    assert rows["cyclic-final"]["epsilon"] == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-9)
    assert rows["cyclic-final"]["assumptions"][0].keys() == {"text", "evidence"}
    assert rows["cyclic"]["sigma_for_target"] > 4
    assert data["derived"] == {
        "batches": 6,
        "batch_sizes": [100],
        "steps": 30,
        "sampling_rate": 100 / 600,
        "ratio": 0.5,
        "contraction": pytest.approx(0.999),
        "diameter_used": False,
    }
    assert data["inputs"]["adjacency"] == "replace-one"
    assert {"method", "theorem", "axis", "reason", "remedy", "accountant_says"} == set(data["not_covered"][0])


def test_json_is_the_only_thing_on_stdout() -> None:
    result = run(*PLAN, "--json")
    assert result.stdout.startswith("{")
    assert json.loads(result.stdout)
    assert result.stderr == ""


@pytest.mark.parametrize("columns", [80, 60, 140])
@pytest.mark.parametrize("extra", [[], CHAIN, [*CHAIN, "--target-epsilon", "1", "--secret-partition"]])
def test_no_line_is_wider_than_the_terminal(columns: int, extra: list[str]) -> None:
    result = run(*PLAN, *extra, columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= columns
    for words in ("What each theorem certifies at δ = 1e-05", "Not covered", "[enforced]"):
        assert words in " ".join(result.stdout.split())
    assert "\x1b" not in result.stdout


def test_tables_are_readable_at_80_columns() -> None:
    """A row stands on one line with its letter, view, ε and σ."""
    text = run(*PLAN, *CHAIN, "--target-epsilon", "1").stdout
    (line,) = [x for x in text.splitlines() if x.split()[:2] == ["a", "★"]]
    assert "Poisson-sampled DP-SGD" in line
    assert "every iterate" in line
    numbers = [float(word) for word in line.split() if word.replace(".", "").isdigit()]
    assert len(numbers) == 2
    assert "σ for ε ≤ 1" in text


def test_counts_may_be_written_in_powers() -> None:
    assert answer(*PLAN, "--n", "6e2", "--epochs", "+1e1")["derived"]["steps"] == 60


def test_secret_partition_adds_a_row() -> None:
    public = {r["id"] for r in answer(*PLAN, *CHAIN)["covered"]}
    secret = {r["id"] for r in answer(*PLAN, *CHAIN, "--secret-partition")["covered"]}
    assert secret - public == {"cyclic-final-secret"}


def test_adjacency_is_taken_in_any_spelling() -> None:
    data = answer(*PLAN, "--adjacency", "ADD_REMOVE")
    assert data["inputs"]["adjacency"] == "add-remove"
    assert {r["id"] for r in data["covered"]} == {"poisson", "full"}


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_plot(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    result = run(*PLAN, *CHAIN, "--plot", str(path))
    assert result.exit_code == 0, result.stderr
    assert "Plot written to" in result.stdout
    head = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[ending]
    assert path.read_bytes().startswith(head)
    assert path.stat().st_size > 8_000
    assert list(tmp_path.iterdir()) == [path]


def test_plot_with_json_reports_the_curves(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    data = answer(*PLAN, *CHAIN, "--plot", str(path))
    assert data["plot"] == str(path)
    assert {c["row"] for c in data["curves"]} == {r["row"] for r in data["covered"]}


# -- errors -----------------------------------------------------------------------------------------------


def one_line(result, code: int = 2) -> str:
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


BAD = {
    "--n": ["x", "nan", "inf", "0", "-5", "1.5", ""],
    "--batch": ["x", "nan", "0", "-1", "601", "2.5"],
    "--epochs": ["x", "nan", "0", "-1", "0.5"],
    "--sigma": ["x", "nan", "inf", "0", "-1"],
    "--clip": ["x", "nan", "inf", "0", "-1"],
    "--lr": ["x", "nan", "inf", "0", "-1"],
    "--l2": ["x", "nan", "inf", "-1"],
    "--smoothness": ["x", "nan", "inf", "0", "-1"],
    "--delta": ["x", "nan", "inf", "0", "1", "-1"],
    "--diameter": ["x", "nan", "inf", "0", "-1"],
    "--target-epsilon": ["x", "nan", "inf", "0", "-1"],
    "--adjacency": ["neighbours", "", "1"],
    "--plot": ["out", "out.bmp", "out.txt", "missing/out.png", ".", "folder.png"],
}


@pytest.mark.parametrize(("option", "value"), [(o, v) for o, values in BAD.items() for v in values])
def test_a_bad_value_is_one_line(option: str, value: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    args = ["--plot", "ok.png"] if option != "--plot" else []
    message = one_line(run(*PLAN, *CHAIN, *args, option, value))
    assert option.lstrip("-").replace("-", "_") in message.replace("-", "_")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.parametrize("option", ["--n", "--batch", "--epochs", "--sigma"])
def test_a_missing_option_is_named(option: str) -> None:
    at = PLAN.index(option)
    assert option in one_line(run(*PLAN[:at], *PLAN[at + 2 :]))


def test_a_missing_delta_is_suggested() -> None:
    message = one_line(run(*PLAN[:-2]))
    assert "1/n²" in message
    assert "2.8e-06" in message


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["--nonsense"],
        [*PLAN, "--nonsense"],
        [*PLAN, "extra"],
        [*PLAN, "--plot"],
        ["plan"],
        ["report"],
        ["plan", "--n", "1e300", *PLAN[3:5], "--epochs", "1e300", *PLAN[7:]],
    ],
)
def test_wrong_usage_is_one_line(args: list[str]) -> None:
    one_line(run(*args))


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a folder where nobody can write")
def test_a_failing_write_is_one_line() -> None:
    assert "cannot be written" in one_line(run(*PLAN, "--plot", "/proc/out.png"))


def test_a_folder_without_permission(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in one_line(run(*PLAN, "--plot", str(tmp_path / "out.png")))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 2, "MemoryError"),
        (OverflowError("too large"), 2, "too large"),
        (PermissionError(13, "Permission denied", "f"), 2, "Permission denied"),
        (TypeError("two\nlines"), 1, "internal: TypeError: two lines"),
    ],
)
def test_unforeseen_errors_are_one_line(monkeypatch, error: Exception, code: int, words: str) -> None:
    def broken(_: object) -> None:
        raise error

    monkeypatch.setattr("tacit.report.plan.make_report", broken)
    assert words in one_line(run(*PLAN), code)


def test_the_traceback_can_be_had(monkeypatch) -> None:
    monkeypatch.setenv("TACIT_TRACEBACK", "1")
    result = run(*PLAN, "--sigma", "0")
    assert isinstance(result.exception, ValueError)


def test_an_interrupt_ends_with_130(monkeypatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.report.plan.make_report", interrupted)
    result = run(*PLAN)
    assert result.exit_code == 130
    assert result.stdout == ""


# -- report -----------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    mechanism = Mechanism(
        adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(0.5, 30), steps=30, sampling=Poisson(1 / 6)
    )
    path = tmp_path / "certificate.json"
    path.write_text(certify(mechanism, delta=1e-5).to_json(), encoding="utf-8")
    return path


def test_report_prints_the_paragraph(saved: Path) -> None:
    from tacit.accounting import Certificate

    result = run("report", str(saved))
    assert result.exit_code == 0, result.stderr
    expected = Certificate.from_json(saved.read_text()).describe()
    assert " ".join(result.stdout.split()) == expected
    assert "[enforced]" in result.stdout  # not swallowed as markup
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_report_as_json_at_another_delta(saved: Path) -> None:
    result = run("report", str(saved), "--json", "--delta", "1e-7")
    data = json.loads(result.stdout)
    assert data["delta"] == 1e-7
    assert data["epsilon"] == poisson_epsilon(4.0, 1 / 6, 30, 1e-7, adjacency="replace-one")
    assert data["epsilon"] > data["claim"]["epsilon"]
    assert "1e-07" in data["description"]


def test_an_edited_certificate_is_refused(saved: Path) -> None:
    data = json.loads(saved.read_text())
    data["claim"]["epsilon"] /= 2
    saved.write_text(json.dumps(data))
    assert "edited" in one_line(run("report", str(saved)))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"null", b"\xff\xfe", b"{" * 5, b"[" * 100_000, b'{"plan": {}, "marks": [], "claim": {}}'],
)
def test_a_file_that_is_no_certificate(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert "not a certificate" in one_line(run("report", str(path)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("age,rich\n41,yes\n", "it is not JSON"),
        ('[{"age": 41, "rich": "yes"}]', "it is JSON with other content"),
        ('{"features": {}, "target": {}}', "it is JSON with other content"),
    ],
)
def test_a_table_is_no_certificate(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "people.csv"
    path.write_text(content)
    message = one_line(run("report", str(path)))
    assert f"people.csv is not a certificate or a model: {why}; give a file that" in message
    assert "tacit fit wrote" in message
    assert "41" not in message
    assert "char 0" not in message


def test_a_missing_certificate(tmp_path: Path) -> None:
    assert "No such file" in one_line(run("report", str(tmp_path / "x.json")))
    assert "directory" in one_line(run("report", str(tmp_path)))


@pytest.mark.parametrize("delta", ["0", "1", "nan", "x"])
def test_report_with_a_bad_delta(saved: Path, delta: str) -> None:
    one_line(run("report", str(saved), "--delta", delta))


# -- the program ------------------------------------------------------------------------------------------


def test_help_and_version() -> None:
    for args in ([], ["--help"], ["-h"]):
        result = run(*args)
        assert result.exit_code == 0
        for command in ("plan", "report"):
            assert command in result.stdout
    result = run("plan", "--help")
    assert all(option in result.stdout for option in BAD)
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("tacit ")


def test_a_real_process(tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    command = [sys.executable, "-m", "tacit.cli", *PLAN, *CHAIN, "--plot", str(path)]
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "ascii"}  # letters that ascii lacks become "?"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert path.stat().st_size > 20_000
    bad = subprocess.run([*command, "--sigma", "0"], capture_output=True, text=True, timeout=120, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: sigma must be positive, got 0.0\n"


@pytest.mark.parametrize("args", [["--help"], ["plan", "--help"], PLAN, [*PLAN, "--json"]], ids=str)
def test_a_reader_who_leaves_is_no_failure(args: list[str]) -> None:
    """As in ``tacit plan ... | head``."""
    done = without_reader(*args)
    assert (done.returncode, done.stderr) == (0, "")


def without_reader(*args: str) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "tacit.cli", *args]
        return subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    finally:
        os.close(writer)


def test_the_command_line_is_light() -> None:
    heavy = ("numba", "matplotlib", "dp_accounting", "scipy", "numpy", "rich")
    code = f"import sys, tacit.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = f"import sys, tacit.report; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
