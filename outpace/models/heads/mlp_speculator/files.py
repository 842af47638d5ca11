"""Folders with an MLP speculator, in the layout of its own project, which vLLM and TGI read.

Configuration: `model_type: mlp_speculator`, `emb_dim`, `inner_dim` (0: as `emb_dim`), `n_predict`,
`vocab_size`, `tie_weights`, `scale_input`. Tensors, with or without the prefix `speculator.`:
`emb.{step}.weight`, `proj.{step}.weight`, `ln.{step}.weight` and bias, `head.{step}.weight`; tied ones may be
stored once.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors
from outpace.models.heads.formats.position_sizes import check_sizes
from outpace.models.heads.mlp_speculator.head import MlpSpeculatorHead
from outpace.models.heads.position_head import PositionHead

PREFIX = "speculator."
REPEATED = re.compile(r"(?:emb|ln|head)\.(?!0\.)\d+\..+|proj\.(?![01]\.)\d+\..+")  # copies of tied weights


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether this is a configuration of an MLP speculator."""
    return config.get("model_type") == "mlp_speculator"


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[PositionHead, Tensors]:
    """A head for the target, its weights undefined, and the tensors under the names of its parameters.
    HeadFileError if it does not fit the target."""
    missing = [name for name in ("emb_dim", "n_predict", "vocab_size") if not config.get(name)]
    if missing:
        raise HeadFileError(f"the configuration lacks {', '.join(missing)}: download it again")
    size = int(config["emb_dim"])
    check_sizes(target, size, int(config["vocab_size"]))
    tied = bool(config.get("tie_weights", False))
    stored = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    if tied:
        stored = {name: tensor for name, tensor in stored.items() if not REPEATED.fullmatch(name)}
    head = MlpSpeculatorHead(
        target,
        int(config["n_predict"]),
        int(config.get("inner_dim") or size),
        tied=tied,
        scale_input=bool(config.get("scale_input", False)),
    )
    return head, stored


def write(head: PositionHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and the tensors of a folder."""
    assert isinstance(head, MlpSpeculatorHead)
    steps = len(head.proj)
    config: Config = {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "vocab_size": head.vocab,
        "emb_dim": head.hidden_size,
        "inner_dim": head.inner_size,
        "n_predict": steps,
        "top_k_tokens_per_head": [max(5 - step, 1) for step in range(steps)],
        "n_candidates": 5,
        "tie_weights": head.tied,
        "scale_input": head.scale_input,
    }
    return config, {PREFIX + name: parameter for name, parameter in head.own.items()}
