"""Reads and writes folders with heads without a KV cache: Medusa, Hydra, MLP speculator, ReDrafter.

A folder has `config.json` and `model.safetensors`, in the layout of the head's own project as its module here
says. Our own key `rank_accuracies`, one list per depth, holds the share of texts in which the token of each
rank was right: trees are shaped by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.fingerprint import KEY, target_fingerprint
from outpace.models.heads.formats import hydra, medusa, mlp_speculator, redrafter
from outpace.models.heads.formats.fields import check_fields
from outpace.models.heads.formats.files import (
    CONFIG,
    WEIGHTS,
    HeadFileError,
    check_fingerprint,
    fill,
    read_files,
    write_files,
)
from outpace.models.heads.hydra import HydraHead
from outpace.models.heads.medusa import MedusaHead
from outpace.models.heads.mlp_speculator import MlpSpeculatorHead
from outpace.models.heads.position_head import PositionHead, ready
from outpace.models.heads.redrafter import ReDrafterHead

FORMATS = {
    MedusaHead.method: medusa,
    HydraHead.method: hydra,
    MlpSpeculatorHead.method: mlp_speculator,
    ReDrafterHead.method: redrafter,
}
OTHER_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "hydra_lm_head.pt")
ACCURACIES = "rank_accuracies"


def save_position_head(head: PositionHead, folder: str | Path, target: TargetWithLayers) -> None:
    """Write a head that was made for this target; the folder is made if there is none. HeadFileError if it
    was made for another one."""
    if not head.is_for(target):
        raise HeadFileError("the head was made for another target: give the target that it was made for")
    config, tensors = FORMATS[head.method].stored(head)
    if head.rank_accuracies:
        config[ACCURACIES] = [list(each) for each in head.rank_accuracies]
    write_files(Path(folder), config | {KEY: target_fingerprint(target)}, tensors)


def load_position_head(method: str, folder: str | Path, target: TargetWithLayers) -> PositionHead:
    """Read the head of a method of `FORMATS` for a target. HeadFileError if the folder lacks it or it does
    not fit the target."""
    folder = Path(folder)
    _check_files(folder)
    config, tensors = read_files(folder)
    check_fields(config, folder)
    found = next((name for name, each in FORMATS.items() if each.recognises(config)), None)
    if found != method:
        what = "holds another kind of model" if found is None else f"holds a head for the method {found}"
        raise HeadFileError(f"{folder} {what}: give a folder with a head for {method}")
    check_fingerprint(config, folder, target)
    try:
        head, given = FORMATS[method].made(config, tensors, target)
        head.rank_accuracies = _accuracies(config)
        fill(head.own, given)
    except HeadFileError as error:
        raise HeadFileError(f"{folder} cannot be used: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RuntimeError) as error:
        # values that contradict each other: torch and transformers raise errors of many types
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise HeadFileError(
            f"{folder / CONFIG} describes no head ({problem:.120}): restore that file"
        ) from error
    return ready(head)


def _check_files(folder: Path) -> None:
    """HeadFileError for weights under a name or in a form that is not read."""
    other = next((name for name in OTHER_FILES if (folder / name).exists()), None)
    if other is None or (folder / WEIGHTS).exists():
        return
    if other.endswith(".pt"):  # unpickling can run code from the file
        raise HeadFileError(
            f"{folder} has pickled weights ({other}), which can run code when they are opened: convert them "
            f"with safetensors.torch.save_file(torch.load('{other}', weights_only=True), '{WEIGHTS}')"
        )
    raise HeadFileError(f"{folder} has its weights in {other}: rename it to {WEIGHTS}")


def _accuracies(config: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    try:
        found = tuple(tuple(float(share) for share in each) for each in config.get(ACCURACIES, ()))
    except (TypeError, ValueError) as error:
        raise HeadFileError(f"{ACCURACIES} is not one list of numbers per depth: remove it") from error
    if not all(each and 0 <= min(each) <= max(each) <= 1 for each in found):
        raise HeadFileError(f"{ACCURACIES} has an empty list or numbers outside of 0 to 1: remove it")
    return found
