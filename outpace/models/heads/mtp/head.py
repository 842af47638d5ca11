"""The native heads of models that were trained to predict several tokens (DeepSeek-AI 2024, MTP).

Such a model's checkpoint holds, after its layers, one or more layers that predict the token after the next.
They are of the classes of the model's own layers.

Letters: R texts, N tokens, D hidden size.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import MtpLayer, MtpModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained


class MtpBlock(nn.Module):
    """A layer of transformers' `MtpLayer` with the arguments of a decoder layer."""

    def __init__(self, layer: MtpLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, *, embedded: Tensor, **attention: Any) -> Tensor:  # (R, N, D)
        return self.layer(embedded, hidden_states, **attention)


class MtpHead(DraftHead):
    """Predicts the next input of the target's LM head from a token's embedding and the preceding hidden
    state, each normed. The layer's normed output is the next hidden state while drafting."""

    method = "mtp"
    config_class = PretrainedConfig
    from_target = ("embed_tokens.", "lm_head.")

    def __init__(
        self,
        config: Any,  # of the layer
        embed: nn.Module,
        lm_head: nn.Module,
        layer: MtpLayer,
        rotary: nn.Module | None = None,  # of the target; None: that of a Llama model
    ) -> None:
        super().__init__(config, embed, (-1,))
        if rotary is not None:
            self.rotary_emb = copy.deepcopy(rotary)
        self.layers = nn.ModuleList([MtpBlock(layer)])
        self.norm = nn.Identity()
        self.lm_head = lm_head

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # experts are those of the target's classes

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": features, "embedded": embedded}


def native_head(target: TargetWithLayers) -> MtpHead:
    """The first layer for further tokens in the target's own checkpoint. ValueError if there is none, or if
    transformers cannot load it."""
    model: Any = getattr(target, "model", None)
    if not isinstance(model, PreTrainedModel):
        raise ValueError("the target is no model of transformers, so it has no layers for further tokens")
    name, text = model.config.name_or_path, model.config.get_text_config()
    if not getattr(text, "num_mtp_layers", None):
        raise ValueError(
            f"{name or type(model).__name__} has no layers for further tokens (num_mtp_layers): use a head "
            "that is trained for it, as by `outpace train mtp`"
        )
    try:
        found = MtpModel.from_pretrained(model)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(
            f"the layers for further tokens of {name} cannot be loaded ({problem:.200}): use its complete "
            "checkpoint, or a head that is trained for it"
        ) from error
    if found.use_shared_post_norm or not found.use_post_norm:
        raise ValueError(f"the layers for further tokens of {name} have no norm each, which is not supported")
    layer, rotary = found.layers[0], found.rotary_emb
    assert isinstance(layer, MtpLayer)
    config = copy.deepcopy(found.config)
    config.num_hidden_layers = 1
    return MtpHead(config, target.embed, target.head, layer, rotary).eval()


def llama_layer(target: TargetWithLayers) -> tuple[Any, MtpLayer]:
    """A layer of Llama's classes for a target, and its configuration."""
    config = head_config(target, target.vocab)
    return config, MtpLayer(config, LlamaDecoderLayer, LlamaRMSNorm, 0)


def untrained_mtp(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head for a target with random weights."""
    config, layer = llama_layer(target)
    head = MtpHead(config, target.embed, target.head, layer)
    return untrained(head, target, seed, (head.layers,))
