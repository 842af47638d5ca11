"""The rows of a batch in `model.generate`: stopping criteria, streamer, new tokens and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from outpace.api.statistics import Statistics, StepCounter
from outpace.engine.engine import NewTokens


class BatchRow:
    """The prompt, the padding and the new tokens of a row; it ends after the first token at which a stopping
    criterion is true."""

    def __init__(
        self,
        padded: Tensor,  # (T,) the prompt with its padding on the left, on the host
        length: int,  # of the prompt
        criteria: Sequence[Any],
        streamer: Any,
        device: torch.device,  # on which criteria get their tokens
    ) -> None:
        self.padding, self.prompt = padded[: len(padded) - length], padded[len(padded) - length :]
        self.tokens: list[int] = []  # the new ones
        self._criteria, self._streamer, self._device = criteria, streamer, device
        self._ended = False
        self._counter = StepCounter()
        self._num_counted, self._began, self._seconds = 0, perf_counter(), 0.0

    def stops(self, text: Tensor) -> bool:  # (T,) tokens of prompt and output
        """Take the tokens that are new, one at a time, and pass them to the streamer, up to the first after
        which a stopping criterion is true; whether there was one."""
        start = len(self.prompt)
        for end in range(start + len(self.tokens) + 1, len(text) + 1):
            if self._ended:
                break
            token = int(text[end - 1])
            self.tokens.append(token)
            if self._streamer is not None:
                self._streamer.put(torch.tensor([token]))
            ids = torch.cat([self.padding, text[:end]])[None].to(self._device)
            self._ended = any(bool(criterion(ids, None)) for criterion in self._criteria)
        return self._ended

    def add(self, new: NewTokens[Any]) -> None:
        """Add a step to the row: apply the stopping criteria to its new text and count its statistics."""
        self.stops(new.text)
        if len(self.tokens) > self._num_counted:
            self._counter.count(new.step, new.row, len(self.tokens) - self._num_counted)
            self._num_counted, self._seconds = len(self.tokens), perf_counter() - self._began

    def statistics(self, seed: int) -> Statistics:
        return self._counter.done(len(self.prompt), 0, self._num_counted, self._seconds, seed)


def end_tokens(criteria: Sequence[Any]) -> tuple[int, ...]:
    """End-of-text tokens, behind which nothing is drafted."""
    ends = [criterion.eos_token_id for criterion in criteria if hasattr(criterion, "eos_token_id")]
    return tuple(int(token) for each in ends for token in each.flatten())


def sequences(input_ids: Tensor, rows: Sequence[BatchRow], config: GenerationConfig) -> Tensor:
    """Prompts (B, T) and the new tokens of all rows, padded on the right: (B, T + new)."""
    longest = max(len(row.tokens) for row in rows)
    # generate() has set the padding token to the end-of-text token if the model has none
    padding = getattr(config, "_pad_token_tensor", None)
    fill = 0 if padding is None else int(padding)
    new = torch.tensor([row.tokens + [fill] * (longest - len(row.tokens)) for row in rows], dtype=torch.int64)
    return torch.cat([input_ids, new.to(input_ids.device)], dim=-1)
