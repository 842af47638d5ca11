"""A worker in a real process: answers, failures, and that it ends with its parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from benchmarks.peers import worker
from benchmarks.peers.worker import PeerFailed, PeerRefused, Worker, close_all, environment_of

STUB = Path(__file__).parent / "stub_engine.py"
REQUEST = {"prompts": [[8, 9, 10], [3]], "max_tokens": 2, "temperature": 0.0}
Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Worker] = []

    def begin(**settings: Any) -> Worker:
        made.append(Worker(sys.executable, STUB, settings, environment_of(os.environ, 1, own=True)))
        return made[-1]

    yield begin
    close_all(made)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def stops(pid: int, seconds: float = 5.0) -> bool:
    def stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    until = monotonic() + seconds
    while not stopped() and monotonic() < until:
        sleep(0.02)
    return stopped()


def ends(pid: int, seconds: float = 5.0) -> bool:
    until = monotonic() + seconds
    while alive(pid) and monotonic() < until:
        sleep(0.02)
    return not alive(pid)


@pytest.mark.slow
def test_it_answers_requests_with_tokens_and_seconds(start: Start) -> None:
    one = start(dtype="bfloat16", sleep=0.7)  # longer than the patience between two looks
    assert one.ready()["precision"] == "bfloat16 in threes"
    answer = one.request(REQUEST)
    assert answer["outputs"] == [[1, 2], [3]] and 0 <= answer["seconds"] < 1
    assert one.request(REQUEST | {"sleep": 0.1})["seconds"] >= 0.1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
def test_it_is_stopped_between_requests(start: Start) -> None:
    one = start()
    pid = one.ready()["pid"]
    assert stops(pid)
    assert one.request(REQUEST)["outputs"]
    assert stops(pid)
    with pytest.raises(PeerFailed):
        one.request(REQUEST | {"break": True})
    assert stops(pid)
    one.close()
    assert ends(pid)


def test_errors_and_unsupported_requests_raise_different_exceptions(start: Start) -> None:
    one = start(mode="prompt-lookup")
    one.ready()
    with pytest.raises(PeerRefused, match="^it only looks up greedily$"):
        one.request(REQUEST | {"temperature": 1.0})
    with pytest.raises(PeerFailed, match="^RuntimeError: no memory left$"):
        one.request(REQUEST | {"break": True})
    assert one.request(REQUEST)["outputs"]


def test_a_dead_worker_reports_how_it_ended_and_why(start: Start) -> None:
    one = start()
    one.ready()
    for _ in range(2):  # a later request raises the same error
        with pytest.raises(PeerFailed, match="exit code 3: a wheel came off"):
            one.request(REQUEST | {"die": True})
    two = start()
    pid = two.ready()["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PeerFailed, match="ended by signal SIGKILL"):
        two.request(REQUEST)


@pytest.mark.slow
def test_one_whose_children_hold_the_pipe_is_gone_all_the_same(start: Start) -> None:
    one = start()
    one.ready()
    with pytest.raises(PeerFailed, match="exit code 4"):
        one.request(REQUEST | {"child": True})


def test_a_worker_that_fails_to_load_reports_the_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_FAILS", "plain")
    with pytest.raises(PeerFailed, match="ValueError: these weights are for another engine"):
        start(mode="plain").ready()


def test_it_ends_when_it_is_closed_even_while_it_works(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE", 0.3)
    idle, busy = start(), start()
    pids = [each.ready()["pid"] for each in (idle, busy)]
    busy._send(REQUEST | {"sleep": 60})
    close_all([idle, busy])
    assert idle.process.returncode == 0 and busy.process.returncode == -signal.SIGTERM
    assert all(map(ends, pids))


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from benchmarks.peers.worker import Worker
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
one = Worker(sys.executable, Path(sys.argv[1]), {}, os.environ)
try:
    print(one.ready()["pid"], flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
finally:
    if sys.argv[2] == "closes":
        one.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "habit"), [(signal.SIGINT, "closes"), (signal.SIGKILL, "never")])
def test_it_does_not_outlive_us(number: signal.Signals, habit: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(STUB), habit]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as us:
        assert us.stdout
        pid = int(us.stdout.readline())
        os.killpg(us.pid, number)  # as a terminal does it
        output = us.stdout.read()
    assert output == ("interrupted\n" if number == signal.SIGINT else "")
    assert ends(pid)


def test_another_interpreter_is_not_led_to_our_modules() -> None:
    ours = {"PYTHONPATH": "here", "PATH": "/bin", "OMP_NUM_THREADS": "1"}
    assert environment_of(ours, 4, own=True) == ours | {"OMP_NUM_THREADS": "4"}
    assert environment_of(ours, 4, own=False) == {"PATH": "/bin", "OMP_NUM_THREADS": "4"}


def test_workers_import_nothing_of_ours() -> None:
    for path in worker.SERVE.parent.glob("*.py"):
        assert "import outpace" not in path.read_text() and "from outpace" not in path.read_text()
