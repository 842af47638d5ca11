"""Decodes one batch of rows with a `Session` and converts its steps to text pieces and results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from outpace.api.detokenizer import Detokenizer
from outpace.api.logprobs import Logprob, logprobs
from outpace.api.settings import Settings
from outpace.api.statistics import Statistics, StepCounter
from outpace.core.contracts import Parts, Step
from outpace.decode import Session
from outpace.drafters.lookup.prediction import PredictionDrafter
from outpace.sampling.target_probs import LazyTargetProbs


@dataclass(frozen=True, slots=True)
class Result:
    """The text generated for one prompt, its token ids and its statistics."""

    text: str  # without special tokens and without the stop string
    tokens: list[int]  # ids of all new tokens, a final end-of-text token included
    statistics: Statistics
    finish_reason: str | None  # "stop", "length" (max_tokens reached), or None if decoding was interrupted
    stop_reason: str | int | None = None  # the stop string or end-of-text token id that ended the text
    logprobs: list[Logprob] | None = None  # one per token; None if not requested

    def as_dict(self, tokenizer: Any = None) -> dict[str, Any]:
        """All fields as JSON values; with a tokenizer, log probabilities include the text of each token."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "statistics": self.statistics.as_dict(),
        } | (
            {} if self.logprobs is None else {"logprobs": [each.as_dict(tokenizer) for each in self.logprobs]}
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens that one decoding step added to one row of a batch, and their text."""

    row: int  # index in the batch
    text: str
    tokens: list[int]
    num_drafted: int  # number of accepted draft tokens: the first ones of `tokens`; the target chose the rest
    logprobs: list[Logprob] | None = None  # one per token; None if not requested


class BatchRun:
    """A batch that is being decoded: iterating runs the steps and yields one `Piece` per step and row.

    `results` returns the text and tokens generated so far.
    """

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        max_new_tokens: Sequence[int],  # maximum number of new tokens per row
        settings: Settings,
        tokenizer: Any,
        *,
        num_top: int | None = None,  # number of most probable tokens per Logprob; None: no log probabilities
        predictions: Sequence[Sequence[int]] = (),  # token ids of the predicted outputs: none, or one per row
        on_piece: Callable[[Piece], None] | None = None,
    ) -> None:
        self._predicted: PredictionDrafter | None = None
        if any(predictions):
            self._predicted = PredictionDrafter(parts.drafter, predictions)
            parts = replace(parts, drafter=self._predicted)
        self._settings, self._seeds, self._prompts, self._num_top = settings, seeds, prompts, num_top
        self._on_piece = on_piece
        minimum = settings.params.min_tokens
        self._detokenizers = [
            Detokenizer(tokenizer, prompt, settings.stop, minimum) if tokenizer else None
            for prompt in prompts
        ]
        self._logprobs: list[list[Logprob]] = [[] for _ in prompts]
        self._target_probs = partial(LazyTargetProbs, processor=settings.processor)
        self._counters = [StepCounter() for _ in prompts]
        self._tokens: list[list[int]] = [[] for _ in prompts]
        self._ends: list[float | None] = [None] * len(prompts)
        self._began = perf_counter()
        self._session = Session(
            parts,
            [torch.tensor(prompt, dtype=torch.int64) for prompt in prompts],
            [settings.row_params(seed, free) for seed, free in zip(seeds, max_new_tokens, strict=True)],
            self._target_probs,
            done=self._done if settings.stop else None,
        )

    def __iter__(self) -> Generator[Piece, None, None]:
        for step in self._session.steps():
            for piece in self._pieces(step):
                if self._on_piece is not None:
                    self._on_piece(piece)
                yield piece

    def results(self) -> list[Result]:
        """One result per row, with the tokens generated so far."""
        now = perf_counter()
        return [self._result(slot, now) for slot in range(len(self._prompts))]

    def _pieces(self, step: Step) -> Iterator[Piece]:
        for row, slot in enumerate(step.ctx.slots):
            if step.ctx.committed[row] < self._session.prompt_lengths[slot]:
                continue  # a prefill step: it added no new token to this row
            tokens = self._take(slot)
            drafted = self._counters[slot].count(step, row, len(tokens))
            if self._predicted is not None:
                self._counters[slot].compare(self._predicted.drafted[slot], tokens[:drafted])
            found = self._step_logprobs(step, row, slot, len(tokens))
            detokenizer = self._detokenizers[slot]
            text = detokenizer.piece() if detokenizer else ""
            if slot not in self._session.rows:
                self._ends[slot] = perf_counter()
                text += detokenizer.finish() if detokenizer else ""
            yield Piece(slot, text, tokens, drafted, found)

    def _step_logprobs(self, step: Step, row: int, slot: int, count: int) -> list[Logprob] | None:
        """Log probabilities of the `count` tokens that this step added to a row; None if not requested.

        Also appends them to the log probabilities of the row's result.
        """
        if self._num_top is None:
            return None
        found = logprobs(
            step, row, count, self._num_top, self._target_probs(step.scores, step.draft.tree, step.ctx)
        )
        self._logprobs[slot] += found
        return found

    def _done(self, slot: int, tokens: Tensor) -> bool:
        detokenizer = self._detokenizers[slot]
        if detokenizer is None:
            return False
        detokenizer.push(tokens[self._session.prompt_lengths[slot] + detokenizer.num_tokens :].tolist())
        return detokenizer.stopped is not None

    def _take(self, slot: int) -> list[int]:
        """Ids of the tokens that the last step added to a row, cut after a completed stop string."""
        detokenizer, taken = self._detokenizers[slot], self._tokens[slot]
        start = self._session.prompt_lengths[slot] + len(taken)
        new = self._session.history[slot, start : self._session.lengths[slot]].tolist()
        if detokenizer and detokenizer.stopped is None:
            detokenizer.push(new[detokenizer.num_tokens - len(taken) :])  # `_done` pushed the earlier ones
        if detokenizer and detokenizer.stopped is not None:
            # drop accepted tokens after the stop string: plain decoding would not have generated them
            del new[detokenizer.num_tokens - len(taken) :]
        taken += new
        return new

    def _result(self, slot: int, now: float) -> Result:
        detokenizer, tokens = self._detokenizers[slot], list(self._tokens[slot])
        reason, why = None, None
        if detokenizer and detokenizer.stopped is not None:
            reason, why = "stop", detokenizer.stopped
        elif tokens and tokens[-1] in self._settings.params.stop:
            reason, why = "stop", tokens[-1]
        elif slot not in self._session.rows:
            reason = "length"
        seconds = (self._ends[slot] or now) - self._began
        statistics = self._counters[slot].done(
            len(self._prompts[slot]), len(tokens), seconds, self._seeds[slot]
        )
        found = None if self._num_top is None else self._logprobs[slot]
        return Result(detokenizer.text if detokenizer else "", tokens, statistics, reason, why, found)
