"""Reads and writes folders with draft heads in any layout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3 import Eagle3Head
from outpace.models.heads.fingerprint import KEY, head_fingerprint, target_fingerprint
from outpace.models.heads.formats import eagle, kangaroo, raw_eagle3, speculators
from outpace.models.heads.formats.fields import check_fields
from outpace.models.heads.formats.files import (
    CONFIG,
    Config,
    HeadFileError,
    Tensors,
    check_fingerprint,
    fill,
    read_files,
    write_files,
)
from outpace.models.heads.kangaroo import KangarooHead

NAMES = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "kangaroo": "Kangaroo"}
EMBEDDING = "embed_tokens.weight"

LayoutName = Literal["eagle", "speculators", "raw", "kangaroo"]
DEFAULTS: dict[str, LayoutName] = {
    "eagle": "eagle",
    "eagle3": "speculators",
    "kangaroo": "kangaroo",
}  # by method


@dataclass(frozen=True)
class Layout:
    """How the heads of one kind are stored."""

    kind: str  # method of its heads
    recognises: Callable[[Config, Collection[str]], bool]  # a configuration, and names of tensors
    read: Callable[[Config, Tensors, TargetWithLayers], tuple[DraftHead, Tensors]]
    write: Callable[[DraftHead, TargetWithLayers, str], tuple[Config, Tensors]]


# the first that recognises a configuration reads it
LAYOUTS: dict[LayoutName, Layout] = {
    "speculators": Layout("eagle3", speculators.recognises, speculators.read, speculators.write),
    "raw": Layout("eagle3", raw_eagle3.recognises, raw_eagle3.read, raw_eagle3.write),
    "kangaroo": Layout("kangaroo", kangaroo.recognises, kangaroo.read, kangaroo.write),
    "eagle": Layout("eagle", eagle.recognises, eagle.read, eagle.write),
}


def kind_of(head: DraftHead) -> str:
    """The method that a head was made for."""
    if isinstance(head, KangarooHead):
        return "kangaroo"
    return "eagle3" if isinstance(head, Eagle3Head) else "eagle"


def layout_of(config: Config, names: Collection[str]) -> Layout | None:
    """The layout of a head with this configuration and tensors of these names; None if it is of none."""
    return next((each for each in LAYOUTS.values() if each.recognises(config, names)), None)


def save_head(
    head: DraftHead,
    folder: str | Path,
    target: TargetWithLayers,
    *,
    layout: LayoutName | None = None,  # None: "speculators" for EAGLE-3, of other heads their own
    name: str = "",  # hub name or folder of the target, for servers that load both
) -> None:
    """Write a head that was made for this target. HeadFileError if the layout cannot hold it or does not
    exist."""
    kind = kind_of(head)
    layout = layout or DEFAULTS[kind]
    fitting = " or ".join(each for each, other in LAYOUTS.items() if other.kind == kind)
    if layout not in LAYOUTS:
        raise HeadFileError(f"there is no layout {layout} for heads of {NAMES[kind]}: write {fitting}")
    chosen = LAYOUTS[layout]
    if chosen.kind != kind:
        raise HeadFileError(f"the layout {layout} holds no heads of {NAMES[kind]}: write {fitting}")
    if not head.is_for(target):
        raise HeadFileError("the head was made for another target: give the target that it was made for")
    config, tensors = chosen.write(head, target, name)
    if EMBEDDING in tensors:
        tensors[EMBEDDING] = _halved(tensors[EMBEDDING])
    write_files(Path(folder), config | {KEY: target_fingerprint(target)}, tensors)


def _halved(weight: Tensor) -> Tensor:
    """The weight in bfloat16 if that changes no value, as with a target whose checkpoint is in bfloat16."""
    half = weight.detach().bfloat16()
    return half if torch.equal(half.to(weight.dtype), weight) else weight


def load_head(kind: str, folder: str | Path, target: TargetWithLayers) -> DraftHead:
    """Read the head of this kind ("eagle", "eagle3" or "kangaroo") for a target, in any layout. HeadFileError
    if the folder lacks it or it does not fit the target."""
    folder = Path(folder)
    config, tensors = read_files(folder)
    check_fields(config, folder)
    layout = layout_of(config, tensors)
    if layout is None:
        raise HeadFileError(f"{folder} holds no draft head: give a folder with a head of {NAMES[kind]}")
    if layout.kind != kind:
        raise HeadFileError(
            f"{folder} holds a head of {NAMES[layout.kind]}: use it with the method {layout.kind}"
        )
    check_fingerprint(config, folder, target)
    try:
        head, tensors = layout.read(config, tensors, target)
        _use_embedding(head, tensors, target)
        fill(head.own, tensors, f"this head of {NAMES[kind]}")
    except HeadFileError as error:
        raise HeadFileError(f"the head in {folder} cannot be used: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RuntimeError) as error:
        # values that contradict each other: torch and transformers raise errors of many types
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise HeadFileError(
            f"{folder / CONFIG} describes no head ({problem:.120}): restore that file"
        ) from error
    weight = next(target.embed.parameters())
    nn.Module.to(head, weight.device)
    for parameter in head.own.values():
        parameter.data = parameter.data.to(weight.dtype)
    head.fingerprint = head_fingerprint(head)  # compression would change it
    return head.eval()


def _use_embedding(head: DraftHead, tensors: Tensors, target: TargetWithLayers) -> None:
    """Give the head the stored embedding if it differs from the target's, as after training it. Some layouts
    store a copy of the target's and some store none: then the target's is used in place."""
    stored, own = tensors.get(EMBEDDING), next(target.embed.parameters())
    if stored is None:
        return
    if stored.shape == own.shape and torch.equal(stored.to(own), own):
        del tensors[EMBEDDING]
        return
    embed = copy.deepcopy(target.embed)
    embed.weight = nn.Parameter(torch.empty_like(own))
    head.embed_tokens = embed
    head.from_target = tuple(each for each in head.from_target if each != "embed_tokens.")
