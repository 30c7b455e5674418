"""What ``tacit plan`` says is what the library says."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from tacit.accounting import (
    certify,
    gdp_epsilon,
    last_iterate_mu,
    noisy_cyclic_delta,
    noisy_cyclic_mu,
    poisson_epsilon,
)
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import Adjacency, Cyclic, Evidence, LastIterate, Schedule, batch_sizes
from tacit.problem import Squared
from tacit.release import Channel, GradientChain, Streams
from tacit.release.queries import LossGradient
from tacit.report import curves
from tacit.report.methods import METHODS
from tacit.report.plan import PlanReport, Row, make_report, rounded_up
from tacit.report.settings import Settings
from tacit.report.tables import print_plan
from tacit.solvers.hidden import plan_cyclic

PAPER = Settings(
    n=60000, batch=1000, epochs=400, sigma=15.0, delta=1e-5, lr=0.1, l2=1e-3, smoothness=0.5, secret_partition=True
)
SMALL = Settings(n=600, batch=100, epochs=5, sigma=4.0, delta=1e-5, lr=0.1, l2=0.01, smoothness=0.5)
C = 1 - 1e-4


@pytest.fixture(scope="module")
def paper() -> PlanReport:
    return make_report(PAPER)


def row(report: PlanReport, name: str) -> Row:
    return next(r for r in report.rows if r.method.id == name)


# -- numbers --------------------------------------------------------------------------------------------


def test_every_method_is_covered_under_replace_one(paper: PlanReport) -> None:
    assert [r.method.id for r in paper.rows] == [m.id for m in METHODS]
    assert [r.letter for r in paper.rows] == list("abcdefg")


def test_poisson_row(paper: PlanReport) -> None:
    expected = poisson_epsilon(15.0, 1 / 60, 24000, 1e-5, adjacency="replace-one")
    assert row(paper, "poisson").epsilon == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(1.317, abs=1e-3)  # errata E3


@pytest.mark.parametrize("name", ["cyclic", "full", "reshuffled"])
def test_composition_rows(paper: PlanReport, name: str) -> None:
    assert row(paper, name).epsilon == pytest.approx(gdp_epsilon(2 / 15 * 20, 1e-5), rel=1e-12)


def test_last_iterate_rows(paper: PlanReport) -> None:
    worst = noisy_cyclic_mu(60, 400, C, 2 / 15)
    assert row(paper, "cyclic-final").epsilon == pytest.approx(gdp_epsilon(worst, 1e-5), rel=1e-9)
    averaged = row(paper, "cyclic-final-secret").epsilon
    assert noisy_cyclic_delta(60, 400, C, 2 / 15, averaged) == pytest.approx(1e-5, rel=1e-6)
    full = last_iterate_mu([C] * 400, 2 / 15, 1.0)
    assert row(paper, "full-final").epsilon == pytest.approx(gdp_epsilon(full, 1e-5), rel=1e-9)


def test_the_tightest_row_of_each_view_is_marked(paper: PlanReport) -> None:
    assert {r.method.id for r in paper.rows if r.tightest} == {"poisson", "cyclic-final-secret"}


def test_units(paper: PlanReport) -> None:
    """Noise ησC/b in the space of the parameters, shift ηΔ/b, ratio Δ/(σC)."""
    (mechanism,) = row(paper, "cyclic-final").certificate.plan
    view = mechanism.view
    assert isinstance(view, LastIterate)
    assert view.noise_std.max == pytest.approx(0.1 * 15.0 / 1000)
    assert mechanism.ratio.max * view.noise_std.max == pytest.approx(0.1 * 2.0 / 1000)
    (full,) = row(paper, "full-final").certificate.plan
    assert full.view.noise_std.max == pytest.approx(0.1 * 15.0 / 60000)


def test_the_clip_changes_nothing_without_a_domain() -> None:
    wide = make_report(SMALL.replace(clip=7.0))
    for one, other in zip(make_report(SMALL).rows, wide.rows, strict=True):
        assert one.epsilon == pytest.approx(other.epsilon, rel=1e-12)


def test_zero_out_halves_the_ratio() -> None:
    zero = make_report(SMALL.replace(adjacency=Adjacency.ZERO_OUT, sigma=2.0))
    both = make_report(SMALL)
    for name in ("cyclic", "cyclic-final", "full", "full-final"):
        assert row(zero, name).epsilon == pytest.approx(row(both, name).epsilon, rel=1e-9)


def test_uneven_batches_have_their_own_noise_and_weight() -> None:
    s = SMALL.replace(n=1000, batch=300, secret_partition=True)
    assert (s.n_batches, s.batches, s.sizes, s.steps) == (3, ((334, 1), (333, 2)), "333 or 334", 15)
    report = make_report(s)
    (mechanism,) = row(report, "cyclic-final-secret").certificate.plan
    assert isinstance(mechanism.sampling, Cyclic)
    assert mechanism.sampling.weights is not None
    sizes = np.array([334, 333, 333])
    np.testing.assert_allclose(mechanism.sampling.weights.to_array(), sizes / 1000)
    np.testing.assert_allclose(mechanism.view.noise_std.to_array(), np.tile(0.1 * 4 / sizes, 5))
    c = 1 - 0.1 * 0.01
    worst = noisy_cyclic_mu(3, 5, c, 0.5, noise_std=1 / sizes)
    assert row(report, "cyclic-final").epsilon == pytest.approx(gdp_epsilon(worst, 1e-5), rel=1e-9)
    epsilon = row(report, "cyclic-final-secret").epsilon
    delta = noisy_cyclic_delta(3, 5, c, 0.5, epsilon, noise_std=1 / sizes, weights=sizes / 1000)
    assert delta == pytest.approx(1e-5, rel=1e-6)


SIZES = [(1000, 300), (600, 100), (650, 100), (10, 3), (7, 7), (7, 2), (1000, 999), (1000, 501), (5, 1)]


@pytest.mark.parametrize(("n", "b"), SIZES)
def test_every_row_is_a_run_of_ours(n: int, b: int) -> None:
    """The chain and the channel accept the certificates of the rows, with the batches that they draw."""
    s = SMALL.replace(n=n, batch=b, secret_partition=True, smoothness=1.0)
    report = make_report(s)
    total = LossGradient(Squared(), bound=1.0, row_norm=1.0)
    assert total.smoothness == 1.0
    assert {r.method.id for r in report.rows} >= {m.id for m in METHODS}
    for r in report.rows:
        assert r.runs
        (mechanism,) = r.certificate.plan
        channel = Channel(mechanism, r.certificate.digest, n, Streams(0))
        seen = [int(channel._draw(t).sum()) for t in range(mechanism.steps)]
        if r.method.hidden:
            k = 1 if r.method.full else s.n_batches
            GradientChain(Schedule.constant(0.1, mechanism.steps), 0.01, k, n).check(mechanism, total, n)
        if r.method.full or r.method.id == "poisson":
            assert r.method.id == "poisson" or set(seen) == {n}
        else:
            assert seen == np.tile(batch_sizes(n, s.n_batches), s.epochs).tolist()


@pytest.mark.parametrize(("n", "b"), SIZES)
def test_with_noise_and_without_the_batches_are_the_same(n: int, b: int) -> None:
    plan = plan_cyclic(
        None, 1e-5, n=n, batch_size=b, epochs=5, noise_multiplier=4.0, step_size=0.1, l2=0.01, decay=False
    )
    report = make_report(SMALL.replace(n=n, batch=b))
    assert report.settings.n_batches == plan.n_batches
    assert row(report, "cyclic-final").epsilon == pytest.approx(plan.certificate.epsilon(1e-5), rel=1e-9)
    sampled = plan_cyclic(None, 1e-5, n=n, batch_size=b, epochs=5, noise_multiplier=4.0, view="all_iterates")
    assert row(report, "poisson").epsilon == pytest.approx(sampled.certificate.epsilon(1e-5), rel=1e-9)


def printed(settings: Settings, width: int = 100) -> str:
    console = Console(width=width, highlight=False, file=io.StringIO())
    print_plan(make_report(settings), console)
    return " ".join(console.file.getvalue().split())


def test_the_batches_that_are_run_are_printed() -> None:
    text = printed(SMALL.replace(n=1000, batch=300))
    assert "b = 300: 3 batches of 333 or 334, 5 epochs, 15 steps" in text
    assert "batches hold 333 or 334 records instead of 300" in text
    assert "a record is read with probability 1/3, not 300/1000" in text
    assert "6 batches, 5 epochs" in printed(SMALL)
    assert "instead of" not in printed(SMALL)
    assert "1 batch, 5 epochs" in printed(SMALL.replace(batch=600))


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"diameter": 1.0}, {"cyclic-final", "full-final"}),
        ({"adjacency": Adjacency.ADD_REMOVE}, {"full-final"}),
        ({}, set()),
        ({"diameter": 1.0, "n": 10**7, "batch": 1000}, set()),  # the diameter is not used
    ],
)
def test_rows_that_no_code_of_ours_runs_say_so(changes: dict[str, object], names: set[str], width: int) -> None:
    s = SMALL.replace(**changes)
    report = make_report(s)
    assert {r.method.id for r in report.rows if not r.runs} == names
    assert {r["id"] for r in report.to_dict()["covered"] if not r["run_by_tacit"]} == names
    assert printed(s, width).count("certified, not run by Tacit") == len(names)
    total = LossGradient(Squared(), bound=1.0, row_norm=np.sqrt(0.5))
    for r in report.rows:
        if not r.runs:  # and indeed it is refused
            (mechanism,) = r.certificate.plan
            k = 1 if r.method.full else 6
            with pytest.raises(MechanismMismatch, match=r"bounded domain|add/remove"):
                GradientChain(Schedule.constant(0.1, mechanism.steps), 0.01, k, 600).check(mechanism, total, 600)


def test_a_bounded_domain_only_helps() -> None:
    tight = make_report(SMALL.replace(diameter=1e-3, epochs=50))
    loose = make_report(SMALL.replace(epochs=50))
    assert row(tight, "cyclic-final").epsilon < row(loose, "cyclic-final").epsilon
    too_many = PAPER.replace(batch=10, diameter=1e-3)
    assert not too_many.uses_diameter
    notes = [a.text for a in METHODS[2].notes(too_many)]
    assert any("--diameter is not used" in text for text in notes)


@pytest.mark.parametrize(("lr", "l2", "beta"), [(0.1, 1e-3, 0.5), (3.0, 0.1, 0.5), (5.0, 0.0, 1.0), (50.0, 0.1, 0.2)])
def test_contraction(lr: float, l2: float, beta: float) -> None:
    s = SMALL.replace(lr=lr, l2=l2, smoothness=beta)
    slopes = 1 - lr * np.linspace(l2, l2 + beta, 1001)  # of every quadratic between the two curvatures
    assert s.contraction == pytest.approx(np.abs(slopes).max())
    final = next(r for r in make_report(s).rows if r.method.id == "cyclic-final")
    expands = any("may expand (c > 1)" in a.text for a in final.assumptions)
    assert expands == (s.contraction > 1)
    assert final.epsilon == pytest.approx(gdp_epsilon(noisy_cyclic_mu(6, 5, s.contraction, 0.5), 1e-5), rel=1e-9)


# -- the noise for a target -------------------------------------------------------------------------------


def test_the_noise_for_a_target_reaches_it() -> None:
    report = make_report(SMALL.replace(target_epsilon=2.0, secret_partition=True))
    for r in report.rows:
        assert r.sigma_for_target is not None
        for factor, holds in ((1.0, True), (0.999, False)):
            plan = r.method.make(SMALL.replace(sigma=factor * r.sigma_for_target))
            assert (certify(plan, delta=1e-5).epsilon(1e-5) <= 2.0) == holds


def test_an_absurd_target_is_not_searched_for_by_sampling() -> None:
    report = make_report(SMALL.replace(target_epsilon=1e4))
    assert row(report, "poisson").sigma_for_target is None
    assert "promises nothing" in row(report, "poisson").target_note
    assert row(report, "cyclic").sigma_for_target is not None


# -- refusals -----------------------------------------------------------------------------------------------


def refused(report: PlanReport) -> set[tuple[str, str]]:
    return {(r.title, r.theorem.id) for r in report.refusals}


def test_without_smoothness_there_is_no_last_iterate() -> None:
    report = make_report(SMALL.replace(smoothness=None))
    assert {r.method.id for r in report.rows} == {"poisson", "cyclic", "full", "reshuffled"}
    reasons = [r.gap.reason for r in report.refusals if r.theorem.id == "last-iterate"]
    assert any(reason.startswith("refused: needs --smoothness") for reason in reasons)
    neither = make_report(SMALL.replace(smoothness=None, lr=None))
    assert any("--lr and --smoothness" in r.gap.reason for r in neither.refusals)


def test_what_is_always_refused(paper: PlanReport) -> None:
    assert refused(paper) == {
        ("cyclic fixed batches", "poisson-gaussian"),
        ("batches reshuffled every epoch", "poisson-gaussian"),
        ("reshuffled batches, final model", "last-iterate"),
        ("Poisson batches, final model", "last-iterate"),
        ("average of the iterates", "last-iterate"),
        ("momentum", "last-iterate"),
    }
    assert all(r.gap.reason and r.gap.remedy and r.formal for r in paper.refusals)


def test_a_public_partition_is_not_averaged_over() -> None:
    report = make_report(SMALL)
    (gap,) = [r.gap for r in report.refusals if r.theorem.id == "last-iterate-averaged"]
    assert gap.axis == "sampling.partition"
    assert "--secret-partition" in gap.remedy


def test_fixed_batches_are_refused_under_add_remove() -> None:
    report = make_report(SMALL.replace(adjacency=Adjacency.ADD_REMOVE, secret_partition=True))
    assert {r.method.id for r in report.rows} == {"poisson", "full", "full-final"}
    gaps = [r.gap for r in report.refusals if "batches" in r.title and r.theorem.id != "last-iterate"]
    assert len(gaps) == 3
    assert all("add/remove" in gap.reason for gap in gaps)
    assert any("nominal" in a.text for a in report.rows[0].assumptions)


@pytest.mark.parametrize(
    ("changes", "theorem"),
    [
        ({"sigma": 1e-3}, "poisson-gaussian"),
        ({"n": 10**12, "batch": 7}, "poisson-gaussian"),
        ({"n": 10**12, "batch": 7}, "last-iterate"),
        ({"lr": 1e300, "smoothness": 1e300}, "last-iterate"),
    ],
)
def test_extreme_values_are_refused_row_by_row(changes: dict[str, float], theorem: str) -> None:
    report = make_report(SMALL.replace(**changes))
    assert theorem in {r.theorem.id for r in report.refusals if not r.formal}
    assert not any(math.isnan(r.epsilon) for r in report.rows)


def test_hardly_any_noise_promises_nothing() -> None:
    assert all(r.epsilon > 1e100 for r in make_report(SMALL.replace(sigma=1e-300)).rows)


def test_a_late_refusal_becomes_a_row_of_the_second_table(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotCovered("delta=1e-5 is too small; raise delta", axis="delta")

    monkeypatch.setattr("tacit.report.plan.certify", refuse)
    report = make_report(SMALL)
    assert not report.rows
    assert ("delta=1e-5 is too small", "raise delta") in {(r.gap.reason, r.gap.remedy) for r in report.refusals}
    console = Console(width=80, file=io.StringIO())
    print_plan(report, console)
    assert "No theorem covers any of the methods" in console.file.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0}, {"n": 1.5}, {"batch": 601}, {"batch": 0}, {"epochs": 0}, {"epochs": -1}, {"sigma": 0.0},
        {"sigma": math.nan}, {"sigma": math.inf}, {"clip": 0.0}, {"clip": -1.0}, {"lr": 0.0}, {"lr": math.nan},
        {"l2": -1.0}, {"l2": math.nan}, {"smoothness": 0.0}, {"delta": None}, {"delta": 0.0}, {"delta": 1.0},
        {"diameter": 0.0}, {"target_epsilon": 0.0}, {"adjacency": "neighbours"},
    ],
)  # fmt: skip
def test_bad_settings(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        SMALL.replace(**changes)
    assert next(iter(changes)) in str(caught.value)


# -- assumptions and output ---------------------------------------------------------------------------------


def test_assumptions_name_who_vouches(paper: PlanReport) -> None:
    final = row(paper, "cyclic-final")
    assert set(final.certificate.assumptions) <= set(final.assumptions)
    by_evidence = {e: [a.text for a in final.assumptions if a.evidence is e] for e in Evidence}
    assert any("ridge λ = 0.001" in text for text in by_evidence[Evidence.DECLARED])
    assert any("2/(β+λ)" in text for text in by_evidence[Evidence.CHECKED])
    assert any("only the last iterate" in text for text in by_evidence[Evidence.ENFORCED])


def test_plain_data_is_json_even_with_infinities() -> None:
    report = make_report(SMALL.replace(sigma=1e-300, target_epsilon=1.0))
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert "inf" in {r["epsilon"] for r in json.loads(text)["covered"]}


@pytest.mark.parametrize("value", [1.19630768, 14.33, 1e-7, 0.99999, 9.9991, 123456.7, 3.0, 1e300, 0.1, 0.0])
def test_numbers_are_rounded_up(value: float) -> None:
    shown = float(rounded_up(value))
    assert value <= shown <= value * 1.0011


def test_rounding_of_infinity() -> None:
    assert rounded_up(math.inf) == "∞"


@pytest.mark.parametrize("width", [30, 50, 80, 120, 200])
@pytest.mark.parametrize("target", [None, 1.0])
def test_the_text_fits_and_is_complete(paper: PlanReport, width: int, target: float | None) -> None:
    report = dataclasses.replace(paper, settings=PAPER.replace(target_epsilon=target))
    console = Console(width=width, highlight=False, file=io.StringIO())
    print_plan(report, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for r in report.rows:
        assert rounded_up(r.epsilon) in text
        assert r.theorem.id in text.replace("\n", "")
    for word in ("[enforced]", "[checked]", "[declared]", "★", "Not covered", "What each theorem certifies"):
        assert word in " ".join(text.split())


# -- curves -------------------------------------------------------------------------------------------------


def test_curves_end_at_the_rows_and_grow() -> None:
    report = curves.with_curves(make_report(SMALL.replace(epochs=60)))
    assert len(report.curves) == len(report.rows)
    for curve in report.curves:
        assert curve.epochs[0] == 1
        assert curve.epochs[-1] == 60
        assert curve.epsilon[-1] == curve.row.epsilon
        assert list(curve.epochs) == sorted(set(curve.epochs))
        assert all(a <= b * (1 + 1e-6) for a, b in zip(curve.epsilon, curve.epsilon[1:], strict=False))
    middle = next(c for c in report.curves if c.row.method.id == "cyclic-final")
    mu = noisy_cyclic_mu(6, middle.epochs[7], 1 - 0.1 * 0.01, 0.5)
    assert middle.epsilon[7] == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-9)


def test_equal_curves_are_drawn_once() -> None:
    figure = curves.draw_plan(curves.with_curves(make_report(SMALL)))
    (ax,) = figure.axes
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(labels) == len(ax.get_lines()) == 4
    assert any(label.startswith("b, d, f  exact Gaussian composition") for label in labels)
    for word in ("n = 600", "b = 100", "σ = 4", "δ = 1e-05", "replace-one"):
        assert word in ax.get_title()


@pytest.mark.parametrize("changes", [{"epochs": 1}, {"n": 100}, {"smoothness": None}, {"sigma": 1e-300}])
def test_odd_plans_can_be_drawn(changes: dict[str, object]) -> None:
    figure = curves.draw_plan(curves.with_curves(make_report(SMALL.replace(**changes))))
    figure.canvas.draw()


def test_nothing_to_draw() -> None:
    with pytest.raises(InvalidInput, match="nothing to draw"):
        curves.draw_plan(PlanReport(SMALL, (), ()))
