"""DFlash in the layout of its authors, which vLLM and SGLang read and SpecForge and ModelOpt write.

`target_layer_ids` counts the target's layers from 0, as `DraftHead.taps` does."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash import parts
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError, Tensors

ARCHITECTURE, OPTIONS = "DFlashDraftModel", "dflash_config"


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return ARCHITECTURE in (config.get("architectures") or ())


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DFlashHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    options = config.get(OPTIONS) or {}
    if options.get("causal"):
        raise HeadFileError(
            "its blocks are causal, and outpace reads those in which all masks see one another: give a head "
            f"without causal in {OPTIONS} of its {CONFIG}"
        )
    parts.check_num_layers(config, target)
    return parts.build(
        config,
        tensors,
        target,
        taps=options.get("target_layer_ids"),
        block=config.get("block_size"),
        mask=options.get("mask_token_id"),
        num=target.vocab,
    )


def write(head: Any, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head. HeadFileError for a head with a draft vocabulary, and for one
    that drafts at a block's first token."""
    assert isinstance(head, DFlashHead) and head.num_masks
    if head.draft_ids is not None:
        raise HeadFileError(
            "the layout z-lab has no draft vocabulary: write the layout speculators, which vLLM reads"
        )
    if head.drafts_at_root:
        raise HeadFileError(
            "the layout z-lab has no heads that draft at the last token of the text: write the layout "
            "speculators"
        )
    options = {"mask_token_id": head.mask_token, "target_layer_ids": list(head.taps), "causal": False}
    config = {
        "architectures": [ARCHITECTURE],
        **parts.write_layers(head, target),
        "block_size": head.num_masks + 1,
        "num_target_layers": target.num_layers,
        OPTIONS: options,
    }
    return config, dict(head.own)
