"""The head of DSpark (Cheng et al. 2026): DFlash's, whose logits are corrected by the token drafted just
before, and which predicts how far a block will be accepted.

The correction is a bias of low rank for each pair of tokens, so the tokens of a block are drawn one after the
other without another forward.

Letters: N nodes, D hidden size, V vocabulary of the target, K tokens of the draft vocabulary, r rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dflash.head import BLOCK_SIZE, NUM_LAYERS, DFlashHead, default_mask, default_taps
from outpace.models.heads.draft_head import DraftHead, head_config, untrained

RANK = 256
LEANING = 1.5  # of untrained predictions of acceptance, in logits


class MarkovHead(nn.Module):
    """The biases of the logits after each token of the target, as a product of two matrices."""

    def __init__(self, vocab: int, rank: int, num_tokens: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, num_tokens, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:  # (N,) -> (N, K)
        return self.markov_w2(self.markov_w1(tokens))


class ConfidenceHead(nn.Module):
    """The logarithm of the odds of acceptance, linear in what it reads."""

    def __init__(self, size: int, *, bias: bool = True) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1, bias=bias)

    def forward(self, read: Tensor) -> Tensor:  # (N, size) -> (N,)
        return self.proj(read).squeeze(-1)


class DSparkHead(DFlashHead):
    """A head of DFlash with a `MarkovHead` and, with `confidence`, a `ConfidenceHead`, which reads the input
    of the LM head and, with `reads_tokens`, the embedding of the token before in the Markov head."""

    method = "dspark"
    before_forward = ("fc.", "hidden_norm.", "markov_head.", "confidence_head.")

    def __init__(
        self,
        config: LlamaConfig,  # its vocabulary size is K
        embed: nn.Module,
        lm_head: nn.Module,  # the target's
        taps: Sequence[int],
        *,
        vocab: int,
        mask_token: int,
        num_masks: int,
        drafts_at_root: bool = True,
        draft_ids: Tensor | None = None,
        rank: int = RANK,
        confidence: bool = True,
        reads_tokens: bool = True,
        confidence_bias: bool = True,
    ) -> None:
        super().__init__(
            config,
            embed,
            lm_head,
            taps,
            mask_token=mask_token,
            num_masks=num_masks,
            drafts_at_root=drafts_at_root,
            draft_ids=draft_ids,
        )
        self.markov_head = MarkovHead(vocab, rank, config.vocab_size)
        self.reads_tokens, self.predicts_acceptance = reads_tokens, confidence
        size = config.hidden_size + rank * reads_tokens
        self.confidence_head = ConfidenceHead(size, bias=confidence_bias) if confidence else None

    def given_tokens(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return logits + self.markov_head(tokens.to(logits.device))

    def acceptance(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        assert self.confidence_head is not None
        if self.reads_tokens:
            outputs = torch.cat((outputs, self.markov_head.markov_w1(tokens)), -1)
        return self.confidence_head(outputs)


def made(target: TargetWithLayers, num_layers: int, num_tokens: int, rank: int) -> DSparkHead:
    """A head that drafts `num_tokens` tokens; its weights are to be set."""
    return DSparkHead(
        head_config(target, target.vocab, num_layers),
        target.embed,
        target.head,
        default_taps(target.num_layers, num_layers),
        vocab=target.vocab,
        mask_token=default_mask(target.vocab),
        num_masks=num_tokens - 1,
        rank=rank,
    )


def untrained_dspark(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of DSpark for a target with random weights, whose predictions of acceptance differ much."""
    head, weight = made(target, NUM_LAYERS, BLOCK_SIZE - 1, RANK), next(target.embed.parameters())
    head.hidden_norm.to(weight)
    own = head.fc, head.layers, head.markov_head, head.confidence_head
    untrained(head, target, seed, [module for module in own if module is not None])
    drawn = torch.randn(target.vocab, RANK, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        head.markov_head.markov_w1.weight.copy_(drawn)
        assert head.confidence_head is not None
        head.confidence_head.proj.bias.fill_(LEANING)
    return head
