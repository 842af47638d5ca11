"""DSpark in the layout of its authors (DeepSpec), which vLLM and SGLang read.

The logits at every token of a block are for the token after it, unless `dspark_bonus_anchor`, a key of vLLM,
is true. `target_layer_ids` counts the target's layers from 0, as `DraftHead.taps` does. Some tools keep part
of the keys in `dflash_config`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash import parts as parts_of_dflash
from outpace.models.heads.dspark import parts
from outpace.models.heads.dspark.head import DSparkHead
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors

ARCHITECTURES, NESTED = ("Qwen3DSparkModel", "DSparkDraftModel"), "dflash_config"
NUM_ANCHORS = 512  # blocks of a text in a training step of DeepSpec, whose class requires the key


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return not set(ARCHITECTURES).isdisjoint(config.get("architectures") or ())


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[Any, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    config = {**(config.get(NESTED) or {}), **config}
    parts_of_dflash.check_num_layers(config, target)
    return parts_of_dflash.build(
        config,
        tensors,
        target,
        taps=config.get("target_layer_ids"),
        block=config.get("block_size"),
        mask=config.get("mask_token_id"),
        num=target.vocab,
        at_root=not config.get("dspark_bonus_anchor"),
        make=parts.maker(config, tensors, target),
    )


def write(head: Any, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head. HeadFileError for a head with a draft vocabulary."""
    assert isinstance(head, DSparkHead) and head.num_masks
    if head.draft_ids is not None:
        raise HeadFileError(
            "the layout deepspec has no draft vocabulary: write the layout speculators, which vLLM reads"
        )
    config = {
        "architectures": [ARCHITECTURES[0]],
        **parts_of_dflash.write_layers(head, target),
        "block_size": head.num_masks + 1,
        "num_target_layers": target.num_layers,
        "target_layer_ids": list(head.taps),
        "mask_token_id": head.mask_token,
        "num_anchors": NUM_ANCHORS,
        "dspark_bonus_anchor": not head.drafts_at_root,
        **parts.written(head),
    }
    return config, dict(head.own)
