"""Plans for a target and their curves are those of the library."""

from __future__ import annotations

import io
import itertools
import json
import math

import matplotlib.image
import numpy as np
import pytest
from matplotlib.text import Text
from rich.console import Console

from tacit.accounting import certify, gdp_epsilon, last_iterate_mu, noisy_cyclic_mu, poisson_epsilon
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Evidence
from tacit.report import cyclic_curves
from tacit.report.cyclic import CyclicReport, CyclicRow, make_cyclic
from tacit.report.cyclic_curves import curves_of, draw_cyclic, figure_cyclic, with_cyclic_curves
from tacit.report.plan import rounded_up
from tacit.report.settings import CyclicSettings
from tacit.report.tables import print_cyclic
from tacit.solvers.hidden import plan_cyclic
from tacit.solvers.schedules import decaying

PAPER = CyclicSettings(n=60_000, batch=500, epochs=50, delta=1e-5, target_epsilon=1.33)
SMALL = CyclicSettings(n=600, batch=100, epochs=20, delta=1e-5, target_epsilon=2.0)


@pytest.fixture(scope="module")
def paper() -> CyclicReport:
    return with_cyclic_curves(make_cyclic(PAPER))


@pytest.fixture(scope="module")
def small() -> CyclicReport:
    return with_cyclic_curves(make_cyclic(SMALL))


def row(report: CyclicReport, name: str) -> CyclicRow:
    return next(r for r in report.rows if r.id == name)


def curve(report: CyclicReport, name: str, product: float | None) -> cyclic_curves.CyclicCurve:
    return next(c for c in report.curves if c.id == name and c.product == product)


# -- the plans ----------------------------------------------------------------------------------------------


def test_the_plans_are_those_of_plan_cyclic(paper: CyclicReport) -> None:
    sizes = {"n": 60_000, "batch_size": 500, "epochs": 50}
    wanted = {"balanced": {}, "constant": {"decay": False}, "poisson": {"view": "all_iterates"}}
    assert [r.id for r in paper.rows] == list(wanted)
    for name, options in wanted.items():
        plan = plan_cyclic(1.33, 1e-5, **sizes, **options)
        assert row(paper, name).plan.sigma == plan.sigma
        assert row(paper, name).plan.contraction == plan.contraction
    assert not paper.refusals


def test_the_noise_reaches_the_target_and_hardly_more(paper: CyclicReport) -> None:
    for r in paper.rows:
        again = certify(r.plan.certificate.plan, delta=1e-5).epsilon(1e-5)
        assert again == r.epsilon
        assert 1.33 * (1 - 1e-3) <= again <= 1.33


def test_the_noise_reaches_the_target_without_our_plans(paper: CyclicReport) -> None:
    """From (c, d, s) of each step alone: the theorem's numbers, not a certificate."""
    for name, shape in (("balanced", decaying(6000)), ("constant", np.ones(6000))):
        plan = row(paper, name).plan
        eta, noise = 4 * shape, plan.sigma * shape**-0.5
        shift = np.where(np.arange(6000) % 120 == 119, eta * 2 * 2**0.5 / 500, 0.0)  # the last batch is the worst
        mu = last_iterate_mu(1.0, shift, eta * noise / 500)
        assert gdp_epsilon(mu, 1e-5) == pytest.approx(1.33, rel=1e-6)
    nm = row(paper, "poisson").plan.noise_multiplier
    assert poisson_epsilon(nm, 1 / 120, 6000, 1e-5, adjacency="replace-one") == pytest.approx(1.33, rel=1e-5)


def test_options_reach_the_plans() -> None:
    options = {"clip": 3.0, "smoothness": 0.25, "l2": 0.1, "lr": 1.5, "adjacency": "zero-out"}
    report = make_cyclic(SMALL.replace(**options))
    for r in report.rows:
        assert (r.plan.bound, r.plan.smoothness, r.plan.l2, r.plan.step_size) == (3.0, 0.25, 0.1, 1.5)
        assert r.plan.certificate.adjacency.value == "zero-out"
    assert row(report, "constant").plan.contraction == pytest.approx(max(1 - 0.15, abs(1 - 1.5 * 0.35)))
    halved = make_cyclic(SMALL.replace(adjacency="zero-out"))
    ratio = row(make_cyclic(SMALL), "constant").plan.sigma / row(halved, "constant").plan.sigma
    assert ratio == pytest.approx(2, rel=1e-5)


