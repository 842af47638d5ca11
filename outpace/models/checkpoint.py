"""Loads a checkpoint. Every failure raises an error with a one-sentence message that includes the fix."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers import PreTrainedTokenizerBase as Tokenizer

from outpace.models.adapter import base_of, merged
from outpace.models.fingerprint import KEY as HEAD_OF
from outpace.models.names import resolve
from outpace.models.native_dtypes import fastest_dtype, notice, warn_once

GGUF = ".gguf"
DTYPES = "auto, float32, bfloat16, float16 or float64"
# keys that tell configurations of draft heads from those of models: of outpace, of speculators
HEAD_KEYS = frozenset({HEAD_OF, "speculators_model_type"})
# what transformers raises for checkpoints that it cannot load; the last two for truncated GGUF files
FAILURES = (OSError, SafetensorError, ValueError, ImportError, struct.error, IndexError)


def load_checkpoint(
    name: str,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> tuple[PreTrainedModel, Tokenizer]:
    """Load a causal language model onto its device, with its tokenizer. `name`: a folder, a GGUF file or a
    name on the hub. An adapter is merged into the checkpoint that it names.
    `allow_pickle` permits weights that are not safetensors. ValueError if the checkpoint or
    the device cannot be used; a warning, once, if the CPU lacks the arithmetic of the model's dtype."""
    torch_device = choose_device(device)
    place, file = location(name)
    if looks_like_folder(place) and not Path(place).is_dir():
        raise ValueError(
            f"there is no checkpoint folder {name}: check the path, or give a hub name (owner/model)"
        )
    if base := base_of(place):
        model, tokenizer = load_checkpoint(
            resolve(base),
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )
        return merged(model, place), tokenizer
    refuse_draft_heads(name, Path(place))
    options: dict[str, Any] = {
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "local_files_only": hub_is_away(name),  # else the hub client retries for half a minute
        **file,
    }
    try:
        config = AutoConfig.from_pretrained(place, **options)
        refuse_other_kinds(name, config)
        if not allow_pickle and not file:
            refuse_pickle(name)
            options["use_safetensors"] = True
        kind = choose_dtype(dtype, torch_device, config)
        if torch_device.type == "cpu" and isinstance(kind, torch.dtype):
            stored = getattr(config, "dtype", None)  # transformers replaces it by the dtype that it loads
            if message := notice(kind, stored, named=dtype != "auto"):
                warn_once(message)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, config=config, dtype=kind, output_loading_info=True, **options
        )
        model, info = loaded
        options.pop("use_safetensors", None)
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
    except Refused:
        raise
    except FAILURES as error:
        raise ValueError(explain(name, error)) from error
    if missing := sorted(info["missing_keys"]):  # transformers would initialise them at random
        raise ValueError(f"{name} lacks {len(missing)} of its weights, {missing[0]} first: download it again")
    refuse_unused_layers(name, config, info["unexpected_keys"])
    if getattr(model, "hf_device_map", None) is None and not getattr(model, "is_quantized", False):
        nn.Module.to(model, torch_device)
    return model, tokenizer


def refuse_draft_heads(name: str, folder: Path) -> None:
    """Refuse a folder with a draft head, whose configuration resembles that of a model."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # a name on the hub, or a folder that transformers refuses
    if isinstance(config, dict) and HEAD_KEYS & config.keys():
        raise Refused(
            f"{name} is a draft head, not a model: give it as head (--head) to a method that drafts with one"
        )


def location(name: str) -> tuple[str, dict[str, str]]:
    """The first argument of transformers' `from_pretrained` for a checkpoint, and further options: a GGUF
    file is its folder and `gguf_file`. Refused if there is no such file or the package gguf is missing."""
    if not name.endswith(GGUF):
        return name, {}
    path = Path(name)
    if not path.is_file():
        raise Refused(f"there is no file {name}: check the path")
    if find_spec("gguf") is None:
        raise Refused("gguf is not installed: pip install 'outpace[gguf]'")
    return str(path.parent), {"gguf_file": path.name}


class Refused(ValueError):
    """Raised for checkpoints of unsupported or unsafe kinds, and for unsuited settings; the message includes
    the reason and the fix."""


def choose_device(device: str | torch.device | None) -> torch.device:
    """The torch device with this name; None: CUDA if available, else the CPU. ValueError if this machine has
    no such device."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    available += ["mps"] if torch.backends.mps.is_available() else []
    try:
        torch_device = torch.device(device)
        if torch_device.type != "meta":
            torch.empty(0, device=torch_device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"there is no device {device} here: choose {' or '.join(available)}") from error
    return torch_device


def refuse_other_kinds(name: str, config: Any) -> None:
    """Raise Refused for models that are not decoder-only language models."""
    if config.is_encoder_decoder:
        raise Refused(
            f"{name} is an encoder-decoder model ({config.model_type}): encoder-decoder models are "
            "not supported, "
            "choose a decoder-only language model"
        )
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not own_code:
        raise Refused(
            f"{name} is no language model for text generation ({config.model_type}): "
            "choose a decoder-only language model"
        )


