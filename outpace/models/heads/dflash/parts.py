"""What the two layouts of DFlash share: checks, names of tensors, and the configuration of the layers.

Both have Qwen3's decoder layers and neither the embedding nor, unless the head drafts some of the target's
tokens only, the LM head. They number the target's layers differently: see `zlab` and `speculators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.formats.decoder_layer import read_layer, write_layer
from outpace.models.heads.formats.draft_vocabulary import take_draft_ids
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError, Tensors


def build(
    layer: Mapping[str, Any],  # configuration of the decoder layers
    tensors: Tensors,
    target: TargetWithLayers,
    *,
    taps: Sequence[int] | None,  # the target's layers, counted from 0
    block: int | None,
    mask: int | None,
    num: int,  # tokens that it drafts
    at_root: bool = False,  # its first draft token is that of the logits at the block's first token
    make: Callable[..., DFlashHead] = DFlashHead,
) -> tuple[DFlashHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to. HeadFileError if parts of the
    files contradict each other or the target."""
    if taps is None or block is None or mask is None:
        needed = {"layers of the target": taps, "block_size": block, "mask_token_id": mask}
        missing = next(name for name, value in needed.items() if value is None)
        raise HeadFileError(f"its {CONFIG} does not name the {missing}: restore that file")
    if block < 2:
        raise HeadFileError(
            f"its block_size is {block}, and a block of one token has no mask to draft at: restore its "
            f"{CONFIG}"
        )
    if mask >= target.vocab:
        raise HeadFileError(
            f"its mask_token_id is {mask}, and the target has the tokens 0 to {target.vocab - 1}: give the "
            "target it was trained for, with its embedding enlarged as for the training"
        )
    taps = sorted(taps)
    if not taps or not 0 <= taps[0] <= taps[-1] < target.num_layers:
        raise HeadFileError(
            f"it reads the outputs of layers {', '.join(map(str, taps))}, and the target has layers 0 to "
            f"{target.num_layers - 1}: give the target it was trained for"
        )
    size = next(target.embed.parameters()).shape[1]
    if "fc.weight" in tensors and tensors["fc.weight"].shape[1] != len(taps) * size:
        raise HeadFileError(
            f"its fc.weight reads {tensors['fc.weight'].shape[1] / size:g} layers and its {CONFIG} names "
            f"{len(taps)}: restore that file"
        )
    config = read_layer(layer, num, target, max_layers=None)
    ids, masks = take_draft_ids(tensors, num, target.vocab), block - 1
    if ids is None:
        tensors.pop("lm_head.weight", None)  # the target's, which some tools store as well
    tensors.pop("embed_tokens.weight", None)
    head = make(
        config,
        target.embed,
        target.head,
        taps,
        mask_token=mask,
        num_masks=masks,
        drafts_at_root=at_root,
        draft_ids=ids,
    )
    return head, tensors


def check_num_layers(config: Config, target: TargetWithLayers) -> None:
    """HeadFileError for a target with another number of layers than the one that the head was trained for."""
    layers = config.get("num_target_layers")
    if layers is not None and layers != target.num_layers:
        raise HeadFileError(
            f"it is for a target of {layers} layers, and this one has {target.num_layers}: give the model it "
            "was trained for"
        )


def write_layers(head: DFlashHead, target: TargetWithLayers) -> Config:
    """The configuration of the decoder layers of a head."""
    assert isinstance(head.config, LlamaConfig)
    kinds = ["full_attention"] * head.config.num_hidden_layers
    return {**write_layer(head.config, target.vocab, "qwen3"), "layer_types": kinds}
