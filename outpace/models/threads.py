"""The CPUs, and how busy they are."""

from __future__ import annotations

import os

SPARE = 0.5  # processes more than CPUs that are no sign of other programs


def num_cpus() -> int:
    """Number of CPUs that this process may use (its affinity mask), or of the machine's CPUs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float | None:
    """Processes that run or wait for a CPU, as a mean of the last minute; None where the system counts
    none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy(processes: float | None, num_threads: int = 1) -> bool:
    """Whether so many processes, `num_threads` threads of this one among them, do not fit on the CPUs."""
    return processes is not None and processes > max(num_cpus(), num_threads) + SPARE


def fitting_threads(num_threads: int, processes: float | None) -> int:
    """How many of `num_threads` threads are used beside so many processes: half of them on a busy machine.
    They wait for each other after every operation, so that all stand still when one is interrupted."""
    return max(1, num_threads // 2) if busy(processes) else num_threads
