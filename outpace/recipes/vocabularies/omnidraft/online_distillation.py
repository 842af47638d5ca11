"""Trains a draft model, while it drafts, on what the target verifies: the hybrid loss of OmniDraft.

Letters: n generated tokens, K tokens of the draft model, V of the target, T tokens of a text.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.core.contracts import Step
from outpace.drafters.learning.online_adam import OnlineAdam, Weights
from outpace.models.hf.low_rank import LowRankAdapter
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.sampling.divergence import cross_entropy, reverse_kl
from outpace.sampling.topk import at_least_float32

CONTEXT = 256  # most target tokens of a text that are read before the first token to learn
PAIR_WEIGHT = 0.2  # weight of the loss of a pair's tokens beside that of a matching token

Pairs = Mapping[int, tuple[int, int]]  # target token -> the two draft tokens that are merged into it


@dataclass(slots=True)
class _Text:
    """The text of a request, in the target's tokens, and what is to be learned of it since the last update:
    (index of a token, (K,) logarithms of the target's distribution there), or None in place of these if the
    token is a pair of draft tokens."""

    tokens: Tensor  # (T,) int64
    new: list[tuple[int, Tensor | None]] = field(default_factory=list[tuple[int, "Tensor | None"]])


class OnlineDistillation:
    """Collects the tokens that the target generates and makes one update of the adapter for every `interval`
    of them.

    A generated token with a matching draft token counts with KL(q || p). q is the draft model's distribution
    of its next token, and p the target's, in which the probability of a token that can be merged from a pair
    counts for the pair's first token; both are without sampling parameters. A generated token that can be
    merged from a pair counts with `PAIR_WEIGHT` times -log q of both its draft tokens. Other tokens are not
    learned.

    `observe` is the only place where weights change: in a step's `observe`, its draft has been verified and
    the next is not yet drawn, in every row. If an update is not finite or lacks memory, the weights stay as
    they were; after an error it warns and learns no more.

    Memory besides the adapter's: K numbers per token until the next update, and the gradients of one text of
    at most `CONTEXT` + `interval` target tokens.
    """

    def __init__(
        self, cross_vocabulary: CrossVocabularyDraft, adapter: LowRankAdapter, interval: int, rate: float
    ) -> None:
        self.adapter, self._cross_vocabulary, self._interval = adapter, cross_vocabulary, interval
        self._adam = OnlineAdam(adapter.weights, rate)
        self._texts: dict[int, _Text] = {}  # slot -> text of its request
        self._ended: list[_Text] = []
        self._num_new = 0
        self.num_updates = self.num_failed = 0

    def observe(self, step: Step, pairs: Sequence[Pairs]) -> bool:
        """Collect what was generated in each row, given the pairs that are merged there; returns whether the
        weights have changed."""
        if not self._interval:
            return False
        with torch.inference_mode(False), torch.no_grad():
            for row, generated in enumerate(step.generated):
                if generated:
                    self._collect(step, row, generated, pairs[row])
        return self._num_new >= self._interval and self._update()

    def release(self, slots: Sequence[int]) -> None:
        """The requests in these slots have ended; what they generated is learned with the next update."""
        ended = (self._texts.pop(slot, None) for slot in slots)
        self._ended += [text for text in ended if text is not None and text.new]

    def _collect(self, step: Step, row: int, generated: Sequence[int], pairs: Pairs) -> None:
        text = self._texts.setdefault(step.ctx.slots[row], _Text(step.ctx.tokens[row]))
        first = step.ctx.committed[row]
        text.tokens = torch.cat([step.ctx.tokens[row][:first], torch.tensor(generated)])
        assert step.scores.logits is not None
        nodes = step.draft.tree.forest.path(step.kept[row])
        for index, (token, node) in enumerate(zip(generated, nodes, strict=True), first):
            if token in pairs:
                text.new.append((index, None))
            elif len(self._cross_vocabulary.translated(token)) == 1:
                logits = step.scores.logits[node - step.scores.first].clone()
                text.new.append((index, self._translated(logits, pairs)))
            self._num_new += 1

    def _translated(self, logits: Tensor, pairs: Pairs) -> Tensor:  # (V,) -> (K,)
        """The logarithm of the target's distribution in the draft model's tokens, -inf where it has none."""
        own, match = (each.to(logits.device) for each in self._cross_vocabulary.shared)
        p = at_least_float32(logits).softmax(-1)
        # a probability of 0 would take the token out of the loss instead of making it improbable
        p = p.clamp_min(torch.finfo(p.dtype).tiny)
        found = p.new_zeros(self._cross_vocabulary.model.vocab)
        found[own] = p[match]
        if pairs:
            firsts = torch.tensor([first for first, _ in pairs.values()], device=p.device)
            found.index_add_(0, firsts, p[list(pairs)])
        return found.log()

    def _update(self) -> bool:
        texts = [*self._ended, *(text for text in self._texts.values() if text.new)]
        try:
            changed = self._adam.update(lambda weights: self._losses(texts, weights))
        except RuntimeError as error:  # such as too little memory: decoding goes on without learning
            warnings.warn(f"the draft model stops learning, since an update failed: {error}", stacklevel=2)
            self._interval, changed = 0, False
        finally:
            self._ended, self._num_new = [], 0
            for text in texts:
                text.new = []
        if changed:
            self.adapter.use(self._adam.weights)
        self.num_updates += changed
        self.num_failed += not changed
        return changed

    def _losses(self, texts: Sequence[_Text], weights: Weights) -> Iterator[Tensor]:
        """The loss of each text, divided by the number of tokens that are learned in all texts."""
        count = max(1, sum(len(text.new) for text in texts))
        for text in texts:
            if text.new:
                yield self._loss(text, weights) / count

    def _loss(self, text: _Text, weights: Weights) -> Tensor:
        """The sum of the losses of a text's new tokens."""
        tokens, starts = self._in_draft_tokens(text)
        logits = self.adapter.network.logits(torch.tensor(tokens), weights)
        loss = logits.new_zeros((), dtype=torch.promote_types(torch.float32, logits.dtype))
        matched = [(starts[index], p) for index, p in text.new if p is not None and starts[index] > 0]
        if matched:
            own = logits[[start - 1 for start, _ in matched]]
            log_p = torch.stack([p for _, p in matched]).to(own.device)
            own = own.masked_fill(log_p.isinf(), float("-inf"))
            every = torch.ones(len(matched), dtype=torch.bool, device=own.device)
            loss = loss + len(matched) * reverse_kl(own, log_p, every)
        pairs = [starts[index] for index, p in text.new if p is None and starts[index] > 0]
        if pairs:
            at = [start + place for start in pairs for place in range(2)]
            labels = torch.tensor([tokens[place] for place in at], device=logits.device)
            every = torch.ones(len(at), dtype=torch.bool, device=logits.device)
            own = logits[[place - 1 for place in at]]
            loss = loss + PAIR_WEIGHT * len(at) * cross_entropy(own, labels, every)
        return loss

    def _in_draft_tokens(self, text: _Text) -> tuple[list[int], dict[int, int]]:
        """The end of a text in the draft model's tokens, and where each token to learn begins in it; a place
        below 1 is cut off."""
        cross_vocabulary = self._cross_vocabulary
        first = max(0, text.new[0][0] - CONTEXT)
        tokens, starts = list(cross_vocabulary.draft_vocabulary.begin), dict[int, int]()
        for index, token in enumerate(text.tokens[first:].tolist(), first):
            starts[index] = len(tokens)
            tokens += cross_vocabulary.translated(token)
        limit = cross_vocabulary.model.max_length
        cut = 0 if limit is None else max(0, len(tokens) - limit)
        return tokens[cut:], {index: start - cut for index, start in starts.items()}
