"""A relay between a server and a node that can cut the line, or fall silent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

__all__ = ["Relay"]


class Relay:
    """Carries bytes between a server and a node, and can stop doing so."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.there, self.mute, self.closed = (host, int(port)), False, False
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.door.getsockname()[1]}"
        self.open: list[socket.socket] = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self.door.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(self.there)
            except OSError:  # the node is not there
                here.close()
                continue
            self.open += [here, there]
            for one, other in ((here, there), (there, here)):
                self.threads.append(threading.Thread(target=self._carry, args=(one, other), daemon=True))
                self.threads[-1].start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                while self.mute and not self.closed:
                    time.sleep(0.01)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all lines; new ones are taken."""
        cut, self.open = self.open, []
        for one in cut:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Cut all lines, and take no more."""
        self.closed = True
        with contextlib.suppress(OSError):
            self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        self.threads[0].join(5)
        self.cut()
        for thread in self.threads:
            thread.join(5)
