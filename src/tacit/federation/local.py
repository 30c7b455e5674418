"""Nodes on one machine: as processes of their own, or as threads for trials."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

from tacit.errors import TacitError
from tacit.federation.links import NODE_PATIENCE, Link, PipeLink, link_pair, members
from tacit.federation.node import FactorNode
from tacit.federation.serving import serve

__all__ = ["local_nodes", "threaded_nodes"]

GOODBYE = 30.0
"""Seconds for a node to end by itself."""


@contextlib.contextmanager
def local_nodes(makers: Sequence[Callable[[], FactorNode]]) -> Iterator[list[Link]]:
    """One process per node (spawned: nothing of this process's memory goes along); rows are loaded inside of it.

        def shop_a():                                # at the top level of a module, so that a new process finds it
            return FactorNode(load("a"), epsilon=1.0, delta=1e-6, row_norm=10.0)

        with local_nodes([shop_a, shop_b]) as links:
            model = FederatedNMF(8).fit(links)

    Scripts need the usual ``if __name__ == "__main__":``. A node that fails says why on its own stderr.

    Args:
        makers: functions that make a node, e.g. ``functools.partial(FactorNode, load, epsilon=1.0, ...)``.

    Yields:
        One link per node, in order.

    Raises:
        InvalidInput: if there is none, one is there twice, or one is no function.
    """
    functions = members("makers", makers, ("__call__",), "a function that makes a FactorNode")
    context = multiprocessing.get_context("spawn")
    links: list[Link] = []
    processes = []
    try:
        for number, maker in enumerate(functions):
            ours, theirs = context.Pipe(duplex=True)
            links.append(PipeLink(ours))
            process = context.Process(target=_serve, args=(maker, theirs), name=f"node {number}", daemon=True)
            process.start()
            processes.append(process)
            theirs.close()  # the other process has its own copy: when it ends, we notice
        yield links
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join(GOODBYE)
            if process.is_alive():
                process.terminate()
                process.join()


def _serve(maker: Callable[[], FactorNode], connection: Connection) -> None:
    link = PipeLink(connection, send_timeout=NODE_PATIENCE)
    try:
        serve(maker(), link)
    except TacitError as error:
        raise SystemExit(f"{multiprocessing.current_process().name}: {error}") from None
    finally:
        link.close()


@contextlib.contextmanager
def threaded_nodes(nodes: Sequence[FactorNode]) -> Iterator[list[Link]]:
    """Nodes as threads of this process: the same messages, for trials and tests.

    Args:
        nodes: ready to serve.

    Yields:
        One link per node, in order.

    Raises:
        InvalidInput: if there is none, one is there twice, or one is no node.
    """
    ready = members("nodes", nodes, ("plan",), "a FactorNode")
    pairs = [link_pair() for _ in ready]
    threads = [
        threading.Thread(target=_serve_quietly, args=(node, theirs), daemon=True)
        for node, (_, theirs) in zip(ready, pairs, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield [ours for ours, _ in pairs]
    finally:
        for ours, _ in pairs:
            ours.close()
        for thread in threads:
            thread.join(GOODBYE)


def _serve_quietly(node: FactorNode, link: Link) -> None:
    try:
        with contextlib.suppress(TacitError):  # the server is told, and raises
            serve(node, link)
    finally:
        link.close()
