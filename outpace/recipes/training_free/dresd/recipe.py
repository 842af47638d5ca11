"""DReSD (Gritta et al. 2025): dense retrieval, draft the continuations of the most similar hidden states.

New here: HiddenStateSearch, with its index. Reuses: count_trie, Match, Fixed. Exact at any temperature: the
draft tokens carry no claim and the target draws one token at each node. The paper's code verifies every
candidate separately and keeps the longest match, which is not exact.

The query is the hidden state, at the input of the LM head, that produced the newest token. Of the nearest
states in the index, those whose next token equals the newest token are kept, and their continuations are
merged into a tree.

Use it with an index of the model's own answers to similar questions. The search uses faiss where it is
installed, with inverted lists for large indexes. The paper uses another library, and indexes answers only,
where this index holds every state of its texts. The states of texts are computed as in decoding, with one
growing KV cache, in windows of 4096 tokens or the model's length that overlap by half.

Letters: T tokens of a text, D hidden size, L tokens stored with a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import NOTHING as NO_SIGNALS
from outpace.core.contracts import Draft, Parts, Plan, Prompt, Step, Target, Want, recipe
from outpace.indexes import store
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree
from outpace.indexes.compiled_loops import Tokens
from outpace.indexes.store import HiddenStateFile
from outpace.indexes.suffix_array.count_trie import count_trie
from outpace.recipes.training_free.dresd.hidden_states import HiddenStateIndex
from outpace.verifiers.match import Match

HEAD = Want(hidden=frozenset({-1}))  # hidden states at the input of the LM head
VALUE = 20  # continuation tokens stored with each state (L)
WINDOW = 4096  # tokens of a text computed with one KV cache; less if the model's maximum length is less
DIMS = 64

Ints = NDArray[np.int32]


@recipe(paper="arXiv:2502.15572", family="training-free")
def dresd(
    target: Target,
    *,
    index: HiddenStateFile | None = None,
    neighbors: int = 50,
    max_paths: int = 10,
    depth: int = 9,
) -> Parts:
    """A tree of the continuations of the nearest hidden states in an index, verified by matching.

    Args:
        index: file of `outpace index build --kind hidden-states --tokenizer MODEL`; needed to draft
        neighbors: nearest states retrieved per step
        max_paths: number of them, the most similar, whose continuations form the draft tree
        depth: maximum number of tokens of each continuation
    """
    drafter = HiddenStateSearch(opened(index, target.vocab), neighbors=neighbors, max_paths=max_paths)
    return Parts(target, drafter, Match(), Fixed(depth))


def indexed(target: Target, texts: Iterable[Tokens], *, dims: int = DIMS) -> HiddenStateIndex:
    """Build an index of texts: the target's hidden state at each token but the last, and the tokens that
    follow it. ValueError for fewer than two states."""
    states, values = list[NDArray[np.float32]](), list[Ints]()
    window = min(WINDOW, target.max_length or WINDOW)
    for text in texts:
        tokens = np.asarray(text, np.int64)
        if len(tokens) < 2:
            continue  # no token follows any state
        continuations = _following(tokens)
        for start, first in windows(len(tokens), window):
            read = _states(target, torch.tensor(tokens[start : start + window]))
            states.append(read[first - start :])
            values.append(continuations[first : start + len(read)])
    if sum(map(len, states)) < 2:
        raise ValueError("there are fewer than two states to index: give longer texts")
    keys = np.concatenate(states)
    return HiddenStateIndex.build(keys, np.concatenate(values), dims=min(dims, keys.shape[1]))


def windows(length: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, first state to keep) of the windows in which a text of `length` tokens is computed: each begins
    at the middle of the one before, and the states of their overlap are taken from the earlier one, where
    they have more context."""
    first = 0
    for start in range(0, max(length - 1, 0), max(size // 2, 1)):
        if first < length - 1:
            yield start, first
        first = min(start + size, length) - 1


@torch.inference_mode()
def _states(target: Target, text: Tensor) -> NDArray[np.float32]:  # (T,) -> (T - 1, D)
    cache = target.open(1, len(text))
    _, scores = target.prefill([Prompt(text)], [0], cache, HEAD)
    return scores.hidden[-1].float().cpu().numpy()


def _following(text: NDArray[np.int64]) -> Ints:  # (T,) -> (T - 1, L), -1 after the end
    padded = np.concatenate([text[1:], np.full(VALUE - 1, -1)])
    return np.lib.stride_tricks.sliding_window_view(padded, VALUE).astype(np.int32)


def opened(path: str | None, vocab: int) -> HiddenStateIndex | None:
    """The memory-mapped index in this file, None without a path; ValueError if it contains token ids beyond
    the model's vocabulary."""
    return store.open_index(HiddenStateIndex, path, vocab)


class HiddenStateSearch:
    """Implementation of core.contracts.Drafter: of the `neighbors` states nearest to the one that produced
    the newest token, the first `max_paths` whose next token equals that token; their continuations are merged
    into a tree."""

    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(self, index: HiddenStateIndex | None, *, neighbors: int = 50, max_paths: int = 10) -> None:
        if neighbors < 1 or max_paths < 1:
            raise ValueError(f"neighbors is {neighbors} and max_paths {max_paths}; use at least one")
        self.want = NO_SIGNALS if index is None else HEAD
        self._index, self._neighbors, self._max_paths = index, neighbors, max_paths
        self._states: dict[int, Tensor] = {}  # slot -> (D,) the hidden state that produced its newest token

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return Draft(
            candidate_tree(ctx.roots, [self._found(ctx, row, depth) for row, depth in enumerate(plan.depth)])
        )

    def _found(self, ctx: Context, row: int, depth: int) -> CandidateTree:
        state = self._states.get(ctx.slots[row])
        if self._index is None or state is None or not depth:
            return NO_CANDIDATES
        if len(state) != len(self._index.mean):
            raise ValueError(
                f"the index was made by a model with {len(self._index.mean)} channels and this one has "
                f"{len(state)}: "
                "build it again with --tokenizer naming your model"
            )
        query, newest = state.float().cpu().numpy(), int(ctx.tokens[row][-1])
        rows = self._index.continuations(
            query, newest, num=self._neighbors, keep=self._max_paths, length=depth
        )
        return count_trie(rows, rows.size, 1)

    def observe(self, step: Step) -> None:
        hidden = step.scores.hidden.get(-1)
        if self._index is None or hidden is None:
            return
        for slot, leaf in zip(step.ctx.slots, step.kept, strict=True):
            self._states[slot] = hidden[leaf - step.scores.first]

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._states.pop(slot, None)
