"""Progress on standard error: lines where there is no terminal, a bar from the start on one."""

from __future__ import annotations

import io
import time

import pytest

from outpace import console
from outpace.console import Pace, in_words, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(console, "monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_from_what_was_done_in_this_run(clock: list[float]) -> None:
    pace = Pace(100, "training")
    assert str(pace) == "0 of 100"
    pace.advance("training", 40)  # of an earlier run, which this one continues
    assert str(pace) == "40 of 100"
    clock[0] += 20
    pace.advance("loss 1.0", 10)
    assert str(pace) == "50 of 100, 2 min left"
    assert pace.seconds_left == 100
    assert str(Pace(None, "loading")) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5900, "98 min"), (12000, "3 h 20 min")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_lines_are_printed_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "LINES", 0.02)
    with progress(4, "the target answers") as advance:
        time.sleep(0.1)  # the same state is said once
        advance("the target answers", 2)
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "outpace: the target answers: 0 of 4"
    assert lines[1].startswith("outpace: the target answers: 2 of 4") and len(lines) == 2


def test_work_of_a_moment_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(2, "working") as advance:
        advance("working", 2)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_before_the_first_unit_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(console, "DELAY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    with progress(7, "the target answers"):
        time.sleep(0.3)
    assert "the target answers" in terminal.getvalue() and "0 of 7" in terminal.getvalue()
