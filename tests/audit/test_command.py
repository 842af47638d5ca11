"""What `outpace audit --endpoint` prints, and its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.audit.stub import Stub, served, table_model


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is what every reference is loaded as."""
    monkeypatch.setattr("outpace.api.load", lambda name, **options: table_model())


def run(fault: str, *more: str, reply: Any = None) -> Any:
    from outpace.cli.app import app

    stub = Stub(fault)
    with served(reply or (lambda asked, handler: stub.answer(asked))) as url:
        given = ["--endpoint", url, "--model", "stub", "--reference", "table", "--max-tokens", "16"]
        return CliRunner().invoke(app, ["audit", *given, "--max-requests", "40", *more])


@pytest.mark.slow
def test_no_fault_is_exit_code_0() -> None:
    result = run("", "--false-alarms", "1e-4")
    assert result.exit_code == 0, result.output
    assert "sends at most 40 requests of at most 16 tokens" in result.stderr
    assert "passed, but" in result.stdout.splitlines()[-1] and "not tested" in result.stdout
    assert "FAULT" not in result.stdout and "One seed twice gave the same text." in result.stdout


def test_a_fault_is_exit_code_1() -> None:
    result = run("a log probability of 0")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAULT" and "have the log probability 0" in result.stdout


@pytest.mark.slow
def test_a_report_as_json() -> None:
    result = run("a log probability that is NaN", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and not report["passed"] and report["dtype"] == "float64"
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert verdicts["log probabilities"] == "FAULT" and verdicts["greedy texts"] == "passed"
    assert len(verdicts) == 10 and report["num_requests"] <= 40


def test_a_server_that_stops_answering_is_told() -> None:
    """What was tested before counts."""
    stub = Stub()

    def reply(asked: dict[str, Any], handler: Any) -> Any:
        if stub.num_requests > 10:
            return handler.send({"error": {"message": "no memory"}}, 500)
        return stub.answer(asked)

    result = run("", reply=reply)
    assert result.exit_code == 0 and "Ended early:" in result.stdout and "no memory" in result.stdout
    assert "9 of 10 checks were not tested" in result.stdout


def test_nothing_tested_is_exit_code_2() -> None:
    stub = Stub()

    def reply(asked: dict[str, Any], handler: Any) -> Any:
        if stub.num_requests:
            return handler.send({"error": {"message": "no memory"}}, 500)
        return stub.answer(asked)

    result = run("", reply=reply)
    assert result.exit_code == 2 and "passed" not in result.stdout.split()
    assert "outpace: nothing was tested" in result.stderr and "no memory" in result.stderr


def test_the_time_is_limited() -> None:
    result = run("", "--max-seconds", "1", "--max-requests", "100000")
    # 2: a slow machine has tested nothing by then
    assert result.exit_code in (0, 2) and "Ended early: the 1 s are over" in result.stdout
