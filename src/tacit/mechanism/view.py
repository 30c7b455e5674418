"""What the adversary sees, and for a hidden state all that a proof about its last value may use."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """

    lipschitz: Schedule
    noise_std: Schedule
    diameter: float | None = None
    output: Output = Output.LAST_ITERATE
    memory: Memory = Memory.NONE
    noise_shape: NoiseShape = NoiseShape.ISOTROPIC
    start: Start = Start.PUBLIC
    evidence: Evidence = Evidence.DECLARED

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
        if self.noise_std.min == 0 < ratio.max:
            _refuse_silent((self.noise_std.to_array() == 0) & (ratio.to_array() > 0), "step")

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
        return (plain, other)


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
    """

    coupling: FrozenArray
    noise_std: FrozenArray
    output: Output = Output.LAST_ITERATE
    memory: Memory = Memory.NONE
    start: Start = Start.PUBLIC
    evidence: Evidence = Evidence.DECLARED

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
        if (s == 0).any() and ratio.max > 0:
            read = ratio.to_array().reshape(steps, -1).max(axis=0) > 0
            _refuse_silent((s == 0) & read, "block")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(coupling=FrozenArray([[0.5, 0.1], [0.2, 0.4]]), noise_std=FrozenArray([1.0, 2.0])),)


def _refuse_silent(silent: NDArray[np.bool_], what: str) -> None:
    if silent.any():
        where = int(np.flatnonzero(silent)[0])
        raise InvalidInput(
            f"view.noise_std is 0 at {what} {where}, where the ratio Δ/σ is positive: without noise there is no such "
            "ratio; add noise there, or set the ratio to 0 if nothing is read"
        )
