"""Sums of clipped gradients on the model's device, and the noise that is added to them there.

Normal numbers are made from AES-256 in counter mode, which processors compute in hardware, block by block in memory
that stays in the cache: (√(−2·ln u)·cos φ, √(−2·ln u)·sin φ), with u of 63 bits and its logarithm in float64, so that
no tail is cut off before 9.3 standard deviations. Correlated rows are made in the same pass. Nothing of the size of the
model goes through NumPy or float64. This is floating-point arithmetic, as certificates say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from tacit.release.place import RowStore
from tacit.torch.objective import Parameters

__all__ = ["InPlace", "NoiseRows", "normal_blocks"]

_BLOCK = 1 << 16
"""Numbers that are made at once: all of their intermediate values stay in the cache."""
_BYTES = 1 << 20  # hashed at once


class _Bits:
    """The key stream of AES-256 in counter mode.

    Args:
        key: 32 bytes, used once.
        most: most bytes that are asked for at once.
    """

    def __init__(self, key: bytes, most: int) -> None:
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._zeros = memoryview(bytes(most))
        self._room = np.empty(most + 15, np.uint8)

    def words(self, count: int, dtype: torch.dtype) -> Tensor:
        """The next random integers, overwritten by the next call."""
        size = count * dtype.itemsize
        self._stream.update_into(self._zeros[:size], self._room[: size + 15])  # type: ignore[arg-type]
        return torch.from_numpy(self._room[:size]).view(dtype)


def normal_blocks(key: bytes, size: int, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Standard normal numbers, block by block.

    Args:
        key: 32 bytes, used once.
        size: how many numbers.
        dtype: float32 or float64.
        device: where they are made; random bits come from the processor.

    Yields:
        The number of the first one, and a block that the next one overwrites.
    """
    half = _BLOCK // 2
    wide = torch.int64 if dtype == torch.float64 else torch.int32
    bits = _Bits(key, 8 * half)
    out = torch.empty(_BLOCK, dtype=dtype, device=device)
    radius = torch.empty(half, dtype=torch.float64, device=device)
    turn = 2 * math.pi / 2.0 ** (8 * wide.itemsize)
    for first in range(0, size, _BLOCK):
        count = min(half, (size - first + 1) // 2)
        r, x, y = radius[:count], out[:count], out[count : 2 * count]
        r.copy_(bits.words(count, torch.int64).bitwise_and_(2**63 - 1))
        r.add_(1.0).mul_(2.0**-63).log_()
        x.copy_(bits.words(count, wide)).mul_(turn)
        torch.sin(x, out=y)
        x.cos_()
        length = r.to(dtype).mul_(-2.0).sqrt_()
        x.mul_(length)
        y.mul_(length)
        yield first, out[: min(2 * count, size - first)]


class NoiseRows:
    """Earlier rows of correlated noise: **as secret as the data**.

    Args:
        rows: (slots, size).
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def array(self) -> NDArray[Any]:
        """A copy, for a checkpoint."""
        return np.array(self.rows.cpu().numpy())

    def __repr__(self) -> str:
        return f"NoiseRows(slots={len(self.rows)})"  # never a number


class InPlace:
    """One sum on the model's device, at the model's parameters as they are.

    Args:
        at: values of the trainable parameters.
        size: how many numbers they hold.
        dtype: of the sum.
        device: of the sum.

    Attributes:
        at: as above.
        sums: zeros; then the sum; then the release. Not to be used if anything was raised meanwhile.
    """

    def __init__(self, at: Parameters, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.at, self.sums = at, torch.zeros(size, dtype=dtype, device=device)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.sums.numel()

    def feed(self, digest: Any) -> None:
        """Pass the bytes of the sum to ``digest.update``, part by part."""
        digest.update(str(self.sums.dtype).encode())
        for part in torch.split(self.sums, _BYTES // self.sums.element_size()):
            digest.update(part.cpu().numpy().data)

    def store(self, slots: int, rows: NDArray[Any] | None) -> NoiseRows:
        """Room for earlier rows."""
        kept = self.sums.new_zeros(slots, self.size)
        if rows is not None:
            kept.copy_(torch.from_numpy(rows))
        return NoiseRows(kept)

    def add_noise(
        self, sigma: float, key: bytes, rows: RowStore | None, target: int, coefficients: NDArray[np.float64]
    ) -> None:
        """Add σ times a row of noise, block by block."""
        kept = rows.rows if isinstance(rows, NoiseRows) else None
        scale, earlier = float(coefficients[0]), self._earlier(kept, target, coefficients)
        for first, z in normal_blocks(key, self.size, self.sums.dtype, self.sums.device):
            part = slice(first, first + len(z))
            if kept is not None:
                z.mul_(scale)
                for some, weights in earlier:
                    z.addmv_(some[:, part].T, weights)
                kept[target, part] = z
            self.sums[part].add_(z, alpha=sigma)

    def _earlier(
        self, rows: Tensor | None, target: int, coefficients: NDArray[np.float64]
    ) -> list[tuple[Tensor, Tensor]]:
        """The rows on both sides of the target that are read, each with their coefficients."""
        if rows is None or len(coefficients) == 1:
            return []
        slots = len(rows)
        weights = self.sums.new_zeros(slots)
        for age, value in enumerate(coefficients[1:].tolist(), start=1):
            weights[(target - age) % slots] = value
        used = [(rows[:target], weights[:target]), (rows[target + 1 :], weights[target + 1 :])]
        return [(some, own) for some, own in used if bool(own.any())]
