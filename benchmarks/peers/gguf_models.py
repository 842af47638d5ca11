"""Converts models to GGUF files with llama.cpp's `convert_hf_to_gguf.py` and `llama-quantize`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from benchmarks.peers.converted_models import converted_once, folder_of, key, run_converter
from benchmarks.peers.environments import PeerEnvironment
from benchmarks.peers.worker import environment_of
from outpace.models.cache_folder import cache_folder
from outpace.models.names import resolve
from outpace.models.threads import num_cpus

CONVERTER, QUANTIZER = "convert_hf_to_gguf.py", "llama-quantize"
WRAPPER = Path(__file__).parent / "workers" / "convert_to_gguf.py"
NEEDED = "sentencepiece"  # imported by the converter, whatever the model
FILE = "model.gguf"
LEVELS = 4  # folders above the server in which the converter is looked for: it is in the root of the source
WHOLE = {"bfloat16": "bf16", "float16": "f16"}  # names in the converter; all others: f32
EIGHT_BITS, FOUR_BITS = "q8_0", "Q4_0"


def converted(
    peer: PeerEnvironment,
    name: str,
    dtype: str,
    weights: str | None,  # "int8", "int4" or None: whole
    environment: Mapping[str, str],
    on_message: Callable[[str], None],
) -> tuple[Path, float]:
    """(GGUF file of the model, seconds of the conversion); 0 seconds if it was cached, or if the model is a
    GGUF file. ValueError if the conversion fails or llama.cpp's converter or quantizer is missing."""
    if (file := Path(resolve(name))).suffix == ".gguf" and file.is_file():
        if weights is not None:
            raise ValueError(f"{name} is compressed already: leave out --weights, or name its folder")
        return file, 0.0
    model = folder_of(name)
    format = {None: WHOLE.get(dtype, "f32"), "int8": EIGHT_BITS, "int4": FOUR_BITS}[weights]
    cache = cache_folder(environment, "gguf")
    place = cache / f"{model.name}-{key(model, format, peer.versions)}"
    own = environment_of(environment, num_cpus(), own=True)

    def convert(folder: Path) -> None:
        if find_spec(NEEDED) is None:
            raise ValueError(f"llama.cpp's converter needs {NEEDED}: pip install {NEEDED}")
        file = folder / FILE
        whole = folder / "whole.gguf" if format == FOUR_BITS else file
        kind = "f32" if format == FOUR_BITS else format
        command = [sys.executable, str(WRAPPER), str(converter(peer.program))]
        run_converter(name, [*command, str(model), "--outfile", str(whole), "--outtype", kind], own, whole)
        if format == FOUR_BITS:
            # --pure: the embedding and the LM head too, as in our 4 bits
            command = [quantizer(peer.program), "--pure", str(whole), str(file), format]
            run_converter(name, command, own, file)
            whole.unlink()

    return place / FILE, converted_once(name, place, on_message, convert)


def converter(server: str) -> Path:
    """Path of `convert_hf_to_gguf.py`; ValueError if it is neither in a folder above llama-server nor on the
    search path."""
    for folder in Path(server).resolve().parents[:LEVELS]:
        if (folder / CONVERTER).is_file():
            return folder / CONVERTER
    if found := shutil.which(CONVERTER):
        return Path(found)
    raise ValueError(
        f"{CONVERTER} is in no folder above {server}: build llama-server in llama.cpp's source, where it is, "
        "or name models as GGUF files"
    )


def quantizer(server: str) -> str:
    """Path of `llama-quantize`; ValueError if it is not beside llama-server or on the search path."""
    beside = Path(server).resolve().parent / QUANTIZER
    found = str(beside) if beside.is_file() else shutil.which(QUANTIZER)
    if found is None:
        raise ValueError(
            f"{QUANTIZER} is not beside {server}: cmake --build build --target {QUANTIZER} makes it"
        )
    return found
