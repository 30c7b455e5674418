"""The threshold test that ``audit_gdp`` and ``audit_epsilon`` share: its counts, bounds and verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from tacit.audit import _inputs
from tacit.audit._inputs import Array, Sampler, Statistic
from tacit.audit._statistic import draw_scores
from tacit.audit._thresholds import Bound, choose_threshold, clopper_pearson_upper
from tacit.audit.verdict import Certificate, Verdict, judge_rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Observed", "ThresholdAudit", "attack"]


class Observed(TypedDict):
    """The fields of a ``ThresholdAudit``."""

    n_runs: int
    n_pilot: int
    confidence: float
    threshold: float
    direction: int
    false_positives: int
    false_negatives: int
    scores_on_d: Array
    scores_on_d2: Array


def attack(
    sample_on_D: Sampler,
    sample_on_D2: Sampler,
    n_runs: int,
    *,
    confidence: float,
    pilot: float,
    statistic: Statistic | None,
    bound: Bound,
) -> Observed:
    """Run both sides, choose a test on the pilot, count its errors on the fresh runs.

    Args:
        sample_on_D: outputs of k independent runs on D.
        sample_on_D2: outputs of k independent runs on D2.
        n_runs: runs a side.
        confidence: of the two error bounds together.
        pilot: the share of the runs that chooses the test.
        statistic: outputs to scores, row by row; None chooses one.
        bound: the lower bound that the audit reports, which the threshold is to maximise.

    Returns:
        The fields of the result.
    """
    confidence = _inputs.open_unit(confidence=confidence)
    n_pilot, n_fresh = _inputs.split_runs(n_runs, pilot, confidence)
    scores = draw_scores(sample_on_D, sample_on_D2, n_pilot, n_fresh, statistic)
    test = choose_threshold(scores.pilot_d, scores.pilot_d2, n_fresh, (1 - confidence) / 2, bound)
    return Observed(
        n_runs=n_pilot + n_fresh,
        n_pilot=n_pilot,
        confidence=confidence,
        threshold=test.value,
        direction=test.direction,
        false_positives=test.rejects(scores.fresh_d),
        false_negatives=n_fresh - test.rejects(scores.fresh_d2),
        scores_on_d=scores.fresh_d,
        scores_on_d2=scores.fresh_d2,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class ThresholdAudit(ABC):
    """What a test between D and D2 observed on runs that had no part in choosing it.

    The test says "D2" if ``direction · score > direction · threshold``. A false positive is a run on D
    that it attributes to D2; a false negative is a run on D2 that it attributes to D.

    Attributes:
        n_runs: runs a side, pilot included.
        n_pilot: runs a side that chose statistic, threshold and direction.
        confidence: the probability with which the two upper bounds hold together.
        threshold: the threshold on the score.
        direction: +1 or −1.
        false_positives: count among the ``n_runs − n_pilot`` fresh runs on D.
        false_negatives: count among the fresh runs on D2.
        scores_on_d: the fresh scores on D.
        scores_on_d2: the fresh scores on D2.
    """

    n_runs: int
    n_pilot: int
    confidence: float
    threshold: float
    direction: int
    false_positives: int
    false_negatives: int
    scores_on_d: Array = field(repr=False)
    scores_on_d2: Array = field(repr=False)

    @property
    def n_fresh(self) -> int:
        """Fresh runs a side: those that are counted."""
        return self.n_runs - self.n_pilot

    @property
    def false_positive_upper(self) -> float:
        """Clopper–Pearson upper bound on P[D2 claimed | D], at level (1 − confidence)/2."""
        return self._upper(self.false_positives)

    @property
    def false_negative_upper(self) -> float:
        """Clopper–Pearson upper bound on P[D claimed | D2], at level (1 − confidence)/2."""
        return self._upper(self.false_negatives)

    def _upper(self, errors: int) -> float:
        return float(clopper_pearson_upper(errors, self.n_fresh, (1 - self.confidence) / 2))

    @property
    @abstractmethod
    def headline(self) -> str:
        """The lower bound in a few words."""

    @abstractmethod
    def _claim(self, certificate: Certificate) -> tuple[str, float, float] | None:
        """(symbol, observed lower bound, certified value) for the verdict's message, if comparable."""

    def __str__(self) -> str:
        n, side = self.n_fresh, ">" if self.direction > 0 else "<"
        return (
            f"{self.headline} with {100 * self.confidence:.4g} % confidence\n"
            f"  {self.n_runs} runs a side, {self.n_pilot} of them to choose the test: "
            f"score {side} {self.threshold:.4g} means D2\n"
            f"  false positives: {self.false_positives} of {n}, rate ≤ {self.false_positive_upper:.4g}\n"
            f"  false negatives: {self.false_negatives} of {n}, rate ≤ {self.false_negative_upper:.4g}"
        )

    def verdict(self, certificate: Certificate) -> Verdict:
        """Whether the two error rates are impossible under the certificate, see ``Verdict``.

        Args:
            certificate: has ``delta(epsilon)`` and ``epsilon(delta)``; its ``mu``, if any, is quoted.

        Returns:
            The verdict.
        """
        return judge_rates(
            self.false_positive_upper,
            self.false_negative_upper,
            certificate,
            confidence=self.confidence,
            claim=self._claim(certificate),
        )

    def plot(self, ax: Sequence[Axes] | None = None, *, certificate: Certificate | None = None) -> Figure:
        """Draw the two score samples with the threshold, and the observed error rates beside the claim.

        Args:
            ax: two axes to draw on; None makes a figure, without pyplot and so without a display.
            certificate: its trade-off curve is drawn; rates below that curve contradict it.

        Returns:
            The figure.
        """
        from tacit.audit.plot import plot_audit

        return plot_audit(self, ax, certificate)
