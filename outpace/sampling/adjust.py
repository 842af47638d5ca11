"""Sampling parameters that change logits before temperature: bias, penalties, bad words, min_tokens, grammar.

The logits at a node of a draft tree are changed as in plain decoding with the node's history: the row's
tokens and the path to the node. Bias, repetition penalty, repeated n-grams and bad words are defined as in
transformers and applied in its order; presence and frequency penalties (on generated tokens only) and
min_tokens are defined as in vLLM. The penalties are applied after the repetition penalty.

Letters: M nodes, V vocabulary size, T tokens of a row, G generated tokens of a row, P path tokens of all
nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.device_copies import indices, on_device
from outpace.core.grower import Grower
from outpace.core.sampling_params import SamplingParams

NEVER = float("-inf")


class Adjuster:
    """Changes the logits at nodes of a batch's draft trees by their rows' sampling parameters. Token counts
    over the committed text of a row, and its distinct tokens, are computed once per instance."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._counts: dict[int, tuple[Tensor, Tensor]] = {}  # on the host, and on the device of the logits
        self._distinct: dict[int, Tensor] = {}

    def __call__(
        self, logits: Tensor, rows: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> Tensor:  # (M, V)
        """The logits changed by the parameters of their rows: logits[i] is at a node of row `rows[i]` whose
        path, the draft tokens below the root, is `paths[i]`. A copy if anything changes."""
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
                own = indices(at, logits.device)
                part = logits[own]
                self._row(part, row, [paths[node] for node in at])
                logits[own] = part
        return logits

    def _row(self, logits: Tensor, row: int, paths: Sequence[Sequence[int]]) -> None:
        """Change logits (M, V) at nodes of one row in place."""
        ctx, params, device = self._ctx, self._ctx.sampling[row], logits.device
        tokens = ctx.tokens[row]
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            logits[:, indices(ids, device)] += on_device(values, logits.dtype, device)
        at = _path_tokens(paths, device)
        if params.repetition_penalty != 1:
            occurring = self._occurring(row, logits).to(device, non_blocking=True)
            _repetition(logits, occurring, at, params.repetition_penalty)
        if params.presence_penalty or params.frequency_penalty:
            again = [path.count(token) for path in paths for token in path]
            new, counts = self._count(row, logits)
            _count_penalties(logits, new, counts, at, again, params)
        if params.ngrams is not None:
            _forbid_repeated(logits, params.ngrams.after(tokens, paths))
        if params.bad_words:
            _forbid_words(logits, tokens, paths, params)
        if params.grammar is not None:
            allowed = params.grammar.allowed(self._new(row), paths)
            logits.masked_fill_(~allowed.to(device, non_blocking=True), NEVER)
        if params.min_tokens and params.stop:
            new = len(self._new(row))
            if early := [node for node, path in enumerate(paths) if new + len(path) < params.min_tokens]:
                _go_on(logits, early, params)

    def _new(self, row: int) -> Tensor:  # (G,)
        return self._ctx.tokens[row][self._ctx.prompt_lengths[row] :]

    def _occurring(self, row: int, logits: Tensor) -> Tensor:
        """The tokens of the row: each once where the text is long, which saves work at every node."""
        tokens = self._ctx.tokens[row]
        if row not in self._distinct:
            if not _is_long(tokens, logits):
                return tokens
            self._distinct[row] = tokens.bincount().nonzero()[:, 0]
        return self._distinct[row]

    def _count(self, row: int, logits: Tensor) -> tuple[Tensor, Tensor]:  # (G,), (V,)
        """The row's generated tokens, each once where there are many, and how often each token occurs among
        them."""
        new = self._new(row)
        if row not in self._counts:
            counts = new.bincount(minlength=logits.shape[1])
            self._counts[row] = counts, counts.to(logits.device, logits.dtype, non_blocking=True)
        on_host, counts = self._counts[row]
        distinct = on_host.nonzero()[:, 0] if _is_long(new, logits) else new
        return distinct.to(logits.device, non_blocking=True), counts


def adjust(logits: Tensor, ctx: Context, grower: Grower, at: Sequence[int]) -> Tensor:  # (M, V)
    """The draft model's logits at the nodes `at`, changed by the sampling parameters like the target's, so
    that draft tokens agree with them and are accepted more often."""
    if not any(params.changes_logits for params in ctx.sampling):
        return logits
    tree = grower.structure()
    tokens, forest = tree.token_list(), tree.forest
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    paths = [[tokens[node] for node in forest.path(leaf)[1:]] for leaf in at]
    adjusted = Adjuster(ctx)(wide, [forest.rows[node] for node in at], paths)
    # after a path of target probability 0 no token may be left: any logits will do, as nothing there is
    # accepted
    return torch.where(adjusted.amax(-1, keepdim=True) == NEVER, wide, adjusted)


def _is_long(tokens: Tensor, logits: Tensor) -> bool:  # (T,), (M, V)
    """Whether changing the logits of all these tokens at all nodes takes longer than finding the distinct
    ones, for which every token of the vocabulary is counted."""
    return len(tokens) * len(logits) > logits.shape[1]


# index into (M, V) logits: node, and token, of each of P path tokens
PathTokens = tuple[Tensor, Tensor]


def _path_tokens(paths: Sequence[Sequence[int]], device: torch.device) -> PathTokens:
    nodes = [node for node, path in enumerate(paths) for _ in path]
    return indices(nodes, device), indices([token for path in paths for token in path], device)


def _repetition(logits: Tensor, tokens: Tensor, at: PathTokens, penalty: float) -> None:
    """Multiply negative and divide positive logits of the tokens in the row (`tokens`) and on the paths
    (`at`) by the penalty, once per distinct token; in place."""

    def penalised(values: Tensor) -> Tensor:
        return torch.where(values < 0, values * penalty, values / penalty)

    before, along = penalised(logits[:, tokens]), penalised(logits[at])
    # a token that occurs several times is written repeatedly with the same value
    logits.scatter_(1, tokens.expand(len(logits), -1), before)
    logits[at] = along


def _count_penalties(
    logits: Tensor,
    new: Tensor,  # generated tokens, all or the distinct ones
    counts: Tensor,  # (V,) occurrences of each token among them
    at: PathTokens,
    again: Sequence[int],  # (P,) occurrences of each path token on its path
    params: SamplingParams,
) -> None:
    """Subtract frequency penalty times count, and presence penalty once, from the logits of the tokens in the
    generated text and on the node's path; in place."""
    frequency, presence = params.frequency_penalty, params.presence_penalty
    before = logits[:, new] - frequency * counts[new] - presence
    times = counts[at[1]] + on_device(again, logits.dtype, logits.device)
    along = logits[at] - frequency * times - presence
    logits.scatter_(1, new.expand(len(logits), -1), before)
    logits[at] = along


def _forbid_repeated(logits: Tensor, tokens: Iterable[Sequence[int]]) -> None:
    """Set to -inf the logits of these tokens of each node; in place."""
    nodes: list[int] = []
    ends: list[int] = []
    for node, found in enumerate(tokens):
        nodes += [node] * len(found)
        ends += found
    _forbid(logits, nodes, ends)


def _forbid(logits: Tensor, nodes: Sequence[int], tokens: Sequence[int]) -> None:
    """Set to -inf the logit of each of these tokens at the node beside it; in place."""
    logits[indices(nodes, logits.device), indices(tokens, logits.device)] = NEVER


def _forbid_words(
    logits: Tensor, tokens: Tensor, paths: Sequence[Sequence[int]], params: SamplingParams
) -> None:
    """Set to -inf the logit of the last token of each bad word whose other tokens end the node's history; in
    place."""
    alone, longer = _words(params.bad_words, params.stop)
    if alone:
        logits[:, indices(alone, logits.device)] = NEVER
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
    _forbid(logits, nodes, ends)


def _go_on(logits: Tensor, early: Sequence[int], params: SamplingParams) -> None:
    """Set the logits of stop tokens to -inf at the nodes `early`, which are before min_tokens; in place.
    Nodes at which a grammar allows only stop tokens are not changed, as the text is complete there."""
    at = indices(early, logits.device)
    kept = logits[at]
    kept[:, indices(params.stop, logits.device)] = NEVER
    if params.grammar is not None:
        kept = torch.where(kept.amax(-1, keepdim=True) == NEVER, logits[at], kept)
    logits[at] = kept


@lru_cache(maxsize=256)
def _words(
    words: tuple[tuple[int, ...], ...], stop: tuple[int, ...]
) -> tuple[tuple[int, ...], dict[tuple[int, ...], list[int]]]:
    """Bad words of one token, without stop tokens; and for the longer ones a hash map from all tokens but the
    last to the possible last tokens."""
    longer: dict[tuple[int, ...], list[int]] = {}
    for word in words:
        if len(word) > 1:
            longer.setdefault(word[:-1], []).append(word[-1])
    # a stop token is never forbidden, or the text could not end
    return tuple(word[0] for word in words if len(word) == 1 and word[0] not in stop), longer
