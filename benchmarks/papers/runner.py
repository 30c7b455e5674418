"""Figure 1 of DP-MBCD from the runner's own schedules: what the paper would print beside what the certificate says.

``papers.figures`` computes the same picture from arrays of noise, for the last iterate of one block. Here every
number comes from plans of ``tacit.plan_blocks``, i.e. from the noise that ``BlockDescent`` adds: the paper's recursion
(Corollary 4.5 with Lemma C.3, iterated, L_T = 1; errata E7, E8) on a plan's noise, and the certificate's composition,
which holds for every iterate and for any number of blocks, where the sum of recursions does not (errata E6).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from papers.figures import ADAPTIVE, CONSTANT, EPOCHS_1, FIGURE_1
from papers.published import published_epsilon
from tacit import _validate
from tacit.problem.blocks import Block, GradientStep
from tacit.solvers.blocks import BlockPlan, plan_blocks
from tacit.solvers.schedules import NoiseSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SCHEDULES", "RunnerSeries", "figure_1_plan", "figure_1_runner", "plan_noise", "runner_series", "sharp_rise"]

Array = NDArray[np.float64]
DELTA = 1e-5
RISE_AT = 13
"""The epoch, from 1, at which the paper's adaptive noise rises."""
_HUES = {"constant noise": "#0072B2", "adaptive noise": "#D55E00"}


def sharp_rise(epoch: int, batch: int) -> float:
    """Relative variance that rises fivefold at epoch 13; the paper prints neither of its schedules."""
    del batch
    return 1.0 if epoch + 1 < RISE_AT else float(ADAPTIVE[-1] / ADAPTIVE[0])


SCHEDULES: dict[str, tuple[NoiseSchedule, float]] = {
    "constant noise": ("constant", float(CONSTANT[0])),
    "adaptive noise": (sharp_rise, float(ADAPTIVE[0])),
}
"""What ``plan_blocks`` is given, and o of the first epoch, the least of all."""


@dataclass(frozen=True, eq=False)
class RunnerSeries:
    """One schedule of Figure 1, all of it per order α = 10 unless it says ε.

    Attributes:
        label: of the schedule.
        epochs: K = 1 … 20.
        noise: o(k) of the longest plan.
        certified: α·μ²/2 of the plans' certificates: the composition of all releases that read one record.
        published: ε_K(α), the paper's recursion on the plans' noise, mixed over the record's batch (Theorem 4.6).
        certified_epochs: what each epoch adds to the composition, K = 20.
        published_epochs: ε_K(α, j₀, k) averaged over j₀, K = 20.
        certified_epsilon: ε at δ = 1e-5 by the certificates.
        published_epsilon: what the paper would print there, for the worst batch.
    """

    label: str
    epochs: NDArray[np.int64]
    noise: Array
    certified: Array
    published: Array
    certified_epochs: Array
    published_epochs: Array
    certified_epsilon: Array
    published_epsilon: Array


def figure_1_plan(label: str, epochs: int) -> BlockPlan:
    """The plan of a run in the setting of Figure 1: S_g = 1, b = 100, n = 2500, L_F = 0.98, L_T = 1, η = 0.05.

    A replaced record moves a batch's sum by S_g, and so the state by ηS_g/b; its noise has the variance 2η·o.

    Args:
        label: of a schedule in ``SCHEDULES``.
        epochs: K.

    Returns:
        The plan.
    """
    schedule, least = SCHEDULES[_validate.one_of(tuple(SCHEDULES), label=label)]
    eta, b, s = FIGURE_1.step_size, FIGURE_1.batch_size, FIGURE_1.sensitivity
    block = Block("theta", np.zeros(1), s / 2, GradientStep(eta))
    return plan_blocks(
        None,
        DELTA,
        blocks=[block],
        n=b * FIGURE_1.n_batches,
        batch_size=b,
        epochs=epochs,
        noise_schedule=schedule,
        noise_multiplier=math.sqrt(2 * eta * least) * b / (eta * s),
    )


def plan_noise(plan: BlockPlan) -> Array:
    """o(k, j) of a plan: the state's noise η·σ/b has the variance 2η·o.

    Args:
        plan: for one block.

    Returns:
        (epochs, batches).
    """
    (block,) = plan.blocks
    assert isinstance(block.update, GradientStep)
    assert isinstance(block.update.step_size, float)
    sigma = plan.mechanism.adjacency.sum_factor * block.bound / plan.mechanism.ratio.to_array()
    state = block.update.step_size * sigma / plan.expected
    return np.asarray(state**2 / (2 * block.update.step_size)).reshape(plan.epochs, plan.n_batches)


