"""The largest eigenvalues of a symmetric matrix that is given by its products with vectors.

A sweep is Lanczos' recursion from a random vector with full reorthogonalisation (twice: Giraud et al. 2005), orthogonal
to all eigenvectors found before. One sweep sees a multiple eigenvalue once; the next finds its other copies. Every
sweep is also a probe of the spectral density (``density``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["Eigenvalues", "Sweep", "lanczos", "random_unit", "sweep"]

Array = NDArray[np.float64]
Matvec = Callable[[Tensor], Tensor]
_LEAST = 10  # steps before a sweep may end: a missed eigenvalue well above the others shows by then


@dataclass(frozen=True, eq=False)
class Sweep:
    """T = QᵀPHPQ, tridiagonal: the projection of H that one random start gives, outside of the deflated directions.

    Attributes:
        diagonal: of T, (m,).
        off: below the diagonal, (m,); the last entry couples T to what was not seen (0 if nothing is left).
        deflated: eigenvalues of the directions that were projected out before.
        dimension: of what is left, size − len(deflated).
    """

    diagonal: Array
    off: Array
    deflated: Array
    dimension: int

    def ritz(self) -> tuple[Array, Array, Array]:
        """Ritz values, largest first, their residual norms |β_m s_mj|, and eigenvectors of T as columns."""
        value, vector = _eigh(self.diagonal, self.off[:-1])
        order = np.argsort(value)[::-1]
        return value[order], np.abs(self.off[-1] * vector[-1, order]), vector[:, order]


@dataclass(frozen=True, eq=False)
class Eigenvalues:
    """Result of Lanczos' method.

    Attributes:
        values: the largest eigenvalues, descending, cut before the first one that did not converge.
        residuals: ‖Hu − θu‖ of each: an eigenvalue lies within this distance.
        vectors: one row each, orthonormal.
        sweeps: every run, to be reused as probes of the density.
        verified: whether a fresh random start outside of ``vectors`` saw nothing above the smallest of ``values``.
    """

    values: Array
    residuals: Array
    vectors: Tensor
    sweeps: tuple[Sweep, ...]
    verified: bool


def _eigh(diagonal: Array, off: Array) -> tuple[Array, Array]:
    T = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
    value, vector = np.linalg.eigh(T)
    return np.asarray(value), np.asarray(vector)


def random_unit(size: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Uniform on the sphere, drawn on the CPU so that the device does not change it."""
    vector = torch.randn(size, generator=generator, dtype=torch.float64)
    return torch.div(vector, vector.norm()).to(like)


def _project(vector: Tensor, *bases: Tensor) -> Tensor:
    out = vector
    for _ in range(2):  # twice is enough
        for basis in bases:
            if len(basis):
                out = torch.sub(out, basis.T @ (basis @ out))
    return out


def sweep(
    matvec: Matvec,
    start: Tensor,
    steps: int,
    *,
    deflate: Tensor,
    deflated: Array,
    finished: Callable[[Sweep], bool] = lambda _: False,
) -> tuple[Sweep, Tensor]:
    """One Lanczos recursion in the orthogonal complement of ``deflate``.

    Args:
        matvec: v ↦ Hv.
        start: (p,).
        steps: the largest number of products.
        deflate: (d, p), orthonormal rows.
        deflated: their eigenvalues.
        finished: called every five steps from the tenth on; ends the sweep if it returns True.

    Returns:
        The tridiagonal matrix and the basis Q, (m, p).
    """
    dimension = len(start) - len(deflate)
    steps = min(steps, dimension)
    basis = torch.empty(steps, len(start), dtype=start.dtype, device=start.device)
    new = _project(start, deflate)
    new = new / new.norm()
    diagonal, off, scale = [], [], float(np.max(np.abs(deflated), initial=0.0))
    made = Sweep(np.zeros(0), np.zeros(0), deflated, dimension)
    for m in range(1, steps + 1):
        basis[m - 1] = new
        image = matvec(new)
        diagonal.append(float(new.double() @ image.double()))
        image = _project(image, deflate, basis[:m])
        norm = float(image.norm())
        scale = max(scale, abs(diagonal[-1]), norm)
        # below rounding, or with no dimension left, the Krylov space is invariant: T is exact
        done = m == dimension or norm <= 20 * torch.finfo(start.dtype).eps * scale
        off.append(0.0 if done else norm)
        made = Sweep(np.array(diagonal), np.array(off), deflated, dimension)
        if done or (m % 5 == 0 and m >= _LEAST and finished(made)):
            break
        new = image / norm
    return made, basis[: len(diagonal)]


