"""The heads of Medusa (Cai et al. 2024): one for each of the next positions, all on the same hidden state.

Letters: M nodes of one depth, D hidden size, K tokens of the draft vocabulary.
"""

from __future__ import annotations

from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.position_head import PositionHead, ResidualBlocks, random_parameters


class MedusaHead(PositionHead):
    """Head k, counted from 1, predicts the token k positions after the root: residual blocks on the hidden
    state and an LM head of its own. It does not see the tokens in between."""

    method = "medusa"
    reads_path = False

    def __init__(
        self,
        target: TargetWithLayers,
        num_heads: int,
        *,
        num_layers: int = 1,  # residual blocks of each head
        bias: bool = True,  # of the residual blocks
        draft_ids: Tensor | None = None,  # (K,) token of each logit; None: the whole vocabulary
    ) -> None:
        super().__init__(target, num_heads, draft_ids)
        self.num_heads, self.num_layers = num_heads, num_layers
        self.blocks = nn.ModuleList(
            [ResidualBlocks(self.hidden_size, num_layers, bias=bias) for _ in range(num_heads)]
        )
        self.lm_heads = nn.ModuleList(
            [nn.Linear(self.hidden_size, self.num_draft_tokens, bias=False) for _ in range(num_heads)]
        )

    def forward(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.lm_heads[depth](self.blocks[depth](states)), states


def untrained_medusa(target: TargetWithLayers, seed: int = 0) -> PositionHead:
    """Five heads for a target, as in the paper, with random weights."""
    return random_parameters(MedusaHead(target, 5), seed)
