"""Per-record gradients of one parameter, as factors where that is cheaper than forming them.

A layer that is applied at T positions of a record has the gradient G_i = Σ_t d_it·a_itᵀ, with a its inputs and d the
gradients of its outputs. Its norm and the clipped sum Σ_i w_i·G_i follow from a and d (Goodfellow 2015; Li et al. 2021,
"ghost clipping"):

- ‖G_i‖² = Σ_ts ⟨a_t, a_s⟩⟨d_t, d_s⟩ (Gram matrices), or from G_i itself, whichever is smaller;
- Σ_i w_i·G_i = Dᵀ·Λ·A, one product for all records and positions.

A parameter that is used several times has the factors of all uses, one after another: Gram matrices then contain the
cross-terms.

*Rounding.* ``squares`` returns upper bounds: Gram matrices round by at most c·eps·(Σ_t ‖a_t‖‖d_t‖)², which is added.
Sums of squares in float32 are made in short blocks, so that norms are off by less than 2⁻¹⁷ relatively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Factors", "Gradient", "Looked", "Rows", "combined", "squared_norms"]

_SHORT = 2048
"""Most numbers whose squares are added in the type of the gradients, before float64 takes over.

Eight or more of them are added at a time, so that each sum is off by at most 2048/8·2⁻²⁴ = 2⁻¹⁶ relatively.
"""
_PRODUCT = 4
"""Gradients are formed if they hold at most this many times the numbers of their factors; Gram matrices cost more."""
_GRAM_NUMBERS = 2_000_000
"""Most numbers of factors that are converted to float64 at once."""


class Gradient(Protocol):
    """The gradients of some records with respect to one parameter."""

    def squares(self) -> Tensor:
        """Squared norms or more (see *Rounding*), float64, (records,); not finite if a gradient is not."""

    def add_to(self, out: Tensor, weights: Tensor, keep: Tensor | None) -> None:
        """Add Σ_i weights_i·gradient_i to ``out``, of the parameter's shape; records not kept count as zeros."""

    def rows(self) -> Tensor:
        """All gradients, (records, size)."""

    @property
    def held(self) -> int:
        """How many numbers are kept for a record."""


def squared_norms(rows: Tensor) -> Tensor:
    """Σ of squares of each row of a matrix, float64."""
    size = rows.shape[1]
    if rows.dtype == torch.float64:
        return rows.square().sum(1)
    if size <= _SHORT:
        return _lengths(rows, 1).double().square_()
    whole = size - size % _SHORT
    blocks = rows[:, :whole].reshape(len(rows), -1, _SHORT)
    out = _lengths(blocks, 2).double().square_().sum(1)
    return out if whole == size else out + squared_norms(rows[:, whole:])


def _lengths(values: Tensor, dim: int) -> Tensor:
    out: Tensor = torch.linalg.vector_norm(values, dim=dim)
    return out


def _zeroed(values: Tensor, keep: Tensor | None) -> Tensor:
    """Zeros in place of records that are not kept.

    Zero times NaN is NaN, so weights of zero would not do; and a product of fewer rows rounds the others differently.

    Returns:
        As many records.
    """
    return values if keep is None else torch.where(keep.view(-1, *(1,) * (values.ndim - 1)), values, 0.0)


def _like(out: Tensor, weights: Tensor, ndim: int) -> Tensor:
    return weights.to(out.dtype).view(-1, *(1,) * (ndim - 1))


