"""The head of Falcon (Gao et al. 2025): each forward over the last two tokens of a path drafts the next two.

Letters: R texts, N tokens, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained

BLOCK = 2  # tokens of a block
Memory = tuple[Tensor, Tensor]  # (2, R, D) each: hidden and cell states of the LSTM


class FalconHead(DraftHead):
    """A decoder layer over the outputs of an LSTM, which reads embeddings and hidden states along the text.
    In the last block of a path both tokens attend to each other. The output at the first token is the hidden
    state from which the token one place behind the block is predicted, and that at the second token the one
    for two places behind it.

    The forward's `features` are the outputs of `reduce`. As the only layer computes keys and values from
    these, entries of the KV cache do not depend on blocks."""

    method = "falcon"
    from_target = ("embed_tokens.", "lm_head.")
    before_forward = ("reducer.",)

    def __init__(self, config: LlamaConfig, embed: nn.Module, lm_head: nn.Module) -> None:
        super().__init__(config, embed, (-1,))
        size = config.hidden_size
        self.reducer = nn.LSTM(2 * size, size, num_layers=2, batch_first=True)
        layer: Any = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.norm = nn.Identity()
        self.lm_head = lm_head

    def reduce(
        self, embedded: Tensor, features: Tensor, memory: Memory | None = None
    ) -> tuple[Tensor, Memory]:  # (R, N, D) each -> (R, N, D)
        """The inputs of the decoder layer for tokens after those that left this memory (None: the beginning
        of a text), and the memory after them."""
        return self.reducer(torch.cat((embedded, features), -1), memory)

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return {"hidden_states": features}


def draw_reducer(head: FalconHead, seed: int) -> None:
    """Draw the weights of the LSTM from a seed, uniformly as torch does."""
    generator, bound = torch.Generator().manual_seed(seed), head.reducer.hidden_size**-0.5
    with torch.no_grad():
        for weight in head.reducer.parameters():
            weight.copy_((2 * torch.rand(weight.shape, generator=generator) - 1) * bound)


def untrained_falcon(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of Falcon for a target with random weights."""
    head = FalconHead(head_config(target, target.vocab), target.embed, target.head)
    head.reducer.to(next(target.embed.parameters()))
    draw_reducer(head, seed)
    return untrained(head, target, seed, (head.layers,))
