"""The soak test of the server, in short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import soak
from benchmarks.paired import load
from benchmarks.soak_questions import questions
from benchmarks.soak_server import Held
from benchmarks.soak_traffic import Outcome

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
HELD = Held(100.0, 10, 8, 3, 0, 0, 0)


@pytest.mark.programs
@pytest.mark.slow
def test_a_server_withstands_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    some = questions(soak.TARGET)[::8]
    monkeypatch.setattr(soak, "questions", lambda model: some)
    run = soak.soak("little memory", soak.SETTINGS["little memory"], 40, 20, seed=1)
    assert not run.faults
    numbers = run.mixed.numbers
    assert sum(numbers.values()) == 40 and numbers["killed client"] == 8
    assert sum(run.short.numbers.values()) == 20


def made(**changed: Any) -> soak.Run:
    """A run without faults, and what is changed in it."""
    memory = [(number, 100.0) for number in range(0, 16000, 1000)]
    values = {"mixed": Outcome({"complete": 60}), "short": Outcome({"complete": 5000}), "memory": memory}
    given: dict[str, Any] = {"before": HELD, "after": HELD, "end": HELD, **values, **changed}
    return soak.Run("some", "", 60, 5000, preemptions=1, drafter_errors=0, **({"exit_status": 0} | given))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"mixed": Outcome(lost=["complete: TimeoutError"])}, "lost: complete: TimeoutError"),
        ({"short": Outcome(mixed_up=["streamed: a instead of b"])}, "mixed up: streamed"),
        ({"after": Held(100.0, 10, 8, 3, 1, 0, 0)}, "requests are left after the mixed ones"),
        ({"end": Held(100.0, 10, 8, 3, 0, 0, 1)}, "requests are left after the short ones"),
        ({"end": Held(100.0, 10, 9, 3, 0, 0, 0)}, "more file_descriptors"),
        ({"end": Held(100.0, 10, 8, 4, 0, 0, 0)}, "more tasks"),
        ({"end": Held(100.0, 27, 8, 3, 0, 0, 0)}, "more threads"),
        ({"memory": [(n, 100 + n / 256) for n in range(0, 16000, 1000)]}, "4.00 KiB per request"),
        ({"exit_status": 1}, "ended with status 1"),
    ],
)
def test_a_fault_is_noticed(changed: dict[str, Any], fault: str) -> None:
    assert not made().faults
    assert fault in " ".join(made(**changed).faults)


def test_a_leak_is_told_from_a_step_of_the_allocator() -> None:
    numbers = range(0, 16000, 1000)
    step = [(n, 100.0 + 30 * (n > 9000)) for n in numbers]
    assert not made(memory=step).faults
    # the same step, and 2.5 KiB per request
    leak = [(n, mib + n * 2.5 / 1024) for n, mib in step]
    assert "per request" in " ".join(made(memory=leak).faults)
    warm_up = [(n, 100.0 + min(n, 5000) / 50) for n in numbers]
    assert not made(memory=warm_up).faults


def test_the_page_has_the_figures_and_the_faults() -> None:
    results = [made().to_json(), made(exit_status=1).to_json()]
    source = {
        "argv": ["soak"],
        "device": "CPU",
        "versions": {"torch": "2"},
        "commit": "abc",
        "date": "2026-11-22T",
    }
    shown = soak.page({"results": results, "provenance": source}, "soak.json")
    assert "| complete | 60 | 60 |" in shown and "| 5000 | 100.0 | 100.0 |" in shown
    assert "- some: the server ended with status 1" in shown and "commit abc" in shown


def test_the_published_page_is_that_of_its_file() -> None:
    data = load(RESULTS / "serving-reliability" / "soak-cpu.json.gz")
    shown = (RESULTS / "serving-reliability.md").read_text(encoding="utf-8")
    assert soak.page(data, "soak-cpu.json.gz") == shown
    assert data["complete"] and [run["setting"] for run in data["results"]] == list(soak.SETTINGS)
