"""Folders with draft heads: reads and writes the layouts of the EAGLE and speculators projects.

A folder has `config.json` and `model.safetensors`. The target's embedding, and for EAGLE its LM head, are not
stored: they are taken from the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle import EagleHead
from outpace.models.heads.eagle3 import Eagle3Head

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FROM_TARGET = {"eagle": ("embed_tokens.", "lm_head."), "eagle3": ("embed_tokens.",)}  # kind -> parameters
NAMES = {"eagle": "EAGLE", "eagle3": "EAGLE-3"}
SHAPE = (  # of the decoder layer, in `transformer_layer_config`
    "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim rms_norm_eps vocab_size "
    "rope_parameters max_position_embeddings hidden_act attention_bias mlp_bias"
).split()


class HeadFileError(ValueError):
    """A folder holds no head that can be used; the message is for users."""


def save_head(head: DraftHead, folder: str | Path, *, target: str = "") -> None:
    """Write a head of EAGLE or EAGLE-3; `target`: name of its target, for servers that load both."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = kind_of(head)
    tensors = _own(head, kind)
    if isinstance(head, Eagle3Head):
        config = _speculators_config(head, target)
        if head.draft_ids is not None:
            vocab = int(next(head.embed_tokens.parameters()).shape[0])
            tensors["d2t"] = head.draft_ids - torch.arange(len(head.draft_ids))
            tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, head.draft_ids, True)
    else:
        assert isinstance(head, EagleHead)
        config = head.config.to_diff_dict() | _layer(head.config)
        config |= {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
        config["bias"] = head.fc.bias is not None
    save_file({name: each.detach().contiguous().cpu() for name, each in tensors.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_head(kind: str, folder: str | Path, target: TargetWithLayers) -> DraftHead:
    """Read the head of this kind ("eagle" or "eagle3") for a target. HeadFileError if the folder lacks it or
    it does not fit the target."""
    folder = Path(folder)
    config, tensors = _read(folder)
    found = "eagle3" if _is_eagle3(config) else "eagle"
    if found != kind:
        raise HeadFileError(f"{folder} holds a head of {NAMES[found]}: use it with the method {found}")
    weight = next(target.embed.parameters())
    size = int(config.get("transformer_layer_config", config).get("hidden_size", 0))
    if size != weight.shape[1]:
        raise HeadFileError(
            f"the head in {folder} is for a target with hidden states of {size} numbers, and this target's "
            f"have {weight.shape[1]}: give the model it was trained for"
        )
    head = _eagle3(config, tensors, target) if kind == "eagle3" else _eagle(config, tensors, target)
    _fill(head, kind, tensors, folder)
    head.to(weight.device).eval()
    for name, parameter in head.named_parameters():
        if not name.startswith(FROM_TARGET[kind]):
            parameter.data = parameter.data.to(weight.dtype)
    return head


def kind_of(head: DraftHead) -> str:
    """The method that a head was made for."""
    return "eagle3" if isinstance(head, Eagle3Head) else "eagle"


def _own(head: DraftHead, kind: str) -> dict[str, Tensor]:
    """The parameters that are the head's, not the target's."""
    return {name: each for name, each in head.named_parameters() if not name.startswith(FROM_TARGET[kind])}


def _layer(config: LlamaConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SHAPE if getattr(config, name, None) is not None}


def _speculators_config(head: Eagle3Head, target: str) -> dict[str, Any]:
    vocab = int(next(head.embed_tokens.parameters()).shape[0])
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 5,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "transformer_layer_config": {"model_type": "llama"} | _layer(head.config) | {"vocab_size": vocab},
        "draft_vocab_size": head.config.vocab_size,
        "target_hidden_size": head.config.hidden_size,
        # there, number k is the output of layer k - 1, and 0 the embedding
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in head.taps],
        "norm_before_residual": head.layers[0].norm_before_residual,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": head.state_layer == -1,
        "embed_requires_grad": False,
    }


def _is_eagle3(config: Mapping[str, Any]) -> bool:
    return config.get("speculators_model_type") == "eagle3" or "LlamaForCausalLMEagle3" in (
        config.get("architectures") or ()
    )


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not folder.is_dir():
        raise HeadFileError(f"there is no folder {folder}: give one that `outpace train` wrote")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise HeadFileError(f"{folder} holds no draft head ({error})") from error
    if not isinstance(config, dict):
        raise HeadFileError(f"{folder / CONFIG} is no configuration of a draft head")
    return config, {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}


def _eagle(config: Mapping[str, Any], tensors: Mapping[str, Tensor], target: TargetWithLayers) -> EagleHead:
    # without the key, EAGLE's own code takes the bias to be there
    bias = bool(config.get("bias", "fc.bias" in tensors))
    own = LlamaConfig(**{name: config[name] for name in SHAPE if name in config}, num_hidden_layers=1)
    own.vocab_size = target.vocab
    return EagleHead(own, target.embed, target.head, bias=bias)


def _eagle3(config: Mapping[str, Any], tensors: dict[str, Tensor], target: TargetWithLayers) -> Eagle3Head:
    layer = config.get("transformer_layer_config", config)
    own = LlamaConfig(**{name: layer[name] for name in SHAPE if name in layer}, num_hidden_layers=1)
    own.vocab_size = int(config.get("draft_vocab_size") or target.vocab)
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        of_sglang = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        # there, number j is the output of layer j
        default = [2, target.num_layers // 2, target.num_layers - 3]
        ids = default if of_sglang is None else [each + 1 for each in of_sglang]
    tensors.pop("t2d", None)
    offsets = tensors.pop("d2t", None)
    draft_ids = None if offsets is None else offsets.long() + torch.arange(len(offsets))
    return Eagle3Head(
        own,
        target.embed,
        [each - 1 for each in ids],
        draft_ids=draft_ids,
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_output=bool(config.get("norm_output", False)),
    )


def _fill(head: DraftHead, kind: str, tensors: Mapping[str, Tensor], folder: Path) -> None:
    own = _own(head, kind)
    given = {name: each for name, each in tensors.items() if not name.startswith(FROM_TARGET[kind])}
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] * bool(missing)
        parts += [f"has {', '.join(unknown)}, which no head of {NAMES[kind]} has"] * bool(unknown)
        raise HeadFileError(f"{folder / WEIGHTS} {' and '.join(parts)}")
    for name, parameter in own.items():
        if parameter.shape != given[name].shape:
            raise HeadFileError(
                f"{name} in {folder / WEIGHTS} is {tuple(given[name].shape)}, and its configuration says "
                f"{tuple(parameter.shape)}"
            )
        parameter.data.copy_(given[name])
