"""Log probabilities of generated tokens: as the model gave them, and as they were drawn after all settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.core.contracts import Step, TargetProbs

LOWEST = -9999.0  # what JSON gets for minus infinity, as in vLLM


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token where it was generated."""

    token: int
    raw: float  # before any setting, at temperature 1
    processed: float  # of the distribution it was drawn from; 0 at temperature 0
    top: tuple[
        Logprob, ...
    ] = ()  # the likeliest tokens at this place before any setting, the likeliest first

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no infinity."""
        told: dict[str, Any] = {
            "token": self.token,
            "raw": max(self.raw, LOWEST),
            "processed": max(self.processed, LOWEST),
        }
        return told | ({"top": [each.as_dict() for each in self.top]} if self.top else {})


def logprobs(step: Step, row: int, count: int, num_top: int, target_probs: TargetProbs) -> list[Logprob]:
    """Of the first `count` tokens that this step added to the row, each with so many likeliest ones beside it."""
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
        own, *likeliest = [Logprob(*triple) for triple in pairs]
        found.append(Logprob(own.token, own.raw, own.processed, tuple(likeliest)))
    return found
