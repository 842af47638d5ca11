"""The programs of docs/clients.md, as it says, against a server: `make test-clients`. Without the
environments that it makes they are skipped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # its extras may be missing; only the tests that need a server are skipped then
    from benchmarks.soak_server import ServerProcess

PROGRAMS = os.environ.get("CLIENTS", "")  # folders with the programs, as in PATH
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
WRITTEN = "http://localhost:8000"  # the server's address in the page
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SAVED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMPT = "Say hello to Noah."


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    from benchmarks.soak_server import serving

    arguments = ["zoo:target", "--draft", "zoo:draft", "--threads", "1", "--dtype", "float32"]
    with serving(arguments) as running:
        yield running


def completed(server: ServerProcess) -> float:
    """How many requests the server has answered."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return sum(map(float, re.findall(r"^outpace_requests_total\{.*\} (\S+)$", text, re.MULTILINE)))


@pytest.mark.skipif(not PROGRAMS, reason="needs CLIENTS: run make test-clients")
@pytest.mark.parametrize(
    ("name", "requests"),
    [("LiteLLM", 2), ("LangChain", 4), ("llm on the command line", 1), ("aider", 1), ("guidellm", 6)],
)
def test_the_section_of_the_page_works(
    name: str, requests: int, server: ServerProcess, tmp_path: Path
) -> None:
    section = SECTIONS[name].replace(WRITTEN, server.url)
    for title, text in SAVED.findall(section):
        (tmp_path / title).write_text(text, encoding="utf-8")
    [commands] = COMMANDS.findall(section)
    lines = [line for line in commands.splitlines() if not line.startswith("pip install ")]
    script = "set -e\n" + "\n".join(lines).replace("FOLDER", str(ROOT / "outpace/zoo/weights/target"))
    before = completed(server)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode and done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    assert completed(server) >= before + requests, done.stdout[-2000:]
    if name == "guidellm":
        assert '"errored_requests": 0' in (tmp_path / "guidellm.json").read_text(encoding="utf-8")


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> str:
    headers = {"Authorization": "Bearer none", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


@pytest.mark.slow
def test_the_requests_of_open_webui_are_answered(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=60) as answer:
        [model] = json.load(answer)["data"]
    assert model["id"] == "zoo:target"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    settings = {"temperature": 0, "max_tokens": 12, "top_p": 0.9, "seed": 1, "stop": ["\n\n"]}
    body = {"model": model["id"], "messages": messages, "stream": True, **settings}
    events = post(server, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    *given, done = [line.removeprefix("data: ") for line in events.split("\n\n") if line]
    *chunks, last = map(json.loads, given)
    assert done == "[DONE]" and last["usage"]["completion_tokens"]
    assert any(each["choices"][0]["delta"].get("content") for each in chunks)
    title = {"model": model["id"], "messages": [{"role": "user", "content": "Give a title: " + PROMPT}]}
    found = json.loads(post(server, "/v1/chat/completions", title | {"stream": False, "max_tokens": 8}))
    assert found["choices"][0]["message"]["content"]


def test_the_page_has_a_section_for_every_program() -> None:
    programs = {"LiteLLM", "LangChain", "llm on the command line", "aider", "guidellm"}
    assert programs | {"Open WebUI", "Continue"} <= set(SECTIONS)
