"""The provenance of a result: command, commit, package versions, machine, threads and date."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from outpace.models.threads import num_cpus


def device_in_words(device: str = "cpu") -> str:
    """Name of a device for reports: a GPU's with its CUDA version, or a CPU's core count, architecture and
    instruction sets."""
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(torch.device(device))} (CUDA {torch.version.cuda})"
    if device != "cpu":
        return f"{device} on {platform.machine()}"
    capability = torch.backends.cpu.get_cpu_capability().lower().replace("default", "")
    flags = _cpu_flags()
    named = [name for flag, name in (("avx512_bf16", "bf16"), ("amx_bf16", "amx")) if flag in flags]
    extra = ", ".join([*([capability] if capability else []), *named])
    return f"{num_cpus()}-core {platform.machine().replace('_', '-')} CPU" + (f" ({extra})" if extra else "")


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def commit() -> str | None:
    """Commit of the git checkout that contains this package, with `+` if tracked files are modified; None for
    an installed package."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _own_version() -> str | None:
    for line in (
        (Path(__file__).resolve().parents[2] / "__init__.py").read_text(encoding="utf-8").splitlines()
    ):
        if line.startswith("__version__"):
            return line.split('"')[1]
    return None


def typed(argv: Sequence[str]) -> list[str]:
    """A command line without machine-specific paths: the program's name, or `python -m benchmarks.NAME`, then
    the arguments."""
    if not argv:
        return []
    program = Path(argv[0])
    program = program.parent if program.name == "__main__.py" else program  # a folder that is run with -m
    of_bench = program.parent.name == "benchmarks"
    name = ["python", "-m", f"benchmarks.{program.stem}"] if of_bench else [program.name]
    return [*name, *map(str, argv[1:])]


def provenance(
    device: str = "cpu", argv: Sequence[str] | None = None, num_threads: int | None = None
) -> dict[str, Any]:
    """The provenance stored in every result file. `num_threads`: of torch while it measured; None: as many as
    it has now."""
    return {
        "argv": typed(sys.argv if argv is None else argv),
        "commit": commit(),
        "versions": {
            "outpace": _own_version(),
            "torch": torch.__version__,
            "transformers": version_of("transformers"),
            "python": platform.python_version(),
        },
        "device": device_in_words(device),
        "threads": torch.get_num_threads() if num_threads is None else num_threads,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Context manager: use this number of torch threads (None: leave it), yield the number in use, and
    restore the previous one."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
