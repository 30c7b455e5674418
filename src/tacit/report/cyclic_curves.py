"""ε of the final model over epochs for several η·λ, drawn: Figure 1 of the convex ReLU paper at a plan's settings.

As long as η ≤ 2/(β + 2λ), step t contracts by 1 − η_t·λ, so that at a given noise ε depends on step and ridge through
their product alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacit import _validate
from tacit.accounting.pld import upper_only
from tacit.errors import InvalidInput
from tacit.mechanism import Partition, batch_count
from tacit.report.cyclic import TITLES, CyclicCurve, CyclicReport
from tacit.report.methods import METHODS
from tacit.report.plan import rounded_up
from tacit.report.settings import Settings
from tacit.solvers.hidden import CertifiedNumbers, plan_cyclic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["curves_of", "draw_cyclic", "figure_cyclic", "with_cyclic_curves"]

POINTS, POISSON_POINTS = 24, 12
LEAVES = 2.0
"""Poisson batches that need more than this times the largest ε of the final model leave the picture."""
COARSE = 5.0
"""Coarseness of the grid of Poisson points before the last: upper values, 0.1 % high, at a fifth of the work."""
LARGEST = 0.5
"""Products η·λ up to here are drawn: beyond, a run forgets within a step."""
_HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SAMPLED = "#222222"
"""Hues that stay apart for colour-blind readers (Okabe, Ito 2008)."""


# -- computing --------------------------------------------------------------------------------------------


def _epochs(last: int, points: int) -> list[int]:
    """At most about ``points`` integers from 1 to ``last``: close together at first, evenly spread later."""
    early, later = np.geomspace(1, last, points // 3), np.linspace(1, last, points - points // 3)
    return sorted({*np.concatenate([early, later]).round().astype(int).tolist(), 1, last})


def _default_products(plan: CertifiedNumbers) -> list[float]:
    """Around the plan's own η·λ; if that is 0, about 1, 3 and 10 over the steps: a start shrinks by e⁻¹, e⁻³, e⁻¹⁰."""
    own = plan.step_size * plan.l2
    wanted = [own / 10, own / 3, own, 3 * own] if own else [x / len(plan.step_sizes) for x in (0, 1, 3, 10)]
    return [value for value in (float(f"{x:.0e}") if x != own else own for x in wanted) if value <= LARGEST]


def _is_balanced(plan: CertifiedNumbers) -> bool:
    return float(plan.step_sizes[-1]) < plan.step_size


def _is_secret(plan: CertifiedNumbers) -> bool:
    return plan.partition is Partition.SECRET


def _batch_size(plan: CertifiedNumbers) -> int:
    """Plans keep k, not b: the least b with this k."""
    k = plan.n_batches
    first = max(1, int(plan.n / (k + 0.5)))
    return next(b for b in range(first, plan.n + 1) if batch_count(plan.n, b) == k)


def _with(plan: CertifiedNumbers, delta: float, epochs: int, step_size: float, l2: float) -> float:
    """ε of the plan with other epochs, step and ridge, at the same noise."""
    k = plan.n_batches
    found = plan_cyclic(
        None,
        delta,
        n=plan.n,
        batch_size=_batch_size(plan),
        epochs=epochs,
        bound=plan.bound,
        smoothness=plan.smoothness,
        l2=l2,
        step_size=step_size,
        decay=_is_balanced(plan) and k * epochs > 1,
        view=plan.view,
        adjacency=plan.adjacency,
        partition="secret" if _is_secret(plan) and plan.view == "final_model" else "fixed",
        noise_multiplier=plan.noise_multiplier,
    )
    return found.certificate.epsilon(delta)


def _hidden_curve(plan: CertifiedNumbers, delta: float, name: str, product: float, own: bool) -> CyclicCurve:
    eta, l2 = plan.step_size, plan.l2
    if not own:  # a step that would expand with this ridge is shortened: only the product counts
        eta = min(eta, 2 * (1 - product) / plan.smoothness)
        l2 = product / eta
    epochs = _epochs(plan.epochs, POINTS)
    epsilon = [_with(plan, delta, count, eta, l2) for count in epochs[:-1]]
    last = plan.certificate.epsilon(delta) if own else _with(plan, delta, plan.epochs, eta, l2)
    return CyclicCurve(name, product, own, tuple(epochs), (*epsilon, last))


