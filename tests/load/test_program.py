"""`benchmarks.load` against stub servers, and runs of `benchmarks.serving` that were interrupted."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.load.__main__ import main
from benchmarks.load.load_test import LoadTest
from benchmarks.load.plan import Contender, LoadLevel, LoadPlan
from benchmarks.load.turn import Turn
from benchmarks.serving import CONTENDERS, LONGEST, SETTINGS, KeptTurns
from outpace.bench.measure.workload import WorkloadItem
from tests.load.stub_server import Answer, StubServer, stub_server

STREAM = LoadLevel(1.0, True)


def load_test(stub: StubServer) -> LoadTest:
    contenders = [Contender("plain", stub.url, {"speculation": False}), Contender("adaptive", stub.url)]
    items = [WorkloadItem("code/0", "code", ("def",), False)]
    return LoadTest(contenders, LoadPlan(items, [STREAM], 2, 0.01), {"max_tokens": 4})


def run(test: LoadTest) -> None:
    asyncio.run(test.run(lambda label, turns: None))


@pytest.mark.slow
def test_two_servers_are_compared(stub: StubServer, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    file = tmp_path / "load.json"
    with stub_server() as other:
        arguments = [f"one={stub.url}", f"two={other.url}", "--concurrency", "1,2", "--seconds", "0.02"]
        shown = CliRunner().invoke(app, [*arguments, "--rounds", "3", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "Divided by one" in shown.stdout and "failed" not in shown.stderr
    data = json.loads(file.read_text())
    assert data["complete"] and [row["contender"] for row in data["results"]] == ["one", "two"] * 2
    for row in data["results"]:
        assert row["rounds"] == 3 and row["requests"] >= 3 and not row["failures"]
        assert (row["speculation"]["acceptance_rate"], row["speculation"]["mean_acceptance_length"]) == (
            0.5,
            2.5,
        )
    assert [(row["load"], row["reference"]) for row in data["ratios"]] == [
        ("1 stream", "one"),
        ("2 streams", "one"),
    ]
    assert {(each["prompt"], each["seed"]) for each in stub.requests} & {
        (each["prompt"], each["seed"]) for each in other.requests
    }
    assert CliRunner().invoke(app, [stub.url]).exit_code == 2


@pytest.mark.slow
def test_requests_have_the_fields_of_the_contender(stub: StubServer) -> None:
    run(test := load_test(stub))
    assert test.models == {stub.url: "stub"}
    assert {"model": "stub", "prompt": "def", "max_tokens": 4, "stream": True}.items() <= (
        stub.requests[0].items()
    )
    assert {each.get("speculation") for each in stub.requests} == {False, None}


@pytest.mark.slow
def test_failures_are_recorded_and_end_nothing(stub: StubServer) -> None:
    # the first two requests see that the contenders work
    stub.answer = lambda number: Answer(status=200 if number < 2 else 503)
    run(test := load_test(stub))
    errors = {record.error for turn in test.turns for record in turn.records}
    assert len(test.turns) == 4 and errors == {'HTTP 503: {"detail": "the stub refuses"}'}


def test_a_contender_that_does_not_answer_ends_the_run(stub: StubServer) -> None:
    stub.answer = lambda number: Answer(status=404)
    with pytest.raises(ConnectionError, match="plain does not answer at .*HTTP 404"):
        run(load_test(stub))
    stub.close()
    with pytest.raises(ConnectionError, match="no server names its models"):
        run(load_test(stub))


@pytest.mark.slow
def test_a_run_goes_on_after_the_turns_that_were_made(stub: StubServer, tmp_path: Path) -> None:
    kept = KeptTurns(tmp_path / "load.turns")
    run(first := load_test(stub))
    assert len(first.turns) == first.num_turns and kept.read() == []
    kept.write(first.turns[:3])
    again = load_test(stub)
    again.turns += KeptTurns(tmp_path / "load.turns").read()
    run(again)
    assert again.turns[:3] == first.turns[:3]
    assert [(turn.contender, turn.round) for turn in again.turns] == [
        (turn.contender, turn.round) for turn in first.turns
    ]
    kept.delete()
    assert KeptTurns(tmp_path / "load.turns").read() == []


def test_turns_of_other_arguments_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.turns"
    KeptTurns(file).write([Turn("plain", STREAM, 0, (), 1.0)])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--rounds", "9"])
    assert KeptTurns(file).read() == []
    assert "begun anew" in capsys.readouterr().err


def test_drafts_of_one_length_are_as_long_as_the_server_drafts_at_most() -> None:
    lengths = [
        each["speculation"]["num_speculative_tokens"]
        for name, each in SETTINGS.items()
        if name.startswith("fixed")
    ]
    assert lengths == [1, 3, 5, 8] and max(lengths) == LONGEST
    assert set(CONTENDERS.split(",")) <= set(SETTINGS)
