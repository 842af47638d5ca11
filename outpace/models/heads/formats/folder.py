"""Reads and writes folders with draft heads of any kind.

Our own key `rank_accuracies` of heads without a KV cache, one list per depth, holds the share of texts in
which the token of each rank was right: it decides the shape of draft trees."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.fingerprint import KEY, target_fingerprint
from outpace.models.heads.draft_head import DraftHead, make_ready
from outpace.models.heads.fingerprint import head_fingerprint
from outpace.models.heads.formats.fields import check_fields
from outpace.models.heads.formats.files import (
    CONFIG,
    WEIGHTS,
    Config,
    HeadFileError,
    Tensors,
    check_fingerprint,
    fill,
    read_config,
    read_files,
    read_names,
    write_files,
)
from outpace.models.heads.kinds import METHOD, Head, HeadKind, head_kind, head_kinds, head_methods, recognised
from outpace.models.heads.position_head import PositionHead

EMBEDDING = "embed_tokens.weight"
ACCURACIES = "rank_accuracies"


def save_head(
    head: Head,
    folder: str | Path,
    target: TargetWithLayers,
    *,
    layout: str | None = None,  # None: the first layout of the head's kind
    name: str = "",  # hub name or folder of the target, for servers that load both
) -> None:
    """Write a head that was made for this target. HeadFileError if the layout cannot hold it or does not
    exist."""
    kind = head_kind(head.method)
    layout = layout or next(iter(kind.layouts))
    if layout not in kind.layouts:
        raise HeadFileError(
            f"there is no layout {layout} for heads of {kind.title}: write {' or '.join(kind.layouts)}"
        )
    if not head.is_for(target):
        raise HeadFileError("the head was made for another target: give the target that it was made for")
    config, tensors = kind.layouts[layout].write(head, target, name)
    if EMBEDDING in tensors:
        tensors[EMBEDDING] = _halved(tensors[EMBEDDING])
    if isinstance(head, PositionHead) and head.rank_accuracies:
        config[ACCURACIES] = [list(shares) for shares in head.rank_accuracies]
    write_files(Path(folder), config | {KEY: target_fingerprint(target)}, tensors)


def _halved(weight: Tensor) -> Tensor:
    """The weight in bfloat16 if that changes no value, as with a target whose checkpoint is in bfloat16."""
    half = weight.detach().bfloat16()
    return half if torch.equal(half.to(weight.dtype), weight) else weight


def load_head(method: str, folder: str | Path, target: TargetWithLayers) -> Head:
    """Read a head for a target, of the kind that this method drafts with and in any layout of the kind.
    HeadFileError if the folder has no such head or it does not fit the target."""
    folder = Path(folder)
    _check_weight_files(folder)
    config, tensors = read_files(folder)
    check_fields(config, folder)
    _check_known(config, folder)
    title, kind_and_layout = head_kind(method).title, recognised(config, tensors)
    if kind_and_layout is None:
        if other := config.get("speculators_model_type"):
            raise HeadFileError(
                f"{folder} holds a drafter of the type {other}, which is not supported: give a folder with a "
                f"head of {title}"
            )
        raise HeadFileError(f"{folder} holds no draft head: give a folder with a head of {title}")
    kind, layout = kind_and_layout
    if kind.method != method:
        raise HeadFileError(
            f"{folder} holds a head of {kind.title}: use it with the method {kind.method}, or give a head of "
            f"{title}"
        )
    check_fingerprint(config, folder, target)
    try:
        head, tensors = layout.read(config, tensors, target)
        if isinstance(head, PositionHead):
            head.rank_accuracies = _accuracies(config)
        else:
            _use_embedding(head, tensors, target)
        fill(head.own, tensors, f"this head of {title}")
    except HeadFileError as error:
        raise HeadFileError(f"the head in {folder} cannot be used: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RuntimeError) as error:
        # values that contradict each other: torch and transformers raise errors of many types
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise HeadFileError(
            f"{folder / CONFIG} describes no head ({problem:.120}): restore that file"
        ) from error
    make_ready(head, head.own, next(target.embed.parameters()))
    if isinstance(head, DraftHead):
        head.fingerprint = head_fingerprint(head)  # compression would change it
    return head


def _use_embedding(head: DraftHead, tensors: Tensors, target: TargetWithLayers) -> None:
    """Give the head the stored embedding if it differs from the target's, as where it was trained. If it is
    an equal copy, or absent, the target's is used in place."""
    stored, own = tensors.get(EMBEDDING), next(target.embed.parameters())
    if stored is None:
        return
    if stored.shape == own.shape and torch.equal(stored.to(own), own):
        del tensors[EMBEDDING]
        return
    embed = copy.deepcopy(target.embed)
    embed.weight = nn.Parameter(torch.empty_like(own))
    head.embed_tokens = embed
    head.from_target = tuple(prefix for prefix in head.from_target if prefix != "embed_tokens.")


