"""Exact Hessian-vector products of a mean loss over public records.

The product is a second backward pass through the graph of the gradient (Pearlmutter 1994), ∇(∇L·v) = Hv. The graph does
not depend on v, so those of the first chunks are kept, up to a limit of memory: a product then costs about 2.5
gradients instead of 4. Several vectors at once through ``torch.vmap`` do not pay: 1.5 times faster for a perceptron,
two to five times slower for convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.torch.objective import Objective, Record, first_line

__all__ = ["HessianProduct", "dense_hessian", "reduction"]

_Graph = tuple[Tensor, ...]


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Use the plain form of attention, because the fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


def reduction(objective: Objective, records: Record, generator: torch.Generator) -> str:
    """Whether the loss of a batch is the mean or the sum of the losses of its records, by evaluating a few.

    Checked on at most eight records, at the parameters and near them. A loss that normalises over the batch
    (contrastive losses, class weights) is neither: its Hessian is no mean over records and changes with the chunks.

    Args:
        objective: model and loss.
        records: public.
        generator: for the nearby parameters.

    Returns:
        "mean" or "sum".

    Raises:
        InvalidInput: if it is neither, is not finite, or if the model does not take the records.
    """
    few = tuple(part[:8] for part in records)
    trainable = objective.trainable()
    nearby = {
        name: p + 0.05 * (p.abs().mean() + 0.01) * torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device)
        for name, p in trainable.items()
    }
    ratios: set[str] = set()
    for parameters in (trainable, nearby):
        whole, each = _values(objective, parameters, few)
        slack = 1e-4 * float(each.abs().mean()) + 1e-7
        found = {"mean": abs(whole - float(each.mean())) <= slack, "sum": abs(whole - float(each.sum())) <= slack}
        agree = {name for name, equal in found.items() if equal}
        ratios = agree if parameters is trainable else ratios & agree
    if not ratios:
        raise InvalidInput(
            "the loss of a batch is neither the mean nor the sum of the losses of its records (class weights, "
            "contrastive losses and layers that mix records do that): use a loss with reduction='mean' for each record"
        )
    return "mean" if "mean" in ratios else "sum"


def _values(objective: Objective, parameters: dict[str, Tensor], few: Record) -> tuple[float, Tensor]:
    with torch.no_grad():
        try:
            whole = float(objective.loss(parameters, few))
            each = [float(objective.loss(parameters, tuple(p[i : i + 1] for p in few))) for i in range(len(few[0]))]
        except InvalidInput:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            shapes = ", ".join(f"{tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}" for part in few)
            raise InvalidInput(
                f"the model and the loss do not take records of shapes {shapes}: {first_line(error)}"
            ) from None
    values = torch.tensor(each, dtype=torch.float64)
    if not (np.isfinite(whole) and bool(torch.isfinite(values).all())):
        raise InvalidInput(
            "the loss of public records is not finite: scale the inputs, or look at the model's parameters"
        )
    return whole, values


class HessianProduct:
    """v ↦ Hv, H = (1/n)Σ_i ∇²ℓ_i at the model's parameters.

    Formal guarantee: exact up to the rounding of the model's dtype (about 1e-6·‖H‖ in float32), and independent of
    ``chunk_size`` and ``memory`` up to the order of summation. ReLU has second derivative zero, as in autograd.

    Assumptions: the records are public (declared); the loss is a mean or a sum over records (checked on eight of them).

    Args:
        objective: model and loss; its parameters must not change afterwards.
        records: public, (inputs…, target).
        chunk_size: number of records per graph.
        memory: most bytes of graphs that are kept between products.
        random_state: seed of the check that the loss is a mean.

    Attributes:
        size: p.
        calls: products computed so far.
    """

    def __init__(
        self, objective: Objective, records: Record, *, chunk_size: int = 64, memory: int = 2**30, random_state: int = 0
    ) -> None:
        self.size, self.calls = objective.size, 0
        self._objective, self._records = objective, records
        self._reduction = reduction(objective, records, torch.Generator().manual_seed(random_state))
        self._leaves = {name: p.clone().requires_grad_() for name, p in objective.trainable().items()}
        self._kept: dict[int, _Graph] = {}
        self._left, self._n = memory, len(records[0])
        self._chunk = _validate.positive_int(chunk_size=chunk_size)

    def __call__(self, vector: Tensor) -> Tensor:
        """Hv.

        Args:
            vector: (p,), of the dtype and device of the parameters.

        Returns:
            (p,).
        """
        self.calls += 1
        parts = list(self._objective.unflatten(vector).values())
        total = torch.zeros_like(vector)
        for start in range(0, self._n, self._chunk):
            kept = start in self._kept
            graph = self._kept[start] if kept else self._graph(start)
            keep = kept or start in self._kept
            live = [(g, v) for g, v in zip(graph, parts, strict=True) if g.requires_grad]
            if live:  # a loss that is linear in the parameters has none
                total += self._backward(live, keep)
        return total

    def _backward(self, live: list[tuple[Tensor, Tensor]], keep: bool) -> Tensor:
        gradients, vectors = zip(*live, strict=True)
        try:
            products = torch.autograd.grad(
                gradients, list(self._leaves.values()), vectors, retain_graph=keep, allow_unused=True
            )
        except (RuntimeError, NotImplementedError) as error:
            raise InvalidInput(f"the model cannot be differentiated twice: {first_line(error)}") from None
        pairs = zip(products, self._leaves.values(), strict=True)
        return torch.cat([(torch.zeros_like(leaf) if hv is None else hv).reshape(-1) for hv, leaf in pairs])

    def _graph(self, start: int) -> _Graph:
        """The gradient of one chunk's share of the mean, with its graph, which is kept if memory allows."""
        chunk = tuple(part[start : start + self._chunk] for part in self._records)
        weight = (len(chunk[0]) if self._reduction == "mean" else 1) / self._n
        used: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            used[storage.data_ptr()] = storage.nbytes()
            return tensor

        leaves = list(self._leaves.values())
        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        with torch.enable_grad(), _twice_differentiable(), hooks:
            loss = weight * self._objective.loss(self._leaves, chunk)
            if not loss.requires_grad:
                return tuple(torch.zeros_like(leaf).detach() for leaf in leaves)
            gradient = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        if sum(used.values()) <= self._left:
            self._left -= sum(used.values())
            self._kept[start] = gradient
        return gradient


def dense_hessian(product: HessianProduct, matvec: Callable[[Tensor], Tensor] | None = None) -> NDArray[np.float64]:
    """H column by column: p products, symmetrised.

    Args:
        product: of a small model.
        matvec: the same product, wrapped (to show progress).

    Returns:
        (p, p).
    """
    p = product.size
    like = next(iter(product._leaves.values()))
    H = np.empty((p, p))
    unit = torch.zeros(p, dtype=like.dtype, device=like.device)
    for j in range(p):
        unit[j] = 1.0
        H[:, j] = (matvec or product)(unit).cpu().numpy()
        unit[j] = 0.0
    return np.asarray((H + H.T) / 2)
