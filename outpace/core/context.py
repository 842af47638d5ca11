"""The state of a batch before a decoding step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    # (B,) tokens that may still be generated, without the bonus token; 0 where more of the text is unread
    max_draft_depth: tuple[int, ...]
    slots: tuple[int, ...]  # (B,) slot of each row in the session and the KV cache
    cache: Cache  # the target's KV cache; drafters never write to it
    sampling: tuple[SamplingParams, ...]  # (B,)
    noise: Noise  # source of all random choices of the step
    # (B,) number of prompt tokens; some sampling parameters count only generated tokens
    prompt_lengths: tuple[int, ...] = ()
    # B × (G_b,) tokens before each root that the target has not read, such as those of a prompt; the step's
    # forward reads them. None: there are none in any row
    unread: tuple[Tensor, ...] | None = None

    @property
    def roots(self) -> Tensor:  # (B,) int64
        """The last committed token of each row, which is the root of its draft tree."""
        if len(self.tokens) == 1:
            return self.tokens[0][-1:]
        return torch.stack([row[-1] for row in self.tokens])

    @property
    def stops(self) -> list[tuple[int, ...]] | None:  # (B,)
        """The tokens with which the text of each row ends; None if no row has any."""
        found = [params.stop for params in self.sampling]
        return found if any(found) else None

    def going_on(self, nodes: Sequence[int], tokens: Tensor, rows: Sequence[int]) -> list[int]:
        """Those of these draft nodes, with these tokens in these rows (M,), after which the text goes on:
        nothing behind a token that ends it can be kept. All of them for tokens on an accelerator, for which
        looking at them would wait."""
        stops = self.stops
        if stops is None or tokens.device.type != "cpu":
            return list(nodes)
        found = zip(nodes, tokens.tolist(), rows, strict=True)
        return [node for node, token, row in found if token not in stops[row]]


def longest_draft(limit: int | None, length: int) -> int:
    """Number of tokens that a model which reads at most `limit` tokens (None: any number) may draft after a
    text of `length` tokens. In a batch it also reads the last of them, while other rows draft on."""
    return UNLIMITED if limit is None else max(0, limit - length)
