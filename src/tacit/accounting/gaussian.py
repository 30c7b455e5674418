"""Exact composition of Gaussian releases (Dong, Roth, Su 2022, Corollary 3.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from tacit.accounting.curve import Gaussian
from tacit.accounting.theorem import ANY_VIEW, EVERY_ITERATE, Gap, Theorem, fixed_membership
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


class GaussianComposition(Theorem):
    """Adaptively chosen Gaussian releases with ratios r_k are exactly √(Σ r_k²)-GDP.

    Only releases that can read the record count: all of them for full batches and for fresh batches of a fixed
    size (no amplification is claimed), one per epoch for disjoint batches; the worst batch is taken.

    Formal guarantee: the whole sequence of releases, hence anything computed from it, is μ-GDP with
    μ = max over participation patterns of √(Σ r_k²).

    Assumptions: bounded contributions; independent Gaussian noise; ratios may depend on earlier releases only
    through quantities that keep Δ/σ at the stated value.
    """

    id: ClassVar[str] = "gaussian-composition"
    name: ClassVar[str] = "exact Gaussian composition"
    reference: ClassVar[str] = "Dong, Roth, Su (2022), Gaussian Differential Privacy, Corollary 3.3"
    view: ClassVar[str] = EVERY_ITERATE
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
        return Gaussian(math.sqrt(mechanism.sampling.worst_energy(mechanism.step_ratio)))

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        ways = (FullBatch(), Cyclic(3), Shuffled(3), WithoutReplacement(0.2), Separated(3, 4))
        return tuple(replace(plain, sampling=way) for way in ways)