@functools.cache
def runner_series(label: str) -> RunnerSeries:
    """All curves of a schedule.

    Args:
        label: of a schedule in ``SCHEDULES``.

    Returns:
        The curves.

    >>> constant = runner_series("constant noise")
    >>> round(float(constant.certified[-1]), 3), round(float(constant.published[-1]), 2)
    (25.0, 1.73)
    """
    epochs = np.arange(1, EPOCHS_1 + 1)
    plans = [figure_1_plan(label, int(k)) for k in epochs]
    last, o = plans[-1], plan_noise(plans[-1])
    rates = FIGURE_1.alpha * (last.ratio[:, 0] ** 2 / 2).reshape(o.shape)
    positions = range(last.n_batches)
    return RunnerSeries(
        label=label,
        epochs=epochs,
        noise=o[:, 0],
        certified=np.array([FIGURE_1.alpha * _mu(plan) ** 2 / 2 for plan in plans]),
        published=np.array([FIGURE_1.published_mixture(plan_noise(plan)) for plan in plans]),
        certified_epochs=rates.mean(axis=1),
        published_epochs=np.mean([FIGURE_1.published_epochs(o, j) for j in positions], axis=0),
        certified_epsilon=np.array([plan.certificate.epsilon(DELTA) for plan in plans]),
        published_epsilon=np.array([_claimed(plan) for plan in plans]),
    )


def _mu(plan: BlockPlan) -> float:
    mu = plan.certificate.mu
    assert mu is not None  # cyclic batches compose exactly
    return mu


def _claimed(plan: BlockPlan) -> float:
    found = published_epsilon(plan.mechanism, DELTA, [FIGURE_1.lipschitz])
    assert found is not None  # cyclic batches
    return found


# -- drawing ------------------------------------------------------------------------------------------------------


def figure_1_runner() -> Figure:
    """DP-MBCD, Figure 1(a) and (b), from the runner's schedules (made without pyplot)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.8, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for label, hue in _HUES.items():
        series = runner_series(label)
        _pair(left, series.epochs, series.certified, series.published, hue, label)
        _pair(right, series.epochs, series.certified_epochs, series.published_epochs, hue, label)
    left.set(ylabel="Rényi loss at α = 10", xlabel="epochs K", ylim=(0, None), title="(a) all epochs together")
    right.set(ylabel="Rényi loss at α = 10, epoch k alone", xlabel="epoch k", title="(b) epoch by epoch, K = 20")
    right.set_yscale("log")
    for ax in (left, right):
        ax.set_xticks(range(0, EPOCHS_1 + 1, 2))
        ax.grid(True, color="#dddddd", linewidth=0.6)
        _noise_axis(ax)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.supxlabel(_caption(), fontsize=8.5, color="#444444", x=0.01, ha="left")
    return figure


def _pair(ax: Axes, x: NDArray[np.int64], certified: Array, published: Array, hue: str, label: str) -> None:
    ax.plot(x, certified, "-", color=hue, marker="o", markersize=3, label=f"{label}: certificate")
    ax.plot(x, published, "--", color=hue, marker="s", markersize=3, fillstyle="none", label=f"{label}: paper's figure")


def _noise_axis(ax: Axes) -> None:
    """The noise of the longest plans, on the right."""
    other = ax.twinx()
    top = 0.0
    for label, hue in _HUES.items():
        series = runner_series(label)
        other.step(series.epochs, 1e5 * series.noise, where="mid", color=hue, linestyle=":", linewidth=1)
        top = max(top, float(1e5 * series.noise.max()))
    other.set_ylim(0, 1.25 * top)
    other.set_ylabel("noise o(k) · 10⁵ (dotted)", labelpad=6)


def _caption() -> str:
    (constant, adaptive) = (runner_series(label) for label in SCHEDULES)
    ends = [
        f"{name} {series.certified_epsilon[-1]:.3g} (paper: {series.published_epsilon[-1]:.3g})"
        for name, series in (("constant", constant), ("adaptive", adaptive))
    ]
    return (
        "DP-MBCD, Figure 1, from the plans of plan_blocks: n = 2500, b = 100, $S_g$ = 1, $L_F$ = 0.98, $L_T$ = 1, "
        "η = 0.05, replace-one. The paper prints neither schedule.\n"
        "Certificate: composition, for every iterate and any number of blocks. Paper's figure: its recursion, for the "
        "last iterate; valid for one block only (errata E6).\n"
        f"ε at δ = 1e-5 after 20 epochs: {'; '.join(ends)}."
    )
