"""A stub of a server with OpenAI's API: it streams what a test tells it to, and keeps what it was sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any


@dataclass(frozen=True)
class Answer:
    """How a request is answered."""

    status: int = 200
    texts: tuple[str, ...] = ("a", "b")  # of the chunks, after one without text
    tokens: int = 3  # completion tokens
    stall: bool = False  # send the chunks, then nothing until the test has ended
    extra: str = ""  # the data of one more event


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may go before its answer is complete
            super().handle_error(request, client_address)


class StubServer:
    """A server on a free port of this machine, until `close`."""

    def __init__(self) -> None:
        self.answer: Callable[[int], Answer] = lambda number: Answer()  # number of the request, from 0
        self.requests: list[dict[str, Any]] = []
        self._released, self._lock, self._answered = Event(), Lock(), 0
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _metrics(self) -> str:
        """vLLM's counters: each request has two drafts of three tokens, and accepts three tokens of them."""
        totals = {"drafts": 2, "draft_tokens": 6, "accepted_tokens": 3}
        prefix = "vllm:spec_decode_num_"
        return "".join(
            f'{prefix}{name}_total{{engine="0"}} {float(number * self._answered)}\n'
            for name, number in totals.items()
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._send(200, "text/plain", stub._metrics())
                else:
                    self._send(200, "application/json", json.dumps({"data": [{"id": "stub"}]}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub._lock:
                    number = len(stub.requests)
                    stub.requests.append(body)
                answer = stub.answer(number)
                if answer.status != 200:
                    self._send(answer.status, "application/json", '{"detail": "the stub refuses"}')
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for text in ("", *answer.texts):
                    self._event(json.dumps({"choices": [{"text": text}]}))
                if answer.stall:
                    stub._released.wait()
                if answer.extra:
                    self._event(answer.extra)
                self._event(json.dumps({"choices": [], "usage": {"completion_tokens": answer.tokens}}))
                self._event("[DONE]")
                with stub._lock:
                    stub._answered += 1

            def _event(self, data: str) -> None:
                self.wfile.write(f"data: {data}\n\n".encode())
                self.wfile.flush()

            def _send(self, status: int, content_type: str, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        return Handler


@contextmanager
def stub_server() -> Iterator[StubServer]:
    """A stub server until the end of the block."""
    stub = StubServer()
    try:
        yield stub
    finally:
        stub.close()
