"""Build the table of cells of the exact noise sampler: ``python tools/rounded_cells.py`` writes it, prints its digest.

w(v) is the inverse of v = erfc(w/√2). In s = −v all its derivatives are non-negative: w⁽ⁿ⁾ = Pₙ(w)·Dⁿ with
D = √(π/2)·exp(w²/2), P₁ = 1, Pₙ₊₁ = Pₙ′ + n·w·Pₙ. Cell (e, j) is v ∈ [1 + j/64, 1 + (j+1)/64]·2^−(e+1), its row the
Taylor polynomial in t = (right end − v)/width at the right end, and the margin E (docs/exact_sampler.md). Needs mpmath.
"""

from __future__ import annotations

import argparse
import hashlib

import mpmath
import numpy as np

from tacit.kernels.rounded import CELL_BITS, COLUMNS, DEGREE, OCTAVES
from tacit.noise.rounded import CELLS

DIGITS = 60
HEAD_BITS = 23  # of the head of w, behind the point
ROUNDINGS = 20  # of Horner's scheme, the product with S and the sums: 19, and one for low and high


def derivative_polynomials(n: int) -> list[list[int]]:
    """P₁ to Pₙ, coefficients from the constant on."""
    out = [[1]]
    for k in range(1, n):
        following = [0] * (len(out[-1]) + 1)
        for power, c in enumerate(out[-1]):
            if power:
                following[power - 1] += power * c
            following[power + 1] += k * c
        out.append(following)
    return out


def slope(w: mpmath.mpf) -> mpmath.mpf:
    """D = −dw/dv at w."""
    return mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(w * w / 2)


def taylor(w: mpmath.mpf, width: mpmath.mpf, polynomials: list[list[int]]) -> list[mpmath.mpf]:
    """Coefficients of t, t², … of w at this point."""
    step = slope(w) * width
    return [mpmath.polyval(P[::-1], w) * step**k / mpmath.factorial(k) for k, P in enumerate(polynomials, start=1)]


def inverse(v: mpmath.mpf, guess: mpmath.mpf) -> mpmath.mpf:
    """w(v) by Newton's method."""
    w, step = guess, mpmath.mpf(1)
    while abs(step) > mpmath.mpf(10) ** (8 - DIGITS):
        step = (mpmath.erfc(w / mpmath.sqrt(2)) - v) * slope(w)
        w += step
    return w


def margin(octave: int, width: mpmath.mpf, left: mpmath.mpf, head: mpmath.mpf, last: mpmath.mpf) -> float:
    """E: remainder of Taylor's series, width of v, roundings of r and of the tail of S times the head, rounded up."""
    two = mpmath.mpf(2)
    unknown = max(two**-53, two ** (octave - 56))
    bound = last + slope(left) * width * unknown + ROUNDINGS * two**-53 * (left - head) + two**-73
    return float(np.nextafter(float(bound * (1 + two**-40)), np.inf))


def build() -> np.ndarray:
    """All rows, (OCTAVES·64, COLUMNS)."""
    out = np.empty((OCTAVES << CELL_BITS, COLUMNS))
    polynomials, count = derivative_polynomials(DEGREE + 1), 1 << CELL_BITS
    with mpmath.workdps(DIGITS):
        w = mpmath.mpf(0)  # at v = 1
        for octave in range(OCTAVES):
            width = mpmath.mpf(2) ** -(octave + 1 + CELL_BITS)
            for j in reversed(range(count)):
                coefficients = taylor(w, width, polynomials[:DEGREE])
                left = inverse((count + j) * width, w + sum(coefficients))
                head = mpmath.floor(w * 2**HEAD_BITS) / 2**HEAD_BITS
                last = taylor(left, width, polynomials)[-1]
                row = [head, w - head, *coefficients]
                out[octave * count + j] = [*map(float, row), margin(octave, width, left, head, last)]
                w = left
    return out


def digest(cells: np.ndarray) -> str:
    """SHA-256 of the numbers, little-endian, row by row."""
    return hashlib.sha256(cells.astype("<f8").tobytes()).hexdigest()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    np.save(CELLS, build().astype("<f8"))
    print(digest(np.load(CELLS)))
