"""The two files of a folder with a draft head: `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.adapter import CONFIG as ADAPTER
from outpace.models.fingerprint import KEY, target_fingerprint

CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
PARTS = "model.safetensors.index.json"  # index of weights in several files

Config = dict[str, Any]
Tensors = dict[str, Tensor]


class HeadFileError(ValueError):
    """A folder holds no usable head, or a layout cannot hold a head; the message is for users."""


def read_config(folder: Path) -> Config:
    """The configuration in a folder. HeadFileError if it has none."""
    if not folder.is_dir():
        raise HeadFileError(f"there is no folder {folder}: give one with {CONFIG} and {WEIGHTS}")
    if not (folder / CONFIG).exists():
        what = "is empty" if not any(folder.iterdir()) else "holds no draft head"
        if (folder / ADAPTER).exists():
            what = "holds an adapter, which changes the weights of a whole model, and no draft head"
        raise HeadFileError(f"{folder} {what}: give a folder with {CONFIG} and {WEIGHTS} of a head")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error
    if not isinstance(config, dict):
        raise HeadFileError(f"{folder / CONFIG} is no configuration of a draft head: download it again")
    return config


def read_names(folder: Path) -> frozenset[str]:
    """The names of the tensors in a folder with a configuration. HeadFileError if it has none."""
    _refuse_pickled(folder)
    try:
        if (folder / PARTS).exists():
            return frozenset(json.loads((folder / PARTS).read_text(encoding="utf-8"))["weight_map"])
        with safe_open(folder / WEIGHTS, "pt") as file:
            return frozenset(file.keys())
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _damaged(folder, error) from error


def read_files(folder: Path) -> tuple[Config, Tensors]:
    """The configuration and the tensors in a folder. HeadFileError if it has none."""
    config = read_config(folder)
    _refuse_pickled(folder)
    try:
        return config, load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise _damaged(folder, error) from error


def _refuse_pickled(folder: Path) -> None:
    if (folder / PICKLED).exists() and not (folder / WEIGHTS).exists():
        # unpickling can run code from the file
        raise HeadFileError(
            f"{folder} has pickled weights ({PICKLED}), which can run code when they are opened: convert "
            f"them with safetensors.torch.save_file(torch.load('{PICKLED}', weights_only=True), '{WEIGHTS}')"
        )


def _damaged(folder: Path, error: Exception) -> HeadFileError:
    return HeadFileError(f"{folder} holds no draft head ({error}): download it again")


def write_files(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a configuration and tensors; the folder is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    # copies: tensors that share memory are refused, and a head may share the target's embedding
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # not by save_file, which makes a file that other users cannot read
    (folder / WEIGHTS).write_bytes(save(stored, metadata={"format": "pt"}))
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def names_target(folder: Path) -> bool:
    """Whether the configuration in a folder has the fingerprint of the head's target, as ours do."""
    return KEY in read_config(folder)


def check_fingerprint(config: Mapping[str, Any], folder: Path, target: TargetWithLayers) -> None:
    """HeadFileError if the configuration says that the head was trained for another target."""
    if config.get(KEY) not in (None, target_fingerprint(target)):
        raise HeadFileError(
            f"the head in {folder} was trained for another target: give that target, or remove {KEY} "
            f"from its {CONFIG} to use it all the same"
        )


def fill(
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
    what: str = "the head that it describes",
) -> None:
    """Set parameters, in their dtypes, from the tensors of the same names. HeadFileError unless names and
    sizes are the same; `what` names the head in the message."""
    missing, unknown = sorted(parameters.keys() - tensors.keys()), sorted(tensors.keys() - parameters.keys())
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing)
        parts += [f"has {', '.join(unknown)}, which {what} does not have"] * bool(unknown)
        # without unknown tensors, the configuration is likely the right one
        fix = (
            f"the {CONFIG} that belongs to it"
            if unknown
            else f"that file, or the {CONFIG} if it is not its own"
        )
        raise HeadFileError(f"{WEIGHTS} {' and '.join(parts)}: restore {fix}")
    for name, parameter in parameters.items():
        shape, needed = tuple(tensors[name].shape), tuple(parameter.shape)
        if shape != needed:
            raise HeadFileError(
                f"{name} is {shape}, and {CONFIG} says {needed}: restore the {CONFIG} that belongs to it"
            )
        parameter.data = tensors[name].to(parameter.dtype)
