"""Models in the formats of peer engines, converted once and kept in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

from outpace.models.names import resolve

REASON = 300  # maximum characters of an error message


def folder_of(name: str) -> Path:
    """The folder of a model: a local folder, or the cached snapshot of a Hugging Face hub name. OSError or
    ValueError if it is not on this machine."""
    name = resolve(name)
    if Path(name).is_dir():
        return Path(name).resolve()
    from transformers.utils.hub import cached_file

    found = cached_file(name, "config.json", local_files_only=True)
    if found is None:
        raise ValueError(f"{name} is in no folder on this machine")
    return Path(found).parent


def key(model: Path, format: str, versions: Mapping[str, str]) -> str:
    """Cache key of a converted model: a hash of its path, its files' sizes and modification times, the format
    and the converter's versions."""
    files = [path for pattern in ("*.json", "*.safetensors", "*.bin") for path in sorted(model.glob(pattern))]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    text = json.dumps([str(model), facts, format, sorted(versions.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def converted_once(
    name: str, place: Path, on_message: Callable[[str], None], convert: Callable[[Path], None]
) -> float:
    """Let `convert` write the model into a new folder, which becomes `place`, unless that exists; returns the
    seconds it took, 0 if there was nothing to do. `convert` raises ValueError if it fails."""
    if place.is_dir():
        return 0.0
    on_message(f"converting {name}, once, into {place}")
    place.parent.mkdir(parents=True, exist_ok=True)
    began = perf_counter()
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as folder:
        fresh = Path(folder) / "model"
        fresh.mkdir()
        convert(fresh)
        if not place.is_dir():  # another process may have converted it meanwhile
            os.replace(fresh, place)
    return perf_counter() - began


def run_converter(name: str, command: Sequence[str], environment: Mapping[str, str], made: Path) -> None:
    """Run a command that is to write `made`; ValueError, with the last line that it printed, if it does
    not."""
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment), errors="replace")
    if done.returncode or not made.is_file():
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ValueError(
            f"{name} could not be converted: {lines[-1][:REASON] if lines else 'no reason given'}"
        )
