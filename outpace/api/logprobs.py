"""Log probabilities of generated tokens: the model's own, and those after all sampling settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.core.contracts import Step, TargetProbs

LOWEST = -9999.0  # stands for minus infinity in JSON, as in vLLM


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probabilities of one token at the position where it was generated."""

    token: int
    raw: float  # of the model's distribution: temperature 1, no settings
    processed: float  # of the distribution that was sampled from; 0 at temperature 0
    top: tuple[Logprob, ...] = ()  # the most probable tokens of the model's distribution, in order

    def as_dict(self, tokenizer: Any = None) -> dict[str, Any]:
        """As JSON values, which have no infinity; with the text of each token if the tokenizer is given."""
        found: dict[str, Any] = {
            "token": self.token,
            **({"text": tokenizer.decode([self.token])} if tokenizer is not None else {}),
            "raw": max(self.raw, LOWEST),
            "processed": max(self.processed, LOWEST),
        }
        return found | ({"top": [each.as_dict(tokenizer) for each in self.top]} if self.top else {})


def logprobs(step: Step, row: int, count: int, num_top: int, target_probs: TargetProbs) -> list[Logprob]:
    """Log probabilities of the first `count` tokens that a step added to a row.

    Each has the `num_top` most probable tokens of its position beside it.
    """
    if not count:
        return []
    assert step.scores.logits is not None
    nodes, tokens = step.draft.tree.forest.path(step.verdict.leaf[row])[:count], step.generated[row][:count]
    logits = step.scores.logits[nodes]
    # float32: half precision would round the logarithms to two digits
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
