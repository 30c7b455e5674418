"""Plots: a file is written, without pyplot, a display or a warning; and what is drawn is what was claimed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from tacit.audit import audit_epsilon, audit_gdp
from tacit.audit.plot import trade_off
from tacit.errors import InvalidInput


def test_trade_off_of_a_gaussian_claim(gaussian_claim) -> None:
    alpha = np.linspace(0.001, 0.999, 200)
    drawn = trade_off(gaussian_claim(1.43), alpha)
    exact = norm.cdf(norm.ppf(1 - alpha) - 1.43)
    assert (drawn <= exact + 1e-12).all()
    assert np.max(exact - drawn) < 2e-3


@pytest.mark.parametrize("mu", [0.3, 1.43, 4.0, 9.0])
def test_file_is_written(mu: float, tmp_path: Path, gaussian_pair, gaussian_claim) -> None:
    pair = gaussian_pair(mu, np.random.default_rng(61))
    for number, figure in enumerate(
        (
            audit_gdp(*pair, 2000).plot(certificate=gaussian_claim(0.7 * mu)),
            audit_epsilon(*pair, 2000, 1e-5).plot(),
        )
    ):
        path = tmp_path / f"{number}.png"
        figure.savefig(path)
        assert path.stat().st_size > 10_000


def test_given_axes_are_used(tmp_path: Path, gaussian_pair, gaussian_claim) -> None:
    from matplotlib.figure import Figure

    audit = audit_gdp(*gaussian_pair(1.0, np.random.default_rng(62)), 1000)
    figure = Figure()
    axes = figure.subplots(1, 2)
    assert audit.plot(axes, certificate=gaussian_claim(1.0)) is figure
    labels = [text.get_text() for text in axes[1].get_legend().get_texts()]
    assert "certificate: at least this" in labels
    point = next(line for line in axes[1].lines if line.get_label() == "observed").get_xydata()[0]
    assert point == pytest.approx([audit.false_positives / 900, audit.false_negatives / 900])
    with pytest.raises(InvalidInput, match="two axes"):
        audit.plot(axes[0])


def test_constant_scores_can_be_drawn(tmp_path: Path) -> None:
    audit_gdp(lambda k: np.zeros(k), lambda k: np.zeros(k), 400).plot().savefig(tmp_path / "flat.png")


def test_import_is_light() -> None:
    code = "import sys, tacit.audit; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
