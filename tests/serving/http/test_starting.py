"""While the model is loaded, every request gets status 503 at once."""

from __future__ import annotations

import http.client
import json
import socket

import openai
import pytest

from outpace.serving.http.starting import refusing


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_requests_get_503_until_the_block_ends(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"{host} cannot be listened on")
    port = listener.getsockname()[1]

    def ask(method: str, path: str, seconds: float) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
        connection.request(method, path, b"{}" if method == "POST" else None)
        return connection.getresponse()

    with listener:
        with refusing(listener):
            for method, path in (("GET", "/health"), ("GET", "/metrics"), ("POST", "/v1/completions")):
                answer = ask(method, path, 60)
                assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
                assert "loading its model" in json.loads(answer.read())["error"]["message"]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
            with pytest.raises(openai.InternalServerError, match="loading its model"):
                client.models.list()
        with pytest.raises(TimeoutError):  # nobody answers, but connections are accepted
            ask("GET", "/health", 0.3)
