"""Drafts two tokens from each forward of Falcon's head, which reads the last two tokens of a path as a block.

Letters: A anchors, B rows, P tokens, K tokens of the vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Cache, Choose, Draft, Ends, Plan
from outpace.core.device_copies import indices
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.feature_drafter import FeatureDrafter, FeatureReader
from outpace.drafters.model.grow import Growth
from outpace.drafters.model.look_ahead import LookAhead
from outpace.models.heads.falcon.head import BLOCK, FalconHead, Memory
from outpace.models.heads.head_model import HeadModel


@dataclass(frozen=True, eq=False, slots=True)
class _Read:
    """What the LSTM remembers of a text that is in the head's KV cache."""

    length: int  # entries of the cache
    memory: Memory | None  # after them
    before: Memory | None  # before the last one
    feature: Tensor  # (1, D) with which the last one was read


class BlockDrafter(FeatureDrafter):
    """FeatureDrafter whose head reads the outputs of an LSTM over the text in place of features.

    The token before the root is read anew in every draft, as it attends to the root in their block."""

    drafts_ahead = False  # no memory is kept for tokens that are taken back

    def __init__(self, opened: HeadModel, vocab: int, growth: Growth, *, sampled: bool) -> None:
        assert isinstance(opened.head, FalconHead)
        if opened.model.compiled is not None:  # its forwards do not add further two-way blocks
            opened = HeadModel(opened.head)
        super().__init__(opened, vocab, growth, sampled=sampled, reader=BlockReader)
        self._read: dict[int, _Read] = {}  # by slot

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        cache = self.open_cache(ctx.cache)
        for row, slot in enumerate(ctx.slots):
            if 0 < cache.lengths[slot] == ctx.committed[row] - 2:
                self._unread_last(slot, cache)
        return super()._propose(ctx, plan)

    def _unread_last(self, slot: int, cache: Cache) -> None:
        """Take the token before the root out of the KV cache."""
        last, length = self._read.get(slot), cache.lengths[slot]
        if last is None or last.length != length:
            return
        cache.rewind([slot], [length - 1])
        self._features[slot] = torch.cat((last.feature, self._features[slot]))
        self._read[slot] = _Read(length - 1, last.before, None, last.feature)

    def keep(self, tokens: Tensor, slot: int, features: Tensor, target: Cache) -> None:
        length = self.open_cache(target).lengths[slot]
        super().keep(tokens, slot, self.reduced(slot, length, tokens, features), target)

    def reduced(self, slot: int, length: int, tokens: Tensor, features: Tensor) -> Tensor:  # (P, D)
        """The LSTM's outputs at tokens that follow the first `length` entries of the cache, which remembers
        them."""
        memory = self.memory(slot, length)
        parts: list[Tensor] = []
        before = memory
        for part in (slice(0, -1), slice(-1, None)):
            if len(tokens[part]):
                before = memory
                outputs, memory = reduce(self.opened, tokens[None, part], features[None, part], memory)
                parts.append(outputs[0])
        if len(tokens):
            self._read[slot] = _Read(length + len(tokens), memory, before, features[-1:])
        return torch.cat(parts) if parts else features[:0]

    def memory(self, slot: int, length: int) -> Memory | None:
        """The memory after the first `length` entries of the cache; None, that of an empty text, where it is
        not known."""
        last = self._read.get(slot)
        return last.memory if last is not None and last.length == length else None

    def _forget(self, slot: int) -> None:
        super()._forget(slot)
        self._read.pop(slot, None)


