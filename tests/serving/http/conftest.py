"""Servers on free ports with the zoo's models, and clients of the openai package."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import outpace

if TYPE_CHECKING:  # the extra may be missing; only the tests that need it are skipped then
    from outpace.serving.http.middleware.admission import Admission
    from outpace.serving.http.server import Server
    from outpace.serving.http.service import Service

KEY = "some-key"
SERVICE = (
    "chat_template",
    "max_length",
    "overrides",
    "use_defaults",
    "max_rows",
    "max_waiting",
    "kv_bytes",
    "prefix_cache",
    "stuck_seconds",
    "tool_call_parser",
    "reasoning_parser",
)  # options of Service


@dataclass
class Running:
    """A server in a thread."""

    url: str
    service: Service
    admission: Admission
    server: Server
    thread: Thread

    def client(self, key: str = KEY) -> Any:
        """A client that does not repeat failed requests."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120)

    def call(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Status, JSON value and headers of the response to a GET, or to a POST of `body`: bytes, or a value
        that is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | {n.replace("_", "-"): v for n, v in headers.items()}
        request = urllib.request.Request(self.url + path, data, given)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                status, text, found = response.status, response.read().decode(), response.headers
        except urllib.error.HTTPError as error:
            status, text, found = error.code, error.read().decode(), error.headers
        return status, json.loads(text) if text[:1] in "{[" else text, found

    def close(self) -> None:
        """Begin to shut down, as the first signal does; again, as the second."""
        assert self.server.loop is not None
        self.server.loop.call_soon_threadsafe(self.server.close)


def wait_until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail if that takes very long."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


@contextmanager
def serving(model: Any, method: str = "speculative-sampling", **options: Any) -> Iterator[Running]:
    """A server in a thread until the end of the block."""
    from outpace.recipes import get
    from outpace.serving.http.app import create_app
    from outpace.serving.http.middleware.admission import Admission
    from outpace.serving.http.server import Server
    from outpace.serving.http.service import Service
    from outpace.serving.methods import open_methods

    parts = open_methods(model, get(method), options.pop("options", {}), options.pop("others", ()))
    chosen = {name: options.pop(name) for name in SERVICE if name in options}
    service = Service(model, parts, name="zoo", **chosen)
    admission = Admission()
    timeout = options.pop("shutdown_timeout", 60)
    app = create_app(service, admission=admission, **options)
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(app, admission, lambda: service.engine.close(drain=False), shutdown_timeout=timeout)
    thread = Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    running = Running(f"http://127.0.0.1:{listener.getsockname()[1]}", service, admission, server, thread)
    try:
        wait_until(lambda: server.started and server.loop is not None)
        yield running
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def model() -> Any:
    """The zoo's target in float64, in which every method gives the same text at temperature 0."""
    return outpace.load("zoo:target", dtype="float64")


@pytest.fixture(scope="session")
def running(model: Any) -> Iterator[Running]:
    """A server of the zoo's target with its draft; requests may choose prompt-lookup too."""
    with serving(model, others=[("prompt-lookup", {})]) as found:
        yield found


@pytest.fixture(scope="session")
def client(running: Running) -> Any:
    return running.client()


@pytest.fixture(scope="session")
def serve() -> Any:
    """`serving`, for tests that need a server with other options."""
    return serving


@pytest.fixture(scope="session")
def wait() -> Any:
    """`wait_until`."""
    return wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the rate limit, which stands: `now` in seconds, in the middle of a minute. The limit's
    estimate lets one more request pass just after a minute begins, so tests must not depend on the hour."""
    from limits.storage import memory

    clock = SimpleNamespace(now=time.time() // 60 * 60 + 30)
    monkeypatch.setattr(memory, "time", SimpleNamespace(time=lambda: clock.now))
    return clock