@dataclass
class _Search:
    """All Ritz pairs that have converged so far, at either end of the spectrum."""

    k: int
    tolerance: float
    floor: float
    vectors: Tensor
    values: Array
    residuals: Array
    pending: float = -np.inf  # the largest Ritz value of the last sweep that did not converge

    def cutoff(self, values: Array) -> float:
        """The value that an eigenvalue must exceed to be among the k largest."""
        floor = self.least(values)
        above = np.sort(values[values > floor])[::-1]
        return float(above[self.k - 1]) if len(above) >= self.k else floor

    def least(self, values: Array) -> float:
        """The floor, or the largest value that rounding alone could produce."""
        return max(self.floor, 100 * torch.finfo(self.vectors.dtype).eps * float(np.max(np.abs(values), initial=0.0)))

    def has_converged(self, run: Sweep) -> bool:
        """Whether all Ritz values that would be among the k largest have converged."""
        theta, residual, _ = run.ritz()
        good = residual <= self.tolerance * np.abs(theta)
        highest = float(np.max(theta[~good], initial=-np.inf))
        return highest <= self.cutoff(np.concatenate([self.values, theta[good]]))

    def absorb(self, run: Sweep, basis: Tensor) -> bool:
        """Lock the converged Ritz pairs; returns whether the sweep found nothing above those known before."""
        theta, residual, s = run.ritz()
        good = residual <= self.tolerance * np.abs(theta)
        confirmed = not bool((theta > self.cutoff(self.values)).any())
        mix = torch.as_tensor(np.ascontiguousarray(s[:, good].T), dtype=basis.dtype, device=basis.device)
        # a Ritz vector's residual also has components along the locked vectors: at most the residuals of those
        full = np.sqrt(residual[good] ** 2 + float((self.residuals**2).sum()))
        self.vectors = torch.cat([self.vectors, mix @ basis])
        self.values = np.concatenate([self.values, theta[good]])
        self.residuals = np.concatenate([self.residuals, full])
        self.pending = float(np.max(theta[~good], initial=-np.inf))
        return confirmed

    def leading(self, sweeps: list[Sweep], verified: bool) -> Eigenvalues:
        """The k largest, cut where something larger did not converge."""
        order = np.argsort(self.values)[::-1][: self.k]
        least = max(self.least(self.values), -np.inf if verified else self.pending)
        order = order[self.values[order] > least]
        rows = self.vectors[torch.as_tensor(order.copy(), dtype=torch.long, device=self.vectors.device)]
        return Eigenvalues(self.values[order], self.residuals[order], rows, tuple(sweeps), verified)


def lanczos(
    matvec: Matvec,
    size: int,
    k: int,
    generator: torch.Generator,
    *,
    tolerance: float = 1e-2,
    floor: float = 0.0,
    max_products: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Eigenvalues:
    """The k largest eigenvalues above ``floor``, with multiplicity.

    Sweeps go on until k eigenvalues converged and one more random start found nothing above the smallest of them.
    Memory: the basis of a sweep and the eigenvectors, at most (``max_products`` + k)·p numbers.

    Formal guarantee (exact arithmetic; Parlett 1998, chapters 4 and 13): within ``residuals[i]`` of ``values[i]`` lies
    an eigenvalue, and the i-th largest value is never above the i-th largest eigenvalue (Cauchy). That none was missed
    holds for almost every random start if the sweep is long enough; ``verified`` says whether a fresh start agreed.

    Args:
        matvec: v ↦ Hv, symmetric.
        size: p.
        k: number of eigenvalues.
        generator: draws the starts.
        tolerance: a value θ counts as converged if its residual is at most tolerance·|θ|.
        floor: convergence of values below is not required (nor of those below 100 roundings of the largest).
        max_products: limit; 4k + 40 if missing.
        dtype: type of the vectors.
        device: device of the vectors.

    Returns:
        The converged ones; fewer than k if the limit was reached or fewer lie above ``floor``.
    """
    p, k = _validate.positive_int(size=size), _validate.positive_int(k=k)
    left = 4 * k + 40 if max_products is None else _validate.positive_int(max_products=max_products)
    none = torch.empty(0, p, dtype=dtype, device=device)
    found = _Search(min(k, p), _validate.positive(tolerance=tolerance), floor, none, np.zeros(0), np.zeros(0))
    sweeps: list[Sweep] = []
    verified = False
    while left > 0 and not verified and len(found.vectors) < p:
        run, basis = sweep(
            _checked(matvec),
            random_unit(p, generator, none),
            left,
            deflate=found.vectors,
            deflated=found.values,
            finished=found.has_converged,
        )
        sweeps.append(run)
        left -= len(run.diagonal)
        converged = found.has_converged(run)
        verified = found.absorb(run, basis) and converged
    return found.leading(sweeps, verified or len(found.vectors) >= p)


def _checked(matvec: Matvec) -> Matvec:
    def product(vector: Tensor) -> Tensor:
        out = matvec(vector)
        if out.shape != vector.shape:
            raise InvalidInput(f"matvec returned shape {tuple(out.shape)} for a vector of {len(vector)} numbers")
        if not bool(torch.isfinite(out).all()):
            raise InvalidInput(
                "a Hessian-vector product is not finite: scale the inputs, or lower the pre-training rate"
            )
        return out

    return product
