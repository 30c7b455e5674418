"""A spectrum on logarithmic axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.torch.curvature.spectrum import Spectrum

__all__ = ["plot_spectrum"]

# Hues that stay apart for colour-blind readers (Okabe, Ito 2008).
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#666666"


def plot_spectrum(spectrum: Spectrum) -> Figure:
    """Eigenvalues by rank: computed, tail, its upper bound, eq. (4) alone, and the threshold.

    Args:
        spectrum: what to draw.

    Returns:
        A figure, made without pyplot: nothing global, no display.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    ax = figure.subplots()
    _draw(ax, spectrum)
    return figure


def _draw(ax: Axes, spectrum: Spectrum) -> None:
    values = spectrum.eigenvalues
    _draw_values(ax, spectrum)
    count = spectrum.count_above
    ax.axhline(count.threshold, color=_GREY, linestyle=":", linewidth=1.2)
    label = ax.annotate(
        f"threshold {count.threshold:g}: {count} above",
        (1, count.threshold),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
        color=_GREY,
        fontsize=9,
    )
    label.set_in_layout(False)  # a long label must not squeeze the axes
    ceiling = max(float(values.max(initial=0.0)), 10 * count.threshold)
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(0.9, 1.1 * len(values)),
        ylim=(count.threshold / 6, 3 * ceiling),
        xlabel="rank",
        ylabel="eigenvalue of the Hessian",
        title=f"{len(values)} parameters, {spectrum.records} public records",
    )
    ax.grid(which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 0.12))


def _draw_values(ax: Axes, spectrum: Spectrum) -> None:
    values, upper, k = spectrum.eigenvalues, spectrum.upper, len(spectrum.top)
    rank = np.arange(1, len(values) + 1)
    shown = values > 0
    if spectrum.fit is None:
        ax.plot(rank[shown], values[shown], color=_BLUE, linewidth=2, label=f"eigenvalues ({k} computed)")
        return
    beyond, tail = rank >= k, shown & (rank >= k)
    ax.fill_between(rank[tail], values[tail], upper[tail], color=_ORANGE, alpha=0.18, linewidth=0)
    ax.plot(rank[beyond], upper[beyond], color=_ORANGE, linewidth=1, alpha=0.6, label="upper bound of the tail")
    ax.plot(rank[tail], values[tail], color=_ORANGE, linewidth=2, label="tail: eq. (4) raised to the density")
    curve = spectrum.fit(rank)
    ax.plot(rank[curve > 0], curve[curve > 0], color=_GREY, linestyle="--", linewidth=1.2, label="eq. (4) alone")
    ax.plot(rank[:k], spectrum.top, "o", color=_BLUE, markersize=4, label=f"top {k}, computed")
