"""A draft model whose number of token ids differs from the target's, although both have one tokenizer:
embeddings and LM heads are padded to different sizes, and fine-tuned targets may have added tokens.

Ids that both have stand for the same tokens, and only these are drafted: logits beyond the target's ids are
cut, and ids that the draft lacks get -inf, so that q is a distribution over the target's ids.
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
        """The tokens as the draft model reads them: ids that it lacks become its last id, often padding."""
        return tokens.clamp(max=self.own - 1) if self.own < self.vocab else tokens

    def logits(self, logits: Tensor) -> Tensor:  # (N, K) -> (N, V)
        """The logits of the target's ids; a copy only if the draft lacks some of them."""
        if self.own > self.vocab:
            return logits[:, : self.vocab]
        # after the whole model, as a cap on its LM head's outputs would make -inf finite
        return pad(logits, (0, self.vocab - self.own), value=float("-inf"))
