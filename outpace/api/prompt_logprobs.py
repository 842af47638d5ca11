"""Log probabilities of the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """The log probability of one token of a prompt, after the tokens before it."""

    token: int
    raw: float  # log-softmax of the target's logits
    rank: int  # 1: no token is more probable
    top: tuple[PromptLogprob, ...] = ()  # the most probable tokens there, most probable first


def prompt_logprobs(logits: Tensor, tokens: Sequence[int], num_top: int) -> list[PromptLogprob]:
    """Those of T tokens, with the `num_top` most probable tokens at each; row t of the logits (T, V) is from
    before token t."""
    wide = logits if logits.dtype.itemsize > 4 else logits.float()
    raw = wide.log_softmax(-1)
    own = raw[range(len(tokens)), list(tokens)]
    ranks = ((raw > own[:, None]).sum(-1) + 1).tolist()
    best = raw.topk(num_top)
    found = []
    for row, (token, value) in enumerate(zip(tokens, own.tolist(), strict=True)):
        pairs = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        top = tuple(PromptLogprob(*pair, rank) for rank, pair in enumerate(pairs, 1))
        found.append(PromptLogprob(token, value, ranks[row], top))
    return found
