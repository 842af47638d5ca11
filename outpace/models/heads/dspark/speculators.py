"""DSpark in the layout of the speculators project: that of DFlash with a few keys more.

Versions of speculators before `sample_from_anchor` wrote heads that draft at masks alone, one token less than
a block has; so do configurations without that key that name this number of tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash import speculators
from outpace.models.heads.dspark import parts
from outpace.models.heads.dspark.head import DSparkHead
from outpace.models.heads.formats.files import Config, Tensors


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether a configuration is of this layout."""
    return config.get("speculators_model_type") == "dspark"


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[Any, Tensors]:
    """A head with weights still to be set, and the tensors to set them to."""
    at_root = config.get(speculators.AT_ROOT)
    if at_root is None:
        proposals = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        at_root = proposals[0].get("speculative_tokens") == config.get("block_size")
    make = parts.maker(config, tensors, target)
    return speculators.read_as(make, config, tensors, target, at_root=bool(at_root))


def write(head: Any, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and tensors of a head; `name`: where vLLM finds its target."""
    assert isinstance(head, DSparkHead)
    config, tensors = speculators.write_as("dspark", "DSparkSpeculator", head, target, name)
    return config | parts.written(head), tensors
