"""The server of deploy/Dockerfile: its command with its default arguments, in a process of its own."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.deploy.dockerfile import DOCKERFILE

if TYPE_CHECKING:  # its extras may be missing; only the tests that need a server are skipped then
    from benchmarks.soak_server import ServerProcess

KEY = "a-key-of-the-environment"


@pytest.fixture(scope="session")
def container() -> Iterator[ServerProcess]:
    """The server, on a free port of this machine, after an answer with drafts and a refused request. Its key
    is in the environment."""
    from benchmarks.soak_server import serving

    command = [*DOCKERFILE.command("ENTRYPOINT"), *DOCKERFILE.command("CMD")]
    assert command[:2] == ["outpace", "serve"]
    here = ["--host", "127.0.0.1", "--threads", "1", "--dtype", "float32"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OUTPACE_API_KEY", KEY)
        environment.setenv("HF_HUB_OFFLINE", "1")
        with serving([*command[2:], *here]) as server:
            assert _complete(server.url, "") == 401
            assert _complete(server.url, KEY) == 200
            yield server
            assert server.stop() == 0


def _complete(url: str, key: str) -> int:
    """The status of a request for 16 tokens."""
    body = {"model": "zoo:target", "prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