def test_a_secret_partition_needs_less_noise() -> None:
    public, secret = make_cyclic(SMALL), make_cyclic(SMALL.replace(secret_partition=True))
    for name in ("balanced", "constant"):
        assert row(secret, name).plan.sigma < row(public, name).plan.sigma
        assert row(secret, name).theorem.id == "last-iterate-averaged"
    assert row(secret, "poisson").plan.sigma == row(public, "poisson").plan.sigma


def test_assumptions_name_who_vouches(paper: CyclicReport) -> None:
    balanced, poisson = row(paper, "balanced"), row(paper, "poisson")
    assert set(balanced.plan.certificate.assumptions) < set(balanced.assumptions)
    declared = [a.text for a in balanced.assumptions if a.evidence is Evidence.DECLARED]
    assert any("those of softmax" in text for text in declared)
    assert any("of the first step" in text for text in declared)
    assert poisson.assumptions == poisson.plan.certificate.assumptions
    other = make_cyclic(SMALL.replace(clip=1.0)).rows[0]
    assert not any("softmax, clipped soundly" in a.text for a in other.assumptions)


def test_one_step_has_the_noise_that_it_states() -> None:
    for r in make_cyclic(SMALL.replace(batch=600, epochs=1)).rows:
        assert gdp_epsilon(2 / r.plan.noise_multiplier, 1e-5) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0}, {"batch": 601}, {"epochs": 0}, {"target_epsilon": 0.0}, {"target_epsilon": None},
        {"target_epsilon": math.nan}, {"clip": 0.0}, {"lr": 0.0}, {"l2": -1.0}, {"smoothness": 0.0},
        {"smoothness": None}, {"delta": None}, {"delta": 1.0}, {"adjacency": "neighbours"},
    ],
)  # fmt: skip
def test_bad_settings(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(changes))):
        SMALL.replace(**changes)


def test_what_is_refused() -> None:
    with pytest.raises(NotCovered, match="add-remove"):
        make_cyclic(SMALL.replace(adjacency="add-remove"))
    with pytest.raises(InvalidInput, match="expands"):
        make_cyclic(SMALL.replace(lr=4.1))
    with pytest.raises(InvalidInput, match="steps are more than"):
        make_cyclic(SMALL.replace(n=10**12))


def sampling_fails(epsilon: float | None, delta: float, **options: object):
    if options.get("view") == "all_iterates":
        raise OverflowError("too wide")
    return plan_cyclic(epsilon, delta, **options)


@pytest.mark.parametrize("target", [60.0, 2.0])
def test_poisson_batches_may_fail_alone(target: float, monkeypatch) -> None:
    if target < 50:
        monkeypatch.setattr("tacit.report.cyclic.plan_cyclic", sampling_fails)
    report = with_cyclic_curves(make_cyclic(SMALL.replace(target_epsilon=target)))
    assert [r.id for r in report.rows] == ["balanced", "constant"]
    (refusal,) = report.refusals
    assert refusal.theorem.id == "poisson-gaussian"
    assert ("promises nothing" if target > 50 else "too wide") in refusal.gap.reason
    draw_cyclic(report).draw_without_rendering()


def test_plain_data_survives_json_and_can_be_certified_again(small: CyclicReport) -> None:
    data = small.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    for found in data["plans"]:
        again = plan_cyclic(
            None,
            found["delta"],
            n=data["inputs"]["n"],
            batch_size=data["inputs"]["batch"],
            epochs=found["epochs"],
            bound=found["clip"],
            smoothness=found["smoothness"],
            l2=found["l2"],
            step_size=found["step_size"],
            decay=found["last_step_size"] < found["step_size"],
            view="final_model" if found["may_be_released"] == "the final model" else "all_iterates",
            noise_multiplier=found["noise_multiplier"],
        )
        assert again.certificate.epsilon(1e-5) == found["epsilon"]
        assert again.sigma == found["sigma"]
        assert again.noise[-1] * again.noise_multiplier == found["last_noise_multiplier"]


