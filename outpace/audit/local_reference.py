"""A model in this process as the reference: one forward over a text gives all distributions.

Letters: T tokens of a text, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Any

import torch
from torch import Tensor

from outpace.api.detokenizer import Detokenizer
from outpace.api.model import Model
from outpace.api.prompts import encode
from outpace.audit.endpoint import Answer
from outpace.audit.mixture_test import RANK_NAMES, ranks
from outpace.audit.reference import Scored
from outpace.audit.scored_text import ScoredText
from outpace.audit.setting import GREEDY, ROUNDING, Rounding, Setting
from outpace.audit.tokens import LOST, TokenReader
from outpace.proof.decode_all import texts
from outpace.proof.plain_logits import plain_logits
from outpace.proof.sampling_cases import stated
from outpace.recipes import get

CANDIDATES = 256  # most probable tokens that are tried where a text differs


class LocalReference:
    """Implementation of Reference by a loaded model. ValueError for one without a tokenizer."""

    def __init__(self, model: Model, dtype: str) -> None:
        """`dtype`: in which the server computes."""
        if model.tokenizer is None:
            raise ValueError(
                f"{model.name} has no tokenizer, which an audit needs: give the folder of a model"
            )
        if dtype not in ROUNDING:
            raise ValueError(f"rounding in {dtype} is not known: give {', '.join(ROUNDING)}")
        self.name, self.rounding = model.name, ROUNDING[dtype]
        self._model, self._target = model, model.target
        self.vocab: int = model.target.vocab
        self._reader = TokenReader(model.tokenizer, self.vocab, end_tokens(model.defaults, model.tokenizer))
        self._by_words = False  # whether answers are read by the spelling of their tokens

    def encode(self, prompt: str) -> list[int]:
        return encode(self._model.tokenizer, prompt, self.vocab, "the prompt")

    def read(self, answer: Answer) -> list[int] | None:
        self._by_words |= answer.token_ids is None and answer.words is not None
        return self._reader.read(answer)

    def states(self, setting: Setting) -> bool:
        return True

    def score(self, prompt: Sequence[int], tokens: Sequence[int], setting: Setting) -> Scored:
        logits = self._logits(prompt, tokens)
        # truncated below, where rounding is allowed for
        params = replace(setting, top_p=1.0).params(len(tokens))
        if setting.penalises:
            rows = [
                stated(logits[at : at + 1], [(*prompt, *tokens[:at])], params, len(prompt))
                for at in range(len(tokens))
            ]
            probs = torch.cat(rows)
        else:
            probs = stated(logits, [()] * len(tokens), params, 0)
        kept = out = None
        if setting.top_p < 1:
            # before tokens are merged, since the server truncates the single ones
            kept, out = self._truncated(probs, setting.top_p)
            probs = torch.where(kept, probs, 0)
        probs, columns = self._merged(probs), torch.tensor(list(tokens))
        own = probs.gather(1, columns[:, None])[:, 0]
        positions, outside = list(range(len(tokens))), list[int]()
        if out is not None:
            outside = [at for at in positions if tokens[at] < self.vocab and out[at, tokens[at]]]
            positions = [at for at in positions if tokens[at] < self.vocab and own[at] > 0]
        elif len(own) and not own[-1] and tokens[-1] == self.vocab:
            positions = positions[:-1]  # spelt in a way that no token is
        probs = probs[positions]
        text = ScoredText(
            probs / probs.sum(1, keepdim=True),
            torch.arange(self.vocab + 1),
            columns[positions],
            positions,
            tokens,
            prompt,
            self.vocab,
        )
        return Scored(text, tokens, own[positions].log().tolist(), outside)

    def _truncated(self, probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
        """(T, V) masks of the tokens that top_p keeps, and of those that it excludes, up to rounding."""
        kept, out = nucleus(probs, top_p, self.rounding)
        if ends := list(self._reader.ends):
            # which of them ended a text is not known
            kept[:, ends] = kept[:, ends].all(1, keepdim=True)
            out[:, ends] = out[:, ends].all(1, keepdim=True)
        if self._by_words:
            kept &= ~self._reader.unreadable
        return kept, out

    def describe(self, prompt: str, answer: Answer, setting: Setting) -> dict[str, float]:
        text = answer.text.replace(LOST, "")  # parts of characters at the end, which some servers leave out
        tokens = self._model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if not tokens:
            return {}
        scored = self.score(self.encode(prompt), tokens, replace(setting, top_p=1.0)).text
        (masses, drawn), _ = ranks(scored)
        counts = torch.bincount(drawn, minlength=masses.shape[1])
        excess = (counts - masses.sum(0)) / len(drawn) ** 0.5
        found = {
            f"tokens by rank, {name}": float(each) for name, each in zip(RANK_NAMES, excess, strict=True)
        }
        return found | {"improbable tokens": scored.surprise}

    def gaps(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        logits = self._logits(prompt, tokens).clone()
        known = [at for at, token in enumerate(tokens) if token < self.vocab]
        if ends := self._reader.ends:
            logits[:, ends[0]] = logits[:, list(ends)].amax(1)
        own = logits[known, [tokens[at] for at in known]]
        return (logits[known].amax(1) - own).tolist()

    def text_gap(self, prompt: str, answer: Answer, max_tokens: int) -> float | None:
        encoded = self.encode(prompt)
        [tokens] = self._texts([encoded], GREEDY, max_tokens, 0)
        logits, ends = self._logits(encoded, tokens), self._reader.ends
        detokenizer, before = Detokenizer(self._model.tokenizer, encoded), ""
        for at, token in enumerate(tokens):
            if token in ends:
                agrees = len(answer.text) <= len(before)
            else:
                detokenizer.push([token])
                text = detokenizer.text
                ended = answer.finish_reason == "stop" and len(text) > len(answer.text)
                agrees = answer.text.startswith(text[: len(answer.text)]) and not ended
                if agrees:
                    before = text
            if agrees:
                continue
            # every token with which the answer could go on here
            rest, read = answer.text[len(before) :], [*encoded, *tokens[:at]]
            top = logits[at].topk(min(CANDIDATES, self.vocab))
            pairs = list(zip(top.values.tolist(), top.indices.tolist(), strict=True))
            best = pairs[-1][0]  # none of them: the gap is at least that
            for value, other in pairs:
                word = self._text(read, [other])
                if (other in ends and not rest) or (word and rest.startswith(word)):
                    best = value
                    break
            return pairs[0][0] - best
        return 0.0

    def sample(self, prompt: str, setting: Setting, max_tokens: int, seed: int) -> Answer:
        encoded = self.encode(prompt)
        [tokens] = self._texts([encoded], setting, max_tokens, seed)
        return Answer(self._text(encoded, tokens), None)

    def _text(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        detokenizer = Detokenizer(self._model.tokenizer, before)
        detokenizer.push(tokens)
        return detokenizer.text

    def _texts(
        self, prompts: Sequence[Sequence[int]], setting: Setting, max_tokens: int, seed: int
    ) -> list[list[int]]:
        params = setting.params(max_tokens, seed=seed, stop=self._reader.ends)
        return texts(get("autoregressive").build(self._target), prompts, [params] * len(prompts))

    def _logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:  # (T, V)
        # the last token is not read: nothing follows it
        return plain_logits(self._target, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]

    def _merged(self, probs: Tensor) -> Tensor:  # (T, V) -> (T, V + 1)
        """With all tokens that end a text as one, and in the last column those that cannot be read."""
        probs = torch.cat([probs, torch.zeros(len(probs), 1, dtype=probs.dtype)], 1)
        ends = list(self._reader.ends)
        if len(ends) > 1:
            probs[:, ends[0]] = probs[:, ends].sum(1)
            probs[:, ends[1:]] = 0
        if self._by_words:
            at = self._reader.unreadable.nonzero()[:, 0]
            probs[:, -1] = probs[:, at].sum(1)
            probs[:, at] = 0
        return probs


def nucleus(probs: Tensor, top_p: float, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """(T, K) masks of the columns that top_p keeps, and of those that it excludes, up to rounding: columns
    of similar probability may come in another order, and the mass of those before may be another. The other
    columns are at the border."""
    values = probs.sort(1, descending=True).values
    sums = torch.cat([torch.zeros(len(values), 1, dtype=values.dtype), values.cumsum(1)], 1)
    rising = (-values).contiguous()
    factor, slack = exp(rounding.largest), rounding.mean

    def before(bound: Tensor, *, included: bool) -> Tensor:
        """The mass of all columns more probable than the bounds, or as probable."""
        return sums.gather(1, torch.searchsorted(rising, (-bound).contiguous(), right=included))

    ahead = before(probs / factor, included=True) - probs
    surely_ahead = before(probs * factor, included=False)
    return ahead < top_p - slack, surely_ahead > top_p + slack


def end_tokens(defaults: Any, tokenizer: Any) -> list[int]:
    """The ids of the tokens that end a text."""
    found = getattr(defaults, "eos_token_id", None)
    found = getattr(tokenizer, "eos_token_id", None) if found is None else found
    return [] if found is None else list(found) if isinstance(found, Sequence) else [found]
