"""A TCP proxy that loses a reply: what was asked is done, and who asked never hears of it."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

CHUNK = 65_536


class Proxy:
    """Listens on loopback and passes everything on to ``port``. Use as a context manager.

    After :meth:`lose` the connection on which ``reply`` comes back for the n-th time is cut before it is passed on.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._reply, self._left = b"", 0
        self.lost = 0
        """How many replies were lost."""

    def lose(self, reply: bytes, nth: int = 1) -> None:
        """Cut the connection on which the n-th ``reply`` from now on comes back. (What is passed on arrives in pieces:
        a reply that two of them share is not seen, and the next one counts.)"""
        with self._lock:
            self._reply, self._left = reply, nth

    def _is_to_be_lost(self, data: bytes) -> bool:
        with self._lock:
            if not self._left or self._reply not in data:
                return False
            self._left -= 1
            self.lost += self._left == 0
            return self._left == 0

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, sink, watched in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=(source, sink, watched), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, watched: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if watched and self._is_to_be_lost(data):
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