# -- the text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 50, 80, 120])
@pytest.mark.parametrize("changes", [{}, {"l2": 0.013, "target_epsilon": 60.0}, {"n": 607}])
def test_the_text_fits_and_is_complete(small: CyclicReport, width: int, changes: dict[str, float]) -> None:
    report = make_cyclic(SMALL.replace(**changes)) if changes else small
    console = Console(width=width, highlight=False, file=io.StringIO())
    print_cyclic(report, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for r in report.rows:
        assert rounded_up(r.plan.sigma) in text
        assert rounded_up(r.plan.noise_multiplier) in text
        assert r.title in " ".join(text.split())
    for word in ("[enforced]", "[checked]", "[declared]", "Noise, steps and ridge"):
        assert word in " ".join(text.split())
    assert ("Not covered" in text) == bool(report.refusals)
    assert ("101 or 102" in " ".join(text.split())) == ("n" in changes)


@pytest.mark.parametrize(("beta", "shown"), [(0.7, ["2.857", "0.02857"]), (0.75, ["2.666", "0.02666"])])
def test_printed_steps_are_never_longer(beta: float, shown: list[str]) -> None:
    """2/0.7 = 2.85714…, 2/0.75 = 2.66666…, of which the nearest with four digits would be too long."""
    console = Console(width=100, highlight=False, file=io.StringIO())
    print_cyclic(make_cyclic(SMALL.replace(smoothness=beta)), console)
    (line,) = [x.split() for x in console.file.getvalue().splitlines() if x.split()[:1] == ["η"]]
    assert line[1:] == [shown[0], "→", shown[1], shown[0], shown[0]]


# -- curves -------------------------------------------------------------------------------------------------


def test_own_curves_end_at_the_certificates(paper: CyclicReport) -> None:
    for name in ("balanced", "constant"):
        (own,) = [c for c in paper.curves if c.id == name and c.own]
        assert own.epochs[-1] == 50
        assert own.epsilon[-1] == row(paper, name).plan.certificate.epsilon(1e-5)


def test_constant_curves_are_the_accountants(paper: CyclicReport) -> None:
    ratio = 2 / row(paper, "constant").plan.noise_multiplier
    products = [c.product for c in paper.curves if c.id == "constant" and c.product is not None]
    assert products == sorted(products)
    assert products[0] == 0 < products[1]
    for product in products:
        found = curve(paper, "constant", product)
        for epochs, epsilon in list(zip(found.epochs, found.epsilon, strict=True))[::5]:
            mu = noisy_cyclic_mu(120, epochs, 1 - product, ratio)
            assert epsilon == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-6)


def test_balanced_points_are_plans_of_their_own_length(paper: CyclicReport) -> None:
    nm = row(paper, "balanced").plan.noise_multiplier
    for product in (0.0, 0.002):
        found = curve(paper, "balanced", product)
        for at in (0, len(found.epochs) // 2, -1):
            shape = decaying(120 * found.epochs[at])
            c, noise = 1 - product * shape, shape**-0.5
            mu = noisy_cyclic_mu(120, found.epochs[at], c, 2 / (nm * noise), noise_std=shape * noise)
            assert found.epsilon[at] == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-6)


def test_without_ridge_more_epochs_cost_more(paper: CyclicReport) -> None:
    constant, balanced = (curve(paper, name, 0.0) for name in ("constant", "balanced"))
    assert (np.diff(constant.epsilon) > 0).all()
    later = np.array(balanced.epsilon)[np.array(balanced.epochs) >= 3]  # shorter, a schedule falls within an epoch
    assert (np.diff(later) > 0).all()


def test_contraction_flattens_the_curves(paper: CyclicReport) -> None:
    for name in ("constant", "balanced"):
        group = [c for c in paper.curves if c.id == name and c.product is not None]
        ends = [c.epsilon[-1] for c in group]
        assert ends == sorted(ends, reverse=True)
        free, most = group[0], group[-1]
        half = len(free.epochs) // 2
        assert most.epsilon[-1] - most.epsilon[half] < 0.05 * (free.epsilon[-1] - free.epsilon[half])


def test_poisson_curves_are_the_accountants(paper: CyclicReport) -> None:
    for name in ("constant", "balanced"):
        found, nm = curve(paper, name, None), row(paper, name).plan.noise_multiplier
        exact = [poisson_epsilon(nm, 1 / 120, 120 * e, 1e-5, adjacency="replace-one") for e in found.epochs]
        assert found.epsilon[-1] == exact[-1]
        assert all(a <= b <= 1.01 * a for a, b in zip(exact, found.epsilon, strict=True))  # coarse, but upper values
        assert (np.diff(found.epsilon) > 0).all()


