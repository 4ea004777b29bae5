"""The proxy loses exactly the reply that it is told to lose: what was asked is done."""

import socket
import threading

import pytest

from tests.faults.proxy import Proxy

pytestmark = pytest.mark.unit


def answering(server: socket.socket, heard: list[bytes]) -> None:
    """Answer each request with ``done``."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            while request := connection.recv(100):
                heard.append(request)
                connection.sendall(b"done\0")


def ask(port: int, request: bytes, connection: socket.socket | None = None) -> tuple[bytes, socket.socket]:
    connection = connection or socket.create_connection(("127.0.0.1", port))
    connection.sendall(request)
    return connection.recv(100), connection


def test_the_reply_that_is_to_be_lost_is_lost_and_no_other() -> None:
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answering, args=(server, heard), daemon=True).start()
        with Proxy(server.getsockname()[1]) as proxy:
            reply, connection = ask(proxy.port, b"one")
            assert reply == b"done\0"
            proxy.lose(b"done\0", nth=2)
            assert ask(proxy.port, b"two", connection)[0] == b"done\0"
            assert proxy.lost == 0
            assert ask(proxy.port, b"three", connection)[0] == b"", "the connection is cut"
            connection.close()
            assert proxy.lost == 1
            again, connection = ask(proxy.port, b"four")
            assert again == b"done\0"
            connection.close()
        server.shutdown(socket.SHUT_RDWR)
    assert heard == [b"one", b"two", b"three", b"four"]
