"""outpace's lookups in vLLM: the greedy text of its plain decoding, our acceptance length; and the command of
docs/vllm.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from outpace.models.names import resolve
from tests.vllm.compared import PYTHON, TARGET, TEXTS, check, needs_vllm

pytestmark = needs_vllm
DEPTH, MAX_TOKENS = 5, 320  # vLLM also counts draft tokens beyond the last that was asked for, at most DEPTH
CONFIG = {
    "method": "custom_class",
    "model": "outpace.integrations.vllm.Proposer",
    "num_speculative_tokens": DEPTH,
}
ARMS = f"prompt-lookup:depth={DEPTH},sam-decoding:standalone_depth={DEPTH}"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "vllm.md"


@pytest.mark.parametrize(
    "own",
    [
        {"method": "prompt-lookup", "depth": DEPTH},
        {"method": "suffix-decoding", "depth": DEPTH, "tree": False},
        {"method": "ucb-spec", "arms": ARMS, "reward": "tokens"},
    ],
    ids=lambda own: own["method"],
)
def test_a_lookup_drafts_as_it_does_here(own: dict[str, Any]) -> None:
    check(CONFIG, max_tokens=MAX_TOKENS, additional={"outpace": own}, **own)


def test_the_command_of_the_page_starts_a_server_that_drafts(tmp_path: Path) -> None:
    [command] = re.findall(r"^(vllm serve .*?[^\\])$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    _, _, _, *options = shlex.split(command.replace("\\\n", " "))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    arguments = ["--port", str(port), "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    with open(tmp_path / "log", "w") as log:
        # vllm-cpu's own program `vllm` looks for the metadata of a package of that name, and fails
        module = ["-m", "vllm.entrypoints.openai.api_server", "--model", resolve(TARGET)]
        program = [PYTHON, *module, *options, *arguments]
        server = subprocess.Popen(program, env=os.environ | settings, stdout=log, stderr=log)
    try:
        for _ in range(600):
            time.sleep(0.5)
            assert server.poll() is None, (tmp_path / "log").read_text()[-4000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5)
                break
            except OSError:
                pass
        for text in TEXTS[:3]:
            body = {"model": resolve(TARGET), "prompt": text, "max_tokens": 64, "temperature": 0}
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert json.load(answer)["choices"][0]["text"]
        metrics = urllib.request.urlopen(f"{url}/metrics", timeout=5).read().decode()
    finally:
        server.terminate()
        server.wait(timeout=60)
    [accepted] = re.findall(
        r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE
    )
    assert float(accepted) > 0
