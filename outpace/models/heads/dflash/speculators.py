"""DFlash in the layout of the speculators project, which vLLM loads.

`aux_hidden_state_layer_ids` counts from the embedding, so that its numbers are larger by 1 than those of
`DraftHead.taps`. With `sample_from_anchor` the logits at every token of a block are for the token after it,
else those at a mask are for the token in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash import parts
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.formats.draft_vocabulary import draft_vocabulary
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError, Tensors

IDS, AT_ROOT = "aux_hidden_state_layer_ids", "sample_from_anchor"


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return config.get("speculators_model_type") == "dflash"


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DFlashHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    return read_as(DFlashHead, config, tensors, target, at_root=bool(config.get(AT_ROOT)))


def read_as(
    make: Callable[..., DFlashHead],
    config: Config,
    tensors: Tensors,
    target: TargetWithLayers,
    *,
    at_root: bool,
) -> tuple[DFlashHead, Tensors]:
    """What `make` returns for a configuration of this layout, and its tensors."""
    if config.get("sliding_window_non_causal") is False:
        # speculators trains its layers with full attention two ways all the same
        raise HeadFileError(
            "sliding_window_non_causal is false, which vLLM takes for causal blocks in every layer: set it "
            f"to true in its {CONFIG} if its masks see one another, as outpace reads them"
        )
    ids = config.get(IDS)
    return parts.build(
        {"target_hidden_size": config.get("target_hidden_size")}
        | (config.get("transformer_layer_config") or {}),
        tensors,
        target,
        taps=None if ids is None else [number - 1 for number in ids],
        block=config.get("block_size"),
        mask=config.get("mask_token_id"),
        num=int(config.get("draft_vocab_size") or target.vocab),
        at_root=at_root,
        make=make,
    )


def write(head: Any, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head; `name`: where vLLM finds its target."""
    return write_as("dflash", "DFlashSpeculator", head, target, name)


def write_as(
    algorithm: str, architecture: str, head: Any, target: TargetWithLayers, name: str
) -> tuple[Config, Tensors]:
    """The same for heads of another type that the speculators project makes of DFlash's."""
    assert isinstance(head, DFlashHead) and head.num_masks
    model = getattr(target, "model", None)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": head.block_levels,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    config = {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": name,
                "architectures": [] if model is None else [type(model).__name__],
            },
        },
        "transformer_layer_config": parts.write_layers(head, target),
        "draft_vocab_size": head.config.vocab_size,
        "target_hidden_size": head.config.hidden_size,
        IDS: [layer + 1 for layer in head.taps],
        "block_size": head.num_masks + 1,
        "mask_token_id": head.mask_token,
        # vLLM takes false for causal in every layer
        "sliding_window_non_causal": True,
        AT_ROOT: head.drafts_at_root,
    }
    tensors: Tensors = dict(head.own)
    if head.draft_ids is not None:
        tensors |= draft_vocabulary(head.draft_ids, target.vocab)
    return config, tensors
