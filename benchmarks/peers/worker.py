"""A peer engine in a worker process of another Python interpreter; requests and answers are JSON lines over
pipes.

Between requests a worker and its child processes are stopped (SIGSTOP): some engines keep a core busy while
they wait, which would slow down whatever is measured next.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from outpace.bench.measure.contender import PeerFailed, PeerRefused

SERVE = Path(__file__).parent / "workers" / "serve.py"
PATIENCE = 0.5  # seconds between two checks that a silent worker is alive
GRACE = 10.0  # seconds to wait for a worker's exit, before SIGTERM and again before SIGKILL
TAIL, REASON = 4096, 300  # bytes of stderr searched for an error message, and its maximum length


class Worker:
    """One worker process that serves requests until it is closed or this process ends (end of its standard
    input)."""

    def __init__(
        self, python: str, script: Path, settings: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.stderr = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, str(SERVE), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=dict(environment),
            start_new_session=True,  # no Ctrl-C from the terminal; child processes share its group
        )
        # a stopped worker does not notice when this process dies; the shell does, by the end of its input,
        # and continues the worker, which reads the end of its own input and exits
        self.waker = subprocess.Popen(
            ["sh", "-c", f"cat > /dev/null; kill -s CONT -- -{self.process.pid}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read_lines, daemon=True).start()
        self._send(settings)

    def ready(self) -> Mapping[str, Any]:
        """Wait until the models are loaded; returns the engine's facts, such as its precision. PeerFailed if
        loading fails."""
        answer = self._answer()
        if "ready" not in answer:
            raise PeerFailed(answer.get("error", "it did not say that it is ready"))
        self.signal(signal.SIGSTOP)
        return answer["ready"]

    def request(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one request and return its answer. PeerRefused if the engine does not support it, PeerFailed
        if it fails."""
        self.signal(signal.SIGCONT)
        try:
            self._send(request)
            answer = self._answer()
        finally:
            self.signal(signal.SIGSTOP)
        if "cannot" in answer:
            raise PeerRefused(answer["cannot"])
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def _read_lines(self) -> None:
        assert self.process.stdout
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line)
        self.lines.put(b"")  # marks the end of output: an answer is never empty

    def _send(self, what: Mapping[str, Any]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise PeerFailed(self._failure_reason()) from error

    def _answer(self) -> Mapping[str, Any]:
        line, dead = b"", False
        while not line and not dead:
            dead = self.process.poll() is not None  # polled first: output from before the exit is still read
            try:
                line = self.lines.get(timeout=PATIENCE)
                dead = True  # an empty line means that the output has ended
            except queue.Empty:
                pass  # the worker is busy, or it is dead and a child process holds the pipe open
        if not line:
            raise PeerFailed(self._failure_reason())
        return json.loads(line)

    def _failure_reason(self) -> str:
        """The reason of a failure: exit code or signal, and the last line of standard error."""
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "it stopped answering"
        how = f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        descriptor = self.stderr.fileno()  # the file offset is shared with the worker: pread leaves it
        text = os.pread(descriptor, TAIL, max(0, os.fstat(descriptor).st_size - TAIL)).decode(
            errors="replace"
        )
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"its process {how}" + (f": {lines[-1][:REASON]}" if lines else "")

    def close_input(self) -> None:
        """Close the worker's standard input and continue the worker, which then exits."""
        self.signal(signal.SIGCONT)
        if self.process.stdin and not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except OSError:
                pass  # the process has exited

    def close(self) -> None:
        """End the worker and its child processes."""
        close_all([self])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its child processes."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # the process group is empty


def close_all(workers: Sequence[Worker]) -> None:
    """End these workers and their child processes, all at once: end of input first, then SIGTERM, then
    SIGKILL."""
    for worker in workers:
        worker.close_input()
    for then in (signal.SIGTERM, signal.SIGKILL):
        until = monotonic() + GRACE
        for worker in workers:
            try:
                worker.process.wait(max(0.0, until - monotonic()))
            except subprocess.TimeoutExpired:
                pass
        for worker in workers:
            worker.signal(then)
    for worker in workers:
        worker.process.wait()
        worker.stderr.close()
        assert worker.waker.stdin
        worker.waker.stdin.close()
        worker.waker.wait()


def environment_of(base: Mapping[str, str], threads: int, *, own: bool) -> dict[str, str]:
    """The environment variables of a worker, with `threads` OpenMP threads. Unless it runs the same
    interpreter (`own`), variables that would make it import this interpreter's packages are removed."""
    dropped: Sequence[str] = () if own else ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in base.items() if name not in dropped} | {
        "OMP_NUM_THREADS": str(threads)
    }
