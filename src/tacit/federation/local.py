"""Nodes as threads of this process: the same messages without a network, for tests and pages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tacit.federation.desk import Desk
from tacit.federation.links import Link, LocalLink, members
from tacit.federation.node import Node

__all__ = ["threaded_nodes"]


@contextlib.contextmanager
def threaded_nodes(nodes: Sequence[Node]) -> Iterator[list[Link]]:
    """Nodes as threads of this process.

    Args:
        nodes: ready to serve.

    Yields:
        One link per node, in order.

    Raises:
        InvalidInput: if there is none, one is there twice, or one is no node.
    """
    desks = [Desk(node) for node in members("nodes", nodes, ("plan", "statement"), "a FactorNode or a LinearNode")]
    links: list[Link] = [LocalLink(desk.answer) for desk in desks]
    try:
        yield links
    finally:
        for link in links:
            link.close()
        for desk in desks:
            desk.close()
