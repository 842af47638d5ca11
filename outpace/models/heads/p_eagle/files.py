"""The two layouts of P-EAGLE: those of EAGLE-3 with the masks' token and layer outputs.

vLLM reads both and drafts with all masks in one forward. It ignores `fc_norm` and `norm_output` in them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle3 import raw, speculators
from outpace.models.heads.eagle3.parts import Eagle3Options, Variant
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors
from outpace.models.heads.p_eagle.head import PEagleHead

VARIANT = Variant("peagle", "PEagleSpeculator", PEagleHead, None)
MASK_IN_SPECULATORS, MASK_IN_RAW = "mask_token_id", "ptd_token_id"


def in_speculators(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of the layout of speculators."""
    return config.get("speculators_model_type") == VARIANT.type


def in_raw(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of the flat layout."""
    return "speculators_model_type" not in config and MASK_IN_RAW in config


def read_speculators(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    return speculators.read(config, tensors, target, _variant(config, MASK_IN_SPECULATORS, target))


def read_raw(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[DraftHead, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    return raw.read(config, tensors, target, _variant(config, MASK_IN_RAW, target))


def write_speculators(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head; `name`: where vLLM finds its target."""
    assert isinstance(head, PEagleHead)
    config, tensors = speculators.write(head, target, name, VARIANT)
    return config | {MASK_IN_SPECULATORS: head.mask_token}, tensors


def write_raw(head: DraftHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head, in a flat configuration."""
    assert isinstance(head, PEagleHead)
    config, tensors = raw.write(head, target, name)
    return config | {MASK_IN_RAW: head.mask_token}, tensors


def refused_by_vllm(head: PEagleHead) -> str | None:
    """Why vLLM does not run a head as it is; None if it does."""
    options = Eagle3Options.of(head)
    for name, on in (("fc_norm", options.fc_norm), ("norm_output", options.norm_output)):
        if on:
            return f"vLLM ignores {name} in heads of P-EAGLE: train it with head.{name}=false"
    return None


def _variant(config: Config, key: str, target: TargetWithLayers) -> Variant:
    mask: Any = config.get(key)
    if mask is None:
        raise HeadFileError(f"its config.json lacks {key}, the token in its mask slots: add it")
    if type(mask) is not int or not 0 <= mask < target.vocab:
        raise HeadFileError(
            f"its {key} is {mask!r}, and the target has the tokens 0 to {target.vocab - 1}: correct it"
        )
    return replace(VARIANT, head_type=partial(PEagleHead, mask_token=mask))