def test_only_the_product_counts() -> None:
    """A shorter step with more ridge costs the same."""
    sizes = {"n": 600, "batch_size": 100, "epochs": 5, "noise_multiplier": 4.0, "decay": False}
    curves = [
        curves_of(plan_cyclic(None, 1e-5, **sizes, step_size=eta), 1e-5, products=[0.01])[1] for eta in (0.5, 1.0, 4.0)
    ]
    for other in curves[1:]:
        np.testing.assert_allclose(other.epsilon, curves[0].epsilon, rtol=1e-9)


@pytest.mark.parametrize(("n", "b"), [(100, 7), (10, 1), (103, 60), (607, 100), (5, 2), (9, 9), (1000, 13)])
def test_curves_keep_the_plans_batches(n: int, b: int) -> None:
    plan = plan_cyclic(None, 1e-5, n=n, batch_size=b, epochs=3, noise_multiplier=3.0, l2=0.2)
    own = next(c for c in curves_of(plan, 1e-5) if c.own)
    again = cyclic_curves._with(plan, 1e-5, 3, plan.step_size, plan.l2)
    assert own.epsilon[-1] == pytest.approx(again, rel=1e-12)


def test_products_are_checked() -> None:
    plan = plan_cyclic(2.0, 1e-5, n=600, batch_size=100, epochs=5)
    for bad in (-1e-3, 0.6, math.nan):
        with pytest.raises(InvalidInput, match="products"):
            curves_of(plan, 1e-5, products=[bad])
    with pytest.raises(InvalidInput, match="every iterate"):
        curves_of(plan_cyclic(2.0, 1e-5, n=600, batch_size=100, epochs=5, view="all_iterates"), 1e-5)
    with pytest.raises(InvalidInput, match="nothing to draw"):
        figure_cyclic(delta=1e-5)
    with pytest.raises(InvalidInput, match="nothing to draw"):
        draw_cyclic(make_cyclic(SMALL))


# -- pictures -----------------------------------------------------------------------------------------------


def test_the_picture(paper: CyclicReport) -> None:
    figure = draw_cyclic(paper)
    assert [ax.get_title() for ax in figure.axes] == ["balanced steps, σ/C = 3.277", "constant steps, σ/C = 6.835"]
    for ax in figure.axes:
        assert len(ax.get_lines()) == len(ax.texts) == 5
        assert ax.texts[0].get_text() == "ηλ = 0 (the plan)"
        assert ax.texts[-1].get_text() == "DP-SGD (Poisson)"
    caption = " ".join(figure.get_supxlabel().split())
    for word in ("n = 60000", "120 batches", "δ = 1e-05", "replace-one", "β = 0.5"):
        assert word in caption


def boxes(figure) -> list:
    figure.draw_without_rendering()
    return [[Text.get_window_extent(label) for label in ax.texts] for ax in figure.axes]  # without their leaders


@pytest.mark.parametrize(
    "changes", [{}, {"epochs": 1}, {"batch": 600}, {"l2": 0.05}, {"batch": 600, "epochs": 1}, {"target_epsilon": 60.0}]
)
def test_labels_do_not_overlap_and_stay_inside(changes: dict[str, object]) -> None:
    figure = draw_cyclic(with_cyclic_curves(make_cyclic(SMALL.replace(**changes))))
    for found in boxes(figure):
        heights = sorted((box.y0, box.y1) for box in found)
        assert all(below[1] <= above[0] + 1 for below, above in itertools.pairwise(heights))
        assert all(box.x1 <= figure.bbox.x1 for box in found)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    buffer.seek(0)
    assert len(np.unique(matplotlib.image.imread(buffer).reshape(-1, 4), axis=0)) > 50


def test_one_panel_per_plan() -> None:
    plan = plan_cyclic(2.0, 1e-5, n=600, batch_size=100, epochs=5)
    figure = figure_cyclic(plan, delta=1e-5, products=[0.01, 0.02])
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts][:3] == ["ηλ = 0 (the plan)", "ηλ = 0.01", "ηλ = 0.02"]
    figure.draw_without_rendering()
    assert figure._supxlabel.get_window_extent().x1 <= figure.bbox.x1


def test_labels_are_moved_as_little_as_needed() -> None:
    assert cyclic_curves._apart([3.0, 1.0], 0.5) == [3.0, 1.0]
    assert cyclic_curves._apart([2.0, 2.0], 0.5) == pytest.approx([1.75, 2.25])
    placed = np.array(cyclic_curves._apart([1.0, 1.01, 1.02, 5.0, 0.0], 0.5))
    assert (np.diff(np.sort(placed)) >= 0.5 - 1e-12).all()
    assert placed.min() >= 0.25 - 1e-12
