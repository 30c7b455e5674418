"""What an audit saw: the two score samples, and the observed error rates beside the claimed trade-off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from tacit.audit._inputs import Array
from tacit.audit.verdict import Certificate, certified_delta
from tacit.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tacit.audit._attack import ThresholdAudit

__all__ = ["plot_audit", "trade_off"]

# Two hues that stay apart for colour-blind readers (Okabe, Ito 2008), and one for the claim.
_BLUE, _ORANGE, _BLACK = "#0072B2", "#D55E00", "#222222"


def trade_off(certificate: Certificate, alpha: Array) -> Array:
    """The least false negative rate that a certificate allows at each false positive rate.

    f(α) = max(0, max_ε 1 − δ(ε) − e^ε α, max_ε e^{−ε} (1 − δ(ε) − α)) (Dong, Roth, Su 2022,
    Proposition 2.11), with ε on a grid, so that the curve is drawn from below.

    Args:
        certificate: the claim.
        alpha: false positive rates.

    Returns:
        f(α).
    """
    epsilon = np.concatenate([np.linspace(0, 2, 101), np.linspace(2, 30, 141)[1:]])
    room = 1 - certified_delta(certificate, epsilon)[:, None]
    growth = np.exp(epsilon)[:, None]
    lines = np.maximum(room - growth * alpha, (room - alpha) / growth)
    return np.asarray(np.maximum(lines.max(axis=0), 0.0))


def plot_audit(audit: ThresholdAudit, ax: Sequence[Axes] | None, certificate: Certificate | None) -> Figure:
    """Two panels: histograms of the fresh scores with the threshold, and the (α, β) plane.

    Args:
        audit: what to draw.
        ax: two axes, or None for a new figure (made without pyplot: nothing global, no display).
        certificate: the claim to draw, if any.

    Returns:
        The figure.

    Raises:
        InvalidInput: if ``ax`` is not a pair of axes.
    """
    if ax is None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
    else:
        if not isinstance(ax, Sequence | np.ndarray) or len(ax) != 2:
            raise InvalidInput("ax must be two axes, as from figure.subplots(1, 2), or None")
        left, right = ax
        figure = cast("Figure", left.figure)
    _draw_scores(left, audit)
    _draw_rates(right, audit, certificate)
    return figure


def _draw_scores(ax: Axes, audit: ThresholdAudit) -> None:
    both = np.concatenate([audit.scores_on_d, audit.scores_on_d2])
    low, high = np.quantile(both, [0.001, 0.999])
    low, high = min(low, audit.threshold), max(high, audit.threshold)
    margin = 0.05 * (high - low) if high > low else 0.5
    bins = np.linspace(low - margin, high + margin, 61).tolist()
    # Clipped, not dropped: an outlier shows in the last bin instead of stretching the axis.
    for scores, colour, label in ((audit.scores_on_d, _BLUE, "D"), (audit.scores_on_d2, _ORANGE, "D2")):
        ax.hist(np.clip(scores, bins[0], bins[-1]), bins=bins, color=colour, alpha=0.55, label=f"runs on {label}")
    side = "→" if audit.direction > 0 else "←"
    ax.axvline(audit.threshold, color=_BLACK, linestyle="--", label=f"threshold ({side} says D2)")
    ax.set(xlabel="score", ylabel="fresh runs", title=f"{audit.n_fresh} fresh runs a side")
    # Below the axes, where no histogram can be in the way.
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def _draw_rates(ax: Axes, audit: ThresholdAudit, certificate: Certificate | None) -> None:
    alpha_up, beta_up = audit.false_positive_upper, audit.false_negative_upper
    limit = min(1.0, 2.5 * max(alpha_up, beta_up))
    alpha = np.linspace(0, limit, 400)
    if limit > 0.5:  # else out of sight
        ax.plot(alpha, 1 - alpha, color="#999999", linestyle=":", label="pure guessing")
    if certificate is not None:
        claimed = trade_off(certificate, alpha)
        ax.plot(alpha, claimed, color=_BLACK, label="certificate: at least this")
        ax.fill_between(alpha, 0, claimed, color=_BLACK, alpha=0.08, linewidth=0)
    observed = audit.false_positives / audit.n_fresh, audit.false_negatives / audit.n_fresh
    ax.plot(*observed, "o", color=_ORANGE, label="observed")
    ax.plot(
        alpha_up,
        beta_up,
        "s",
        color=_ORANGE,
        fillstyle="none",
        label=f"{100 * audit.confidence:.4g} % bounds",
    )
    ax.set(
        xlim=(0, limit),
        ylim=(0, limit),
        xlabel="false positive rate α",
        ylabel="false negative rate β",
        title=audit.headline,
    )
    ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
