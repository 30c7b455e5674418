"""What a federation finds: item factors, and the certificates of those who made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators.nmf import DPNMF

__all__ = ["FederatedModel"]

Array = NDArray[np.float64]


class FederatedModel(DPNMF):
    """Item factors that nodes found together, with everything that ``DPNMF`` offers after a fit.

    Its parameters are those of the federation; ε and δ are those of the weakest node.

    Attributes:
        components_: H. For split="vertical" its columns are people, and rows to ``transform`` are items.
        certificate_: the weakest node's, marked as such, with the marks of all nodes: it holds for everybody.
        certificates_: one for each node that began, in the order of the links: what its own people can rely on.
        notes_: which nodes were dropped, when and why.
        split_: "horizontal" or "vertical".
        item_names_: as the server stated them, or None.
    """

    units = ("record", "person", "item")
    certificates_: tuple[Certificate, ...]
    split_: str
    item_names_: tuple[str, ...] | None

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None) -> Self:
        """Refused: rows are at the nodes.

        Args:
            X: not read.
            y: not read.
            groups: not read.
            sample_weight: not read.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput("this model was fitted by nodes: call FederatedNMF.fit with links, or DPNMF on a table")

    def top_items(self, n: int = 10, names: Sequence[Any] | None = None) -> list[list[Any]]:
        """As ``DPNMF.top_items``, for a horizontal split.

        Args:
            n: how many.
            names: of the items.

        Returns:
            One list per component, largest first.
        """
        self._check_items()
        return super().top_items(n, names)

    def item_similarities(self, item: Any) -> Array:
        """As ``DPNMF.item_similarities``, for a horizontal split.

        Args:
            item: its number or name.

        Returns:
            (items,).
        """
        self._check_items()
        return super().item_similarities(item)

    def _names(self) -> list[Any]:
        names = getattr(self, "item_names_", None)  # not feature_names_in_: rows may be arrays all the same
        return super()._names() if names is None else list(names)

    def _check_items(self) -> None:
        if getattr(self, "split_", "") == "vertical":
            raise InvalidInput(
                "with split='vertical' the columns of components_ are people: factors of items are local, "
                "transform(columns of a node as rows) gives them to the node"
            )
