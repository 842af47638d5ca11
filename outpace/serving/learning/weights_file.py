"""Learned weights in a file, which replaces the one before as a whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from outpace.drafters.learning.online_adam import Weights

NAME = "learned.safetensors"  # in the folder
KEY = "outpace"  # of the metadata


@dataclass(frozen=True)
class Learned:
    """Weights of a drafter, and what they belong to."""

    drafter: Mapping[str, Any]  # method, options and target, as JSON values
    version: int
    weights: Weights


def save(folder: Path, learned: Learned) -> None:
    """Write the weights; OSError, after which the file before is still there, if that is impossible."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{NAME}.{os.getpid()}.partial"
    tensors = {str(place): each.contiguous().cpu() for place, each in enumerate(learned.weights)}
    facts = {"drafter": learned.drafter, "version": learned.version}
    try:
        save_file(tensors, partial, metadata={KEY: json.dumps(facts)})
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(folder / NAME)
    except SafetensorError as error:  # of a full disk, for one
        raise OSError(str(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Make the folder; ValueError unless files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{folder} cannot be written to ({error}): give another folder") from error


def load(folder: Path, drafter: Mapping[str, Any], present: Weights) -> Learned | None:
    """The weights in the folder; None if there are none. ValueError for a damaged file, for weights of
    another drafter than `drafter`, whose weights are `present` now, and for values that are not finite."""
    for left in folder.glob(f"{NAME}.*.partial"):  # of a process that was killed
        left.unlink()
    path = folder / NAME
    if not path.is_file():
        return None
    remedy = "move the file away to begin anew, or give another folder"
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[KEY])
            weights = tuple(file.get_tensor(str(place)) for place in range(len(list(file.keys()))))
        belongs_to, version = facts["drafter"], int(facts["version"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no learned weights ({error}): {remedy}") from error
    if belongs_to != dict(drafter):
        raise ValueError(f"{path} was learned by {_named(belongs_to)}, not by {_named(drafter)}: {remedy}")
    if [each.shape for each in weights] != [each.shape for each in present]:
        raise ValueError(f"{path} has weights of other sizes than the drafter: {remedy}")
    if not all(bool(each.isfinite().all()) for each in weights):
        raise ValueError(f"{path} has values that are no finite numbers: {remedy}")
    placed = [each.to(like.device, like.dtype) for each, like in zip(weights, present, strict=True)]
    return Learned(drafter, version, tuple(placed))


def _named(drafter: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in drafter.items() if value)