def _sampled_curve(plan: CertifiedNumbers, delta: float, name: str) -> CyclicCurve | None:
    """Poisson batches with the plan's noise; None if that noise is too little, or the steps are too many."""
    run = Settings(
        n=plan.n,
        batch=_batch_size(plan),
        epochs=plan.epochs,
        sigma=plan.noise_multiplier,
        delta=delta,
        adjacency=plan.adjacency,
    )
    if METHODS[0].obstacle(run) is not None:
        return None
    sampled = replace(plan, view="all_iterates")
    epochs = _epochs(plan.epochs, POISSON_POINTS)
    with upper_only(COARSE):
        epsilon = [_with(sampled, delta, count, plan.step_size, plan.l2) for count in epochs[:-1]]
    last = _with(sampled, delta, plan.epochs, plan.step_size, plan.l2)
    return CyclicCurve(name, None, False, tuple(epochs), (*epsilon, last))


def curves_of(
    plan: CertifiedNumbers, delta: float, *, products: Sequence[float] | None = None, name: str | None = None
) -> tuple[CyclicCurve, ...]:
    """ε over epochs at a plan's noise: the final model for several η·λ, the plan's own among them, and Poisson batches.

    Args:
        plan: for the final model.
        delta: δ.
        products: values of η·λ, at most 1/2; by default four that show what it does, the plan's own among them.
        name: of the plan; by default "balanced" or "constant".

    Returns:
        The curves, by η·λ, and last that of Poisson batches with the same noise, unless it is too costly.

    Raises:
        InvalidInput: if the plan is one of Poisson batches, or a product is out of range.
    """
    if plan.view != "final_model":
        raise InvalidInput("this plan shows every iterate: draw a final-model one, Poisson batches are drawn beside it")
    d, own = _validate.delta(delta), plan.step_size * plan.l2
    wanted = _default_products(plan) if products is None else [_validate.nonnegative(products=p) for p in products]
    if max(wanted, default=0.0) > LARGEST:
        raise InvalidInput(f"products must be at most {LARGEST:g}, got {max(wanted):g}: such a run forgets at once")
    title = name or ("balanced" if _is_balanced(plan) else "constant")
    chosen = {p: False for p in wanted if abs(p - own) > 1e-3 * own} | {own: True}
    found = [_hidden_curve(plan, d, title, p, mine) for p, mine in sorted(chosen.items())]
    sampled = _sampled_curve(plan, d, title)
    return (*found, sampled) if sampled is not None else tuple(found)


def with_cyclic_curves(report: CyclicReport) -> CyclicReport:
    """The report with ε over epochs for each final-model plan; the plan's own curve ends at its ε."""
    delta = report.settings.checked_delta
    found = [curves_of(row.plan, delta, name=row.id) for row in report.rows if row.hidden]
    return replace(report, curves=tuple(curve for group in found for curve in group))


# -- drawing ----------------------------------------------------------------------------------------------


def figure_cyclic(*plans: CertifiedNumbers, delta: float, products: Sequence[float] | None = None) -> Figure:
    """ε of the final model over epochs for several η·λ, a panel for each plan (made without pyplot).

    Args:
        plans: final-model plans, e.g. one with balanced and one with constant steps.
        delta: δ.
        products: values of η·λ; see ``curves_of``.

    Returns:
        The figure.

    Raises:
        InvalidInput: if there is no plan, one is of Poisson batches, or a product is out of range.

    >>> from tacit.solvers.hidden import plan_cyclic
    >>> plan = plan_cyclic(1.0, 1e-5, n=600, batch_size=100, epochs=5)
    >>> figure_cyclic(plan, delta=1e-5, products=[0.01, 0.03]).savefig("epsilon.svg")  # doctest: +SKIP
    """
    if not plans:
        raise InvalidInput("nothing to draw: give at least one plan")
    return _draw([(plan, curves_of(plan, delta, products=products)) for plan in plans], delta)


def draw_cyclic(report: CyclicReport) -> Figure:
    """The figure of a report.

    Args:
        report: with curves.

    Returns:
        The figure.

    Raises:
        InvalidInput: if the report has no curves.
    """
    if not report.curves:
        raise InvalidInput("nothing to draw: the report has no curves")
    hidden = [row for row in report.rows if row.hidden]
    panels = [(row.plan, tuple(c for c in report.curves if c.id == row.id)) for row in hidden]
    return _draw(panels, report.settings.checked_delta)


