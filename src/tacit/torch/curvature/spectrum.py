"""Eigenvalues of the Hessian of a training loss, from public data: the input of NoiseCurve's workloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.torch.curvature.density import Count, count_above, probe, quadrature
from tacit.torch.curvature.lanczos import Eigenvalues, Matvec, lanczos
from tacit.torch.curvature.pretraining import Prepared, prepare
from tacit.torch.curvature.products import HessianProduct, dense_hessian
from tacit.torch.curvature.tail import TailFit, bounded_tail, fit_tail
from tacit.torch.objective import LossFunction, RecordLoss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FULL_LIMIT", "Spectrum", "hessian_spectrum", "in_double"]

Array = NDArray[np.float64]
FULL_LIMIT = 5000
_LEVELS = 96


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """A spectrum, complete to length p.

    Attributes:
        eigenvalues: (p,), descending, not negative, read-only: for ``tacit.noise``'s NoiseCurve workloads.
        top: the computed eigenvalues; the others come from ``fit`` and the density.
        count_above: p₊, the number of eigenvalues above the threshold.
        fit: eq. (4); None if every eigenvalue was computed.
        upper: (p,), upper bounds that do not rely on eq. (4): see ``hessian_spectrum``.
        quadrature: (p,), numbers that integrate like the spectrum: the closest estimate, but not a bound (``density``).
        method: "full" or "lanczos".
        records: number of public records.
        products: number of Hessian-vector products.
        verified: whether a fresh random start confirmed that none of ``top`` is missing.
    """

    eigenvalues: Array
    top: Array
    count_above: Count
    fit: TailFit | None
    upper: Array
    quadrature: Array
    method: str
    records: int
    products: int
    verified: bool = field(default=True)

    @property
    def threshold(self) -> float:
        """Eigenvalues below it are taken for zero."""
        return self.count_above.threshold

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Plot the spectrum on logarithmic axes, with the fitted tail and the threshold.

        Args:
            path: a file to write the figure to; its suffix decides the format.

        Returns:
            The figure.
        """
        from tacit.torch.curvature.plot import plot_spectrum

        figure = plot_spectrum(self)
        if path is not None:
            figure.savefig(path, dpi=160)
        return figure

    def __repr__(self) -> str:
        largest = f"{self.top[0]:.3g}" if len(self.top) else "0"
        tail = "all computed" if self.fit is None else f"top {len(self.top)} computed, tail by eq. (4) and density"
        return (
            f"Spectrum(p={len(self.eigenvalues)}, largest={largest}, above {self.threshold:g}: "
            f"{self.count_above}, {tail}, {self.records} public records)"
        )


def hessian_spectrum(
    model: nn.Module,
    loss_fn: LossFunction | RecordLoss,
    data: object,
    *,
    classes: int | None = None,
    random_labels: bool = True,
    pretrain_epochs: int = 5,
    learning_rate: float = 1e-3,
    top: int = 10,
    method: str = "auto",
    threshold: float = 1e-6,
    probes: int = 1,
    chunk_size: int = 64,
    random_state: int = 0,
    progress: bool = False,
) -> Spectrum:
    """Eigenvalues of the Hessian of the mean loss over PUBLIC records (NoiseCurve, section 5).

    A copy of the model is pre-trained on the inputs with random labels; the Hessian there is meant to dominate those
    that private training meets. Small models get every eigenvalue, negative ones set to 0. Large ones get the largest
    by Lanczos, the number above ``threshold`` by stochastic Lanczos quadrature, and a tail in between (``tail``).

    Formal guarantee: none about privacy is needed, as nothing private is read. ``top`` are eigenvalues to 1 % (their
    residuals are that small). ``upper`` bounds every eigenvalue after them, up to rounding and three standard errors
    of the probes. ``eigenvalues`` is a closer estimate, which bounded the true tail in nearly all of our checks
    (``docs/curvature.md``) and need not elsewhere. Neither says that private training stays below: see ``dominance``.

    Assumptions: ``data`` and the parameters of ``model`` are public (declared: no code can check this).
    Eigenvalues of private records have no certificate, and a strategy made from them leaks. The loss is a mean or a
    sum over records (checked on eight of them).

    Args:
        model: any module that does not mix records; not changed. Only trainable parameters count.
        loss_fn: ``loss_fn(output, target)``, or a ``RecordLoss``.
        data: a tensor or array of inputs; (inputs…, labels), where labels may be None; or a ``Dataset`` of these.
        classes: number of classes; None for regression (normal labels).
        random_labels: if true, labels in ``data`` only show their shape and dtype.
        pretrain_epochs: passes of Adam; 0 measures the model as it is.
        learning_rate: of Adam.
        top: how many eigenvalues Lanczos computes.
        method: "full", "lanczos", or "auto": full up to 5000 parameters.
        threshold: eigenvalues below are taken for zero.
        probes: number of random starts for the count: that of Lanczos, and further ones of the same length.
        chunk_size: records differentiated at once.
        random_state: seed of labels, batches and starting vectors. Public, like everything here.
        progress: show the number of products on stderr.

    Returns:
        The spectrum.

    Raises:
        InvalidInput: if the model mixes records, the loss is not a mean over records, or the data does not fit.
    """
    k, starts = _validate.positive_int(top=top), _validate.positive_int(probes=probes)
    chosen = _validate.one_of(("auto", "full", "lanczos"), method=method)
    floor = _validate.positive(threshold=threshold)
    if isinstance(random_state, bool) or not isinstance(random_state, int) or random_state < 0:
        raise InvalidInput(f"random_state must be a whole number, zero or more, got {random_state!r}")
    with torch.random.fork_rng(devices=[]):  # modules that draw random numbers leave the user's generator as it is
        torch.manual_seed(random_state)
        ready = prepare(
            model,
            loss_fn,
            data,
            classes=classes,
            random_labels=random_labels,
            pretrain_epochs=pretrain_epochs,
            learning_rate=learning_rate,
            random_state=random_state,
        )
        full = chosen == "full" or (chosen == "auto" and ready.objective.size <= FULL_LIMIT)
        if full:
            return _full(ready, floor, chunk_size, progress)
        return _partial(ready, k, starts, floor, chunk_size, random_state, progress)


