"""What the adversary sees, and for a hidden state all that a proof about its last value may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.mechanism.frozen import FrozenArray, Schedule

__all__ = [
    "AllIterates",
    "BlockSweeps",
    "Evidence",
    "LastIterate",
    "Memory",
    "NoiseShape",
    "Output",
    "Rounding",
    "Start",
    "View",
]


@described("Evidence")
class Evidence(Enum):
    """What an assumption rests on."""

    ENFORCED = "enforced"  # the code clips, projects, samples
    CHECKED = "checked"  # from public quantities, before any record is read
    DECLARED = "declared"  # by the user


@described("Output")
class Output(Enum):
    """What leaves the hidden chain."""

    LAST_ITERATE = "the last iterate"
    AVERAGE = "an average of iterates"
    CHECKPOINTS = "intermediate iterates or losses"


@described("Memory")
class Memory(Enum):
    """What the chain carries from step to step besides its noised state."""

    NONE = "nothing"
    MOMENTUM = "momentum"
    PER_RECORD = "per-record state"


@described("NoiseShape")
class NoiseShape(Enum):
    """Which part of the state receives noise in one step."""

    ISOTROPIC = "the whole state, isotropically"
    COORDINATE = "one coordinate or block at a time"


@described("Start")
class Start(Enum):
    """Where the chain starts."""

    PUBLIC = "a public point"
    RELEASED = "a point released earlier in the same plan"


@described("Rounding")
@dataclass(frozen=True, kw_only=True)
class Rounding:
    """The lattice of a hidden chain in exact arithmetic: X_k = g·(⌊φ̂_k(X_{k−1})/g⌉ + ⌊s_k Z_k/g⌉), Z standard normal.

    φ̂_k, computed in float64, first projects the state onto a public ball, so that it stays within ρ_k of the ideal map.

    Attributes:
        unit: g, a power of two.
        sizes: how many coordinates the state has; of block sweeps, each block.
        radius: of the ball around 0.
        error: ρ_k ≥ sup‖φ̂_k − φ_k‖, per step; of block sweeps, ρ_i per block.
    """

    unit: float
    sizes: tuple[int, ...]
    radius: float
    error: Schedule

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", _validate.positive(unit=self.unit))
        if math.frexp(self.unit)[0] != 0.5:
            raise InvalidInput(
                f"unit must be a power of two, got {self.unit!r}: others are not exact in floating point"
            )
        if not (isinstance(self.sizes, tuple) and self.sizes):
            raise InvalidInput("sizes must be a tuple of positive whole numbers, e.g. (10,)")
        object.__setattr__(self, "sizes", tuple(_validate.positive_int(sizes=size) for size in self.sizes))
        object.__setattr__(self, "radius", _validate.positive(radius=self.radius))
        if not isinstance(self.error, Schedule):
            raise InvalidInput("error must be a Schedule: Schedule.constant(value, steps)")

    @property
    def spreads(self) -> NDArray[np.float64]:
        """g·√d_i: twice the farthest that rounding to the lattice moves each block."""
        return self.unit * np.sqrt(np.array(self.sizes, np.float64))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        plain = cls(unit=2.0**-30, sizes=(10,), radius=100.0, error=Schedule.constant(1e-12, 6))
        return (plain, replace(plain, sizes=(4, 9), error=Schedule([1e-12, 1e-9])))


LONGER = 1 + 2.0**-40
"""Factor of a sum of a few rounded numbers that makes it no less than the exact one."""


class View:
    """What the adversary sees. A subclass is a frozen dataclass with ``@described``; theorems list those they cover."""

    start: Start = Start.PUBLIC

    def check(self, ratio: Schedule, steps: int, releases: int) -> None:
        """Refuse a view that does not fit the rest of its mechanism.

        Args:
            ratio: Δ/σ per step or per release.
            steps: of the mechanism.
            releases: per step.
        """


@described("AllIterates")
@dataclass(frozen=True)
class AllIterates(View):
    """Every release is seen."""

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(),)


@described("LastIterate")
@dataclass(frozen=True, kw_only=True)
class LastIterate(View):
    """Only the end of the chain x_k = φ_k(x_{k−1}) + N(0, s_k² I) is seen.

    Attributes:
        lipschitz: c_k, a Lipschitz constant of φ_k, per step.
        noise_std: s_k in the space of x, per step; only its proportions matter, and the unit of ``diameter``. A step
            without noise must not read a record: its ratio is 0.
        diameter: of a bounded domain that every step projects onto, or None.
        output: what leaves the chain.
        memory: what else it carries.
        noise_shape: which part of the state is noised.
        start: where it starts.
        evidence: what the Lipschitz constants rest on.
        rounding: the lattice that the chain moves on in exact arithmetic; None in floating point.
    """

    lipschitz: Schedule
    noise_std: Schedule
    diameter: float | None = None
    output: Output = Output.LAST_ITERATE
    memory: Memory = Memory.NONE
    noise_shape: NoiseShape = NoiseShape.ISOTROPIC
    start: Start = Start.PUBLIC
    evidence: Evidence = Evidence.DECLARED
    rounding: Rounding | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        for name in ("lipschitz", "noise_std"):
            if not isinstance(getattr(self, name), Schedule):
                raise InvalidInput(f"{name} must be a Schedule over the steps: Schedule.constant(value, steps)")
        if self.diameter is not None:
            object.__setattr__(self, "diameter", _validate.positive(diameter=self.diameter))

    def check(self, ratio: Schedule, steps: int, releases: int) -> None:
        """One value per step, one release per step, and noise wherever a record is read.

        Args:
            ratio: Δ/σ per step.
            steps: of the mechanism.
            releases: per step.

        Raises:
            InvalidInput: naming what does not fit.
        """
        for name in ("lipschitz", "noise_std"):
            if len(getattr(self, name)) != steps:
                raise InvalidInput(f"view.{name} must hold one value per step ({steps})")
        if releases != 1:
            raise InvalidInput("a last-iterate view has one release per step: its noise covers the whole state")
        if self.rounding is not None and (len(self.rounding.error) != steps or len(self.rounding.sizes) != 1):
            raise InvalidInput(f"view.rounding must hold one size, and one error per step ({steps})")
        if self.noise_std.min == 0 < ratio.max:
            _refuse_silent((self.noise_std.to_array() == 0) & (ratio.to_array() > 0), "step")

    def rounding_shift(self) -> NDArray[np.float64]:
        """(1 + c_k)·g·√d + 2ρ_k: how much farther than c_k·z + d_k rounding lets two chains move apart, per step."""
        c = self.lipschitz.to_array()
        if self.rounding is None:
            return np.zeros_like(c)
        return np.asarray(LONGER * ((1 + c) * self.rounding.spreads[0] + 2 * self.rounding.error.to_array()))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        plain = cls(lipschitz=Schedule([0.9, 1.0], [3, 3]), noise_std=Schedule.constant(2.0, 6))
        other = replace(
            plain,
            diameter=3.0,
            output=Output.AVERAGE,
            memory=Memory.MOMENTUM,
            noise_shape=NoiseShape.COORDINATE,
            start=Start.RELEASED,
            evidence=Evidence.CHECKED,
        )
        return (plain, other, replace(plain, rounding=Rounding.examples()[0]))


@described("BlockSweeps")
@dataclass(frozen=True, kw_only=True)
class BlockSweeps(View):
    """Only the end is seen of sweeps that update blocks one after another, each with its own noise.

    Block i moves by a map with Lipschitz constant ``coupling[i, j]`` in block j and receives N(0, s_i² I).

    Attributes:
        coupling: (p, p), non-negative.
        noise_std: s_i, shape (p,).
        output: what leaves the chain.
        memory: what else it carries.
        start: where it starts.
        evidence: what the coupling rests on.
        rounding: the lattice that the blocks move on in exact arithmetic; None in floating point.
    """

    coupling: FrozenArray
    noise_std: FrozenArray
    output: Output = Output.LAST_ITERATE
    memory: Memory = Memory.NONE
    start: Start = Start.PUBLIC
    evidence: Evidence = Evidence.DECLARED
    rounding: Rounding | None = field(default=None, metadata={"absent": None})

    def __post_init__(self) -> None:
        if not (isinstance(self.coupling, FrozenArray) and isinstance(self.noise_std, FrozenArray)):
            raise InvalidInput("coupling and noise_std must be FrozenArray(...)")
        L, s = self.coupling.values, self.noise_std.values
        if L.ndim != 2 or L.shape[0] != L.shape[1] or s.shape != (L.shape[0],):
            raise InvalidInput(f"coupling must be (p, p) and noise_std (p,), got {L.shape} and {s.shape}")
        if (L < 0).any() or (s < 0).any() or not np.isfinite(L).all():
            raise InvalidInput("coupling and noise_std must not be negative")

    def check(self, ratio: Schedule, steps: int, releases: int) -> None:
        """One release per block, and noise on every block whose release reads a record.

        Args:
            ratio: Δ/σ per step or per release.
            steps: sweeps.
            releases: per sweep.

        Raises:
            InvalidInput: naming what does not fit.
        """
        s = self.noise_std.values
        if len(s) != releases:
            raise InvalidInput("a block-sweep view has one release per block and step: set releases to p")
        if self.rounding is not None and not len(self.rounding.error) == len(self.rounding.sizes) == len(s):
            raise InvalidInput(f"view.rounding must hold one size and one error per block ({len(s)})")
        if (s == 0).any() and ratio.max > 0:
            read = ratio.to_array().reshape(steps, -1).max(axis=0) > 0
            _refuse_silent((s == 0) & read, "block")

    def rounding_shift(self) -> NDArray[np.float64]:
        """g(√d_i + Σ_j L_ij √d_j) + 2ρ_i: how much farther than Σ_j L_ij z_j + d_i rounding lets block i move apart."""
        if self.rounding is None:
            return np.zeros(len(self.noise_std.values))
        spreads = self.rounding.spreads
        return np.asarray(LONGER * (spreads + self.coupling.values @ spreads + 2 * self.rounding.error.to_array()))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        plain = cls(coupling=FrozenArray([[0.5, 0.1], [0.2, 0.4]]), noise_std=FrozenArray([1.0, 2.0]))
        return (plain, replace(plain, rounding=Rounding.examples()[1]))


def _refuse_silent(silent: NDArray[np.bool_], what: str) -> None:
    if silent.any():
        where = int(np.flatnonzero(silent)[0])
        raise InvalidInput(
            f"view.noise_std is 0 at {what} {where}, where the ratio Δ/σ is positive: without noise there is no such "
            "ratio; add noise there, or set the ratio to 0 if nothing is read"
        )
