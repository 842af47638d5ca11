"""Sampling parameters that change logits before temperature: bias, penalties, bad words, min_tokens, grammar.

Each node of a draft tree gets the logits of plain decoding there: its history is the row's tokens and the
path to the node. Bias, repetition penalty and bad words are defined as in transformers and applied in its
order; presence and frequency penalties (new tokens only) and min_tokens are vLLM's, applied after the
repetition penalty.

Letters: M nodes, V vocabulary, T tokens of a row, G of them new, P path tokens of all nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.grower import Grower
from outpace.core.sampling_params import SamplingParams

NEVER = float("-inf")


class Adjuster:
    """Applies the rows' sampling parameters at any of their nodes; counts over a row's history are computed
    once."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._counts: dict[int, Tensor] = {}

    def __call__(
        self, logits: Tensor, rows: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:  # (M, V)
        """The logits after these paths, changed by their rows' parameters; a copy."""
        sampling = self._ctx.sampling
        nodes: dict[int, list[int]] = {}
        for node, row in enumerate(rows):
            if sampling[row].changes_logits:
                nodes.setdefault(row, []).append(node)
        if not nodes:
            return logits
        logits = logits.clone()
        for row, at in nodes.items():
            if len(at) == len(rows):
                self._row(logits, row, paths)
            else:
                part = logits[at]
                self._row(part, row, [paths[node] for node in at])
                logits[at] = part
        return logits

    def _row(self, logits: Tensor, row: int, paths: Sequence[Sequence[int]]) -> None:
        """Change the logits of some of one row's nodes in place."""
        ctx, params, device = self._ctx, self._ctx.sampling[row], logits.device
        tokens = ctx.tokens[row]
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            logits[:, list(ids)] += torch.tensor(values, dtype=logits.dtype, device=device)
        at = (
            [node for node, path in enumerate(paths) for _ in path],
            [token for path in paths for token in path],
        )
        if params.repetition_penalty != 1:
            _repetition(logits, tokens.to(device), at, params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            counts = self._count(row, logits)
            again = [path.count(token) for path in paths for token in path]
            _count_penalties(logits, self._new(row).to(device), counts, at, again, params)
        if params.bad_words:
            _forbid_words(logits, tokens, paths, params)
        if params.grammar is not None:
            logits.masked_fill_(~params.grammar.allowed(self._new(row), paths).to(device), NEVER)
        if params.min_tokens and params.stop:
            new = len(self._new(row))
            if early := [node for node, path in enumerate(paths) if new + len(path) < params.min_tokens]:
                _go_on(logits, early, params)

    def _new(self, row: int) -> Tensor:  # (G,)
        return self._ctx.tokens[row][self._ctx.prompt_lengths[row] :]

    def _count(self, row: int, logits: Tensor) -> Tensor:  # (V,)
        """How often each token occurs in the row's new text."""
        if row not in self._counts:
            counts = self._new(row).bincount(minlength=logits.shape[1])
            self._counts[row] = counts.to(logits.device, logits.dtype)
        return self._counts[row]


def adjust(logits: Tensor, ctx: Context, grower: Grower, at: Sequence[int]) -> Tensor:  # (M, V)
    """The draft model's logits after these nodes, changed as the target's will be, so that drafts can be
    accepted."""
    if not any(params.changes_logits for params in ctx.sampling):
        return logits
    tree = grower.structure()
    tokens, forest = tree.tokens.tolist(), tree.forest
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    paths = [[tokens[node] for node in forest.path(leaf)[1:]] for leaf in at]
    adjusted = Adjuster(ctx)(wide, [forest.rows[node] for node in at], paths)
    # a path that the target refuses may leave no token: any distribution is right there, as no node is
    # reached
    return torch.where(adjusted.amax(-1, keepdim=True) == NEVER, wide, adjusted)


Places = tuple[list[int], list[int]]  # P nodes, their path tokens


def _repetition(logits: Tensor, tokens: Tensor, at: Places, penalty: float) -> None:
    """Multiply negative and divide positive logits of tokens of the history, once for each token."""

    def penalised(values: Tensor) -> Tensor:
        return torch.where(values < 0, values * penalty, values / penalty)

    before, along = penalised(logits[:, tokens]), penalised(logits[at])
    logits.scatter_(
        1, tokens.expand(len(logits), -1), before
    )  # a repeated token is written twice with the same value
    logits[at] = along


def _count_penalties(
    logits: Tensor,
    new: Tensor,  # (G,)
    counts: Tensor,  # (V,)
    at: Places,
    again: Sequence[int],  # (P,) how often the token stands on its path
    params: SamplingParams,
) -> None:
    """Take frequency times count, and presence once, from the tokens of the new text and of the path."""
    frequency, presence = params.frequency_penalty, params.presence_penalty
    before = logits[:, new] - frequency * counts[new] - presence
    times = counts[at[1]] + torch.tensor(again, dtype=logits.dtype, device=logits.device)
    along = logits[at] - frequency * times - presence
    logits.scatter_(1, new.expand(len(logits), -1), before)
    logits[at] = along


def _forbid_words(
    logits: Tensor, tokens: Tensor, paths: Sequence[Sequence[int]], params: SamplingParams
) -> None:
    """Rule out the last token of every word whose other tokens have just been written."""
    alone, longer = _words(params.bad_words, params.stop)
    if alone:
        logits[:, list(alone)] = NEVER
    if not longer:
        return
    tail = tokens[-max(map(len, longer)) :].tolist()
    lengths = {len(beginning) for beginning in longer}
    nodes: list[int] = []
    ends: list[int] = []
    for node, path in enumerate(paths):
        history = [*tail, *path]
        found = [end for length in lengths for end in longer.get(tuple(history[-length:]), ())]
        nodes += [node] * len(found)
        ends += found
    logits[nodes, ends] = NEVER


def _go_on(logits: Tensor, early: Sequence[int], params: SamplingParams) -> None:
    """Rule out the end of the text; where a grammar asks for it, and for nothing else, the text is
    complete."""
    kept = logits[early]
    kept[:, list(params.stop)] = NEVER
    if params.grammar is not None:
        kept = torch.where(kept.amax(-1, keepdim=True) == NEVER, logits[early], kept)
    logits[early] = kept


@lru_cache(maxsize=256)
def _words(
    words: tuple[tuple[int, ...], ...], stop: tuple[int, ...]
) -> tuple[tuple[int, ...], dict[tuple[int, ...], list[int]]]:
    """Words of one token, and for the others the tokens that end them after what they begin with."""
    longer: dict[tuple[int, ...], list[int]] = {}
    for word in words:
        if len(word) > 1:
            longer.setdefault(word[:-1], []).append(word[-1])
    # a stop token is not a word: forbidding it would leave no way to end
    return tuple(word[0] for word in words if len(word) == 1 and word[0] not in stop), longer
