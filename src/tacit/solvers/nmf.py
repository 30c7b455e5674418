"""Item factors of a non-negative factorisation from noisy sums: public starts, and updates that meet no record.

Rows of H are kept at norm 1 (M ≈ WH does not change if a row of H is scaled and the column of W inversely), so that the
norm of people's factors is bounded by that of their rows. A row that vanishes is drawn afresh from the public seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.kernels.nonnegative import nonnegative_rows
from tacit.problem import ElasticNet, moments_bound, moments_weight
from tacit.problem.blocks import Block, GradientStep, Position
from tacit.release.queries import ItemStatistic, symmetric
from tacit.release.queries.factors import PASSES, statistic_size
from tacit.solvers.schedules import NoiseSchedule, Optimised
from tacit.solvers.stages import positive_part

__all__ = [
    "UPDATES",
    "ItemSolve",
    "NMFOptions",
    "UnitRows",
    "item_block",
    "public_rows",
    "statistic_weight",
    "unused_options",
]

Array = NDArray[np.float64]
UPDATES = {
    "gradient": ItemStatistic.GRADIENT,
    "statistics": ItemStatistic.MOMENTS,
    "residuals": ItemStatistic.RESIDUALS,
}

CONTRIBUTION = {"gradient": 0.03, "statistics": 0.2, "residuals": 0.02}
"""C if nothing is said, in units of row_norm²: short enough that most people are clipped, and so weigh the same."""
RESIDUAL_WEIGHT = 0.3
"""α of residuals."""
MIN_CONTRIBUTION = 1e-12
"""The smallest C: its square must be an ordinary number."""
STEP_SIZE, PERSON_SHARE = 5.0, 0.5
"""If nothing is said."""
NOISE_RIDGE, DAMPING = 1.0, 0.3
"""How far statistics are trusted: the ridge in units of their noise, and the share of the way that a step goes."""

THRESHOLD = 2.5
"""Of statistics of more items than people, in units of their noise: most entries of H are then nothing but noise."""
HALF_LIFE = 3.0
"""Epochs after which half of a release's noise is taken as forgotten: longer than damping says, because early releases
find the way."""


@described("NMFOptions")
@dataclass(frozen=True)
class NMFOptions:
    """Settings of a factorisation that few people need; all of them are public, and none weakens a promise.

    Attributes:
        contribution_norm: C, the longest contribution of a person, in units of row_norm²; None for a value that did
            well for the update.
        noise_schedule: how noise is spread over the run: "constant", "linear", "step", "optimised" (for a half-life of
            3 epochs), ``Optimised(half_life)``, or a function (epoch, batch) → relative variance.
        step_size: of update="gradient", in units of 1/row_norm²; None for 5.
        l1: λ₁, on the items.
        l2: λ₂, on the items.
        person_l2: λ_w, on a person's factors.
        noise_threshold: taken off noisy statistics, in units of their noise, before H is solved for: helps where most
            items do not belong to most components. None for 2.5 where there are more items than people, else 0. Not
            for update="gradient".
        person_share: of μ², for people's factors, if they are released; None for a half.

    >>> NMFOptions(l1=0.01).l1
    0.01
    """

    contribution_norm: float | None = None
    noise_schedule: NoiseSchedule = "optimised"
    step_size: float | None = None
    l1: float = 0.0
    l2: float = 0.0
    person_l2: float = 0.0
    noise_threshold: float | None = None
    person_share: float | None = None

    def __post_init__(self) -> None:
        for name in ("contribution_norm", "step_size"):
            if getattr(self, name) is not None:
                _validate.positive(**{name: getattr(self, name)})
        for name in ("l1", "l2", "person_l2"):
            _validate.nonnegative(**{name: getattr(self, name)})
        if self.noise_threshold is not None:
            _validate.nonnegative(noise_threshold=self.noise_threshold)
        if self.person_share is not None and _validate.probability(person_share=self.person_share) == 1:
            raise InvalidInput("person_share must be below 1: the items need a part of the budget, too")

    @property
    def schedule(self) -> NoiseSchedule:
        """The noise schedule, "optimised" for the memory of a factorisation."""
        named = isinstance(self.noise_schedule, str) and self.noise_schedule == "optimised"
        return Optimised(HALF_LIFE) if named else self.noise_schedule


def unused_options(update: object, release: object) -> dict[str, str]:
    """Options that have no effect, each with the setting that makes it so.

    Args:
        update: of the factorisation.
        release: of the factorisation.

    Returns:
        name → "update='gradient'" or the like.
    """
    unused = {"person_share": f"release={release!r}"} if release == "items" else {}
    if update == "gradient":
        return unused | {"noise_threshold": f"update={update!r}"}
    return unused | {"step_size": f"update={update!r}"} if update in tuple(UPDATES) else unused


def public_rows(components: int, items: int, seed: int) -> Array:
    """Non-negative rows of norm 1 from a public seed: uneven enough to differ from each other."""
    rows = np.random.default_rng(seed).gamma(0.5, size=(components, items)) + 1e-3
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@described("UnitRows")
@dataclass(frozen=True)
class UnitRows:
    """Non-negative rows scaled to norm 1; rows without any positive entry start again.

    Attributes:
        seed: public.
    """

    seed: int

    def __call__(self, H: Array) -> Array:
        """The scaled rows."""
        out = np.nan_to_num(H, posinf=1e25)  # a copy; large blocks are worth not making more of them
        np.maximum(out, 0.0, out=out)
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        dead = norms[:, 0] < 1e-12
        if dead.any():
            out[dead], norms[dead] = public_rows(len(out), out.shape[1], self.seed + 1)[dead], 1.0
        out /= norms
        return out


@described("ItemSolve")
@dataclass(frozen=True)
class ItemSolve:
    """H from noisy statistics: (1 − γ)·H + γ·argmin_{H' ≥ 0} ½⟨H', SH'⟩ − ⟨T, H'⟩ + b·(λ₁‖H'‖₁ + λ₂/2‖H'‖²), per item.

    S is the noisy Σ wwᵀ made positive semi-definite, plus a ridge of the size of its noise; T is the noisy Σ wᵀm, or
    the noisy Σ wᵀ(m − wH) plus SH. All of it is a function of the release: post-processing.

    Attributes:
        weight: α, by which squares were multiplied.
        centred: whether the statistics are those of residuals.
        l1: λ₁ on H, per person. Entries whose solution it makes 0 become 0 at once.
        l2: λ₂ on H, per person.
        threshold: taken off T, in units of its noise: most of what is left of items that nobody touched is then 0.
        noise_ridge: the ridge, in units of σ_S√k.
        damping: γ in (0, 1], of a whole epoch: less than 1 averages the noise of several releases.
        rows: what keeps rows at norm 1.
    """

    weight: float
    centred: bool
    l1: float
    l2: float
    threshold: float
    noise_ridge: float
    damping: float
    rows: UnitRows

    def __call__(self, value: Array, noisy: Array, at: Position) -> Array:
        """The next H."""
        k, _ = value.shape
        square = k * (k + 1) // 2
        S = positive_part(symmetric(noisy[:square], k) / self.weight)
        S += self.noise_ridge * at.noise_std / self.weight * math.sqrt(k) * np.eye(k)
        T = noisy[square:].reshape(value.shape) - (at.expected * self.l1 + self.threshold * at.noise_std)
        if self.centred:
            T += S @ value
        S += at.expected * self.l2 * np.eye(k)
        new = nonnegative_rows(S, np.ascontiguousarray(T.T), PASSES).T
        gone = new == 0.0 if self.l1 > 0 else None
        kept = (1 - self.damping) ** (1 / at.n_batches)  # small batches go small ways
        new *= 1 - kept
        new += kept * value
        if gone is not None:
            new[gone] = 0.0
        return self.rows(new)


def statistic_weight(components: int, items: int, statistic: ItemStatistic) -> float:
    """α. For moments from how much noise on squares matters, compared with noise on products with items.

    An error E in S acts on H as E·H, whose entries are √(k/items) times as large as E's (rows of H have norm 1). With
    residuals it only acts on the *change* of H, and α is a constant that did well.

    Args:
        components: k.
        items: the number of columns.
        statistic: what is released.

    Returns:
        α.
    """
    if statistic is ItemStatistic.RESIDUALS:
        return RESIDUAL_WEIGHT
    return moments_weight(1.0, 1.0, components / items)


def item_block(
    components: int, items: int, update: str, options: NMFOptions, *, people: int, seed: int
) -> tuple[Block, float]:
    """The public description of H, and α.

    Args:
        components: k.
        items: the number of columns.
        update: "gradient", "statistics" or "residuals".
        options: the rest.
        people: the number of rows.
        seed: public.

    Returns:
        The block and α.

    Raises:
        InvalidInput: if contribution_norm is tiny.
    """
    statistic = UPDATES[_validate.one_of(tuple(UPDATES), update=update)]
    weight = statistic_weight(components, items, statistic)
    longest = 1.0 if statistic is ItemStatistic.GRADIENT else moments_bound(1.0, 1.0, weight)
    stated = CONTRIBUTION[update] if options.contribution_norm is None else options.contribution_norm
    bound = min(stated, longest)
    if bound < MIN_CONTRIBUTION:
        raise InvalidInput(
            f"contribution_norm must be at least {MIN_CONTRIBUTION:g}, got {stated!r}: squares would underflow"
        )
    start, rows = public_rows(components, items, seed), UnitRows(seed)
    size = statistic_size(components, items, statistic)
    if statistic is ItemStatistic.GRADIENT:
        penalty = ElasticNet.of(1, l1=options.l1, l2=options.l2, low=0.0)
        step = GradientStep(STEP_SIZE if options.step_size is None else options.step_size, penalty, rows)
        return Block("items", start, bound, step, size), weight
    threshold = options.noise_threshold
    if threshold is None:
        threshold = THRESHOLD if items > people else 0.0
    centred = statistic is ItemStatistic.RESIDUALS
    solve = ItemSolve(weight, centred, options.l1, options.l2, threshold, NOISE_RIDGE, DAMPING, rows)
    reach = 2 * bound if centred else math.sqrt(2) * bound
    return Block("items", start, bound, solve, size, diameter=reach), weight
