"""A Maven repository on a real socket, with the faults of real ones: broken connections, no ranges."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from infra.artifacts.lock import Artifact


class Repository:
    """``files`` by path; ``asked``: (path, Range header) of every request, in order.

    ``cuts``: how many bytes each of the next requests gets before its connection is cut. ``ranges``: whether a part
    can be asked for.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cuts: list[int] = []
        self.ranges = True
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the base class says its name
                repository._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers["Range"]
        self.asked.append((request.path, wanted))
        content = self.files.get(request.path)
        if content is None:
            request.send_error(404)
            return
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and self.ranges else 0
        if start and start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else len(content)
        request.wfile.write(content[start : start + cut])

    def add(self, coordinate: str, content: bytes, group: str = "any") -> Artifact:
        """Hold a file, and lock it."""
        artifact = Artifact(group, coordinate, hashlib.sha256(content).hexdigest(), len(content))
        self.files[f"/{artifact.path}"] = content
        return artifact

    def close(self) -> None:
        """Nobody listens any more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@contextmanager
def serving() -> Iterator[Repository]:
    repository = Repository()
    try:
        yield repository
    finally:
        repository.close()
