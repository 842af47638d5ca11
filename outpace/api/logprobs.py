"""Log probabilities of generated tokens, before and after temperature, truncation and penalties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.core.contracts import Step, TargetProbs

LOWEST = -9999.0  # replaces minus infinity, which JSON does not have; vLLM's value


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probabilities of one token at one position of the generated text."""

    token: int
    raw: float  # log-softmax of the unmodified logits (temperature 1, no penalties or truncation)
    processed: float  # log probability in the distribution that was sampled from; 0 at temperature 0
    top: tuple[Logprob, ...] = ()  # the tokens of largest `raw` at this position, largest first

    def as_dict(self, tokenizer: Any = None) -> dict[str, Any]:
        """The fields as JSON values, at least LOWEST; with a tokenizer, also the text of each token."""
        found: dict[str, Any] = {
            "token": self.token,
            **({"text": token_text(tokenizer, self.token)} if tokenizer is not None else {}),
            "raw": max(self.raw, LOWEST),
            "processed": max(self.processed, LOWEST),
        }
        return found | ({"top": [each.as_dict(tokenizer) for each in self.top]} if self.top else {})


def token_text(tokenizer: Any, token: int, *, skip_special_tokens: bool = False) -> str:
    """The text of a token within a text. At the beginning of one, many tokenizers leave out a space."""
    once, twice = (
        tokenizer.decode(
            [token] * num, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        for num in (1, 2)
    )
    return twice[len(once) :]


def logprobs(step: Step, row: int, count: int, num_top: int, target_probs: TargetProbs) -> list[Logprob]:
    """Log probabilities of the first `count` tokens that a step added to a row.

    `top` of each has the `num_top` most probable tokens at the same position.
    """
    if not count:
        return []
    assert step.scores.logits is not None
    nodes, tokens = step.draft.tree.forest.path(step.verdict.leaf[row])[:count], step.generated[row][:count]
    logits = step.scores.logits[nodes]
    # compute log_softmax in float32: half precision would round log probabilities to about two digits
    raw = logits.log_softmax(-1) if logits.dtype.itemsize > 4 else logits.float().log_softmax(-1)
    processed = target_probs.probs(nodes).log()
    top = raw.topk(num_top).indices.tolist() if num_top else [[]] * count
    found = []
    for index, token in enumerate(tokens):
        each = [token, *top[index]]
        pairs = zip(each, raw[index, each].tolist(), processed[index, each].tolist(), strict=True)
        own, *best = [Logprob(*triple) for triple in pairs]
        found.append(Logprob(own.token, own.raw, own.processed, tuple(best)))
    return found
