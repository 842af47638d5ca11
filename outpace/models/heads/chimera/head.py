"""The head of Chimera (Zeng et al. 2024): a decoder layer in which three tokens look at the whole text.

Letters: R texts, N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.position_head import ResidualBlocks


class TrigramEncoder(nn.Module):
    """Makes one vector of the embeddings of the last three tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.block = ResidualBlocks(3 * size, 1)
        self.linear = nn.Linear(3 * size, size, bias=False)

    def forward(self, embedded: Tensor) -> Tensor:  # (R, N, 3D) -> (R, N, D)
        return self.linear(self.block(embedded))


class OfHalf(nn.Linear):
    """A linear map of the first or the second half of its input."""

    def __init__(self, replaced: nn.Linear, place: int) -> None:
        super().__init__(replaced.in_features, replaced.out_features, bias=replaced.bias is not None)
        self.place = place  # 0 or 1

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.chunk(2, -1)[self.place])


class FullContextLayer(LlamaDecoderLayer):
    """A decoder layer with queries from trigrams, and keys and values from the features of the tokens before:
    the target's hidden states, and where there are none yet, the layer's own outputs."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 0)
        attention: Any = self.self_attn
        for name, place in (("q_proj", 0), ("k_proj", 1), ("v_proj", 1)):
            setattr(attention, name, OfHalf(getattr(attention, name), place))

    def forward(  # (R, N, D), (R, N, D), (R, N, 3D) -> (R, N, 4D)
        self, hidden_states: Tensor, *, context: Tensor, carried: Tensor, **attention: Any
    ) -> Tensor:
        both = torch.cat((self.input_layernorm(hidden_states), self.input_layernorm(context)), -1)
        states = hidden_states + self.self_attn(hidden_states=both, **attention)[0]
        states = states + self.mlp(self.post_attention_layernorm(states))
        return torch.cat((states, carried), -1)


class BesideVerified(nn.Module):
    """The input of the LM head, out of the state of a node: the hidden state of the last verified token, and
    the layer's output."""

    def forward(self, states: Tensor) -> Tensor:  # (..., 4D) -> (..., 2D)
        output, verified, _, _ = states.chunk(4, -1)
        return torch.cat((verified, output), -1)


class ChimeraHead(DraftHead):
    """Predicts the token after a node from the three tokens that end with it, the features of all tokens
    before it and the target's hidden state at the last verified token.

    The state of a node has four vectors of size D: the layer's output, the hidden state of the last verified
    token, and the embeddings of the node's token and of the one before. It is the feature that the nodes
    below it read; that of a token of the text has its hidden state twice in place of the first two."""

    method = "chimera"
    knows_tokens = True

    def __init__(self, config: LlamaConfig, embed: nn.Module) -> None:
        super().__init__(config, embed, (-1,))
        size = config.hidden_size
        # assigned before the trigram encoder: of a model's ModuleLists OutputCapture takes the first one for
        # its decoder layers, and the encoder has one too
        self.layers = nn.ModuleList([FullContextLayer(config)])
        self.trigram = TrigramEncoder(size)
        self.norm = BesideVerified()
        self.lm_head = nn.Linear(2 * size, config.vocab_size, bias=False)
        self.state_layer = 0
        self.feature_size = 4 * size

    def with_tokens(self, fused: Tensor, tokens: Tensor, before: Tensor) -> Tensor:
        embedded = [self.embed_tokens(each).to(fused.dtype) for each in (tokens, before)]
        return torch.cat((fused, fused, *embedded), -1)

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        context, verified, before, earlier = features.chunk(4, -1)
        return {
            "hidden_states": self.trigram(torch.cat((earlier, before, embedded), -1)),
            "context": context,
            "carried": torch.cat((verified, embedded, before), -1),
        }


def untrained_chimera(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of Chimera for a target with random weights."""
    head = ChimeraHead(head_config(target, target.vocab), target.embed)
    return untrained(head, target, seed, (head.layers, head.trigram, head.lm_head))
