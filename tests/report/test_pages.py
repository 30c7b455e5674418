"""Pages to file: self-contained, escaped, and with the numbers of the promise."""

from __future__ import annotations

import html.parser
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import DPLogisticRegression, DPSelection, DPStandardScaler, Ledger, save_model
from tacit._digits import format_up
from tacit._page import Line, page, paragraph, plot, table
from tacit.accounting import certify
from tacit.cli import app
from tacit.mechanism import Mechanism
from tacit.report.pages import ledger_page, model_page

VOID = {"meta", "br", "line", "polyline"}


class Balanced(html.parser.HTMLParser):
    """Fails where a tag is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


def check(text: str) -> None:
    """Well-formed, and nothing that leaves the page."""
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert not re.search(r"<script|<link|src=|href=|https?:|@import|url\(", text)
    assert "nan" not in text.lower().replace("finance", "")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2000, 3))
    y = (X[:, 0] + rng.normal(size=2000) > 0).astype(int)
    budget = Ledger(tmp_path_factory.mktemp("ledger") / "study.ledger", epsilon=4.0, delta=1e-6)
    model = DPLogisticRegression(epsilon=1.0, delta=1e-6, feature_bounds=(-1, 1), classes=[0, 1], ledger=budget)
    for _ in range(3):
        model.fit(X, y)
    return model, budget, X, y


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_certificate_writes_its_page(tmp_path, unit):
    certificate = certify(Mechanism(adjacency="zero-out", ratio=0.1, steps=7, unit=unit)).marked("declared: <b>x</b>")
    certificate.to_html(tmp_path / "page.html", 1e-7, title="Study <7>")
    text = (tmp_path / "page.html").read_text()
    check(text)
    assert format_up(certificate.epsilon(1e-7)) in text
    assert "Study &lt;7&gt;" in text
    assert "Declared: &lt;b&gt;x&lt;/b&gt;." in text
    assert certificate.digest in text
    for assumption in certificate.assumptions:
        assert assumption.text.split("<")[0][:40] in text or "&" in text
    assert ("records of one person" in text) == (unit == "record")


def test_a_model_shows_its_bounds_parameters_and_notes(fitted):
    model = fitted[0]
    text = model_page(model)
    check(text)
    assert "column 3" in text
    assert "DPLogisticRegression" in text
    assert "Ledger(" not in text
    assert format_up(model.certificate_.epsilon(1e-6)) in text


def test_a_ledger_shows_every_entry_and_what_is_left(fitted):
    budget = fitted[1]
    text = ledger_page(budget)
    check(text)
    assert text.count("<tr><td") == len(budget.entries()) == 3
    assert format_up(budget.spent().epsilon) in text
    assert "person" in text or "record" in text


def test_an_empty_ledger_has_a_page(tmp_path):
    check(ledger_page(Ledger(tmp_path / "x.ledger", epsilon=1.0, delta=1e-6)))


@pytest.mark.parametrize(
    "model",
    [
        DPStandardScaler(epsilon=1.0, delta=1e-6, feature_bounds=(-1, 1)),
        DPSelection(
            DPLogisticRegression(feature_bounds=(-1, 1), classes=[0, 1]), {"alpha": [0.1]}, epsilon=1.0, delta=1e-6
        ),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_models_have_pages(model, fitted):
    check(model_page(model.fit(*fitted[2:])))


def test_the_shell_writes_pages(fitted, tmp_path, monkeypatch):
    model, budget = fitted[0], fitted[1]
    monkeypatch.chdir(tmp_path)
    save_model(model, tmp_path / "model.json")
    (tmp_path / "certificate.json").write_text(model.certificate_.to_json())
    for given in ("model.json", "certificate.json"):
        done = CliRunner().invoke(app, ["report", given, "--html", "page.html"])
        assert done.exit_code == 0, done.output
        check((tmp_path / "page.html").read_text())
    done = CliRunner().invoke(app, ["ledger", str(budget.path), "--html", "ledger.html"])
    assert done.exit_code == 0, done.output
    check((tmp_path / "ledger.html").read_text())


# -- the pieces -----------------------------------------------------------------------------------------------------


def test_plots_scale_and_skip_what_is_not_finite():
    text = plot([Line("a", [1, 10, 100], [1.0, float("inf"), 3.0])], "x", "y", "z", logarithmic=True)
    points = re.search(r'points="([^"]+)"', text).group(1).split()
    assert len(points) == 2
    assert all(0 <= float(a) <= 640 and 0 <= float(b) <= 300 for a, b in (p.split(",") for p in points))
    assert plot([Line("a", [1], [1.0])], "x", "y", "z") == ""


@pytest.mark.parametrize("top", [1e-9, 0.03, 1.0, 7.7, 100.0, 12345.0])
def test_the_largest_value_is_inside_of_the_frame(top):
    text = plot([Line("", [0, 1], [0.0, top])], "x", "y", "z")
    assert min(float(p.split(",")[1]) for p in re.search(r'points="([^"]+)"', text).group(1).split()) >= 13.9


def test_text_is_escaped_everywhere():
    drawn = plot([Line("<e>", [0, 1], [0, 1])], "<f>", "<g>", '"<h>"')
    text = page("<a>", [paragraph("<b>"), table(["<c>"], [["<d>"]]), drawn], "<i>")
    check(text)
    assert not re.search(r"<[abcdefghi]>", text)
