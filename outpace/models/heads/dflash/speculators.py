"""DFlash in the layout of the speculators project, which vLLM loads.

`aux_hidden_state_layer_ids` counts from the embedding, so that its numbers are larger by 1 than those of
`DraftHead.taps`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash import parts
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.formats.draft_vocabulary import draft_vocabulary
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError, Tensors

IDS = "aux_hidden_state_layer_ids"


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return config.get("speculators_model_type") == "dflash"


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DFlashHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    if config.get("sliding_window_non_causal") is False:
        # speculators trains its layers with full attention two ways all the same
        raise HeadFileError(
            "sliding_window_non_causal is false, which vLLM takes for causal blocks in every layer: set it "
            f"to true in its {CONFIG} if its masks see one another, as outpace reads them"
        )
    if config.get("sample_from_anchor"):
        raise HeadFileError(
            "it drafts the first token at the last one of the text, and outpace reads heads that draft at "
            "masks alone: give a head that was trained without sample_from_anchor"
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
    )


def write(head: Any, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head; `name`: where vLLM finds its target."""
    assert isinstance(head, DFlashHead) and head.num_masks
    model = getattr(target, "model", None)
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": head.num_masks,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    config = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dflash",
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
        "sample_from_anchor": False,
    }
    tensors: Tensors = dict(head.own)
    if head.draft_ids is not None:
        tensors |= draft_vocabulary(head.draft_ids, target.vocab)
    return config, tensors
