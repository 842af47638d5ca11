"""Answers requests while the model is loaded: status 503, so that clients and probes need not wait."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from outpace.serving.http.errors import ApiError

RETRY_SECONDS = 5
SECONDS_TO_READ = 10.0  # that a client gets to send its request
POLL_SECONDS = 0.05  # after which the end of the block is noticed
STARTING = ApiError(
    503, "the server is loading its model: try again later", headers={"Retry-After": str(RETRY_SECONDS)}
)


class _Refusal(BaseHTTPRequestHandler):
    timeout = SECONDS_TO_READ

    def _refuse(self) -> None:
        body = json.dumps(STARTING.body).encode()
        self.send_response(STARTING.status)
        for name, value in {**(STARTING.headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    do_GET = do_POST = do_HEAD = do_OPTIONS = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


@contextmanager
def refusing(listener: socket.socket) -> Iterator[None]:
    """Answer status 503 to the requests on a listening socket until the end of the block, which leaves the
    socket open."""
    server = ThreadingHTTPServer(listener.getsockname()[:2], _Refusal, bind_and_activate=False)
    server.socket.close()
    server.socket, server.daemon_threads = listener, True
    thread = Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="outpace-starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
