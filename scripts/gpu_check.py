"""Run the tests and then the GPU benchmark from the source tree with the current Python interpreter.

Nothing is installed; tests that need a missing extra are skipped and listed. The run ends within --limit
seconds. Files in --out: tests.txt (output of pytest), tests.json, tests.md and those of benchmarks.gpu_speed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 470.0  # seconds; with the start of make and the last writes the total stays below 8 minutes
TO_REPORT = 10.0  # seconds of a command's time that it has, at most, to report after an interrupt
SHARE = 0.6  # maximum share of the limit for the tests
# not run here: tests of the installed command and of the repository; `make test` runs them
INSTALLED_ONLY = ("tests/test_docs.py", "tests/test_repository.py")


def run(command: list[str], seconds: float, log: Path, **variables: str) -> int:
    """Run a command with its output in `log` and these further environment variables; returns the exit code,
    124 after the timeout of `seconds`.

    A command that takes too long is interrupted so that it can still report, and killed at the timeout, with
    its child processes.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    environment |= variables
    to_report = min(TO_REPORT, seconds / 2)
    print("+", " ".join(command), flush=True)
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=max(seconds - to_report, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # pytest then reports the tests that have run
            try:
                process.wait(timeout=to_report)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            code = 124
    print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]), flush=True)
    return code


def tests(out: Path, seconds: float) -> dict[str, object]:
    junit = out / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--durations=15", "-p", "missing_extras"]
    command += [f"--junitxml={junit}", "-p", "no:cacheprovider", "tests"]
    command += [f"--ignore={path}" for path in INSTALLED_ONLY]
    command += ["-m", "not slow"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(min(14, os.cpu_count() or 1)), "--dist", "worksteal"]
    began = time.monotonic()
    # one thread: with as many as there are CPUs, the workers would wait for one another most of the time
    code = run(command, seconds, out / "tests.txt", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    result: dict[str, object] = {
        "exit": code,
        "timed_out": code == 124,
        "seconds": round(time.monotonic() - began, 1),
    }
    if junit.exists():
        cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
        named = {case: f"{case.get('classname')}::{case.get('name')}" for case in cases}
        result["cases"] = len(cases)
        result["failed"] = [
            named[c] for c in cases if c.find("failure") is not None or c.find("error") is not None
        ]
        result["skipped"] = {
            named[c]: reason.get("message", "") for c in cases if (reason := c.find("skipped")) is not None
        }
        junit.unlink()
    return result


def page(result: dict[str, object]) -> str:
    lines = ["# Tests on this machine", ""]
    lines += [f"- {key}: {value}" for key, value in result.items() if not isinstance(value, list | dict)]
    for title in ("failed", "skipped"):
        entries = result.get(title)
        lines += ["", f"## {title}", ""]
        if isinstance(entries, dict):
            lines += [f"- `{name}`: {why}" for name, why in entries.items()]
        elif isinstance(entries, list):
            lines += [f"- `{name}`" for name in entries]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for everything")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if importlib.util.find_spec("pytest"):
        result = tests(out, options.limit * SHARE)
    else:
        result = {"exit": 0, "note": "pytest is not installed for this python: no test was run"}
    (out / "tests.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (out / "tests.md").write_text(page(result), encoding="utf-8")
    left = options.limit - (time.monotonic() - began)
    measure = [
        sys.executable,
        "-m",
        "benchmarks.gpu_speed",
        "--out",
        str(out),
        "--seconds",
        str(int(0.8 * left)),
    ]
    measured = run(measure, left, out / "bench.txt")
    print(f"tests: exit {result['exit']}; measurements: exit {measured}; everything is in {out}")
    return int(bool(result["exit"]) or bool(measured))


if __name__ == "__main__":
    sys.exit(main())
