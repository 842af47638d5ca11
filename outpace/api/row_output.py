"""The output of one row: text, log probabilities and statistics, updated after every decoding step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor

from outpace.api.detokenizer import Detokenizer
from outpace.api.logprobs import Logprob, logprobs
from outpace.api.prompt_logprobs import PromptLogprob
from outpace.api.row_step import RowStep
from outpace.api.settings import Settings
from outpace.api.statistics import Statistics, StepCounter
from outpace.engine.engine import NewTokens


@dataclass(frozen=True, slots=True)
class Result:
    """The text generated for one prompt, its token ids and its statistics."""

    text: str  # without special tokens and without the stop string, unless they were asked for
    tokens: list[int]  # ids of all new tokens, a final end-of-text token included
    statistics: Statistics
    finish_reason: str | None  # "stop", "length" (max_tokens reached), or None if decoding was interrupted
    stop_reason: str | int | None = None  # the stop string or end-of-text token id that ended the text
    logprobs: list[Logprob] | None = None  # one per token; None if not requested
    # of a LOSSY method: whose distribution the text has instead of the target's; None: the target's
    reference: str | None = None
    # of the prompt's tokens, None for the first; None: not requested. Only servers offer them
    prompt_logprobs: list[PromptLogprob | None] | None = None

    def as_dict(self, tokenizer: Any = None) -> dict[str, Any]:
        """All fields as JSON values; with a tokenizer, log probabilities include the text of each token."""
        return (
            {
                "text": self.text,
                "tokens": self.tokens,
                "finish_reason": self.finish_reason,
                "stop_reason": self.stop_reason,
                "statistics": self.statistics.as_dict(),
            }
            | (
                {}
                if self.logprobs is None
                else {"logprobs": [each.as_dict(tokenizer) for each in self.logprobs]}
            )
            | ({} if self.reference is None else {"reference": self.reference})
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens that one decoding step added to one row, and their text."""

    row: int  # index of the prompt or sample
    text: str
    tokens: list[int]
    num_drafted: int  # number of accepted draft tokens: the first ones of `tokens`; the target chose the rest
    logprobs: list[Logprob] | None = None  # one per token; None if not requested
    step: RowStep | None = None  # what was drafted; None if not requested


class RowOutput:
    """The output of one row so far."""

    def __init__(
        self,
        index: int,  # of the row, for its pieces
        prompt: Sequence[int],
        seed: int,
        settings: Settings,
        tokenizer: Any,
        *,
        num_top: int | None = None,  # number of most probable tokens per Logprob; None: no log probabilities
        include_steps: bool = False,  # its pieces have the records of their steps; needs a tokenizer
        reference: str | None = None,  # see Result
    ) -> None:
        self._reference = reference
        self.index, self._seed, self._settings, self._num_top = index, seed, settings, num_top
        self._num_prompt_tokens = len(prompt)
        text_of = partial(
            Detokenizer,
            tokenizer,
            prompt,
            shown=settings.shown,
            ends=() if settings.include_stop else settings.params.stop,
            include_stop=settings.include_stop,
            skip_special_tokens=settings.skip_special_tokens,
        )
        minimum, special = settings.params.min_tokens, settings.special_tokens
        self._detokenizer = text_of(settings.stop, minimum, special) if tokenizer else None
        # texts of single tokens, also of those that `_detokenizer` holds back or cuts off
        self._token_texts = text_of() if include_steps else None
        self._logprobs: list[Logprob] = []
        self._counter = StepCounter()
        self._tokens: list[int] = []
        self._began, self._end = perf_counter(), None
        self.prompt_logprobs: list[PromptLogprob | None] | None = None
        self.num_cached_tokens = 0  # tokens of the prompt that the target did not read, see Statistics

    def stops(self, text: Tensor) -> bool:  # (T,) tokens of prompt and output
        """Whether a stop string has occurred in the output."""
        detokenizer = self._detokenizer
        if detokenizer is None or not self._settings.stop:
            return False
        detokenizer.push(text[self._num_prompt_tokens + detokenizer.num_tokens :].tolist())
        return detokenizer.stopped is not None

    def add(self, new: NewTokens[Any]) -> Piece:
        """Add what a step generated in this row."""
        step, row, predicted = new.step, new.row, new.predicted
        tokens = self._take(new.text)
        drafted = self._counter.count(step, row, len(tokens))
        if predicted:
            self._counter.compare(predicted, tokens[:drafted])
        found = None
        if self._num_top is not None:
            found = logprobs(step, row, len(tokens), self._num_top, new.target_probs())
            self._logprobs += found
        detokenizer = self._detokenizer
        piece = detokenizer.piece() if detokenizer else ""
        if new.finished:
            piece += self.finish()
        record = None
        if self._token_texts is not None:
            texts = _texts(self._token_texts, tokens, finished=new.finished)
            record = RowStep.of(step, row, drafted, texts, predicted)
        return Piece(self.index, piece, tokens, drafted, found, record)

    def finish(self) -> str:
        """End the output; returns the rest of its text."""
        self._end = perf_counter()
        return self._detokenizer.finish() if self._detokenizer else ""

    def _take(self, text: Tensor) -> list[int]:
        """Ids of the tokens that are new in `text`, cut after a completed stop string."""
        detokenizer, taken = self._detokenizer, self._tokens
        new = text[self._num_prompt_tokens + len(taken) :].tolist()
        if detokenizer and detokenizer.stopped is None:
            detokenizer.push(new[detokenizer.num_tokens - len(taken) :])  # `stops` pushed the earlier ones
        if detokenizer and detokenizer.stopped is not None:
            # drop accepted tokens after the stop string: plain decoding would not have generated them
            del new[detokenizer.num_tokens - len(taken) :]
        taken += new
        return new

    def result(self) -> Result:
        """The text and tokens generated so far."""
        detokenizer, tokens = self._detokenizer, list(self._tokens)
        reason, why = None, None
        if detokenizer and detokenizer.stopped is not None:
            reason, why = "stop", detokenizer.stopped
        elif tokens and tokens[-1] in self._settings.params.stop:
            reason, why = "stop", tokens[-1]
        elif self._end is not None:
            reason = "length"
        seconds = (self._end or perf_counter()) - self._began
        statistics = self._counter.done(
            self._num_prompt_tokens, self.num_cached_tokens, len(tokens), seconds, self._seed
        )
        found = None if self._num_top is None else self._logprobs
        text = detokenizer.text if detokenizer else ""
        prompt = self.prompt_logprobs
        return Result(text, tokens, statistics, reason, why, found, self._reference, prompt)


def _texts(detokenizer: Detokenizer, tokens: Sequence[int], *, finished: bool) -> list[str]:
    """The text that each of these next tokens adds; if the output is finished, the last adds the rest."""
    texts: list[str] = []
    for token in tokens:
        detokenizer.push([token])
        texts.append(detokenizer.piece())
    if finished:
        texts[-1] += detokenizer.finish()
    return texts
