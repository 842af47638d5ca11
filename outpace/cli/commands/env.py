"""`outpace env`: hardware and installed versions, for bug reports and benchmark results."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from outpace.cli.failures import EXTRA, Debug, report_failures
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table

PACKAGES = ("outpace", "torch", "transformers", "tokenizers", "safetensors", "numpy", "typer", "rich")


@report_failures
def env(json: Json = False, debug: Debug = False) -> None:
    """Print versions, cores, devices and extras."""
    found = facts()
    if json:
        print_json(found)
        return
    rows = [(name, cell_text(value)) for name, value in found.items()]
    print_table(("name", "value"), rows)


def facts() -> dict[str, Any]:
    """Hardware, devices, package versions and extras by name, as JSON values."""
    import torch

    from outpace.models import native_dtypes
    from outpace.models.threads import num_cpus

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": num_cpus(),
        "threads": torch.get_num_threads(),
        "native on the CPU": [str(each).removeprefix("torch.") for each in native_dtypes.found()],
        "dtype auto on the CPU": str(native_dtypes.fastest_dtype()).removeprefix("torch."),
        "devices": [*devices, *(["mps"] if torch.backends.mps.is_available() else [])] or ["cpu"],
        "versions": {name: installed(name) for name in PACKAGES},
        "extras": extras(),
        "hub": "offline" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else "allowed",
    }


def installed(package: str) -> str:
    """The installed version of a package, or "missing"."""
    try:
        return version(package)
    except PackageNotFoundError:
        if package == "outpace":
            from outpace import __version__

            return f"{__version__} (not installed, run from its source)"
        return "missing"


def extras() -> dict[str, bool]:
    """Extra -> whether all its packages are installed; empty if outpace itself is not installed."""
    try:
        wanted = requires("outpace") or []
    except PackageNotFoundError:
        return {}
    found: dict[str, bool] = {}
    for line in wanted:
        if extra := EXTRA.search(line):
            name = re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0]
            found[extra[1]] = found.get(extra[1], True) and installed(name) != "missing"
    return found


def processor() -> str:
    """The model name of the CPU."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cell_text(value: Any) -> str:
    """A value of `facts` as the text of a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell_text(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