def in_double(ready: Prepared, chunk_size: int) -> HessianProduct:
    """Products in float64, or in the model's own dtype if it does not run in float64."""
    model = ready.objective.model
    like = next(iter(ready.objective.trainable().values())).dtype
    records = tuple(x.double() if x.is_floating_point() else x for x in ready.records)
    try:
        model.double()
        return HessianProduct(ready.objective, records, chunk_size=chunk_size)
    except InvalidInput:
        model.to(like)
        return HessianProduct(ready.objective, ready.records, chunk_size=chunk_size)


def _full(ready: Prepared, threshold: float, chunk_size: int, progress: bool) -> Spectrum:
    product = in_double(ready, chunk_size)
    with _counted(product, product.size, progress) as matvec:
        H = dense_hessian(product, matvec)
    values = _frozen(np.maximum(np.linalg.eigvalsh(H)[::-1], 0.0))
    above = float((values > threshold).sum())
    count = Count(threshold, above, above, above, 0.0)
    return Spectrum(values, values, count, None, values, values, "full", len(ready.records[0]), product.calls)


def _partial(
    ready: Prepared, k: int, probes: int, threshold: float, chunk_size: int, seed: int, progress: bool
) -> Spectrum:
    product = HessianProduct(ready.objective, ready.records, chunk_size=chunk_size)
    like = next(iter(ready.objective.trainable().values()))
    generator = torch.Generator().manual_seed(seed + 1)
    limit = 4 * k + 40
    with _counted(product, limit, progress) as matvec:
        found = lanczos(
            matvec,
            product.size,
            k,
            generator,
            floor=threshold,
            max_products=limit,
            dtype=like.dtype,
            device=like.device,
        )
        longest = max(len(run.diagonal) for run in found.sweeps)
        sweeps = found.sweeps + tuple(
            probe(matvec, product.size, probes - 1, longest, generator, deflate=found.vectors, deflated=found.values)
        )
    levels = np.geomspace(threshold, max(found.values[-1:].max(initial=threshold), 1.01 * threshold), _LEVELS)
    counts = [count_above(sweeps, float(x)) for x in levels]
    smooth = quadrature(sweeps, found.values, product.size)
    return _complete(found, counts, k, smooth, len(ready.records[0]), product.calls)


def _complete(found: Eigenvalues, counts: list[Count], k: int, smooth: Array, records: int, products: int) -> Spectrum:
    p, values, count, fit = len(smooth), _frozen(found.values), counts[0], None
    tail = bound = np.zeros(p - len(values))
    if len(values) == 0 and not found.verified:
        raise InvalidInput(f"no eigenvalue converged within {products} products: raise top, or use method='full'")
    if found.verified and len(values) < k:  # the others are below the threshold
        n = float(len(values))
        count, smooth = Count(count.threshold, n, n, n, 0.0), np.concatenate([values, tail])
    elif len(values) < p:
        reach = max(count.raised(count.estimate, 2.0), len(values) + 1.0)
        fit = fit_tail(values, min(reach, float(p)), count.threshold)
        tail, bound = bounded_tail(fit, counts, np.arange(len(values) + 1.0, p + 1), float(values[-1]))
    complete, upper = (_frozen(np.concatenate([values, part])) for part in (tail, bound))
    return Spectrum(
        complete, values, count, fit, upper, _frozen(smooth), "lanczos", records, products, verified=found.verified
    )


def _frozen(values: Array) -> Array:
    out = np.ascontiguousarray(values, dtype=np.float64)
    out.setflags(write=False)
    return out


@contextmanager
def _counted(product: HessianProduct, total: int, progress: bool) -> Iterator[Matvec]:
    """The product, wrapped to advance a progress bar."""
    if not progress:
        yield product
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress_bar:
        task = progress_bar.add_task("Hessian-vector products (at most)", total=total)

        def advance(vector: Tensor) -> Tensor:
            progress_bar.advance(task)
            return product(vector)

        yield advance
