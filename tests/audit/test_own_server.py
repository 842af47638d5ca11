"""Our own server, audited."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outpace
from outpace.audit.check import FAULT, PASSED
from outpace.audit.endpoint import Endpoint
from outpace.audit.endpoint_reference import EndpointReference
from outpace.audit.local_reference import LocalReference
from outpace.audit.prompts import PROMPTS
from outpace.audit.reference import Reference
from outpace.audit.run import Audit, Budget
from outpace.audit.setting import ROUNDING

pytest.importorskip("fastapi")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "audit.md"


def audited(url: str, reference: Reference, requests: int, tokens: int) -> dict[str, Any]:
    server = Endpoint(f"{url}/v1", "zoo")
    checks = Audit(server, reference, PROMPTS, Budget(requests, tokens, 300), 1e-4).run()
    server.close()
    return {check.name: check for check in checks}


@pytest.mark.slow
def test_our_server_passes(loaded: Any) -> None:
    from tests.serving.http.conftest import serving

    target, draft = loaded
    options = {"draft": draft}
    with serving(target, "speculative-sampling", options=options, max_length=512) as running:
        checks = audited(running.url, LocalReference(target, "float64"), 150, 32)
    assert not [check for check in checks.values() if check.verdict == FAULT], checks
    for name in ("greedy texts", "log probabilities", "samples under load", "independence of samples"):
        assert checks[name].verdict == PASSED, checks


@pytest.mark.slow
def test_our_server_without_drafts_is_a_reference(loaded: Any) -> None:
    from tests.serving.http.conftest import serving

    target, draft = loaded
    with (
        serving(target, "speculative-sampling", options={"draft": draft}) as running,
        serving(target, "autoregressive") as plain,
    ):
        reference = EndpointReference(Endpoint(f"{plain.url}/v1", "zoo"), ROUNDING["float64"])
        checks = audited(running.url, reference, 80, 16)
    assert not [check for check in checks.values() if check.verdict == FAULT], checks
    assert checks["greedy texts"].verdict == PASSED


@pytest.mark.slow
def test_the_command_of_the_page_gives_its_output() -> None:
    """With fewer requests than by default."""
    from outpace.cli.app import app
    from tests.serving.http.conftest import serving

    shown = re.search(r"```console\n\$ outpace (audit [^\n]*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown
    model, draft = outpace.load("zoo:target"), outpace.load("zoo:draft")
    with serving(model, "speculative-sampling", options={"draft": draft}) as running:
        command = (
            shown[1]
            .replace("http://localhost:8000", running.url)
            .replace("--model zoo:target", "--model zoo")
        )
        result = CliRunner().invoke(
            app, [*shlex.split(command), "--max-requests", "60", "--max-tokens", "24"]
        )
    assert result.exit_code == 0, result.output
    titles, *rows = shown[2].splitlines()[1:]
    assert re.split(r"\s{2,}", titles) == re.split(r"\s{2,}", result.stdout.splitlines()[1].strip())
    for row in rows[:10]:
        assert re.split(r"\s{2,}", row)[0] in result.stdout
    assert " requests, " in result.stdout and "FAULT" not in result.stdout
    assert "sends at most 60 requests of at most 24 tokens" in result.stderr
