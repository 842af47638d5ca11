"""Folders with heads of Medusa, in vLLM's layout or in the layout of Medusa's own code.

vLLM: `model_type: medusa`, tensors `blocks.{head}.layers.{layer}.weight` (and bias),
`lm_heads.{head}.weight`, with a reduced vocabulary also `token_map`. Medusa: `medusa_num_heads`, tensors
`{head}.{layer}.linear.weight` (and bias), `{head}.{layers}.weight` for the LM head; in files that also hold
the target, with the prefix `medusa_head.`. Heads are written in vLLM's layout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors
from outpace.models.heads.formats.position_sizes import (
    TOKEN_MAP,
    check_sizes,
    count,
    taken,
    taken_token_map,
)
from outpace.models.heads.medusa.head import MedusaHead
from outpace.models.heads.position_head import PositionHead

PREFIXES = ("medusa_heads.", "medusa_head.")
BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
LM_HEAD = re.compile(r"(\d+)\.\d+\.weight")


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether this is a configuration of Medusa."""
    return config.get("model_type") == "medusa" or "medusa_num_heads" in config


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[PositionHead, Tensors]:
    """A head for the target, its weights undefined, and the tensors under the names of its parameters.
    HeadFileError if it does not fit the target."""
    tensors = _named(tensors)
    if config.get("original_lm_head"):
        raise HeadFileError("the heads use the target's LM head (original_lm_head): give them one each")
    # configurations of some published heads have a wrong number of heads
    num_heads = count(tensors, r"(?:lm_heads|blocks)\.(\d+)\.")
    num_layers = count(tensors, r"blocks\.0\.layers\.(\d+)\.")
    lm_head = taken(tensors, "lm_heads.0.weight")
    draft_ids = taken_token_map(tensors, target, config, len(lm_head))
    num_tokens = target.vocab if draft_ids is None else len(draft_ids)
    for name in [name for name in tensors if name.startswith("lm_heads.")]:
        if draft_ids is not None and len(tensors[name]) > num_tokens:
            tensors[name] = tensors[name][draft_ids]  # stored with all rows
        # a factor of the logits
        tensors[name] = tensors[name] * float(config.get("logit_scale", 1.0))
    check_sizes(target, lm_head.shape[1], len(lm_head) if draft_ids is None else None)
    head = MedusaHead(
        target,
        num_heads,
        num_layers=num_layers,
        bias=any(name.endswith(".bias") for name in tensors),
        draft_ids=draft_ids,
    )
    return head, tensors


def write(head: PositionHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and the tensors of a folder."""
    assert isinstance(head, MedusaHead)
    tensors: Tensors = dict(head.own)
    config: Config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": head.hidden_size,
        "vocab_size": head.vocab,
        "truncated_vocab_size": head.num_draft_tokens,
        "num_heads": head.num_heads,
        "num_hidden_layers": head.num_layers,
        "medusa_fc_bias": any(name.endswith(".bias") for name in tensors),
        "max_paths": 64,
        "topk": 10,
    }
    if head.draft_ids is not None:
        tensors[TOKEN_MAP] = head.draft_ids
    return config, tensors


def refused_by_vllm(head: MedusaHead) -> str | None:
    """Why vLLM does not run a head; None if it does. Its settings for a reduced vocabulary do not work."""
    if head.draft_ids is None:
        return None
    return "it drafts a part of the vocabulary: train it with head.draft_vocab=0, or export for transformers"


def _named(tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors of the heads under vLLM's names."""
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in tensors):
            tensors = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        if block := BLOCK.fullmatch(name):
            name = f"blocks.{block[1]}.layers.{block[2]}.{block[3]}"
        elif lm_head := LM_HEAD.fullmatch(name):
            name = f"lm_heads.{lm_head[1]}.weight"
        renamed[name] = tensor
    return renamed
