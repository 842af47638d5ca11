"""Decodes the rows of a call in one session: a row that ends makes room for the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outpace.api.row_output import Piece, Result, RowOutput
from outpace.api.settings import Settings
from outpace.core.contracts import Parts, PrefixCache, Step
from outpace.decode import Session
from outpace.drafters.lookup.prediction import PredictionDrafter, check_predictable
from outpace.sampling.target_probs import LazyTargetProbs


class Run:
    """Rows that are being decoded, `batch` of them at a time: iterating runs the steps and yields one `Piece`
    per step and row.

    With `share_prompt` all rows have the same prompt, which is read once: they take over its KV entries from
    the first row, after which they join. Where a method needs the target's outputs at prompts, or the KV
    cache cannot do that, each row reads the prompt itself."""

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        max_new_tokens: Sequence[int],  # maximum number of new tokens per row
        settings: Settings,
        tokenizer: Any,
        *,
        batch: int = 1,
        num_top: int | None = None,  # number of most probable tokens per Logprob; None: no log probabilities
        predictions: Sequence[Sequence[int]] = (),  # token ids of the predicted outputs: none, or one per row
        on_piece: Callable[[Piece], None] | None = None,
        share_prompt: bool = False,
    ) -> None:
        self._predicted: PredictionDrafter | None = None
        if any(predictions):
            check_predictable(parts)
            self._predicted = PredictionDrafter(parts.drafter)
            parts = replace(parts, drafter=self._predicted)
        self._reference = None if parts.reference is None else parts.reference.description
        self._prompts, self._seeds, self._max_new_tokens = prompts, seeds, max_new_tokens
        self._settings, self._tokenizer, self._batch, self._num_top = settings, tokenizer, batch, num_top
        self._predictions, self._on_piece = predictions, on_piece
        self._outputs: list[RowOutput] = []  # of the rows that have begun
        self._of_slot: dict[int, int] = {}  # slot -> index of the row in it
        limits = (min(settings.params.max_tokens, free) for free in max_new_tokens)
        self._session = Session(
            parts,
            (),
            (),
            LazyTargetProbs,
            done=partial(_is_done, self._outputs, self._of_slot) if settings.stop else None,
            size=(
                min(batch, len(prompts)),
                max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)),
            ),
        )
        # rows wait for the first one's KV entries
        self._shares = share_prompt and not self._session.prefills
        if self._shares and isinstance(self._session.cache, PrefixCache):
            self._session.batch.prefix_cache = self._session.cache
        else:
            self._shares = False
        self._fill()

    def __iter__(self) -> Generator[Piece, None, None]:
        for pieces in self.steps():
            yield from pieces

    def steps(self) -> Generator[Iterator[Piece], None, None]:
        """Run the steps; each is yielded as its pieces, which are to be taken before the next step."""
        for step in self._session.steps():
            yield self._pieces(step)
            self._fill()

    @property
    def finished(self) -> int:
        """Number of rows that have ended, counted up to the first that has not."""
        return min(self._of_slot.values(), default=len(self._outputs))

    @property
    def begun(self) -> int:
        """Number of rows that have begun."""
        return len(self._outputs)

    def result(self, row: int) -> Result:
        """The result of a row, with the tokens generated so far."""
        return self._outputs[row].result()

    def _fill(self) -> None:
        """Add rows that have not begun, up to `batch` at a time."""
        while len(self._of_slot) < self._batch and len(self._outputs) < len(self._prompts):
            row = len(self._outputs)
            if self._shares and self._of_slot and self._session.batch.num_unread(next(iter(self._of_slot))):
                return  # the first row has not read the prompt yet
            prompt, seed = self._prompts[row], self._seeds[row]
            params = self._settings.row_params(seed, self._max_new_tokens[row])
            slot = self._session.add(torch.tensor(prompt, dtype=torch.int64), params)
            if self._predicted is not None:
                self._predicted.predict(slot, self._predictions[row])
            self._of_slot[slot] = row
            output = RowOutput(
                row,
                prompt,
                seed,
                self._settings,
                self._tokenizer,
                num_top=self._num_top,
                reference=self._reference,
            )
            output.num_cached_tokens = self._session.request(slot).num_cached or 0
            self._outputs.append(output)
        if len(self._outputs) == len(self._prompts):
            self._session.batch.prefix_cache = None  # nobody follows who could use the entries of ended rows

    def _pieces(self, step: Step) -> Iterator[Piece]:
        for row, slot in enumerate(step.ctx.slots):
            if not step.generated[row]:
                continue  # the row read a part of its prompt
            finished = slot not in self._session.rows
            piece = self._outputs[self._of_slot[slot]].add(
                step,
                row,
                self._session.request(slot).text(),
                lambda: LazyTargetProbs(step.scores, step.draft.tree, step.ctx),
                finished=finished,
                predicted=self._predicted.drafted[slot] if self._predicted is not None else None,
            )
            if finished:
                del self._of_slot[slot]
            if self._on_piece is not None:
                self._on_piece(piece)
            yield piece


# A function and not a method of Run: run and session would refer to each other, and the KV cache would stay
# in memory until the next garbage collection.
def _is_done(outputs: Sequence[RowOutput], of_slot: Mapping[int, int], slot: int, tokens: Tensor) -> bool:
    return outputs[of_slot[slot]].stops(tokens)
