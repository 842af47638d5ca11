"""Requests being decoded together: the session runs, this watches and hands out text and results."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from outpace.api.logprobs import Logprob, logprobs
from outpace.api.settings import Settings
from outpace.api.statistics import Statistics, Tally
from outpace.api.text import Writer
from outpace.core.contracts import Parts, Step
from outpace.decode import Session
from outpace.drafters.lookup.prediction import PredictionDrafter
from outpace.sampling.target_probs import LazyTargetProbs


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one prompt."""

    text: str  # without special tokens and without the stop string
    tokens: list[int]  # all new ones, a final end-of-text token included
    statistics: Statistics
    finish_reason: str | None  # "stop", "length", or None where decoding was interrupted
    stop_reason: str | int | None = None  # the stop string or the end-of-text token that ended it
    logprobs: list[Logprob] | None = None  # one a token, where they were asked for

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "statistics": self.statistics.as_dict(),
        } | ({} if self.logprobs is None else {"logprobs": [each.as_dict() for each in self.logprobs]})


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one row."""

    row: int
    text: str
    tokens: list[int]
    num_drafted: int  # the first so many of the tokens were drafted, the rest are the target's own
    logprobs: list[Logprob] | None = None  # one a token, where they were asked for


class Run:
    """One batch. Iterate over it for the pieces; `results` says at any time what there is."""

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        room: Sequence[int],  # most new tokens that fit behind each prompt
        settings: Settings,
        tokenizer: Any,
        *,
        num_top: int | None = None,  # None: no log probabilities
        predictions: Sequence[
            Sequence[int]
        ] = (),  # tokens that each answer probably has; none, or one a prompt
    ) -> None:
        self._predicted: PredictionDrafter | None = None
        if any(predictions):
            self._predicted = PredictionDrafter(parts.drafter, predictions)
            parts = replace(parts, drafter=self._predicted)
        self._settings, self._seeds, self._prompts, self._num_top = settings, seeds, prompts, num_top
        least = settings.params.min_tokens
        self._writers = [
            Writer(tokenizer, prompt, settings.stop, least) if tokenizer else None for prompt in prompts
        ]
        self._logprobs: list[list[Logprob]] = [[] for _ in prompts]
        self._distribution = partial(LazyTargetProbs, processor=settings.processor)
        self._tallies = [Tally() for _ in prompts]
        self._tokens: list[list[int]] = [[] for _ in prompts]
        self._ends: list[float | None] = [None] * len(prompts)
        self._began = perf_counter()
        self._session = Session(
            parts,
            [torch.tensor(prompt, dtype=torch.int64) for prompt in prompts],
            [settings.sampling(seed, most) for seed, most in zip(seeds, room, strict=True)],
            self._distribution,
            done=self._done if settings.stop else None,
        )

    def __iter__(self) -> Generator[Piece, None, None]:
        for step in self._session.steps():
            yield from self._pieces(step)

    def results(self) -> list[Result]:
        """One result a prompt, of what has been decoded so far."""
        now = perf_counter()
        return [self._result(slot, now) for slot in range(len(self._prompts))]

    def _pieces(self, step: Step) -> Iterator[Piece]:
        for row, slot in enumerate(step.ctx.slots):
            if step.ctx.committed[row] < self._session.prompt_lengths[slot]:
                continue  # a prompt was read
            tokens = self._take(slot)
            drafted = self._tallies[slot].count(step, row, len(tokens))
            if self._predicted is not None:
                self._tallies[slot].compare(self._predicted.drafted[slot], tokens[:drafted])
            told = self._tell(step, row, slot, len(tokens))
            writer = self._writers[slot]
            text = writer.piece() if writer else ""
            if slot not in self._session.rows:
                self._ends[slot] = perf_counter()
                text += writer.finish() if writer else ""
            yield Piece(slot, text, tokens, drafted, told)

    def _tell(self, step: Step, row: int, slot: int, count: int) -> list[Logprob] | None:
        """The log probabilities of a row's first tokens of this step."""
        if self._num_top is None:
            return None
        found = logprobs(
            step, row, count, self._num_top, self._distribution(step.scores, step.draft.tree, step.ctx)
        )
        self._logprobs[slot] += found
        return found

    def _done(self, slot: int, tokens: Tensor) -> bool:
        writer = self._writers[slot]
        if writer is None:
            return False
        writer.push(tokens[self._session.prompt_lengths[slot] + writer.num_tokens :].tolist())
        return writer.stopped is not None

    def _take(self, slot: int) -> list[int]:
        """The tokens that a step added to a row."""
        writer, taken = self._writers[slot], self._tokens[slot]
        start = self._session.prompt_lengths[slot] + len(taken)
        new = self._session.history[slot, start : self._session.lengths[slot]].tolist()
        if writer and writer.stopped is None:
            writer.push(new[writer.num_tokens - len(taken) :])  # the others it had to see if the text ends
        if writer and writer.stopped is not None:
            # a stop string may end before the step's last token: plain decoding would not have made the rest
            del new[writer.num_tokens - len(taken) :]
        taken += new
        return new

    def _result(self, slot: int, now: float) -> Result:
        writer, tokens = self._writers[slot], list(self._tokens[slot])
        reason, why = None, None
        if writer and writer.stopped is not None:
            reason, why = "stop", writer.stopped
        elif tokens and tokens[-1] in self._settings.params.stop:
            reason, why = "stop", tokens[-1]
        elif slot not in self._session.rows:
            reason = "length"
        seconds = (self._ends[slot] or now) - self._began
        statistics = self._tallies[slot].done(
            len(self._prompts[slot]), len(tokens), seconds, self._seeds[slot]
        )
        told = None if self._num_top is None else self._logprobs[slot]
        return Result(writer.text if writer else "", tokens, statistics, reason, why, told)
