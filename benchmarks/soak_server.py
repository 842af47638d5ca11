"""The server of the soak test: a process of `outpace serve`, and what it holds at a time."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

import psutil
from prometheus_client.parser import text_string_to_metric_families

ADDRESS = re.compile(r"(http://\S+)/v1")
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Held:
    """What the process holds."""

    rss_mib: float
    threads: int
    file_descriptors: int
    tasks: int  # of the event loop
    running: int  # samples that are being decoded
    waiting: int
    kv_bytes: int

    @property
    def is_idle(self) -> bool:
        """Whether no request is left."""
        return not (self.running or self.waiting or self.kv_bytes)


class ServerProcess:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: list[str]) -> None:
        """`url`: without /v1; `log`: the lines that the server writes, which grows."""
        self.url, self.log = url, log
        self.process = process

    def metrics(self) -> dict[str, float]:
        """The metrics without labels, by name."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=120) as response:
            text = response.read().decode()
        families = text_string_to_metric_families(text)
        return {each.name: each.value for family in families for each in family.samples if not each.labels}

    def held(self) -> Held:
        """What the process holds now."""
        metrics, process = self.metrics(), psutil.Process(self.process.pid)
        return Held(
            process.memory_info().rss / MEBIBYTE,
            process.num_threads(),
            process.num_fds(),
            int(metrics["outpace_event_loop_tasks"]),
            int(metrics["outpace_requests_running"]),
            int(metrics["outpace_requests_waiting"]),
            int(metrics["outpace_kv_cache_bytes"]),
        )

    def idle(self, like: Held | None = None, seconds: float = 120.0) -> Held:
        """Wait until no request is left and no more connections and tasks are open than in `like`, for at
        most this time; what the process holds then."""
        end = time.monotonic() + seconds
        while True:
            held = self.held()
            is_back = like is None or (
                held.file_descriptors <= like.file_descriptors and held.tasks <= like.tasks
            )
            if (held.is_idle and is_back) or time.monotonic() > end:
                return held
            time.sleep(0.2)

    def stop(self) -> int:
        """Send SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def serving(arguments: Sequence[str]) -> Iterator[ServerProcess]:
    """A process of `outpace serve` with these arguments on a free port of this machine. RuntimeError if it
    does not start."""
    command = [sys.executable, "-m", "outpace", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            log: list[str] = []
            address = None
            while address is None:
                line = process.stderr.readline()
                if not line:
                    raise RuntimeError(f"the server did not start: {''.join(log)}")
                log.append(line)
                address = ADDRESS.search(line)
            reader = Thread(target=log.extend, args=(process.stderr,), daemon=True)
            reader.start()
            try:
                yield ServerProcess(process, address[1], log)
            finally:
                process.kill()
                reader.join(10)  # processes that the server has started may write a little longer
        finally:
            process.kill()
