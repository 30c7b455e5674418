"""Noisy choices: a session takes sums over all records, scores candidates by them, and hands out one candidate.

A ``Choice`` is public and frozen, as a query is: a name, a bound on every entry of what one record contributes, and two
functions. ``total`` reads records and is subject to record-and-replay; ``scores`` turns its sums into scores, entry j
from entry j, and no score moves further than its sum. So neighbours move every score by at most Δ, 2C where a record is
replaced and C otherwise, and candidate j is chosen with probability ∝ exp(η·s_j/(2Δ)): a bounded range of η.

**In exact arithmetic** sums are integers on a public grid and scores become integers k_j = ⌊s_j/g⌉. Float64 errs by ρ
at most (``rounding_error``, from public numbers), so neighbours move g·k_j by at most Δ + 2ρ + g, the law is ∝
exp(κk_j) with κ = η·g/(2(Δ + 2ρ + g)), rounded down, and the draw has exactly that law (``tacit.noise.softmax``). In
floating point it is an ordinary Gumbel variable that is added, and the certificate says so.
"""

from __future__ import annotations

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from tacit._registry import claim
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch
from tacit.kernels.dyadic import exponent
from tacit.mechanism import Arithmetic, NoisyMax
from tacit.noise.softmax import exact_softmax
from tacit.noise.streams import Streams
from tacit.records import Rows
from tacit.release.query import Example, Grid, Members, Sums

__all__ = ["CHOICES", "Choice", "ChoiceChannel", "integer_scores"]

Array = NDArray[np.float64]
STEP_BITS = 29
"""Sums are in steps of 2^e/2²⁹ ≥ C/2²⁹: those over 2³³ rows, more than a memory holds, fit into 63 bits."""
SCORE_BITS = 20
"""Scores are in steps of 2^e/2²⁰ ≥ Δ/2²⁰."""
MAX_SCORE = 2.0**60
"""No score counts more, in steps."""

CHOICES: dict[str, type[Choice]] = {}
"""Every choice that was defined, by name."""


class Choice(ABC):
    """Scores of candidates, each a function of one entry of a sum over all records.

    Attributes:
        name: in the registry.
        bound: C, public: no entry of a contribution exceeds it in absolute value, whatever the records hold.
    """

    name: ClassVar[str]
    bound: float

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__name__.startswith("_"):
            return
        if "name" not in vars(cls):
            raise InvalidInput(f"the choice {cls.__name__} states no name of its own: write e.g. name = 'columns'")
        claim(CHOICES, cls.name, cls, "a choice")

    def grid(self) -> Grid:
        """The lattice of exact sums."""
        return Grid(2.0 ** (exponent(self.bound) - STEP_BITS))

    @abstractmethod
    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Σ of contributions, each entry clipped to ±C, multiplied by what ``members`` says a row counts, and rounded.

        Args:
            rows: a part of the records.
            state: one row; a function of earlier releases.
            members: what each of these rows counts, (1, rows).
            grid: of an exact choice; None in floating point.

        Returns:
            (1, candidates): int64 in units of the grid, or float64.
        """

    @abstractmethod
    def scores(self, total: Array, state: Array) -> Array:
        """One score per candidate: entry j is a function of entry j of the sums that moves no further than it does."""

    @abstractmethod
    def rounding_error(self, state: Array) -> float:
        """ρ: how far ``scores`` in float64, sums included, is from that function of reals at most; may be infinite.

        Raises:
            MechanismMismatch: if it is not known, so that exact arithmetic is refused.
        """

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Random neighbours that differ in record 0, for record-and-replay."""


def integer_scores(scores: Array, error: float, reach: float, bounded_range: float) -> tuple[NDArray[np.int64], float]:
    """Scores as integers k, and κ: the law ∝ exp(κk) has a bounded range of η at most.

    Args:
        scores: as float64 computes them.
        error: ρ.
        reach: Δ.
        bounded_range: η.

    Returns:
        k and κ; all candidates alike where ρ is not finite.
    """
    step = 2.0 ** (exponent(reach) - SCORE_BITS)
    kappa = bounded_range * step / (2 * (reach + 2 * error + step)) * (1 - 2.0**-50)
    if not (np.isfinite(error) and kappa > 0):
        return np.zeros(len(scores), np.int64), 0.0
    return np.rint(np.clip(scores / step, -MAX_SCORE, MAX_SCORE)).astype(np.int64), kappa


class ChoiceChannel:
    """Noisy choices as certified and not one more.

    Args:
        part: what was certified.
        n: the number of records.
        streams: its randomness, shared with no other channel.
    """

    def __init__(self, part: NoisyMax, n: int, streams: Streams) -> None:
        self.part, self._n, self._streams = part, n, streams
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._step, self._history = 0, b""

    @property
    def steps_left(self) -> int:
        """How many choices are certified and not yet made."""
        return self.part.steps - self._step

    def select(self, choice: Choice, state: Array, total: Callable[[Members, Grid | None], Sums]) -> int:
        """The next certified choice.

        Args:
            choice: how candidates are scored.
            state: where.
            total: from members and the grid of an exact choice to the sums, (1, candidates).

        Returns:
            The number of a candidate.

        Raises:
            BudgetExhausted: if all certified choices are made.
            MechanismMismatch: in a forked process, or if exact sums are no integers.
        """
        with self._lock:
            if os.getpid() != self._owner:
                raise MechanismMismatch("this session belongs to the process that opened it: open another one")
            if not self.steps_left:
                raise BudgetExhausted(
                    f"all {self.part.steps} certified choices are made: certify a longer plan to go on"
                )
            scores, kappa = self._scored(choice, state, total)
            history = hashlib.sha256(self._history + repr((kappa, scores.dtype.str, scores.shape)).encode())
            history.update(np.ascontiguousarray(scores).data)
            # Noise is named after the scores that it hides, and after all before: one resumed or seeded run repeats its
            # choice to the bit, and another one draws afresh.
            rng = self._streams.at("choice", self._step, history.digest())
            if scores.dtype == np.int64:
                found = exact_softmax(rng, scores, kappa)
            else:
                found = int(np.argmax(kappa * scores + rng.gumbel(size=scores.shape)))
            self._step, self._history = self._step + 1, history.digest()
            return found

    def _scored(
        self, choice: Choice, state: Array, total: Callable[[Members, Grid | None], Sums]
    ) -> tuple[NDArray[Any], float]:
        """Scores, integers in exact arithmetic, and what they are multiplied by in the exponent."""
        exact = self.part.arithmetic is Arithmetic.EXACT
        reach, eta = self.part.adjacency.sum_factor * choice.bound, self.part.bounded_range[self._step]
        error = choice.rounding_error(state) if exact else 0.0  # refused before a record is read
        grid = choice.grid() if exact else None
        with np.errstate(all="ignore"):  # a caller's errstate("raise") would tell about a record
            sums = total(np.ones((1, self._n), bool), grid)[0]
            if grid is None:
                scores = np.nan_to_num(choice.scores(sums, state), nan=0.0, posinf=1e300, neginf=-1e300)
                return scores, eta / (2 * reach)
            if sums.dtype != np.int64:
                raise MechanismMismatch(f"{type(choice).__name__} has no integer sums: use arithmetic='float'")
            return integer_scores(choice.scores(sums * grid.unit, state), error, reach, eta)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a channel is not copied or pickled: two copies would each spend the budget once")