def _draw(panels: Sequence[tuple[CertifiedNumbers, Sequence[CyclicCurve]]], delta: float) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(1.2 + 5.4 * len(panels), 5.4), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    products = sorted({c.product for _, curves in panels for c in curves if c.product is not None})
    hues = {product: _HUES[i % len(_HUES)] for i, product in enumerate(products)}
    hidden, sampled = (
        max((max(c.epsilon) for _, curves in panels for c in curves if (c.product is None) == poisson), default=0.0)
        for poisson in (False, True)
    )
    top = max(hidden, sampled) if sampled <= LEAVES * hidden else 1.3 * hidden
    for ax, (plan, curves) in zip(axes, panels, strict=True):
        ax.set_ylim(0, 1.06 * top)
        _panel(ax, plan, curves, hues)
    axes[0].set_ylabel(f"ε at δ = {delta:g}")
    figure.suptitle("The final model of noisy cyclic gradient descent: ε over epochs", fontsize=12)
    figure.supxlabel(_caption(panels, delta), fontsize=8.5, color="#444444", x=0.01, ha="left")
    return figure


def _panel(ax: Axes, plan: CertifiedNumbers, curves: Sequence[CyclicCurve], hues: dict[float, str]) -> None:
    from matplotlib.ticker import MaxNLocator

    colours = [_SAMPLED if curve.product is None else hues[curve.product] for curve in curves]
    for curve, colour in zip(curves, colours, strict=True):
        ax.plot(
            curve.epochs,
            curve.epsilon,
            color=colour,
            linestyle="--" if curve.product is None else "-",
            linewidth=2.4 if curve.own else 1.4,
            marker="o" if plan.epochs == 1 else "",
        )
    top = ax.get_ylim()[1]
    ends = [min(curve.epsilon[-1], top) for curve in curves]
    for curve, colour, end, height in zip(curves, colours, ends, _apart(ends, 0.052 * top), strict=True):
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
        ax.annotate(
            _label(curve, top),
            (plan.epochs, end),
            (1.055, height),
            textcoords=ax.get_yaxis_transform(),
            color=colour,
            fontsize=9.5,
            fontweight="bold" if curve.own else "normal",
            va="center",
            arrowprops={**leader, "relpos": (0, 0.5)},
            annotation_clip=False,
        )
    if plan.epochs > 1:
        ax.set_xlim(0, plan.epochs)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        ax.set(xlim=(0.5, 1.5), xticks=[1])
    ax.set_xlabel("epochs")
    ax.set_title(f"{TITLES[curves[0].id]}, σ/C = {rounded_up(plan.noise_multiplier)}", fontsize=11)
    ax.grid(True, color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _apart(values: Iterable[float], gap: float) -> list[float]:
    """The values, moved as little as needed so that neighbours are ``gap`` apart (labels must not overlap)."""
    heights = np.array(list(values))
    order = np.argsort(heights, kind="stable")
    blocks: list[list[float]] = []  # [sum of wanted positions of the first label, count]
    for height in heights[order]:
        blocks.append([float(height), 1])
        while len(blocks) > 1 and blocks[-1][0] / blocks[-1][1] < blocks[-2][0] / blocks[-2][1] + gap * blocks[-2][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total - gap * blocks[-1][1] * count
            blocks[-1][1] += count
    placed = [total / count + gap * i for total, count in blocks for i in range(int(count))]
    out = np.empty_like(heights)
    out[order] = np.array(placed) + max(0.0, gap / 2 - placed[0])
    return [float(height) for height in out]


def _label(curve: CyclicCurve, top: float) -> str:
    if curve.product is None:
        return "DP-SGD (Poisson)" if curve.epsilon[-1] <= top else f"DP-SGD, ends at {curve.epsilon[-1]:.3g}"
    return f"ηλ = {curve.product:.3g}" + (" (the plan)" if curve.own else "")


def _caption(panels: Sequence[tuple[CertifiedNumbers, Sequence[CyclicCurve]]], delta: float) -> str:
    plan = panels[0][0]
    batches = f"{plan.n_batches} batch{'es' if plan.n_batches > 1 else ''}{' (secret)' if _is_secret(plan) else ''}"
    sentences = [
        f"n = {plan.n}, {batches}, C = {plan.bound:.4g}, β = {plan.smoothness:.4g}, δ = {delta:g}, "
        f"{plan.adjacency.value}.",
        "Each point is a run planned for that many epochs, with the panel's noise. ηλ and σ are those of the first "
        "step; of η and λ only the product counts (η ≤ 2/(β + 2λ)).",
    ]
    if any(curve.product is None for _, curves in panels for curve in curves):
        sentences.append("Dashed: Poisson batches with the panel's noise, every iterate shown.")
    return textwrap.fill(" ".join(sentences), 95 * len(panels))
