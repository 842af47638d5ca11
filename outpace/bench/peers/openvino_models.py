"""Convert models to OpenVINO's format with the peer's Python interpreter, and cache the results in a
folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

from outpace.bench.peers.environments import PeerEnvironment
from outpace.bench.peers.worker import environment_of
from outpace.models.cache_folder import cache_folder
from outpace.models.names import resolve
from outpace.models.threads import num_cpus

CONVERT = "from optimum.commands.optimum_cli import main; main()"
DONE = "openvino_model.xml"
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


def key(model: Path, weights: str, versions: Mapping[str, str]) -> str:
    """Cache key of a converted model: a hash of its path, its files' sizes and modification times, the weight
    format and the converter's versions."""
    files = [path for pattern in ("*.json", "*.safetensors", "*.bin") for path in sorted(model.glob(pattern))]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    text = json.dumps([str(model), facts, weights, sorted(versions.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weight_format(dtype: str) -> str:
    """Weight format of the conversion: fp32 for float32 and float64, fp16 for all others, bfloat16
    included."""
    return "fp32" if dtype in ("float32", "float64") else "fp16"


def converted(
    peer: PeerEnvironment,
    name: str,
    dtype: str,
    environment: Mapping[str, str],
    on_message: Callable[[str], None],
) -> tuple[Path, float]:
    """(Folder of the converted model, seconds of the conversion); 0 seconds if it was cached. ValueError if
    the conversion fails."""
    model, weights = folder_of(name), weight_format(dtype)
    cache = cache_folder(environment, "openvino")
    model_folder = cache / f"{model.name}-{key(model, weights, peer.versions)}"
    if (model_folder / DONE).is_file():
        return model_folder, 0.0
    on_message(f"converting {name} for OpenVINO, once, into {model_folder}")
    cache.mkdir(parents=True, exist_ok=True)
    began = perf_counter()
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{model_folder.name}.") as folder:
        fresh = Path(folder) / "model"
        command = [peer.python, "-c", CONVERT, "export", "openvino", "--model", str(model)]
        command += ["--task", "text-generation-with-past", "--weight-format", weights, str(fresh)]
        own = environment_of(environment, num_cpus(), own=peer.own)
        done = subprocess.run(command, capture_output=True, text=True, env=own)
        if done.returncode or not (fresh / DONE).is_file():
            lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise ValueError(
                f"{name} could not be converted: {lines[-1][:REASON] if lines else 'it lines nothing'}"
            )
        if not model_folder.is_dir():  # another process may have converted it meanwhile
            os.replace(fresh, model_folder)
    return model_folder, perf_counter() - began