def refuse_pickle(name: str) -> None:
    """Raise Refused for a folder that has pickled weights only: unpickling can run code from the file."""
    folder = Path(name)
    pickled = sorted(file.name for file in folder.glob("pytorch_model*.bin"))
    if pickled and not any(folder.glob("*.safetensors")):
        raise Refused(
            f"{name} has pickled weights ({pickled[0]}), which can run code when they are opened: "
            "convert them with "
            "model.save_pretrained(folder) of transformers, or allow them with allow_pickle=True "
            "(--allow-pickle)"
        )


def refuse_unused_layers(name: str, config: Any, unexpected: Iterable[str]) -> None:
    """Raise ValueError if the weights have more layers than the config, since transformers would ignore the
    excess layers. `unexpected`: names of the weights that the model does not use."""
    count = getattr(config.get_text_config(), "num_hidden_layers", None)
    layers = {
        int(match[1]) for key in unexpected if (match := re.search(r"\.(?:layers|h|blocks)\.(\d+)\.", key))
    }
    if count is not None and layers and max(layers) >= count:
        raise ValueError(
            f"the weights of {name} have {max(layers) + 1} layers, but its config.json names {count}: "
            "restore the config.json that belongs to them"
        )


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a checkpoint, loaded without the model. ValueError if it cannot be loaded."""
    place, file = location(name)
    if base := base_of(place):
        return load_tokenizer(resolve(base))
    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=hub_is_away(name), **file)
    except FAILURES as error:
        raise ValueError(explain(name, error)) from error


def looks_like_folder(name: str) -> bool:
    """Whether a name can only be a path, as hub names have the form owner/model."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def hub_is_away(name: str) -> bool:
    """Whether a model is not a local path and DNS cannot resolve huggingface.co (never true with a proxy or
    HF_ENDPOINT)."""
    proxied = any(
        os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HF_ENDPOINT")
    )
    if Path(name).exists() or proxied:
        return False
    try:
        socket.getaddrinfo("huggingface.co", 443)
    except OSError:
        return True
    return False


def choose_dtype(dtype: str | torch.dtype, device: torch.device, config: object) -> str | torch.dtype:
    """The dtype to load weights in. "auto" keeps the checkpoint's dtype on accelerators and for quantised
    weights; on a CPU it is bfloat16 if the CPU multiplies bfloat16 natively, else float32, which is faster
    there than emulation. ValueError for an unknown name."""
    if dtype != "auto":
        if isinstance(dtype, torch.dtype):
            return dtype
        torch_dtype = getattr(torch, str(dtype), None)
        if not isinstance(torch_dtype, torch.dtype):
            raise Refused(f"{dtype} is not a dtype: use {DTYPES}")
        if not torch_dtype.is_floating_point:
            raise Refused(
                f"a model cannot compute in {dtype}: use {DTYPES}; weights of 8 or 4 bits are "
                "weights='int8' or 'int4' of a compiled model (--weights)"
            )
        return torch_dtype
    if device.type != "cpu" or getattr(config, "quantization_config", None) is not None:
        return "auto"
    return fastest_dtype()


def explain(name: str, error: Exception) -> str:
    """The error message for a checkpoint that cannot be loaded: the cause and the fix in one sentence."""
    text = " ".join(str(error).split())
    lower = text.lower()
    if name.endswith(GGUF):
        if "architecture" in lower and "not supported" in lower:
            return (
                f"{name} cannot be loaded ({text[:120]}): use a folder of this model with safetensors weights"
            )
        return f"{name} cannot be read ({text[:120]}): it is cut short or no GGUF file, download it again"
    if (
        isinstance(error, SafetensorError)
        or "safetensor" in lower
        and ("header" in lower or "incomplete" in lower)
    ):
        return (
            f"the weights of {name} cannot be read ({text[:120]}): the file is cut short, download it again"
        )
    if "do not set `use_safetensors" in lower:
        return (
            f"{name} has no safetensors weights, and pickled ones can run code when they are opened: "
            "convert them, or allow them with allow_pickle=True (--allow-pickle)"
        )
    if "gated" in lower or "401" in lower or "403" in lower:
        return f"{name} is gated: accept its licence on the hub and log in with `hf auth login`"
    if "trust_remote_code" in lower:
        return f"{name} brings its own code: read it, then pass trust_remote_code=True"
    if "offline" in lower or "couldn't connect" in lower or "connection" in lower:
        return (
            f"{name} is not on this machine and the hub cannot be reached: download it first, or "
            "give a folder"
        )
    if "is not a local folder and is not a valid model identifier" in lower or "404" in lower:
        return f"there is no checkpoint {name}: check the folder or the hub name"
    if any(words in lower for words in ("no file named", "does not appear to have", "unrecognized model")):
        return (
            f"{name} is not a complete checkpoint ({text[:160]}): it needs config.json, weights "
            "and a tokenizer"
        )
    return f"{name} cannot be loaded: {text[:300]}"
