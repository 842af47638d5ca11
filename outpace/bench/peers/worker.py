"""A worker process: another engine in its own Python, asked line by line over a pipe. Standard library
only."""

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

SERVE = Path(__file__).parent / "workers" / "serve.py"
PATIENCE = 0.5  # seconds between two looks at a silent worker
GRACE = 10.0  # seconds a worker gets to end by itself, and again after it was told to
TAIL, REASON = 4096, 300  # characters that are looked at for a reason, and of a reason


class WorkerDied(RuntimeError):
    """A worker that cannot go on. Those beside it can."""


class WorkerRefused(ValueError):
    """A request that an engine has no way to serve; it can serve others."""


class Worker:
    """One process, kept warm. It ends when it is closed, or by itself when this process is no more."""

    def __init__(
        self, python: str, script: Path, settings: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, str(SERVE), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is for us, and what it starts can be ended with it
        )
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(settings)

    def ready(self) -> Mapping[str, Any]:
        """Wait until its models are loaded; what it says about them."""
        answer = self._answer()
        if "ready" not in answer:
            raise WorkerDied(answer.get("error", "it did not say that it is ready"))
        return answer["ready"]

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its answer to one request."""
        self._send(request)
        answer = self._answer()
        if "cannot" in answer:
            raise WorkerRefused(answer["cannot"])
        if "error" in answer:
            raise WorkerDied(answer["error"])
        return answer

    def _listen(self) -> None:
        assert self.process.stdout
        with self.process.stdout as said:
            for line in said:
                self.lines.put(line)
        self.lines.put(b"")  # the end: an answer is never empty

    def _send(self, what: Mapping[str, Any]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise WorkerDied(self._why()) from error

    def _answer(self) -> Mapping[str, Any]:
        line, dead = b"", False
        while not line and not dead:
            dead = self.process.poll() is not None  # looked at first: what it said before can still be read
            try:
                line = self.lines.get(timeout=PATIENCE)
                dead = True  # if that was the end
            except queue.Empty:
                pass  # busy; or dead, and what it started holds its end of the pipe open
        if not line:
            raise WorkerDied(self._why())
        return json.loads(line)

    def _why(self) -> str:
        """How it ended, and the last it said on its error stream."""
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "it stopped answering"
        how = f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        place = self.complaints.fileno()  # shared with the worker: read without moving where it writes
        text = os.pread(place, TAIL, max(0, os.fstat(place).st_size - TAIL)).decode(errors="replace")
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return f"its process {how}" + (f": {said[-1][:REASON]}" if said else "")

    def let_go(self) -> None:
        """Tell it that nothing more will be asked."""
        if self.process.stdin and not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except OSError:
                pass  # it is gone

    def close(self) -> None:
        """End it and what it started."""
        close_all([self])

    def signal(self, number: signal.Signals) -> None:
        """Send this to it and to all it started."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left


def close_all(workers: Sequence[Worker]) -> None:
    """End all of them and what they started, together rather than one after another."""
    for worker in workers:
        worker.let_go()
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
        worker.complaints.close()


def environment_of(base: Mapping[str, str], threads: int, *, own: bool) -> dict[str, str]:
    """The variables a worker starts with. What leads this interpreter to its modules would lead another
    astray."""
    dropped: Sequence[str] = () if own else ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in base.items() if name not in dropped} | {
        "OMP_NUM_THREADS": str(threads)
    }
