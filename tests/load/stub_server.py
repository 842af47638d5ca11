"""A stub of an OpenAI-compatible server: it streams what a test tells it to, and keeps what it was sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any


@dataclass(frozen=True)
class Answer:
    """How a request is answered."""

    status: int = 200
    texts: tuple[str, ...] = ("a", "b")  # of the chunks, after one without text
    tokens: int | None = 3  # completion tokens; None: no usage
    stall: bool = False  # send the chunks, then nothing until the test has ended
    done: bool = True  # end with [DONE]
    extra: str = ""  # the data of one more event
    content_type: str = "text/event-stream"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may go before its answer is complete
            super().handle_error(request, client_address)


class StubServer:
    """A server on a free port of this machine, until `close`."""

    def __init__(self) -> None:
        self.answer: Callable[[int], Answer] = lambda number: Answer()  # number of the request, from 0
        self.key = ""  # if given, requests without it are refused
        self.model = "stub"
        self.accepted: tuple[int, ...] | None = None  # by position, of each request; None: no metrics
        self.requests: list[tuple[str, dict[str, Any]]] = []  # (path, body)
        self.released = Event()
        self._lock, self._answered = Lock(), 0
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def metrics(self) -> str:
        """vLLM's counters: two drafts of as many tokens as there are positions for each request."""
        assert self.accepted is not None
        prefix, labels = "vllm:spec_decode_num", 'engine="0",model_name="stub"'
        totals = {
            f"{prefix}_drafts_total{{{labels}}}": 2,
            f"{prefix}_draft_tokens_total{{{labels}}}": 2 * len(self.accepted),
            f"{prefix}_accepted_tokens_total{{{labels}}}": sum(self.accepted),
        }
        for position, number in enumerate(self.accepted):
            totals[f'{prefix}_accepted_tokens_per_pos_total{{{labels},position="{position}"}}'] = number
        lines = [f"{name} {float(number * self._answered)}" for name, number in totals.items()]
        return "\n".join([f"# TYPE {prefix}_drafts_total counter", *lines, "other_total 1.0"]) + "\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path == "/metrics" and stub.accepted is not None:
                    self._send(200, "text/plain", stub.metrics())
                elif self.path == "/v1/models" and self._allowed():
                    self._send_json(200, {"data": [{"id": stub.model}]})
                elif self.path != "/v1/models":
                    self._send_json(404, {"detail": "Not Found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self._allowed():
                    return
                if self.path not in ("/v1/chat/completions", "/v1/completions"):
                    self._send_json(404, {"detail": "Not Found"})
                    return
                with stub._lock:
                    number = len(stub.requests)
                    stub.requests.append((self.path, body))
                answer = stub.answer(number)
                if answer.status != 200:
                    self._send_json(answer.status, {"error": {"message": "the stub refuses"}})
                    return
                self._stream(answer, chat=self.path.endswith("/chat/completions"))
                with stub._lock:
                    stub._answered += 1

            def _allowed(self) -> bool:
                if stub.key and self.headers["Authorization"] != f"Bearer {stub.key}":
                    self._send_json(401, {"error": {"message": "wrong key"}})
                    return False
                return True

            def _stream(self, answer: Answer, *, chat: bool) -> None:
                self.send_response(200)
                self.send_header("Content-Type", answer.content_type)
                self.end_headers()
                for text in ("", *answer.texts):
                    choice = {"delta": {"content": text}} if chat else {"text": text}
                    self._event(json.dumps({"choices": [choice]}))
                if answer.stall:
                    stub.released.wait()
                if answer.extra:
                    self._event(answer.extra)
                if answer.tokens is not None:
                    usage = {"prompt_tokens": 5, "completion_tokens": answer.tokens}
                    self._event(json.dumps({"choices": [], "usage": usage}))
                if answer.done:
                    self._event("[DONE]")

            def _event(self, data: str) -> None:
                self.wfile.write(f"data: {data}\n\n".encode())
                self.wfile.flush()

            def _send_json(self, status: int, value: Any) -> None:
                self._send(status, "application/json", json.dumps(value))

            def _send(self, status: int, content_type: str, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        return Handler
