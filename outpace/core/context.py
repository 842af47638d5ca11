"""The state of a batch before a decoding step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outpace.core.noise import Noise
from outpace.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from outpace.core.contracts import Cache

UNLIMITED = 1 << 30  # tokens


@dataclass(frozen=True, slots=True)
class Context:
    """The state of a batch of B rows before a decoding step, read-only."""

    tokens: tuple[Tensor, ...]  # B × (T_b,) int64 on the host, prompt and output; views of the history
    committed: tuple[int, ...]  # (B,) number of committed tokens; the last of them is the root of the draft
    # (B,) tokens that may still be generated, without the bonus token; 0 in rows that only read in this step
    max_draft_depth: tuple[int, ...]
    slots: tuple[int, ...]  # (B,) slot of each row in the session and the KV cache
    cache: Cache  # the target's KV cache; drafters never write to it
    sampling: tuple[SamplingParams, ...]  # (B,)
    noise: Noise  # source of all random choices of the step
    # (B,) number of prompt tokens; some sampling parameters count only generated tokens
    prompt_lengths: tuple[int, ...] = ()
    # B × (G_b,) tokens before each root that the target has not read, such as a chunk of the prompt; the
    # step's forward reads them. None: no row has any
    unread: tuple[Tensor, ...] | None = None
    # (B,) number of tokens of each text that are committed; those after them are assumed, and the next
    # context may have others in their place (`DraftsAhead`). Empty: all are committed
    certain: tuple[int, ...] = ()

    def assuming(self, tokens: Sequence[Sequence[int]]) -> Context:  # B × (A_b,)
        """The state as if these tokens had been committed after each text. A row with a stop token among
        them, or with no room left, may draft no more."""
        added = [torch.tensor(new, dtype=torch.int64) for new in tokens]
        room = zip(self.max_draft_depth, tokens, self.sampling, strict=True)
        return replace(
            self,
            tokens=tuple([torch.cat(pair) for pair in zip(self.tokens, added, strict=True)]),
            committed=tuple([length + len(new) for length, new in zip(self.committed, tokens, strict=True)]),
            max_draft_depth=tuple(
                [
                    max(0, depth - len(new)) if set(params.stop).isdisjoint(new) else 0
                    for depth, new, params in room
                ]
            ),
            certain=self.certain or self.committed,
        )

    def assumed(self, row: int) -> list[int]:
        """The tokens of a row that may be taken back."""
        return self.tokens[row][self.certain[row] :].tolist() if self.certain else []

    @property
    def roots(self) -> Tensor:  # (B,) int64
        """The last committed token of each row, which is the root of its draft tree."""
        if len(self.tokens) == 1:
            return self.tokens[0][-1:]
        return torch.stack([row[-1] for row in self.tokens])

    @property
    def stops(self) -> list[tuple[int, ...]] | None:  # (B,)
        """The tokens with which the text of each row ends; None if no row has any."""
        stops = [params.stop for params in self.sampling]
        return stops if any(stops) else None

    def going_on(self, nodes: Sequence[int], tokens: Tensor, rows: Sequence[int]) -> list[int]:
        """The draft nodes among `nodes` whose tokens are no stop tokens of their rows, all (M,): nothing
        after a stop token can be kept. All nodes if the tokens are on an accelerator, as reading them would
        wait for it."""
        stops = self.stops
        if stops is None or tokens.device.type != "cpu":
            return list(nodes)
        draft_tokens = zip(nodes, tokens.tolist(), rows, strict=True)
        return [node for node, token, row in draft_tokens if token not in stops[row]]


def longest_draft(limit: int | None, length: int) -> int:
    """Number of tokens that a model which reads at most `limit` tokens (None: any number) may draft after a
    text of `length` tokens. The last draft token counts as read: in a batch it is read while other rows still
    draft."""
    return UNLIMITED if limit is None else max(0, limit - length)
