"""deploy/nginx.conf before two servers: conversations stay with one of them, and go on at the other when it
dies."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.deploy.dockerfile import ROOT

if TYPE_CHECKING:  # its extras may be missing; only the tests that need a server are skipped then
    from benchmarks.soak_server import ServerProcess

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
CONFIG = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
MAIN = """daemon off; pid {folder}/pid; error_log stderr warn; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {site}
}}
"""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)")]


@dataclass
class Balanced:
    url: str
    servers: list[ServerProcess]

    def ask(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> Any:
        data = json.dumps({"model": "zoo:target", "max_tokens": 8, "temperature": 0, **body}).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def requests(self) -> list[int]:
        """How many requests each server has completed."""
        found: list[int] = []
        for server in self.servers:
            with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
                text = answer.read().decode()
            values = re.findall(r"^outpace_requests_total\{.*\} (\S+)$", text, re.MULTILINE)
            found.append(int(sum(map(float, values))))
        return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def balanced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Balanced]:
    from benchmarks.soak_server import serving

    monkeypatch.delenv("OUTPACE_API_KEY", raising=False)  # that of the fixture `container`, if it runs
    arguments = ["zoo:target", "--method", "prompt-lookup", "--threads", "1", "--dtype", "float32"]
    with ExitStack() as running:
        servers = [running.enter_context(serving(arguments)) for _ in range(2)]
        site, port = CONFIG, free_port()
        for written, server in zip((8001, 8002), servers, strict=True):
            assert f"server 127.0.0.1:{written} " in site
            site = site.replace(f"127.0.0.1:{written}", server.url.removeprefix("http://"))
        assert "listen 8000;" in site
        site = site.replace("listen 8000;", f"listen 127.0.0.1:{port};")
        (tmp_path / "nginx.conf").write_text(MAIN.format(folder=tmp_path, site=site), encoding="utf-8")
        command = [str(NGINX), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
        assert not checked.returncode, checked.stderr
        proxy = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        running.callback(proxy.wait)
        running.callback(proxy.terminate)
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).close()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        yield Balanced(f"http://127.0.0.1:{port}", servers)


def chat(number: int, further: int = 0) -> dict[str, Any]:
    """The body of a conversation's request, after `further` answers."""
    messages = [{"role": "system", "content": "You write Python."}]
    messages.append({"role": "user", "content": f'Write "function {number}" of the module.'})
    for turn in range(further):
        messages.append({"role": "assistant", "content": f"def f{turn}(): pass"})
        messages.append({"role": "user", "content": "And now the next one."})
    return {"messages": messages}


def served_by(balanced: Balanced, body: dict[str, Any], path: str = "/v1/chat/completions") -> int:
    before = balanced.requests()
    balanced.ask(body, path)
    after = balanced.requests()
    [server] = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
    return server


def test_conversations_stay_with_a_server_and_survive_its_death(balanced: Balanced) -> None:
    first = [served_by(balanced, chat(number)) for number in range(8)]
    assert set(first) == {0, 1}  # both servers work
    assert [served_by(balanced, chat(number, 2)) for number in range(8)] == first
    in_parts = chat(3, 1)
    question = in_parts["messages"][1]
    question["content"] = [{"type": "text", "text": question["content"]}]
    assert served_by(balanced, in_parts) == first[3]
    # a larger prompt with the same beginning, and a text of another route
    text = "def area(width, height):\n    return width * height\n" * 8
    places = {
        served_by(balanced, {"prompt": text + end}, "/v1/completions") for end in ("", "\n\n", "def volume(")
    }
    assert len(places) == 1
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{balanced.url}/metrics", timeout=60)

    # one dies in the middle of a stream: that request is lost, and nothing after it
    dead = first[0]
    data = json.dumps(
        {"model": "zoo:target", **chat(0), "max_tokens": 900, "ignore_eos": True, "stream": True}
    )
    request = urllib.request.Request(
        f"{balanced.url}/v1/chat/completions", data.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as stream:
        assert stream.readline().startswith(b"data: ")
        balanced.servers[dead].process.kill()
        try:
            rest = stream.read()
        except IncompleteRead as error:
            rest = error.partial
        except OSError:
            rest = b""
    assert b"[DONE]" not in rest
    survivor = balanced.servers[1 - dead]
    balanced.servers = [survivor]
    before = balanced.requests()[0]
    for number in range(8):
        assert balanced.ask(chat(number, 3))["choices"][0]["message"]["content"]
    assert balanced.requests()[0] == before + 8
