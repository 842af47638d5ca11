"""Folders with a recurrent drafter, in the layout of its own project.

Configuration: `model_type: recurrent_drafting_drafter`, `hidden_size`, `exit_dim`, `num_draft_layers`,
`vocab_size`, `rnn: true`. Tensors: `rnn_w.weight`, `rnn_u.weight` and bias, `lm_head.{layer}.linear.weight`
and bias, `lm_head.{layers}.weight`, and where `exit_dim` is not twice the hidden size, `input_proj.weight`
and bias. With a reduced draft vocabulary, an extension of ours, also `token_map`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors
from outpace.models.heads.formats.position_sizes import TOKEN_MAP, check_sizes, taken, taken_token_map
from outpace.models.heads.position_head import PositionHead
from outpace.models.heads.redrafter.head import ReDrafterHead

BLOCK = re.compile(r"lm_head\.(\d+)\.linear\.(weight|bias)")
LM_HEAD = re.compile(r"lm_head\.\d+\.weight")


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether this is a configuration of a recurrent drafter."""
    return config.get("model_type") == "recurrent_drafting_drafter"


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[PositionHead, Tensors]:
    """A head for the target, its weights undefined, and the tensors under the names of its parameters.
    HeadFileError if it does not fit the target."""
    names = ("hidden_size", "exit_dim", "num_draft_layers", "vocab_size")
    if missing := [name for name in names if config.get(name) is None]:
        raise HeadFileError(f"the configuration lacks {', '.join(missing)}: download it again")
    if not config.get("rnn", True):
        raise HeadFileError("the drafter sums embeddings (rnn false): give one with a recurrent network")
    check_sizes(target, int(config["hidden_size"]), int(config["vocab_size"]))
    given = {_ours(name): tensor for name, tensor in tensors.items()}
    draft_ids = taken_token_map(given, target, config, len(taken(given, "lm_head.weight")))
    head = ReDrafterHead(
        target,
        num_layers=int(config["num_draft_layers"]),
        exit_size=int(config["exit_dim"]),
        draft_ids=draft_ids,
    )
    return head, given


def write(head: PositionHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and the tensors of a folder."""
    assert isinstance(head, ReDrafterHead)
    config: Config = {
        "model_type": "recurrent_drafting_drafter",
        "architectures": ["Drafter"],
        "vocab_size": head.vocab,
        "hidden_size": head.hidden_size,
        "exit_dim": head.exit_size,
        "num_draft_layers": head.num_layers,
        "rnn": True,
    }
    tensors: Tensors = {_theirs(name, head.num_layers): parameter for name, parameter in head.own.items()}
    if head.draft_ids is not None:
        tensors[TOKEN_MAP] = head.draft_ids
    return config, tensors


def _ours(name: str) -> str:
    if match := BLOCK.fullmatch(name):
        return f"blocks.layers.{match[1]}.{match[2]}"
    return "lm_head.weight" if LM_HEAD.fullmatch(name) else name


def _theirs(name: str, num_layers: int) -> str:
    if name == "lm_head.weight":
        return f"lm_head.{num_layers}.weight"
    if name.startswith("blocks."):
        _, _, layer, kind = name.split(".")
        return f"lm_head.{layer}.linear.{kind}"
    return name
