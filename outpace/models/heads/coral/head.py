"""The head of CORAL (Weng et al. 2025): EAGLE's, with a router that picks a few groups of tokens, and only
their rows of the LM head are multiplied.

Letters: N tokens, D hidden size, V vocabulary, G groups of rows, K tokens of the groups that some node chose.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.hf.logits_head import ScaledHead

NUM_ACTIVE = 2  # groups that are computed for a node


class GroupRouter(nn.Module):
    """Scores the groups of rows of the LM head by how probable their tokens are after a state."""

    def __init__(self, size: int, num_groups: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.scores = nn.Linear(size, num_groups)

    def forward(self, states: Tensor) -> Tensor:  # (..., D) -> (..., G) logits
        return self.scores(silu(self.inner(states)))


class CoralHead(EagleHead):
    """A head of EAGLE whose logits may be those of a few groups of tokens only: of the most frequent tokens,
    and of the other groups with the highest scores of the router. Without a router it drafts all tokens.

    With a router a forward ends before the LM head, and `draft_logits` multiplies by the rows that a node of
    the forward chose: how many these are depends on the states, which a compiled graph cannot."""

    method = "coral"

    token_order: Tensor

    def __init__(
        self,
        config: LlamaConfig,
        embed: nn.Module,
        lm_head: nn.Module,
        token_order: Tensor,  # (V,) all token ids, the most frequent first
        *,
        num_groups: int = 0,  # 0: no router
        num_active: int = NUM_ACTIVE,
    ) -> None:
        super().__init__(config, embed, lm_head, bias=False)
        # the LM head's input, but named by the layer, as the forward may end there
        self.state_layer = config.num_hidden_layers - 1
        self.router: GroupRouter | None = None
        self.num_active = 0
        self.register_buffer("token_order", token_order, persistent=False)
        self._rows: list[tuple[Tensor, Tensor | None]] = []  # weights and bias by group, once they are needed
        if num_groups:
            self.add_router(num_groups, num_active)

    def add_router(self, num_groups: int, num_active: int) -> GroupRouter:
        """Add a router with new weights. ValueError for numbers that do not fit the vocabulary, and for an LM
        head whose rows cannot be told apart."""
        if not isinstance(self.lm_head, nn.Linear):
            kind = type(self.lm_head).__name__
            raise ValueError(f"a router needs an LM head that is a linear layer, not a {kind}: train without")
        if not 1 <= num_active <= num_groups <= len(self.token_order):
            raise ValueError(
                f"{num_active} active groups of {num_groups} do not fit {len(self.token_order)} tokens: use 1"
                " or more, at most as many as there are groups, and no more groups than tokens"
            )
        self.num_active = num_active
        self.router = GroupRouter(self.config.hidden_size, num_groups)
        return self.router

    @property
    def logits_follow(self) -> bool:
        return self.router is not None

    @property
    def groups(self) -> tuple[Tensor, ...]:  # G × (V / G,)
        """The tokens of each group, from frequent to rare; the first groups may have one more than others."""
        assert self.router is not None
        return self.token_order.tensor_split(self.router.scores.out_features)

    def active(self, scores: Tensor) -> Tensor:  # (..., G) -> (..., G) bool
        """Which groups count, given the router's scores: the first one in any case."""
        first = torch.zeros_like(scores[0], dtype=torch.bool).index_fill(0, scores.new_zeros(1).long(), True)
        best = scores.masked_fill(first, float("inf")).topk(self.num_active, -1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)

    def draft_logits(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits (N, K) after the states (N, D) that a forward returned, and their tokens (K,). Those of
        groups that a node did not choose are -inf, so that a node's draft does not depend on other nodes."""
        if self.router is None:
            return super().draft_logits(outputs)
        states = outputs.to(self.router.inner.weight.dtype)
        active = self.active(self.router(states))
        union = active.any(0).nonzero()[:, 0].tolist()
        rows, groups = self._rows_by_group(), self.groups
        logits = torch.cat([linear(states, *rows[group]) for group in union], -1)
        if isinstance(self.lm_head, ScaledHead):
            logits = self.lm_head.adjusted(logits)
        is_active = torch.cat([active[:, group, None].expand(-1, len(groups[group])) for group in union], -1)
        return logits.masked_fill(~is_active, float("-inf")), torch.cat([groups[group] for group in union])

    def _rows_by_group(self) -> list[tuple[Tensor, Tensor | None]]:
        """Copies of the LM head's rows, group by group: where tokens of one group are apart, each forward
        would collect them."""
        if not self._rows:
            assert isinstance(self.lm_head, nn.Linear)
            weight, bias = self.lm_head.weight.detach(), self.lm_head.bias
            self._rows = [
                (weight[group], None if bias is None else bias.detach()[group]) for group in self.groups
            ]
        return self._rows


def untrained_coral(target: TargetWithLayers, seed: int = 0, num_groups: int = 4) -> DraftHead:
    """A head of CORAL with random weights, for proofs. Which tokens count as frequent is random too. Its
    router chooses among `num_groups` groups, or among single tokens where the vocabulary has fewer."""
    order = torch.randperm(target.vocab, generator=torch.Generator().manual_seed(seed))
    head = CoralHead(
        head_config(target, target.vocab),
        target.embed,
        target.head,
        order.to(next(target.embed.parameters()).device),
        num_groups=min(num_groups, target.vocab),
    )
    assert head.router is not None
    return untrained(head, target, seed, (head.fc, head.layers, head.router))
