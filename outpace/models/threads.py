"""Number and load of the CPUs."""

from __future__ import annotations

import os

SPARE = 0.5  # load above the number of CPUs that does not yet count as busy


def num_cpus() -> int:
    """Number of CPUs that this process may use (its affinity mask), or of the machine's CPUs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float | None:
    """The load average of the last minute (processes that run or wait for a CPU); None if unavailable."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy(processes: float | None, num_threads: int = 1) -> bool:
    """Whether a load of `processes`, `num_threads` threads of this process included, exceeds the CPUs."""
    return processes is not None and processes > max(num_cpus(), num_threads) + SPARE


def fitting_threads(num_threads: int, processes: float | None) -> int:
    """Number of threads to use at a load of `processes`: half of `num_threads` on a busy machine, since
    threads wait for each other after every operation, and all stand still when one is interrupted."""
    return max(1, num_threads // 2) if busy(processes) else num_threads
