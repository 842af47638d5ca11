"""Load tests that were interrupted go on after the turns that were made."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from benchmarks.serving import CONTENDERS, LONGEST, SETTINGS, KeptTurns
from outpace.bench.load.endpoint import Endpoint
from outpace.bench.load.load_level import Concurrency
from outpace.bench.load.load_test import LoadTest
from outpace.bench.load.plan import LoadPlan, TurnLength
from outpace.bench.load.request_body import RequestOptions
from outpace.bench.load.server import Contender, parse_server
from outpace.bench.load.turn import Turn
from outpace.bench.measure.workload import WorkloadItem
from tests.load.stub_server import StubServer


def load_test(stub: StubServer) -> LoadTest:
    server = parse_server(f"stub={stub.url}")
    contenders = [Contender("plain", server, {"speculation": False}), Contender("adaptive", server)]
    items = [WorkloadItem("code/0", "code", ("def",), False)]
    plan = LoadPlan(items, [Concurrency(1)], 2, TurnLength(2, None), 0)
    return LoadTest(contenders, plan, RequestOptions(Endpoint.completions, 4, 0.0, True), timeout=20.0)


def test_a_run_goes_on_after_the_turns_that_were_made(
    stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    kept, first = KeptTurns(tmp_path / "load.turns"), load_test(stub)
    asyncio.run(first.run(lambda label, units: None))
    assert first.complete and kept.read() == []
    kept.write(first.turns[:3])
    again = load_test(stub)
    again.turns += KeptTurns(tmp_path / "load.turns").read()
    asyncio.run(again.run(lambda label, units: None))
    assert again.complete and again.turns[:3] == first.turns[:3]
    assert [(turn.contender, turn.round) for turn in again.turns] == [
        (turn.contender, turn.round) for turn in first.turns
    ]
    kept.delete()
    assert KeptTurns(tmp_path / "load.turns").read() == []


def test_turns_of_other_arguments_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.turns"
    KeptTurns(file).write([Turn("plain", Concurrency(1), 0, (), 1.0)])
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
