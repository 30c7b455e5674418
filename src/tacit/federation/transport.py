"""Between machines: gRPC with mutual TLS. Messages are our own bytes through one method; nothing is pickled.

A node listens, and answers whoever has the server's certificate; a server calls, and talks to whoever has the
certificate of that node. A line that is cut is taken up again until the deadline of the question; the node's desk
answers a question that comes twice with the same bits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from tacit.errors import InvalidInput
from tacit.federation.desk import PATIENCE, Desk, check_patience
from tacit.federation.errors import FederationError, LinkLost
from tacit.federation.links import Pending, members
from tacit.federation.node import Node
from tacit.federation.tls import SERVER, TLS, missing_extra
from tacit.federation.wire import MAX_MESSAGE, one_line

__all__ = ["GrpcLink", "NodeServer", "connect", "serve_node"]

SERVICE, METHOD = "tacit.Node", "Ask"
THREADS = 8
"""Questions that a node answers at once; more have to wait, and more than four times as many are turned away."""
LIMITS = (
    ("grpc.max_send_message_length", MAX_MESSAGE + 1024),
    ("grpc.max_receive_message_length", MAX_MESSAGE + 1024),
    ("grpc.max_metadata_size", 16384),
)
RETRY = 0.1, 1.0
"""Seconds before a cut line is tried again: at first, and at most."""
GRACE = 2.0
"""Seconds for answers that are on their way when a node stops."""


def _grpc() -> Any:
    try:
        import grpc
    except ImportError:
        raise missing_extra("grpcio") from None
    return grpc


def _checked_tls(tls: object) -> TLS:
    if not isinstance(tls, TLS):
        raise InvalidInput(
            "tls must be a TLS, e.g. TLS.read(folder, name); certificates for trials are made by "
            "make_trial_certificates, or tacit federation init"
        )
    return tls


# -- the node's side ------------------------------------------------------------------------------------------------


class NodeServer:
    """A node that is listening: made by ``serve_node``.

    Attributes:
        address: where, with the port that was chosen.
    """

    def __init__(self, server: Any, desk: Desk, address: str) -> None:
        self._server, self._desk, self.address = server, desk, address

    def wait(self, timeout: float | None = None) -> None:
        """Serve until the process is told to end, or for so many seconds."""
        self._server.wait_for_termination(timeout)

    def stop(self) -> None:
        """Take no more questions, and end all sessions; what was reserved stays spent."""
        self._server.stop(GRACE).wait()
        self._desk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()


def serve_node(
    node: Node,
    address: str,
    *,
    tls: TLS,
    server_name: str = SERVER,
    patience: float | None = PATIENCE,
    answer: Callable[[Callable[[bytes, str], bytes], bytes, str], bytes] | None = None,
) -> NodeServer:
    """Answer a server's questions about a node's rows, over gRPC with mutual TLS.

        with serve_node(node, "0.0.0.0:7443", tls=TLS.read("certificates", "a")) as server:
            server.wait()

    Args:
        node: whose rows are asked about.
        address: host and port to listen at; port 0 for any free one.
        tls: of this node.
        server_name: the name in the certificate of the only party that may ask.
        patience: seconds without a question after which a session ends (its budget stays spent); None for ever.
        answer: for tests: called with the desk's own way to answer, the bytes and the caller.

    Returns:
        The server, which is running.

    Raises:
        InvalidInput: if the address cannot be listened at, or the certificates cannot be used.
    """
    grpc, parts = _grpc(), _checked_tls(tls)
    (node,) = members("node", [node], ("plan", "statement"), "a FactorNode or a LinearNode")
    desk = Desk(node, patience=check_patience(patience))

    def ask(message: bytes, context: Any) -> bytes:
        names = context.auth_context().get("x509_common_name", [])
        if names != [server_name.encode()]:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"only {server_name!r} may ask this node")
        return desk.answer(message, server_name) if answer is None else answer(desk.answer, message, server_name)

    handler = grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.unary_unary_rpc_method_handler(ask)})
    server = grpc.server(
        ThreadPoolExecutor(THREADS, thread_name_prefix="tacit-node"),
        handlers=(handler,),
        options=(*LIMITS, ("grpc.so_reuseport", 0)),
        maximum_concurrent_rpcs=4 * THREADS,
    )
    pair = [(parts.key, parts.certificate)]
    try:
        credentials = grpc.ssl_server_credentials(pair, parts.authority, require_client_auth=True)
        port = server.add_secure_port(address, credentials)
    except (RuntimeError, ValueError) as error:
        raise InvalidInput(f"{address!r} cannot be listened at: {one_line(error)}") from None
    server.start()
    return NodeServer(server, desk, f"{address.rpartition(':')[0]}:{port}")


# -- the server's side ----------------------------------------------------------------------------------------------


def connect(address: str, *, tls: TLS, node: str) -> GrpcLink:
    """The way to one node, over gRPC with mutual TLS. Nothing is sent before a fit.

    Args:
        address: host and port of the node.
        tls: of the server.
        node: the name in the node's certificate.

    Returns:
        The link, for ``fit``; a context manager that closes it.

    Raises:
        InvalidInput: if the certificates cannot be used.
    """
    return GrpcLink(address, _checked_tls(tls), node)


class GrpcLink:
    """A link over gRPC: made by ``connect``."""

    def __init__(self, address: str, tls: TLS, node: str) -> None:
        grpc = _grpc()
        if not isinstance(address, str) or ":" not in address:
            raise InvalidInput(f"address must be host and port, such as 'localhost:7443', got {address!r}")
        if not isinstance(node, str) or not node:
            raise InvalidInput(f"node must be the name in the node's certificate, got {node!r}")
        credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
        options = (
            *LIMITS,
            ("grpc.ssl_target_name_override", node),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),  # whatever the environment says: the line is between these two
        )
        self._channel = grpc.secure_channel(address, credentials, options=options)
        self._call = self._channel.unary_unary(f"/{SERVICE}/{METHOD}")
        self._closed = threading.Event()

    def submit(self, message: bytes, timeout: float) -> Pending:
        """Send a question.

        Args:
            message: whole.
            timeout: seconds for the answer, with all attempts.

        Returns:
            The answer that is on its way.

        Raises:
            LinkLost: if the link is closed.
        """
        if self._closed.is_set():
            raise LinkLost("the link is closed")
        return _Call(self._call, message, timeout, self._closed)

    def close(self) -> None:
        """Ask nothing more."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()


