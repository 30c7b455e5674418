"""Cells of floating-point numbers that a bit-level attack looks into, learnt from half of the releases.

A cell is a set of numbers given by their bits: how fine the last bit is, which bits end the mantissa, what remains
modulo a power of two, a sign of zero, a NaN's payload, a value that repeats. ``around`` is the set that it is compared
with: numbers of a like magnitude, among which bits say nothing about the data if a release has the law of a rounded
normal number on a fine lattice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

__all__ = ["Cell", "Counts", "learn_cells"]

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]
Coder = Callable[[Array], Codes]

LOW_BITS = (1, 2, 4, 8)
REACH = 56
"""Moduli of residues: from the magnitude of the releases down by so many powers of two."""
OF_ZERO = 4000
"""The exponent of the last bit of zero, above every other."""
MAX_COLUMNS = 64
BEST = 4
"""How many cells of each kind are tested on the other half."""


@dataclass(frozen=True)
class Cell:
    """A set of releases, and the set that it is compared with.

    Attributes:
        name: for people.
        column: of the releases.
        inside: from one column to a mask.
        around: the same, of a larger set.
        on_d: whether the training half saw it on D rather than on D2.
    """

    name: str
    column: int
    inside: Callable[[Array], Mask]
    around: Callable[[Array], Mask]
    on_d: bool

    def counts(self, D: Array, D2: Array) -> Counts:
        """How many releases of each side are in the cell, and around it."""
        here, there = D[:, self.column], D2[:, self.column]
        sizes = [int(of(x).sum()) for x in (here, there) for of in (self.inside, self.around)]
        return Counts(*(sizes if self.on_d else [*sizes[2:], *sizes[:2]]))


@dataclass(frozen=True)
class Counts:
    """Releases in a cell and around it: on the side that visits the cell, and on the other one."""

    inside: int
    around: int
    other: int
    other_around: int

    @property
    def log_p(self) -> float:
        """The logarithm of the probability that all releases in the cell are from one side, if bits do not tell.

        Of ``around + other_around`` releases ``inside`` are in the cell; were those a random choice, the probability
        that all are from one side is hypergeometric (Fisher 1922). Zero where the other side is in the cell, too.
        """
        if self.other or not self.inside:
            return 0.0
        N, M, s = self.around, self.other_around, self.inside
        return float(gammaln(N + 1) - gammaln(N - s + 1) - gammaln(N + M + 1) + gammaln(N + M - s + 1))


def learn_cells(D: Array, D2: Array) -> list[Cell]:
    """The cells that tell D from D2 best, by these releases: found in two thirds of them, ranked by the last third.

    Cells of many codes would otherwise win by what they learnt by heart.

    Args:
        D: (releases, columns) on D.
        D2: the same on D2.

    Returns:
        At most ``BEST`` cells that one side never visits, for each side, and as many that it visits less often.
    """
    columns = np.unique(np.linspace(0, D.shape[1] - 1, min(D.shape[1], MAX_COLUMNS)).astype(int))
    cut = 2 * len(D) // 3
    found = [cell for j in columns for cell in _of_column(D[:cut, j], D2[:cut, j], int(j))]
    counts = [cell.counts(D[cut:], D2[cut:]) for cell in found]
    out: list[int] = []
    for on_d in (True, False):
        side = [i for i, cell in enumerate(found) if cell.on_d is on_d]
        out += sorted((i for i in side if counts[i].log_p < 0), key=lambda i: counts[i].log_p)[:BEST]
        more = {i: counts[i].inside - counts[i].other for i in side}
        out += sorted((i for i in side if more[i] > 0), key=lambda i: -more[i])[:BEST]
    return [found[i] for i in dict.fromkeys(out)]


def _of_column(here: Array, there: Array, column: int) -> Iterator[Cell]:
    for on_d, a, b in ((True, here, there), (False, there, here)):
        yield from _fine_cells(a, b, column, on_d)
        yield from _shifted_cells(a, b, column, on_d)
        for name, coder in _coders(here, there):
            yield from _coded_cells(name, coder, (a, b), column, on_d)


def _fine_cells(a: Array, b: Array, column: int, on_d: bool) -> Iterator[Cell]:
    """Numbers below a power of two whose last bit is finer, or coarser, than the other side has there."""
    magnitudes = _magnitude(np.concatenate([a, b]))
    for top in np.unique(magnitudes[magnitudes < OF_ZERO])[-24:]:
        below = _below(int(top))
        fine, other = (_last_bit(x[below(x)]) for x in (a, b))
        if not len(fine) or not len(other):
            continue
        for name, edge, inside in (
            ("finer", int(other.min()), np.less),
            ("coarser", int(other.max()), np.greater),
        ):
            if inside(fine, edge).any():
                yield Cell(f"last bit {name} than 2^{edge}", column, _by_last_bit(below, inside, edge), below, on_d)


def _shifted_cells(a: Array, b: Array, column: int, on_d: bool) -> Iterator[Cell]:
    """Odd multiples of the last place, just below the powers of two.

    Where a sum of size 2^j moves x across a power of two, the noise that gives x on the other side has one bit less.

    Yields:
        The cells that the other side does not visit.
    """
    magnitudes = _magnitude(np.concatenate([a, b]))
    for j in np.unique(magnitudes[magnitudes < OF_ZERO])[-16:]:
        for sign in (1.0, -1.0):
            near = _below_a_power(int(j), sign)
            inside = _odd(near)
            if inside(a).any() and not inside(b).any():
                yield Cell(f"odd last place, less than 2^{j} below a power of two", column, inside, near, on_d)


def _coded_cells(name: str, coder: Coder, sides: tuple[Array, Array], column: int, on_d: bool) -> Iterator[Cell]:
    """Two cells: codes that the other side never has, and codes that it has less often."""
    (codes, here), (others, there) = (np.unique(coder(x), return_counts=True) for x in sides)
    place = np.searchsorted(others, codes)
    known = others[np.minimum(place, len(others) - 1)] == codes
    elsewhere = np.where(known, there[np.minimum(place, len(there) - 1)], 0)
    chosen = [codes[(here >= 2) & (elsewhere == 0)], codes[here > elsewhere + np.sqrt(here + elsewhere)]]
    for kind, some in zip(("never elsewhere", "rarer elsewhere"), chosen, strict=True):
        if len(some):
            yield Cell(f"{name} {kind}", column, _by_code(coder, some), _everything, on_d)


def _coders(here: Array, there: Array) -> Iterator[tuple[str, Coder]]:
    yield "kind of number", _kind
    yield "value", _bits
    for bits in LOW_BITS:
        yield f"low {bits} bits", _low(bits)
    magnitudes = _magnitude(np.concatenate([here, there]))
    finite = magnitudes[magnitudes < OF_ZERO]
    if len(finite):
        top = int(np.median(finite))
        for e in range(top - REACH, top + 1, 2):
            yield f"residue modulo 2^{e}", _residue(e)


# -- bits ---------------------------------------------------------------------------------------------------------


def _bits(x: Array) -> Codes:
    return np.ascontiguousarray(x).view(np.int64)


def _low(bits: int) -> Coder:
    return lambda x: _bits(x) & ((1 << bits) - 1)


def _kind(x: Array) -> Codes:
    """0 for ordinary numbers, 1 for denormal ones, and the bits themselves of zeros, infinities and NaNs."""
    special = ~np.isfinite(x) | (x == 0)
    return np.where(special, _bits(x), (np.abs(x) < np.finfo(float).tiny).astype(np.int64))


def _residue(e: int) -> Coder:
    """The remainder x − 2^e·⌊x/2^e⌉, which is exact."""

    def code(x: Array) -> Codes:
        with np.errstate(all="ignore"):
            rest = x - np.ldexp(np.rint(np.ldexp(x, -e)), e)
            return _bits(np.where(rest == np.ldexp(-0.5, e), -rest, rest) + 0.0)

    return code


def _magnitude(x: Array) -> Codes:
    """The e with 2^(e−1) ≤ |x| < 2^e; beyond all others for zero and what is not finite."""
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1], OF_ZERO).astype(np.int64)


def _last_bit(x: Array) -> Codes:
    """The e with x = odd·2^e."""
    u = _bits(x)
    field = (u >> 52) & 0x7FF
    mantissa = (u & ((1 << 52) - 1)) | np.where(field > 0, np.int64(1) << 52, 0)
    lowest = np.frexp((mantissa & -mantissa).astype(np.float64))[1] - 1
    return np.where(mantissa == 0, OF_ZERO, np.maximum(field, 1) - 1075 + lowest).astype(np.int64)


def _below(top: int) -> Callable[[Array], Mask]:
    return lambda x: _magnitude(x) <= top


def _by_last_bit(below: Callable[[Array], Mask], inside: Callable[..., Mask], edge: int) -> Callable[[Array], Mask]:
    return lambda x: below(x) & inside(_last_bit(x), edge)


def _below_a_power(j: int, sign: float) -> Callable[[Array], Mask]:
    def near(x: Array) -> Mask:
        with np.errstate(all="ignore"):
            distance = np.ldexp(1.0, np.frexp(x)[1]) - np.abs(x)
            small = (distance <= np.ldexp(1.0, j)) | (np.abs(x) < np.ldexp(1.0, j))
            return np.asarray(np.isfinite(x) & (sign * x > 0) & small)

    return near


def _odd(near: Callable[[Array], Mask]) -> Callable[[Array], Mask]:
    return lambda x: near(x) & (_bits(x) & 1 == 1)


def _by_code(coder: Coder, codes: Codes) -> Callable[[Array], Mask]:
    return lambda x: np.isin(coder(x), codes)


def _everything(x: Array) -> Mask:
    return np.ones(x.shape, bool)
