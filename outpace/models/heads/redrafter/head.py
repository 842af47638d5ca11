"""The recurrent drafter (Cheng et al. 2024): a recurrent network over the embeddings of the drafted tokens.

Letters: M nodes of one depth, D hidden size of the target, E width of the output blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.position_head import PositionHead, ResidualBlocks, random_parameters


class ReDrafterHead(PositionHead):
    """s = SiLU(W e(token) + U s + b), with s = 0 before the root. Residual blocks and an LM head compute the
    logits from the concatenation of the target's hidden state and s. This concatenation is the node's state;
    the hidden state is the same in the whole draft."""

    method = "redrafter"

    def __init__(
        self,
        target: TargetWithLayers,
        *,
        num_layers: int = 2,  # residual blocks
        exit_size: int | None = None,  # E; None: 2 D, without a projection to it
        draft_ids: Tensor | None = None,  # (K,) token of each logit; None: the whole vocabulary
    ) -> None:
        super().__init__(target, None, draft_ids)
        self.num_layers = num_layers
        size = self.hidden_size
        self.exit_size = exit_size or 2 * size
        self.rnn_w = nn.Linear(size, size, bias=False)
        self.rnn_u = nn.Linear(size, size)
        self.input_proj = nn.Linear(2 * size, self.exit_size) if self.exit_size != 2 * size else nn.Identity()
        self.blocks = ResidualBlocks(self.exit_size, num_layers)
        self.lm_head = nn.Linear(self.exit_size, self.num_draft_tokens, bias=False)

    def begin(self, hidden: Tensor) -> Tensor:
        return torch.cat((hidden, torch.zeros_like(hidden)), -1)

    def forward(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden, recurrent = states.split(self.hidden_size, -1)
        embedded = self.embed_tokens(tokens).to(states.dtype)
        recurrent = nn.functional.silu(self.rnn_w(embedded) + self.rnn_u(recurrent))
        states = torch.cat((hidden, recurrent), -1)
        return self.lm_head(self.blocks(self.input_proj(states))), states


def untrained_redrafter(target: TargetWithLayers, seed: int = 0) -> PositionHead:
    """A recurrent drafter with two residual blocks for a target, with random weights."""
    return random_parameters(ReDrafterHead(target), seed)
