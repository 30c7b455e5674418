"""Exact composition of Gaussian releases (Dong, Roth, Su 2022, Corollary 3.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.curve import Gaussian
from tacit.accounting.theorem import ANY_VIEW, Accountant, Gap, Theorem, fixed_membership
from tacit.mechanism import (
    Adjacency,
    Cyclic,
    FullBatch,
    Independent,
    Mechanism,
    Separated,
    Shuffled,
    WithoutReplacement,
)

__all__ = ["GaussianComposition"]


class GaussianComposition(Accountant):
    """Adaptively chosen Gaussian releases with ratios r_k are exactly √(Σ r_k²)-GDP.

    Only releases that can read the record count: all of them for full batches and for fresh batches of a fixed
    size (no amplification is claimed), one per epoch for disjoint batches; the worst batch is taken.

    Formal guarantee: the whole sequence of releases, hence anything computed from it, is μ-GDP with
    μ = max over participation patterns of √(Σ r_k²).

    Assumptions: bounded contributions; independent Gaussian noise; ratios may depend on earlier releases only
    through quantities that keep Δ/σ at the stated value.
    """

    theorem: ClassVar[Theorem] = Theorem(
        "gaussian-composition",
        "exact Gaussian composition",
        "Dong, Roth, Su (2022), Gaussian Differential Privacy, Corollary 3.3",
        "every iterate",
    )
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "adjacency": tuple(Adjacency),
        "sampling": (FullBatch, Cyclic, Shuffled, WithoutReplacement, Separated),
        "noise": (Independent,),
        "view": ANY_VIEW,
    }

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Batches of fixed membership need a public n."""
        return fixed_membership(mechanism)

    def curve(self, mechanism: Mechanism) -> Gaussian:
        """√ of the largest Σ r² over the steps that one record can take part in."""
        return Gaussian(math.sqrt(_worst_energy(mechanism)))


def _worst_energy(mechanism: Mechanism) -> float:
    ratio, sampling = mechanism.step_ratio, mechanism.sampling
    if isinstance(sampling, FullBatch | WithoutReplacement):
        return ratio.sum_of_squares()
    if isinstance(sampling, Cyclic) and not ratio.is_constant:
        squares = ratio.to_array() ** 2
        return float(max(squares[j :: sampling.n_batches].sum() for j in range(sampling.n_batches)))
    if isinstance(sampling, Cyclic | Shuffled):
        if ratio.is_constant:
            return math.ceil(mechanism.steps / sampling.n_batches) * ratio.max**2
        squares = ratio.to_array() ** 2
        starts = np.arange(0, mechanism.steps, sampling.n_batches)
        return float(np.maximum.reduceat(squares, starts).sum())
    assert isinstance(sampling, Separated)  # the whitelist lets nothing else through
    visits = min(sampling.max_participations, math.ceil(mechanism.steps / sampling.min_separation))
    largest = np.sort(ratio.to_array())[::-1][:visits] if not ratio.is_constant else np.full(visits, ratio.max)
    return float((largest**2).sum())