class BlockReader(FeatureReader):
    """The forwards of one draft, each over blocks of two tokens that end at its anchors.

    The head reads a tree of its own, in which every anchor has a block to itself: siblings have the same
    first token, which attends to each of them in a copy. Its roots are the tokens before the roots."""

    def __init__(self, drafter: FeatureDrafter, ctx: Context, plan: Plan) -> None:
        assert isinstance(drafter, BlockDrafter)
        super().__init__(drafter, ctx, plan)
        self._blocks = drafter
        depth = max(1, max(plan.depth, default=0))
        self._look_ahead = LookAhead(self._read_ahead, [BLOCK] * -(-depth // BLOCK))
        self._own: TokenTree | None = None  # the head's tree
        self._outputs: list[Tensor] = []  # (A, D) at the first and at the second tokens of blocks, in turn
        self._memory: Memory | None = None  # after each block
        self._block_of: dict[int, int] = {}  # anchor -> its number among the blocks
        self._seconds: list[int] = []  # block -> its second node in the head's tree

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        """Implementation of drafters.model.grow.ReadDraftVocabulary."""
        first, logits = self._look_ahead(tree)
        return first, logits, None

    def chain(self, depth: int, choose: Choose | None, ends: Ends | None) -> Tensor | None:
        """None: a chain is read block by block, as any other tree."""
        return None

    def _read_ahead(self, tree: TokenTree, anchors: Sequence[int], levels: int) -> Tensor:  # (A, 2, K)
        with self.timed():
            found = self._read_roots(tree) if self._own is None else self._read_blocks(tree, anchors)
        for anchor in anchors:
            self._block_of[anchor] = len(self._block_of)
        self.forwards += 1
        self.logits = [found]
        return found

    def _read_roots(self, tree: TokenTree) -> Tensor:  # (B, 2, K)
        """Read the last committed tokens, of which the last two are the first blocks."""
        drafter, ctx = self._blocks, self._ctx
        head = drafter.opened.head
        last_tokens, gaps, inputs, memories = list[Tensor](), list[Tensor](), list[Tensor](), list[Memory]()
        for row, slot in enumerate(ctx.slots):
            tokens, features = drafter.missing(ctx, row)
            if not len(tokens):  # the root is the text's first or second token
                tokens = ctx.tokens[row][: max(1, ctx.committed[row] - 1)][-1:]
                features = torch.cat((features.new_zeros(1, head.feature_size), features))
            gap, length = tokens[:-1], self.cache.lengths[slot]
            of_gap = drafter.reduced(slot, length, gap, features[: len(gap)])
            block = torch.cat((tokens[-1:], tree.tokens[row : row + 1].cpu()))[None]
            memory = drafter.memory(slot, length + len(gap))
            of_block, memory = reduce(drafter.opened, block, features[None, len(gap) :], memory)
            last_tokens.append(tokens[-1:])
            gaps.append(gap)
            inputs.append(torch.cat((of_gap, of_block[0])))
            memories.append(memory)
        firsts = torch.cat(last_tokens)
        self._memory = _joined(memories)
        return self._score(firsts, tree.tokens, [-1] * len(firsts), inputs, gaps)

    def _read_blocks(self, tree: TokenTree, anchors: Sequence[int]) -> Tensor:  # (A, 2, K)
        parents, opened = tree.forest.parents, self._blocks.opened
        assert self._own is not None and self._memory is not None
        firsts = [parents[anchor] for anchor in anchors]
        above = [self._block_of[parents[node]] for node in firsts]
        tokens = torch.stack((tree.tokens[firsts], tree.tokens[list(anchors)]), 1)
        outputs = torch.stack((torch.cat(self._outputs[::2]), torch.cat(self._outputs[1::2])), 1)
        at = indices(above, outputs.device)
        states = self._memory[0][:, at], self._memory[1][:, at]
        reduced, memory = reduce(opened, tokens, outputs[at], states)
        self._memory = _joined([self._memory, memory])
        rows = [tree.forest.rows[anchor] for anchor in anchors]
        inputs = [
            torch.cat((reduced[mine, 0], reduced[mine, 1]))
            for row in range(tree.forest.num_rows)
            if (mine := [index for index, each in enumerate(rows) if each == row])
        ]
        return self._score(tokens[:, 0], tokens[:, 1], [self._seconds[block] for block in above], inputs)

    def _score(
        self,
        firsts: Tensor,  # (A,) the first token of each block
        seconds: Tensor,  # (A,)
        above: Sequence[int],  # the nodes of the head's tree below which the blocks are; -1: roots
        inputs: Sequence[Tensor],  # by row
        gap: Sequence[Tensor] | None = None,
    ) -> Tensor:  # (A, 2, K)
        opened, count = self._blocks.opened, len(firsts)
        begin = 0 if self._own is None else len(self._own)
        parents = [*above, *range(begin, begin + count)]
        tokens = torch.cat((firsts.cpu(), seconds.cpu()))
        if self._own is not None:
            parents, tokens = [*self._own.forest.parents, *parents], torch.cat((self._own.tokens, tokens))
        self._own = TokenTree(tokens, Forest.of(parents, len(self._ctx.slots)))
        self._seconds += range(begin + count, begin + 2 * count)
        scores = opened.model.score(
            self._own,
            self._ctx.slots,
            self.cache,
            opened.state,
            gap=gap,
            features=inputs,
            also=[(begin + index, begin + count + index) for index in range(count)],
        )
        assert scores.logits is not None
        self._outputs += scores.hidden[opened.head.state_layer].split(count)
        return torch.stack(scores.logits.split(count), 1)


def reduce(
    opened: HeadModel, tokens: Tensor, features: Tensor, memory: Memory | None
) -> tuple[Tensor, Memory]:  # (R, N), (R, N, D) -> (R, N, D)
    """The LSTM's outputs at tokens that are read with these features, and the memory after them."""
    head = opened.head
    assert isinstance(head, FalconHead)
    weight = next(head.reducer.parameters())
    with torch.no_grad():
        embedded = head.embedded(tokens.to(weight.device)).to(weight)
        return head.reduce(embedded, features.to(weight), memory)


def _joined(memories: Sequence[Memory]) -> Memory:
    return torch.cat([each[0] for each in memories], 1), torch.cat([each[1] for each in memories], 1)
