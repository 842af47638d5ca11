"""Models in OpenVINO's format, converted by optimum-intel in the peer's environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.converted_models import converted_once, folder_of, key, run_converter
from benchmarks.peers.environments import PeerEnvironment
from benchmarks.peers.worker import environment_of
from outpace.models.cache_folder import cache_folder
from outpace.models.threads import num_cpus

CONVERT = "from optimum.commands.optimum_cli import main; main()"
DONE = "openvino_model.xml"
# options of the export for compressed weights. In 4 bits: groups as large as ours, without zero points, which
# is faster; rows that are no multiple of a group get smaller groups; embedding and LM head too
COMPRESSED = {
    "int8": ("int8",),
    "int4": (
        "int4",
        "--sym",
        "--group-size",
        "64",
        "--group-size-fallback",
        "adjust",
        "--ratio",
        "1.0",
        "--all-layers",
    ),
}


def export_options(dtype: str, weights: str | None) -> tuple[str, ...]:
    """The value of --weight-format and further options: those of compressed weights, fp32 for float32 and
    float64, fp16 for all others, bfloat16 included."""
    if weights is not None:
        return COMPRESSED[weights]
    return ("fp32",) if dtype in ("float32", "float64") else ("fp16",)


def converted(
    peer: PeerEnvironment,
    name: str,
    dtype: str,
    weights: str | None,  # "int8", "int4" or None: whole
    environment: Mapping[str, str],
    on_message: Callable[[str], None],
) -> tuple[Path, float]:
    """(Folder of the converted model, seconds of the conversion); 0 seconds if it was cached. ValueError if
    the conversion fails."""
    model, options = folder_of(name), export_options(dtype, weights)
    cache = cache_folder(environment, "openvino")
    place = cache / f"{model.name}-{key(model, ' '.join(options), peer.versions)}"

    def convert(folder: Path) -> None:
        command = [peer.python, "-c", CONVERT, "export", "openvino", "--model", str(model)]
        command += ["--task", "text-generation-with-past", "--weight-format", *options, str(folder)]
        own = environment_of(environment, num_cpus(), own=peer.own)
        run_converter(name, command, own, folder / DONE)

    return place, converted_once(name, place, on_message, convert)
