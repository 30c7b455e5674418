"""A bit-level audit: releases of one data set that are impossible, or far less likely, on its neighbour."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.audit import _inputs
from tacit.audit._cells import learn_cells
from tacit.audit._thresholds import clopper_pearson_upper
from tacit.audit.reach import reaches
from tacit.audit.verdict import Certificate, Verdict, judge_rates
from tacit.errors import InvalidInput

__all__ = ["BitAudit", "BitTest", "audit_bits"]

Array = NDArray[np.float64]
Releases = Callable[..., ArrayLike]
MIN_RUNS = 40
CHANCE = 1e-6
"""The probability with which ``impossible`` may count cells although bits do not tell the sides apart."""


@dataclass(frozen=True)
class BitTest:
    """One event, "the release is in this cell", counted on releases that had no part in choosing it.

    Attributes:
        name: what the cell is.
        on_d: whether the cell speaks for D, or for D2.
        inside: releases in it, of the side that it speaks for.
        other: releases in it, of the other side.
        miss_upper: upper bound on the probability that a release of its side is not in it.
        other_upper: upper bound on its probability on the other side; zero if arithmetic excludes it.
    """

    name: str
    on_d: bool
    inside: int
    other: int
    miss_upper: float
    other_upper: float


@dataclass(frozen=True, kw_only=True)
class BitAudit:
    """The result of ``audit_bits``.

    Attributes:
        n_runs: releases a side.
        n_counted: those of them that are counted: all, where the sums are known, else the half that learnt nothing.
        confidence: with which all bounds hold together.
        impossible: how many of the counted releases on D lie in cells that were never seen on D2.
        impossible_upper: upper bound on the probability of those cells on D2; zero if arithmetic excludes them.
        tests: the events that were counted.
    """

    n_runs: int
    n_counted: int
    confidence: float
    impossible: int
    impossible_upper: float
    tests: tuple[BitTest, ...]

    @property
    def impossible_rate(self) -> float:
        """The share of the counted releases on D that are impossible on D2."""
        return self.impossible / self.n_counted

    def epsilon_lower(self, delta: float) -> float:
        """With this confidence the pair is not (ε, δ)-DP for any ε below; infinity if an impossible release is shown.

        Args:
            delta: in [0, 1).

        Returns:
            The bound; zero if nothing was shown.
        """
        allowed = _inputs.delta_or_zero(delta)
        return max((_epsilon(test, allowed) for test in self.tests), default=0.0)

    def verdict(self, certificate: Certificate) -> Verdict:
        """Whether a test contradicts the certificate, see ``Verdict``.

        Args:
            certificate: has ``delta(epsilon)``.

        Returns:
            The verdict of the test that contradicts it most.
        """
        rates = [(test.miss_upper, max(test.other_upper, 1e-300)) for test in self.tests] or [(1.0, 1.0)]
        found = [judge_rates(*pair, certificate, confidence=self.confidence, claim=None) for pair in rates]
        return max(found, key=lambda one: (one.violated, one.observed_delta - one.certified_delta))

    def __str__(self) -> str:
        best = sorted(self.tests, key=lambda test: test.other - test.inside)[:3]
        lines = [
            f"bit audit: {self.impossible} of {self.n_counted} releases on D ({100 * self.impossible_rate:.3g} %) are "
            f"in cells never seen on D2, whose probability there is at most {self.impossible_upper:.3g}, with "
            f"{100 * self.confidence:.4g} % confidence"
        ]
        lines += [
            f"  {test.name}: {test.inside} on {'D' if test.on_d else 'D2'}, {test.other} on the other side"
            for test in best
        ]
        return "\n".join(lines)


def audit_bits(
    release_on_D: Releases,
    release_on_D2: Releases,
    n: int,
    *,
    confidence: float = 0.95,
    values: tuple[ArrayLike, ArrayLike] | None = None,
    sigma: float | None = None,
) -> BitAudit:
    """Attack the bits of releases on two neighbouring data sets.

    Half of the releases is searched for cells that tell the sides apart: how fine the last bit of a number is below
    each power of two, the bits that end its mantissa, residues modulo powers of two, signs of zero, payloads of NaN,
    values that repeat. The other half counts how often each side is in the few best cells, with Clopper–Pearson bounds
    at level (1 − confidence)/2 shared among them (Bonferroni). ``impossible`` counts a cell only if none of D2's
    releases was in it where, had bits told nothing, that would have had a probability below 10⁻⁶.

    With ``values`` the attacker knows the clean sums q and q′, as the definition of differential privacy allows. A
    release x on D is then impossible on D2 if no float64 w gives fl(q′ + w) = x: a fact of arithmetic, with no
    confidence to state.

    Formal guarantee: if the mechanism is (ε, δ)-DP on this pair, P[epsilon_lower(δ) > ε] ≤ 1 − confidence. For cells
    found by ``values`` this rests on the sums being right, and on one rounded addition of the noise.

    Assumptions: the releases of a side are independent and identically distributed; the sides may be dependent.

    Args:
        release_on_D: ``release_on_D(n)`` returns n releases, of shape (n,) or (n, d); or a function without arguments
            that returns one release, and is called n times.
        release_on_D2: the same on the neighbour D2.
        n: releases a side.
        confidence: in (0, 1).
        values: the clean sums on D and on D2, where the attacker knows them.
        sigma: with ``values``: noise is known to be fl(σz), z a float64. Left out of account where releases on D
            contradict it.

    Returns:
        The audit.

    Raises:
        InvalidInput: if releases are not real numbers of one shape, or too few.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> leaky = audit_bits(lambda k: 0 + 7.5 * rng.normal(size=k), lambda k: -2 + 7.5 * rng.normal(size=k), 2000)
    >>> leaky.impossible > 50, leaky.impossible_upper < 0.02
    (True, True)
    >>> def on_a_grid(q):  # the same numbers, rounded as a whole
    ...     return lambda k: np.rint((q + 7.5 * rng.normal(size=k)) * 2.0**20) / 2.0**20
    >>> audit_bits(on_a_grid(0), on_a_grid(-2), 2000).impossible
    0
    """
    n = _validate.positive_int(n=n)
    confidence = _inputs.open_unit(confidence=confidence)
    if n < MIN_RUNS:
        raise InvalidInput(f"n = {n} is too few: a bit audit needs at least {MIN_RUNS} releases a side")
    D, D2 = (_drawn(name, f, n) for name, f in (("release_on_D", release_on_D), ("release_on_D2", release_on_D2)))
    if D.shape != D2.shape:
        raise InvalidInput(f"releases on D have shape {D.shape[1:]} and on D2 {D2.shape[1:]}: a shape must not tell")
    if values is not None:
        known = _by_arithmetic(D, D2, values, sigma, confidence)
        return BitAudit(
            n_runs=n,
            n_counted=n,
            confidence=confidence,
            impossible=known[0].inside,
            impossible_upper=known[0].other_upper,
            tests=known,
        )
    return _by_learning(D, D2, confidence)


def _by_learning(D: Array, D2: Array, confidence: float) -> BitAudit:
    half = len(D) // 2
    cells = learn_cells(D[:half], D2[:half])
    D, D2 = D[half:], D2[half:]
    level = (1 - confidence) / 2 / max(len(cells), 1)
    tests, best, upper = [], 0, 0.0
    for cell in cells:
        counts = cell.counts(D, D2)
        miss, other = (float(clopper_pearson_upper(k, len(D), level)) for k in (len(D) - counts.inside, counts.other))
        tests.append(BitTest(cell.name, cell.on_d, counts.inside, counts.other, miss, other))
        unlikely = counts.log_p < math.log(CHANCE / len(cells))
        if cell.on_d and unlikely and counts.inside > best:
            best, upper = counts.inside, other
    return BitAudit(
        n_runs=half + len(D),
        n_counted=len(D),
        confidence=confidence,
        impossible=best,
        impossible_upper=upper,
        tests=tuple(tests),
    )


def _by_arithmetic(
    D: Array, D2: Array, values: tuple[ArrayLike, ArrayLike], sigma: float | None, confidence: float
) -> tuple[BitTest, BitTest]:
    """Releases on D that nothing reaches from q′, and those on D2 that nothing reaches from q."""
    try:
        q, q2 = (np.broadcast_to(np.asarray(value, np.float64), D.shape[1:]) for value in values)
    except (TypeError, ValueError):
        raise InvalidInput(f"values must be the clean sums on D and on D2, each of shape {D.shape[1:]}") from None
    if sigma is not None:
        sigma = _validate.positive(sigma=sigma)
        if not (reaches(D, q, sigma).all() and reaches(D2, q2, sigma).all()):
            sigma = None  # the noise is something else: know less
    level = (1 - confidence) / 4
    out = []
    for on_d, here, there, own, other in ((True, D, D2, q, q2), (False, D2, D, q2, q)):
        inside, outside = (int((~reaches(x, other, sigma).all(axis=1)).sum()) for x in (here, there))
        believed = outside == 0 and bool(reaches(here, own, sigma).all())
        upper = 0.0 if believed else float(clopper_pearson_upper(outside, len(there), level))
        miss = float(clopper_pearson_upper(len(here) - inside, len(here), level))
        out.append(BitTest("no noise value reaches it", on_d, inside, outside, miss, upper))
    return out[0], out[1]


def _epsilon(test: BitTest, delta: float) -> float:
    shown = 1 - test.miss_upper - delta
    if shown <= 0:
        return 0.0
    return math.inf if test.other_upper == 0 else max(0.0, math.log(shown / test.other_upper))


def _drawn(name: str, release: Releases, n: int) -> Array:
    """Draw n releases as float64 of shape (n, d), with every bit as it was."""
    if not callable(release):
        raise InvalidInput(f"{name} must be callable: {name}(n) returns n releases, or {name}() returns one")
    try:
        found = np.asarray(release(n) if _takes_a_number(release) else [release() for _ in range(n)])
    except ValueError:  # releases of different shapes
        raise InvalidInput(f"{name} must return releases of one shape") from None
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8:
        raise InvalidInput(f"{name} must return real numbers of at most 64 bits, got dtype {found.dtype}")
    if found.ndim == 0 or found.shape[0] != n or found.size == 0:
        raise InvalidInput(f"{name} must return {n} releases, got an array of shape {found.shape}")
    wide = found.astype(np.float64)
    if found.dtype.kind in "iu" and not (wide.astype(object) == found.astype(object)).all():
        raise InvalidInput(f"{name} returns integers beyond 2^53: divide them by a power of two first")
    return np.ascontiguousarray(wide.reshape(n, -1))


def _takes_a_number(release: Callable[..., Any]) -> bool:
    """Whether the function must be told how many; one with defaults only returns one release at a time."""
    try:
        parameters = inspect.signature(release).parameters.values()
    except (TypeError, ValueError):  # some built-in functions have no signature
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)
