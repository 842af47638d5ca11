"""Table models: targets with a small vocabulary whose logits are a table, for exact proofs.

Letters: S contexts of `order` tokens, N nodes, V vocabulary size.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from weakref import ref

import torch
from torch import Tensor, nn

from outpace.core.contracts import NOTHING, Cache, Carry, Prompt, Scores, Want
from outpace.core.tree import Forest, TokenTree

FLOOR = -1.0  # least value in a table's hidden states: logits of impossible tokens would dominate them


class TableTarget:
    """Implementation of core.contracts.Target whose distribution depends on the last `order` tokens and on
    the parity of the position.

    It has no attention, but its cache asserts the rules of a KV cache: AssertionError if a caller scores a
    token twice, skips one or commits a node that was not scored.
    """

    chains_only = False
    sizes: Sequence[int] = ()
    chain_sizes: Sequence[int] = ()
    max_length: int | None = None
    torch_threads: int | None = None
    token_bytes = 1
    state_bytes = 0
    num_layers = 4  # all with the same outputs

    def __init__(self, vocab: int, *, order: int = 3, seed: int = 0, spread: float = 1.5) -> None:
        self.vocab, self._order = vocab, order
        self._size = vocab**order
        self._unknown: frozenset[int] = frozenset()  # see `in_windows`
        self._caches: list[ref[TableCache]] = []
        generator = torch.Generator().manual_seed(seed)
        # (2 * S, V) float64: one row per parity and context
        self.logits = torch.randn(2 * self._size, vocab, dtype=torch.float64, generator=generator) * spread

    @property
    def embed(self) -> nn.Module:
        """One-hot vectors."""
        return self._embed

    @cached_property
    def _embed(self) -> nn.Module:
        return nn.Embedding.from_pretrained(torch.eye(self.vocab, dtype=self.logits.dtype))

    @property
    def head(self) -> nn.Module:
        """The identity: hidden states are logits."""
        return self._head

    @cached_property
    def _head(self) -> nn.Module:
        head = nn.Linear(self.vocab, self.vocab, bias=False, device="meta")  # draws no random weights
        head.weight = nn.Parameter(torch.eye(self.vocab, dtype=self.logits.dtype), requires_grad=False)
        return head

    def _hidden(self, states: Sequence[int], want: Want) -> dict[int, Tensor]:
        """Outputs of layers: the logits, of impossible tokens FLOOR."""
        if not want.hidden:
            return {}
        logits = self.logits[states].clamp(min=FLOOR)
        return dict.fromkeys(want.hidden, logits)

    @property
    def caches(self) -> list[TableCache]:
        return [cache for cache_ref in self._caches if (cache := cache_ref()) is not None]

    def open(self, slots: int, capacity: int) -> TableCache:
        cache = TableCache(slots, capacity)
        self._caches = [ref(opened) for opened in (*self.caches, cache)]
        return cache

    def state(self, tokens: Sequence[int]) -> int:
        """Index of the row of `logits` after these tokens."""
        state = 0
        for token in tokens:
            state = self._after(state, token)
        return state

    def in_windows(self, unknown: Collection[int]) -> TableTarget:
        """The same model for drafts in windows: these tokens stand for some that are not known yet, and the
        distribution in the place of one is that after the known tokens before it."""
        made = copy.copy(self)
        made._unknown = frozenset(unknown)
        return made

    def _after(self, state: int, token: int) -> int:
        if token in self._unknown:
            return state
        odd, recent = divmod(state, self._size)
        return (1 - odd) * self._size + (recent * self.vocab + token) % self._size

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        assert isinstance(cache, TableCache)
        before = [cache.state(slot) for slot in slots]
        for prompt, slot in zip(prompts, slots, strict=True):
            cache.keep(slot, prompt.tokens[:-1].tolist(), self)
        forest = Forest.chain(tuple(len(prompt.tokens) - 2 for prompt in prompts))
        tokens = [prompt.tokens[:1] for prompt in prompts] + [prompt.tokens[1:-1] for prompt in prompts]
        tree = TokenTree(torch.cat(tokens), forest)
        states: list[int] = []
        if want.prompt_logits or want.hidden:
            for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), forest.parents, strict=True)):
                states.append(self._after(states[parent] if parent >= 0 else before[node], token))
        logits = self.logits[states] if want.prompt_logits else None
        return tree, Scores(0, logits, self._hidden(states, want))

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        assert isinstance(cache, TableCache)
        first = cache.extend(tree, slots, gap, self)
        states = cache.states[first:]
        return Scores(first, self.logits[states], self._hidden(states, want))


class LearningTable:
    """A second table target that begins as another one, which stays as it is, and whose table is its weights:
    they are replaced, never written to."""

    def __init__(self, table: TableTarget) -> None:
        self.target = copy.copy(table)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self.target.logits,)

    def use(self, weights: tuple[Tensor, ...]) -> None:
        """Give the model this table."""
        (self.target.logits,) = weights

    def activate(self) -> None:
        """Does nothing: a copy has a table of its own."""

    @property
    def max_length(self) -> None:
        """Texts are of any length."""

    @property
    def network(self) -> LearningTable:
        """What has `logits`: this."""
        return self

    def logits(self, tokens: Tensor, weights: tuple[Tensor, ...]) -> Tensor:  # (T,) int64 -> (T, V)
        """The logits of another table after each of these tokens, with a gradient if gradients are
        enabled."""
        states = [0]
        for token in tokens.tolist():
            states.append(self.target._after(states[-1], token))
        return weights[0][states[1:]]


class TableCache:
    """Implementation of core.contracts.Cache for a table model. In place of keys and values it holds states,
    row indices of `TableTarget.logits`: one per slot after the committed tokens, and one per uncommitted
    node."""

    device = torch.device("cpu")

    def __init__(self, slots: int, capacity: int) -> None:
        self.lengths: list[int] = []
        self.capacity = capacity
        self._kept: list[list[int]] = []  # states after each committed token of each slot
        self.states: list[int] = []  # row of `TableTarget.logits` after each node of the last tree
        self._read: tuple[TokenTree, tuple[int, ...]] | None = None  # uncommitted tree, slots of its rows
        self.grow(slots)

    def grow(self, slots: int) -> None:
        added = slots - len(self.lengths)
        self.lengths += [0] * added
        self._kept += [[] for _ in range(added)]

    @property
    def num_bytes(self) -> int:
        return sum(self.lengths)

    def slot_bytes(self, slot: int, tokens: int) -> int:
        """One byte per token, as a table model stores nothing."""
        return max(tokens, self.lengths[slot])

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return sum(self.slot_bytes(slot, tokens.get(slot, 0)) for slot in range(len(self.lengths)))

    def state(self, slot: int) -> int:
        """State after the committed tokens of a slot."""
        return self._kept[slot][-1] if self._kept[slot] else 0

    def keep(self, slot: int, tokens: Sequence[int], model: TableTarget) -> None:
        for token in tokens:
            self._kept[slot].append(model._after(self.state(slot), token))
        self.lengths[slot] += len(tokens)

    def extend(
        self, tree: TokenTree, slots: Sequence[int], gap: Sequence[Tensor] | None, model: TableTarget
    ) -> int:
        """Compute the states after the tree's new nodes; returns the index of the first of them."""
        first, tokens, forest = 0, tree.tokens.tolist(), tree.forest
        if self._read is not None:
            assert gap is None, "committed tokens are read before the first node of a tree"
            read, where = self._read
            first = len(read)
            assert where == tuple(slots) and tokens[:first] == read.tokens.tolist(), (
                "a tree extends the one read before"
            )
            assert forest.parents[:first] == read.forest.parents, "a tree extends the one read before"
        else:
            self.states = []
            for slot, missing in zip(slots, gap or (), strict=False):
                self.keep(slot, missing.tolist(), model)
        for node in range(first, len(tree)):
            parent = forest.parents[node]
            above = self.states[parent] if parent >= 0 else self.state(slots[node])
            self.states.append(model._after(above, tokens[node]))
        self._read = (tree, tuple(slots))
        return first

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        assert self._read is not None, "nothing was read"
        read, where = self._read
        shorter = min(len(read), len(tree))  # nodes that were read may be left out of the tree
        assert where == tuple(slots) and read.forest.parents[:shorter] == tree.forest.parents[:shorter]
        for slot, node in zip(slots, leaf, strict=True):
            if node >= 0:
                assert node < len(self.states), "only nodes that were read can be kept"
                path = tree.forest.path(node)
                self.lengths[slot] += len(path)
                self._kept[slot] += [self.states[each] for each in path]
        self._read = None

    def discard(self) -> None:
        self._read = None

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            del self._kept[slot][length:]
            self.lengths[slot] = len(self._kept[slot])

    def release(self, slots: Sequence[int]) -> None:
        self.rewind(slots, [0] * len(slots))
