"""Decodes the rows of a call in one session: a row that ends makes room for the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from outpace.api.row_output import Piece, Result, RowOutput
from outpace.api.settings import Settings
from outpace.core.contracts import Parts, Step
from outpace.drafters.lookup.prediction import check_predictable
from outpace.engine.engine import Engine


class Decoding:
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
        predicts = any(predictions)
        if predicts:
            check_predictable(parts)
        self._reference = None if parts.reference is None else parts.reference.description
        self._prompts, self._seeds, self._max_new_tokens = prompts, seeds, max_new_tokens
        self._settings, self._tokenizer, self._batch, self._num_top = settings, tokenizer, batch, num_top
        self._predictions, self._on_piece = predictions, on_piece
        self._outputs: list[RowOutput] = []  # of the rows that have begun
        limits = (min(settings.params.max_tokens, free) for free in max_new_tokens)
        longest = max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True))
        self._engine = Engine[RowOutput](
            parts,
            done=RowOutput.stops if settings.stop else None,
            predicts=predicts,
            size=(min(batch, len(prompts)), longest),
        )
        self._shares = self._engine.share_prefixes(share_prompt)  # rows wait for the first one's KV entries
        self._fill()

    def __iter__(self) -> Generator[Piece, None, None]:
        for pieces in self.steps():
            yield from pieces

    def steps(self) -> Generator[Iterator[Piece], None, None]:
        """Run the steps; each is yielded as its pieces, which are to be taken before the next step."""
        for step in self._engine.steps():
            yield self._pieces(step)
            self._fill()

    @property
    def finished(self) -> int:
        """Number of rows that have ended, counted up to the first that has not."""
        return min((output.index for output in self._engine.running.values()), default=len(self._outputs))

    @property
    def begun(self) -> int:
        """Number of rows that have begun."""
        return len(self._outputs)

    def result(self, row: int) -> Result:
        """The result of a row, with the tokens generated so far."""
        return self._outputs[row].result()

    def _fill(self) -> None:
        """Add rows that have not begun, up to `batch` at a time."""
        running, session = self._engine.running, self._engine.session
        while len(running) < self._batch and len(self._outputs) < len(self._prompts):
            row = len(self._outputs)
            if self._shares and running and session.batch.num_unread(next(iter(running))):
                return  # the first row has not read the prompt yet
            prompt, seed = self._prompts[row], self._seeds[row]
            params = self._settings.row_params(seed, self._max_new_tokens[row])
            output = RowOutput(
                row,
                prompt,
                seed,
                self._settings,
                self._tokenizer,
                num_top=self._num_top,
                reference=self._reference,
            )
            slot = self._engine.add(
                output,
                torch.tensor(prompt, dtype=torch.int64),
                params,
                self._predictions[row] if self._predictions else (),
            )
            output.num_cached_tokens = session.request(slot).num_cached or 0
            self._outputs.append(output)
        if len(self._outputs) == len(self._prompts):
            self._engine.share_prefixes(False)  # nobody follows who could use the entries of ended rows

    def _pieces(self, step: Step) -> Iterator[Piece]:
        for new in self._engine.new_tokens(step):
            piece = new.owner.add(new)
            if self._on_piece is not None:
                self._on_piece(piece)
            yield piece