class _Call:
    """A question on its way, sent again whenever the line was cut."""

    def __init__(self, call: Any, message: bytes, timeout: float, closed: threading.Event) -> None:
        self._call, self._message, self._closed = call, message, closed
        self._timeout, self._until = timeout, time.monotonic() + timeout
        self._future = call.future(message, timeout=timeout)

    def result(self) -> bytes:
        grpc, wait = _grpc(), RETRY[0]
        while True:
            try:
                return bytes(self._future.result())
            except grpc.FutureCancelledError:
                raise LinkLost("the link is closed") from None
            except grpc.RpcError as error:
                code, details = error.code(), one_line(error.details())
            self._give_up(grpc.StatusCode, code, details, wait)
            if self._closed.wait(wait):
                raise LinkLost("the link is closed")
            wait = min(2 * wait, RETRY[1])
            self._future = self._call.future(self._message, timeout=max(self._until - time.monotonic(), 0.001))

    def _give_up(self, codes: Any, code: Any, details: str, wait: float) -> None:
        """Raise, unless another attempt makes sense."""
        if code is codes.DEADLINE_EXCEEDED:
            raise LinkLost(f"no answer for {self._timeout:g} seconds")
        if "VERIFICATION" in details.upper() or "CERTIFICATE" in details.upper():
            raise LinkLost(f"its certificate is not the one that was expected: {details}")
        if code not in (codes.UNAVAILABLE, codes.CANCELLED, codes.UNKNOWN, codes.RESOURCE_EXHAUSTED, codes.INTERNAL):
            raise FederationError(f"turned the question away ({code.name.lower()}: {details})")
        if time.monotonic() + wait >= self._until:
            raise LinkLost(f"it could not be reached for {self._timeout:g} seconds: {details}")
