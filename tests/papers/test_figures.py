"""The papers' figures: ours beside the published bounds, and never above them."""

from __future__ import annotations

import io
import json
import runpy
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from papers import figures
from papers.published import diffusion_rdp, theorem_2_8_mu

from tacit.accounting import gdp_epsilon, noisy_cyclic_mu

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "figures.py"


@pytest.mark.parametrize("name", figures.FIGURES)
def test_ours_never_exceeds_the_published_bound(name: str) -> None:
    compare, _ = figures.FIGURES[name]
    data = compare()
    assert 0 < data.min_ratio <= data.max_ratio <= 1 + 1e-9
    for series in data.series:
        assert np.isfinite(series.ours).all()
        assert np.isfinite(series.published).all()
        assert (series.ours > 0).all()


def test_figure_convex_relu_1_agrees_with_theorem_2_8() -> None:
    """Equal for two or more batches; at one batch ours is smaller."""
    data = figures.compare_convex_relu_1()
    assert data.min_ratio == pytest.approx(1, rel=1e-9)
    assert theorem_2_8_mu(2 / 15, 1 - 5.4e-5, 60, 400) == pytest.approx(0.34865, abs=1e-5)
    for k, epochs, c in ((2, 7, 0.9), (5, 1, 0.99), (60, 3, 0.5)):
        assert theorem_2_8_mu(0.3, c, k, epochs) == pytest.approx(noisy_cyclic_mu(k, epochs, c, 0.3), rel=1e-9)
    assert noisy_cyclic_mu(1, 20, 0.9, 0.3) < theorem_2_8_mu(0.3, 0.9, 1, 20)


def test_figure_convex_relu_1_ends_where_the_text_says() -> None:
    data = figures.compare_convex_relu_1()
    sampled, composed = data.references
    assert sampled.ours[-1] == pytest.approx(1.317, abs=1e-3)
    assert composed.ours[-1] == pytest.approx(gdp_epsilon(2 / 15 * 20, 1e-5))
    assert composed.ours[-1] == pytest.approx(14.3, abs=0.05)
    assert sampled.x[-1] == composed.x[-1] == 400
    slow, middle, fast = (series.ours[-1] for series in data.series)
    assert fast < middle < sampled.ours[-1] < slow  # the caption's remark on the exact DP-SGD line


def test_published_epochs_add_up_to_the_published_total() -> None:
    setting = figures.FIGURE_1
    o = setting.schedule(figures.ADAPTIVE)
    for j in (0, 12, 24):
        total = setting.alpha * diffusion_rdp(0.98, 0.05, o, 1.0, 100, j)
        assert setting.published_epochs(o, j).sum() == pytest.approx(total, rel=1e-12)
        assert setting.published_total(o, j) == pytest.approx(total, rel=1e-12)


def test_our_mixture_is_between_its_extremes() -> None:
    setting = figures.FIGURE_1
    o = setting.schedule(figures.CONSTANT[:5])
    rates = [setting.alpha * setting.ours(o, j) for j in range(setting.n_batches)]
    assert min(rates) < setting.ours_mixture(o) < max(rates)


def test_the_noise_rises_at_epoch_13() -> None:
    jumps = np.flatnonzero(np.diff(figures.ADAPTIVE)) + 2
    assert jumps.tolist() == [13]
    adaptive = figures.compare_dp_mbcd_1a().series[1]
    assert adaptive.published[12] < 0.5 * adaptive.published[11]


@pytest.mark.parametrize("name", figures.FIGURES)
def test_pictures_are_not_empty(name: str) -> None:
    _, draw = figures.FIGURES[name]
    figure = draw()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    assert buffer.getvalue().startswith(b"\x89PNG")
    buffer.seek(0)
    pixels = matplotlib.image.imread(buffer)
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 50
    for ax in figure.axes:
        assert ax.get_ylabel()


def test_the_benchmark_writes_and_passes(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["figures.py", str(tmp_path / "new")])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert stopped.value.code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["figure"] for line in lines] == [*figures.FIGURES, "plan"]
    assert (lines[-1]["ours"], lines[-1]["published"]) == pytest.approx((1.1963, 5.8702), abs=1e-4)  # README, row c
    assert all((tmp_path / "new" / line["file"]).stat().st_size > 20_000 for line in lines)


def test_the_benchmark_fails_if_ours_were_larger(tmp_path: Path, monkeypatch, capsys) -> None:
    good = figures.compare_dp_mbcd_1a()
    first = good.series[0]
    worse = figures.Comparison("x", (figures.Series("x", first.x, first.published * (1 + 1e-6), first.published),))
    monkeypatch.setattr(figures, "FIGURES", {"x": (lambda: worse, figures.figure_dp_mbcd_1a)})
    monkeypatch.setattr("sys.argv", ["figures.py", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    assert stopped.value.code == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["max_ratio"] > 1