class Rows:
    """Gradients that are stored, one row per record.

    Args:
        values: with a leading axis of records.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values.flatten(1)

    @property
    def held(self) -> int:
        """The size of the parameter."""
        return self._values.shape[1]

    def squares(self) -> Tensor:
        """Squared norms."""
        return squared_norms(self._values)

    def add_to(self, out: Tensor, weights: Tensor, keep: Tensor | None) -> None:
        """One matrix–vector product."""
        values = _zeroed(self._values, keep).to(out.dtype)
        out.view(-1).addmv_(values.T, weights.to(out.dtype))

    def rows(self) -> Tensor:
        """All gradients."""
        return self._values


class Factors:
    """Gradients Σ_t d_t·a_tᵀ of a matrix (or of a tensor that is a matrix in rows).

    Args:
        left: d, (records, positions, rows of the matrix).
        right: a, (records, positions, columns of the matrix).
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self._formed: Rows | None = None

    @property
    def is_smaller_formed(self) -> bool:
        """Whether the gradient is hardly larger than its factors: forming it is cheaper than Gram matrices."""
        positions, o, i = *self.left.shape[1:], self.right.shape[2]
        return positions > 1 and o * i <= _PRODUCT * positions * (o + i)

    @property
    def held(self) -> int:
        """Numbers of the factors, and of the gradient where it is formed."""
        both = self.left[0].numel() + self.right[0].numel()
        return both + (self.left.shape[2] * self.right.shape[2] if self.is_smaller_formed else 0)

    def squares(self) -> Tensor:
        """‖d‖²‖a‖² at one position; else from Gram matrices or from the gradient itself, which is then kept."""
        if self.left.shape[1] == 1:
            return squared_norms(self.left[:, 0]) * squared_norms(self.right[:, 0])
        if self.is_smaller_formed:
            self._formed = self._formed or Rows(self.rows())
            return self._formed.squares()
        some = max(1, _GRAM_NUMBERS // max(1, self.held))
        parts = zip(torch.split(self.left, some), torch.split(self.right, some), strict=True)
        return torch.cat([_gram_squares(left, right) for left, right in parts])

    def add_to(self, out: Tensor, weights: Tensor, keep: Tensor | None) -> None:
        """DᵀΛA, added in place."""
        if self._formed is not None:
            self._formed.add_to(out, weights, keep)
            return
        left, right = _zeroed(self.left, keep).to(out.dtype), _zeroed(self.right, keep).to(out.dtype)
        left = left * _like(out, weights, 3)
        matrix = out.view(left.shape[2], right.shape[2])
        matrix.addmm_(left.flatten(0, 1).T, right.flatten(0, 1))

    def rows(self) -> Tensor:
        """All gradients, formed."""
        if self.left.shape[1] == 1:
            return (self.left[:, 0, :, None] * self.right[:, 0, None, :]).flatten(1)
        return torch.bmm(self.left.transpose(1, 2), self.right).flatten(1)


def _gram_squares(left: Tensor, right: Tensor) -> Tensor:
    """Σ_ts ⟨d_t, d_s⟩⟨a_t, a_s⟩, with what its rounding may hide. In float64 on a processor that has it."""
    wide = torch.float64 if left.device.type == "cpu" else left.dtype
    d, a = left.to(wide), right.to(wide)
    left_gram, right_gram = torch.bmm(d, d.transpose(1, 2)), torch.bmm(a, a.transpose(1, 2))
    q: Tensor = torch.linalg.vecdot(left_gram.flatten(1), right_gram.flatten(1))
    return q.double().clamp_(min=0) + _margin(left, right, wide, d.shape[1] ** 2 + d.shape[2] + a.shape[2])


def _margin(left: Tensor, right: Tensor, dtype: torch.dtype, terms: int) -> Tensor:
    """terms·eps·(Σ_t ‖a_t‖‖d_t‖)²: what sums of so many terms round by, at most."""
    lengths = _lengths(left, 2) * _lengths(right, 2)
    return lengths.double().sum(1).square() * (2 * terms * torch.finfo(dtype).eps)


@dataclass(frozen=True)
class Looked:
    """Gradients of a table whose rows were looked up: row k has Σ_{t: id_t = k} d_t.

    Attributes:
        ids: (records, positions).
        left: d, (records, positions, columns of the table).
        table: number of rows of the table.
    """

    ids: Tensor
    left: Tensor
    table: int

    @property
    def held(self) -> int:
        """Numbers of d."""
        return self.left[0].numel()

    def squares(self) -> Tensor:
        """Squared norms of the sums over equal ids, which are made in float64."""
        ids, order = self.ids.sort(dim=1)
        first = torch.ones_like(ids, dtype=torch.bool)
        first[:, 1:] = ids[:, 1:] != ids[:, :-1]
        place = (first.cumsum(1) - 1).gather(1, order.argsort(dim=1))  # equal ids have one place
        d = self.left.double()
        return torch.zeros_like(d).scatter_add_(1, place[..., None].expand_as(d), d).square_().sum((1, 2))

    def add_to(self, out: Tensor, weights: Tensor, keep: Tensor | None) -> None:
        """Scattered into the table."""
        d = _zeroed(self.left, keep).to(out.dtype) * _like(out, weights, 3)
        out.view(self.table, -1).index_add_(0, self._places(keep).reshape(-1), d.flatten(0, 1))

    def _places(self, keep: Tensor | None) -> Tensor:
        return self.ids if keep is None else torch.where(keep[:, None], self.ids, 0)

    def rows(self) -> Tensor:
        """All gradients, formed."""
        out = self.left.new_zeros(len(self.left), self.table, self.left.shape[2])
        return out.scatter_add_(1, self.ids[..., None].expand_as(self.left), self.left).flatten(1)

    def cross(self, other: Factors) -> Tensor:
        """⟨this, other⟩ of each record, float64: d_other is looked up at the ids."""
        at = other.left.double().gather(2, self.ids[:, None, :].expand(-1, other.left.shape[1], -1))
        both = torch.bmm(other.right.double(), self.left.double().transpose(1, 2))
        return (at * both).sum((1, 2))


class Tied:
    """A table that is looked up and also multiplied with (tied embeddings).

    Args:
        looked: the gradients of looking up.
        product: the gradients of multiplying.
    """

    def __init__(self, looked: Looked, product: Factors) -> None:
        self._looked, self._product = looked, product

    @property
    def held(self) -> int:
        """Of both."""
        return self._looked.held + self._product.held

    def squares(self) -> Tensor:
        """‖G‖² + 2⟨G, H⟩ + ‖H‖², each in float64."""
        cross = self._looked.cross(self._product)
        return (self._looked.squares() + 2 * cross + self._product.squares()).clamp_(min=0)

    def add_to(self, out: Tensor, weights: Tensor, keep: Tensor | None) -> None:
        """Both sums."""
        self._looked.add_to(out, weights, keep)
        self._product.add_to(out, weights, keep)

    def rows(self) -> Tensor:
        """All gradients, formed."""
        return self._looked.rows() + self._product.rows()


def combined(uses: Sequence[Gradient]) -> Gradient:
    """The gradient of a parameter that was used several times.

    Args:
        uses: the gradient of each use; at least one.

    Returns:
        Their sum, as factors where all are, else formed.
    """
    if len(uses) == 1:
        return uses[0]
    products = [use for use in uses if isinstance(use, Factors)]
    tables = [use for use in uses if isinstance(use, Looked)]
    if len(products) + len(tables) == len(uses):
        product = (
            Factors(_joined([p.left for p in products]), _joined([p.right for p in products])) if products else None
        )
        if not tables:
            assert product is not None
            return product
        table = Looked(_joined([t.ids for t in tables]), _joined([t.left for t in tables]), tables[0].table)
        return table if product is None else Tied(table, product)
    return Rows(torch.stack([use.rows() for use in uses]).sum(0))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
