"""Folders with heads of Hydra and Hydra++, under the names of Hydra's own code.

Configuration: `hydra_num_heads`, `hydra_num_layers`, `hydra_head_arch` (`mlp` or, for Hydra++, `prefix-mlp`),
`grounded_heads: true`. Tensors: `hydra_mlp.{head}.{1 + 2 * layer}.linear.weight` and bias, of the first layer
also `.res_connection.weight` and bias, `hydra_lm_head.{head}.1.weight` and bias, and for the prefix layer
(the misspelling is theirs) `prefix_embeding_layer.layers.0.*` and `prefix_embeding_layer.norm.weight`. With a
reduced draft vocabulary, which Hydra's own code does not have, also `token_map`.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.formats.files import Config, HeadFileError, Tensors
from outpace.models.heads.formats.position_sizes import TOKEN_MAP, check_sizes, taken, taken_token_map
from outpace.models.heads.hydra.head import HydraHead, prefix_layer
from outpace.models.heads.position_head import PositionHead

ARCHITECTURES = ("mlp", "prefix-mlp")
# names in the file; its layer numbers count dropouts too
FIRST = re.compile(r"hydra_mlp\.(\d+)\.1\.(linear|res_connection)\.(weight|bias)")
LATER = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.(weight|bias)")
LM_HEAD = re.compile(r"hydra_lm_head\.(\d+)\.1\.(weight|bias)")
PREFIX = "prefix_embeding_layer."


def recognises(config: Config, names: Collection[str]) -> bool:
    """Whether this is a configuration of Hydra."""
    return "hydra_num_heads" in config


def read(config: Config, tensors: Tensors, target: TargetWithLayers) -> tuple[PositionHead, Tensors]:
    """A head for the target, its weights undefined, and the tensors under the names of its parameters.
    HeadFileError if it does not fit the target or has another architecture."""
    architecture = config.get("hydra_head_arch", ARCHITECTURES[0])
    if architecture not in ARCHITECTURES or not config.get("grounded_heads", True):
        raise HeadFileError(
            f"the heads are of the kind {architecture}, grounded_heads {config.get('grounded_heads', True)}: "
            f"give heads of the kind {' or '.join(ARCHITECTURES)} that read drafted tokens"
        )
    if config.get("hidden_state_offset"):
        raise HeadFileError("the heads read an inner layer (hidden_state_offset): give heads of the last one")
    if config["hydra_num_heads"] is None:
        raise HeadFileError("the configuration lacks hydra_num_heads: download it again")
    num_heads, num_layers = int(config["hydra_num_heads"]), int(config.get("hydra_num_layers", 1))
    lm_head = taken(tensors, "hydra_lm_head.0.1.weight")
    draft_ids = taken_token_map(tensors, target, config, len(lm_head))
    check_sizes(target, lm_head.shape[1], len(lm_head) if draft_ids is None else None)
    renamed = {_ours(name): tensor for name, tensor in tensors.items()}
    for head in range(num_heads):  # one layer may be stored for all repetitions: they share their weights
        for layer in range(1, num_layers - 1):
            for kind in ("weight", "bias"):
                first = f"blocks.{head}.layers.0.{kind}"
                if first in renamed:
                    renamed.setdefault(f"blocks.{head}.layers.{layer}.{kind}", renamed[first])
    made = HydraHead(
        target,
        num_heads,
        num_layers=num_layers,
        bias=any(re.fullmatch(r"lm_heads\.\d+\.bias", name) for name in renamed),
        prefix=prefix_layer(target) if architecture == "prefix-mlp" else None,
        draft_ids=draft_ids,
    )
    renamed.pop("prefix.embed_tokens.weight", None)  # the target's
    return made, renamed


def write(head: PositionHead, target: TargetWithLayers, name: str) -> tuple[Config, Tensors]:
    """The configuration and the tensors of a folder."""
    assert isinstance(head, HydraHead)
    config: Config = {
        "model_type": "hydra",
        "hydra_num_heads": head.num_heads,
        "hydra_num_layers": head.num_layers,
        "hydra_head_arch": ARCHITECTURES[head.prefix is not None],
        "grounded_heads": True,
        "hidden_state_offset": 0,
    }
    tensors: Tensors = {_theirs(name): parameter for name, parameter in head.own.items()}
    if head.draft_ids is not None:
        tensors[TOKEN_MAP] = head.draft_ids
    return config, tensors


def _ours(name: str) -> str:
    if match := FIRST.fullmatch(name):
        return f"mixers.{match[1]}.{'linear' if match[2] == 'linear' else 'residual'}.{match[3]}"
    if match := LATER.fullmatch(name):
        return f"blocks.{match[1]}.layers.{(int(match[2]) - 3) // 2}.{match[3]}"
    if match := LM_HEAD.fullmatch(name):
        return f"lm_heads.{match[1]}.{match[2]}"
    return f"prefix.{name.removeprefix(PREFIX)}" if name.startswith(PREFIX) else name


def _theirs(name: str) -> str:
    part, rest = name.split(".", 1)
    if part == "prefix":
        return PREFIX + rest
    head, rest = rest.split(".", 1)
    if part == "lm_heads":
        return f"hydra_lm_head.{head}.1.{rest}"
    if part == "mixers":
        return f"hydra_mlp.{head}.1.{rest.replace('residual', 'res_connection')}"
    _, layer, kind = rest.split(".")
    return f"hydra_mlp.{head}.{3 + 2 * int(layer)}.linear.{kind}"
