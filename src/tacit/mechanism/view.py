"""What the adversary sees, and for a hidden state all that a proof about its last value may use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from tacit import _validate
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


class Evidence(Enum):
    """Who vouches for an assumption."""

    ENFORCED = "enforced"  # the code clips, projects, samples
    CHECKED = "checked"  # from public quantities, before any record is read
    DECLARED = "declared"  # the user vouches


class Output(Enum):
    """What leaves the hidden chain."""

    LAST_ITERATE = "the last iterate"
    AVERAGE = "an average of iterates"
    CHECKPOINTS = "intermediate iterates or losses"


class Memory(Enum):
    """What the chain carries from step to step besides its noised state."""

    NONE = "nothing"
    MOMENTUM = "momentum"
    PER_RECORD = "per-record state"


class NoiseShape(Enum):
    """Which part of the state receives noise in one step."""

    ISOTROPIC = "the whole state, isotropically"
    COORDINATE = "one coordinate or block at a time"


class Start(Enum):
    """Where the chain starts."""

    PUBLIC = "a public point"
    RELEASED = "a point released earlier in the same plan"


@dataclass(frozen=True)
class AllIterates:
    """Every release is seen."""


@dataclass(frozen=True, kw_only=True)
class LastIterate:
    """Only the end of the chain x_k = φ_k(x_{k−1}) + N(0, s_k² I) is seen.

    Attributes:
        lipschitz: c_k, a Lipschitz constant of φ_k, per step.
        noise_std: s_k in the space of x, per step; only its proportions matter, and the unit of ``diameter``.
        diameter: of a bounded domain that every step projects onto, or None.
        output: what leaves the chain.
        memory: what else it carries.
        noise_shape: which part of the state is noised.
        start: where it starts.
        evidence: who vouches for the Lipschitz constants.
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


@dataclass(frozen=True, kw_only=True)
class BlockSweeps:
    """Only the end is seen of sweeps that update blocks one after another, each with its own noise.

    Block i moves by a map with Lipschitz constant ``coupling[i, j]`` in block j and receives N(0, s_i² I).

    Attributes:
        coupling: (p, p), non-negative.
        noise_std: s_i, shape (p,).
        output: what leaves the chain.
        memory: what else it carries.
        start: where it starts.
        evidence: who vouches for the coupling.
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


View = AllIterates | LastIterate | BlockSweeps
