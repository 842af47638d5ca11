"""The number of CPUs."""

from __future__ import annotations

import os


def num_cpus() -> int:
    """Number of CPUs that this process may use (its affinity mask), or of the machine's CPUs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