def _check_weight_files(folder: Path) -> None:
    """HeadFileError for weights under another file name or in a pickled file."""
    names = [name for kind in head_kinds() for name in kind.weight_files]
    other = next((name for name in names if (folder / name).exists()), None)
    if other is None or (folder / WEIGHTS).exists():
        return
    if other.endswith(".pt"):  # unpickling can run code from the file
        raise HeadFileError(
            f"{folder} has pickled weights ({other}), which can run code when they are opened: convert them "
            f"with safetensors.torch.save_file(torch.load('{other}', weights_only=True), '{WEIGHTS}')"
        )
    raise HeadFileError(f"{folder} has its weights in {other}: rename it to {WEIGHTS}")


def _check_known(config: Config, folder: Path) -> None:
    """HeadFileError for a head that a later version of outpace has written."""
    method = config.get(METHOD)
    if method is not None and method not in head_methods():
        raise HeadFileError(
            f"{folder} holds a head for the method {method!r:.40}, which this version of outpace does not "
            "have: update outpace"
        )


def _accuracies(config: Config) -> tuple[tuple[float, ...], ...]:
    try:
        accuracies = tuple(tuple(float(share) for share in shares) for shares in config.get(ACCURACIES, ()))
    except (TypeError, ValueError) as error:
        raise HeadFileError(f"{ACCURACIES} is not one list of numbers per depth: remove it") from error
    if not all(shares and 0 <= min(shares) <= max(shares) <= 1 for shares in accuracies):
        raise HeadFileError(f"{ACCURACIES} has an empty list or numbers outside of 0 to 1: remove it")
    return accuracies


def method_in(folder: Path, methods: Sequence[str]) -> str:
    """The method of the head in a folder, which is one of `methods`. HeadFileError, which says what the
    folder holds instead, if it holds no head or one of another kind."""
    wanted = " or ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))
    kind = kind_in(folder)
    if kind is None:
        names = read_config(folder).get("architectures")
        architecture = names[0] if isinstance(names, list) and names else "of an unknown kind"
        raise HeadFileError(
            f"{folder} holds a model ({architecture}) and no draft head: give it as a draft model, to a "
            f"method with the option draft, or give a head of {wanted}"
        )
    if kind.method not in methods:
        raise HeadFileError(
            f"{folder} holds a head of {kind.method}: use it with the method {kind.method}, or give a head "
            f"of {wanted}"
        )
    return kind.method


def kind_in(folder: Path) -> HeadKind | None:
    """The kind of the head in a folder; None for another kind of model. HeadFileError for a folder without a
    configuration and tensors that can be read."""
    config = read_config(folder)
    check_fields(config, folder)
    _check_known(config, folder)
    _check_weight_files(folder)
    kind_and_layout = recognised(config, read_names(folder))
    return None if kind_and_layout is None else kind_and_layout[0]
