"""A draft model whose number of token ids differs from the target's, although both have one tokenizer:
embeddings and LM heads are padded to different sizes, and fine-tuned targets may have added tokens.

The ids that both have are the same tokens. Only these are drafted: logits beyond the target's ids are cut,
those that the draft lacks are -inf, so that q is a distribution over the target's ids before a token is drawn
from it.

Letters: N tokens, K ids of the draft model, V ids of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class FittedVocabulary:
    """Fits the inputs and outputs of a draft model to the target's ids."""

    own: int  # K
    vocab: int  # V

    def readable(self, tokens: Tensor) -> Tensor:  # (N,) of V ids -> (N,) of K ids
        """The tokens as the draft model reads them: those beyond its ids as its last id, often padding."""
        return tokens.clamp(max=self.own - 1) if self.own < self.vocab else tokens

    def logits(self, logits: Tensor) -> Tensor:  # (N, K) -> (N, V)
        """The logits of the target's ids; a copy only if the draft lacks some of them."""
        if self.own > self.vocab:
            return logits[:, : self.vocab]
        # behind the whole model: some scale or cap what their LM head puts out, and a cap makes -inf finite
        return pad(logits, (0, self.vocab - self.own), value=float("-inf"))
