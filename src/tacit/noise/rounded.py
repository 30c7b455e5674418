"""Normal noise rounded to integers, with exact probabilities given uniform random bits (docs/exact_sampler.md)."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import randomgen
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.rounded import COLUMNS, round_decided
from tacit.noise.erfc import compare_erfc

__all__ = ["MAX_SCALE", "rounded_normal"]

MAX_SCALE = 2.0**36
"""Above it float64 decides too few words, and margins were not counted."""
CELLS = Path(__file__).with_name("rounded_cells.npy")
"""The table of ``tools/rounded_cells.py``."""
CELLS_DIGEST = "7df8c637b0327e29f45e360ffecd215f5bdf38d768798aebfca9e66f99ad146c"
"""SHA-256 of its numbers, little-endian, row by row."""

_BLOCK = 8192
_FURTHER_START = 1 << 126
_FURTHER_STRIDE = 1 << 32

Shape = int | tuple[int, ...]
Integers = NDArray[np.int64]
Further = Callable[[int], Callable[[], int]]
"""From the index of a word to a source of further words of its own."""


def rounded_normal(
    rng: np.random.Generator, scale: ArrayLike, size: Shape | None = None, *, out: Integers | None = None
) -> Integers:
    """Draw R = ⌊S·Z⌉, Z standard normal: P(R = k) = Φ((k + ½)/S) − Φ((k − ½)/S).

    Formal guarantee: if the words of ``rng`` are uniform and independent, so are these probabilities exact and the
    draws independent. Nothing is approximated: where float64 cannot decide a rounding, integers of growing length do.

    Draw i uses word i of the stream, and in doubtful cases further words that belong to the place of word i alone.
    So the first draws do not depend on how many follow, and a stream repeated repeats its draws on every machine.

    Args:
        rng: of ``Streams.at``; it moves on by one word per draw. One thread at a time may use it.
        scale: S = σ/g, in (0, 2³⁶]: a number, or an array that broadcasts to ``size``.
        size: the shape of the result; that of ``scale`` or ``out`` if it is not given.
        out: a C-contiguous array of int64 to be filled, instead of a new one.

    Returns:
        int64, of shape ``size``; ``out`` if that was given.

    Raises:
        InvalidInput: a scale outside (0, 2³⁶], shapes that do not fit, or a generator that is not AES in counter mode.

    >>> from tacit.noise.streams import Streams
    >>> rounded_normal(Streams(seed=0).at("noise"), scale=1000.0, size=3)
    array([2482,  625, -537])
    """
    source = rng.bit_generator
    if not isinstance(source, randomgen.AESCounter):
        raise InvalidInput(f"rng must be over AES in counter mode, got {type(source).__name__}: take it of Streams.at")
    scales = _checked_scale(scale)
    out = _checked_out(scales.shape if size is None and out is None else size, out)
    flat, scale_of = out.reshape(-1), _by_blocks(scales, out.shape)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        words = source.random_raw(part.size)
        round_words(words, scale_of(start), part, functools.partial(_further_words, source, part.size))
    return out


def round_words(words: NDArray[np.uint64], scale: NDArray[np.float64], out: Integers, further: Further) -> None:
    """Fill ``out`` from uniform words, one for each number, and ``further`` ones where they do not decide it."""
    cells = load_cells()
    i, low, high = round_decided(words, scale, cells, out, 0)
    while i < words.size:
        word, S = int(words[i]), float(scale[i if scale.size > 1 else 0])
        magnitude = settle(word >> 1, S, low, high, further(i))
        out[i] = magnitude if word & 1 else -magnitude
        i, low, high = round_decided(words, scale, cells, out, i + 1)


def settle(V: int, scale: float, low: int, high: int, further: Callable[[], int]) -> int:
    """⌊S·w(v) + ½⌋ for v ∈ (V, V + 1)·2⁻⁶³, by integers: the largest b ≥ 1 with v ≤ erfc((b − ½)/(S√2)), or 0.

    Args:
        V: the first 63 bits of v.
        scale: S.
        low: a lower bound of the result.
        high: an upper bound of the result; ``low`` + 1 except in the far tails, so that one comparison is enough.
        further: the next 64 bits of v, at each call.

    Returns:
        The result.
    """
    bits = 63
    while V == 0:
        V, bits = further(), bits + 64
    numerator, denominator = scale.as_integer_ratio()
    # v ≤ exp(−w²/2) and v ≥ 2^−halvings, so w² ≤ 2·log 2·halvings < 1.387·halvings. It keeps x² of a comparison small.
    halvings = bits - V.bit_length() + 1
    cap = (math.isqrt(4 * 1387 * halvings * numerator**2 // (1000 * denominator**2)) + 1) // 2
    low, high = max(low, 0), min(high, cap)
    while low < high:
        b = (low + high + 1) // 2
        square = (2 * b - 1) ** 2 * denominator**2, 8 * numerator**2
        while (order := compare_erfc(V, bits, *square)) == 0:
            V, bits = V << 64 | further(), bits + 64
        low, high = (b, high) if order > 0 else (low, b - 1)
    return low


@functools.cache
def load_cells() -> NDArray[np.float64]:
    """Read the table of cells, and refuse it if a bit of it differs.

    Returns:
        One row for each cell; not writable.

    Raises:
        InvalidInput: the file is damaged.
    """
    cells: NDArray[np.float64] = np.load(CELLS).astype(np.float64, order="C")
    if hashlib.sha256(cells.astype("<f8").tobytes()).hexdigest() != CELLS_DIGEST:
        raise InvalidInput(f"{CELLS.name} is damaged, and noise drawn from it would not be normal: reinstall tacit-dp")
    cells.setflags(write=False)
    return cells.reshape(-1, COLUMNS)


def _further_words(source: randomgen.AESCounter, drawn: int, i: int) -> Callable[[], int]:
    """Find the words that belong to word i of the ``drawn`` last ones, by its position in the stream.

    Block c (16 bytes) of the stream is the encryption of c. Positions below 2⁹⁴ have c < 2⁹³; position p owns the 2³²
    blocks from 2¹²⁶ + 2³²·p on, under the same key.

    Returns:
        A source of them, from the first one on.
    """
    state = source.state["s"]
    counter, key = (int(pair[0]) | int(pair[1]) << 64 for pair in (state["counter"], state["seed"]))
    position = 2 * counter - (64 - int(state["offset"])) // 8 - drawn + i
    far = randomgen.AESCounter(key=key, counter=_FURTHER_START + _FURTHER_STRIDE * position)
    return lambda: int(far.random_raw())


def _by_blocks(scales: NDArray[np.float64], shape: tuple[int, ...]) -> Callable[[int], NDArray[np.float64]]:
    """From the start of a block to its scales; a copy of their block, so that broadcasting needs no whole array."""
    if scales.ndim == 0:
        one = scales.reshape(1)
        return lambda start: one
    try:
        spread = np.broadcast_to(scales, shape)
    except ValueError:
        raise InvalidInput(
            f"scale of shape {scales.shape} does not broadcast to {shape}: pass one number, or one for each draw"
        ) from None
    if spread.flags.c_contiguous:
        flat = spread.reshape(-1)
        return lambda start: flat[start : start + _BLOCK].copy()
    return lambda start: spread.flat[start : start + _BLOCK]


def _checked_scale(scale: ArrayLike) -> NDArray[np.float64]:
    if isinstance(scale, float) and 0 < scale <= MAX_SCALE:
        return np.array(scale)  # the usual case, and a short vector is drawn in less time than its scale is checked
    is_array = isinstance(scale, np.ndarray) and scale.dtype == np.float64
    out = np.asarray(scale) if is_array else _validate.real_array("scale", scale)
    if out.size and not (out.min() > 0 and out.max() <= MAX_SCALE):  # NaN fails, too
        raise InvalidInput("scale must lie in (0, 2**36]: it is the noise in units of the grid, so change the grid")
    return out


def _checked_out(size: Shape | None, out: Integers | None) -> Integers:
    if out is None:
        try:
            return np.empty(size, dtype=np.int64)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise InvalidInput(f"size must be a whole number or a tuple of them, got {size!r}") from None
    if not isinstance(out, np.ndarray) or out.dtype != np.int64 or not (out.flags.c_contiguous and out.flags.writeable):
        raise InvalidInput("out must be a C-contiguous, writable array of int64: pass np.empty(shape, dtype=np.int64)")
    if size is not None and out.shape != np.broadcast_shapes(size):
        raise InvalidInput(f"out has shape {out.shape}, but size is {size!r}: pass one of the two")
    return out
