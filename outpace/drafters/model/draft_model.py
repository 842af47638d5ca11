"""A smaller language model as drafter, with a KV cache of its own that it keeps up to date with the committed
tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from functools import partial

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn, DrawnBeside
from outpace.core.context import Context, longest_draft
from outpace.core.contracts import (
    NOTHING,
    Cache,
    Carry,
    Choose,
    Draft,
    Ends,
    Plan,
    Prompt,
    ReadsChains,
    ReadsTargetCache,
    Scores,
    Step,
    Target,
    Want,
)
from outpace.core.row_error import text_beyond_draft
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.rows import context_of_rows, draft_within
from outpace.drafters.model.draft_reader import DraftReader, check_logits
from outpace.drafters.model.grow import Growth, grow, with_replacement, without_replacement
from outpace.sampling.target_probs import LazyTargetProbs

LM_HEAD_INPUT = -1  # in Want.hidden


class DraftModel:
    """Implementation of core.contracts.Drafter around any language model that implements
    core.contracts.Target.

    Before each draft its KV cache keeps the entries of the last draft's nodes that have since been committed.
    The other committed tokens that the cache lacks (the prompt, tokens of steps without a draft) are computed
    in the same forward as the first level of the new tree. A row whose text is longer than the model reads
    (`Target.max_length`) has no draft, and the last drafts before are shorter.

    `sampled`: draw the draft tokens instead of taking the most probable ones; `replace`: draw siblings with
    replacement; `growth`: a function that builds the tree, in place of `drafters.model.grow.grow`;
    `keeps_drafted`: false drops the KV entries of drafted tokens after each draft, for models whose entries
    differ while they draft: committed ones are read again with the next root; `rereads`: the same, and every
    forward of a draft reads the whole tree, which may have other tokens than the one before it;
    `num_behind`: tokens that a draft reads behind its own, within the model's limit; `keeps_hidden`: keep
    hidden states for `growth`; `keeps_logits`: keep the logits of the last draft for `read`;
    `carried_layer`: a layer of the target, of which the model is a part: the draft carries its outputs at all
    nodes, also those of the last level, which are read for that; `prompt_tokens`: most tokens that it lacks
    of all texts together that are read in one forward; None: all of them, if the model permits;
    `reads_leaves`: every step reads all nodes, also those of the last level and roots without a draft, and
    claims the distribution after each (`DrawnBeside`). A text longer than the model reads is then an error of
    its row.
    """

    want = Want()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self,
        model: Target,
        *,
        sampled: bool = True,
        replace: bool = False,
        growth: Growth | None = None,
        keeps_drafted: bool = True,
        rereads: bool = False,
        num_behind: int = 0,
        keeps_hidden: bool = False,
        carried_layer: int | None = None,
        keeps_logits: bool = False,
        prompt_tokens: int | None = None,
        reads_leaves: bool = False,
    ) -> None:
        self.model = model
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        if reads_leaves:
            self.claims = (DrawnBeside,)
        self._growth = growth or partial(
            grow, sampled=sampled, children=with_replacement if replace else without_replacement
        )
        self._carried_layer = carried_layer
        layers = [LM_HEAD_INPUT] * keeps_hidden + ([] if carried_layer is None else [carried_layer])
        self._outputs = Want(hidden=frozenset(layers)) if layers else NOTHING
        # layer -> its outputs at the nodes of the draft in progress, one tensor per forward
        self._hidden: dict[int, list[Tensor]] = {}
        self._keeps_drafted, self._rereads = keeps_drafted and not rereads, rereads
        self._num_behind = num_behind
        self._keeps_logits, self._prompt_tokens = keeps_logits or reads_leaves, prompt_tokens
        self._reads_leaves = reads_leaves
        self._logits: Tensor | None = None  # at the nodes of `_read`, before sampling parameters
        self._cache: Cache | None = None
        self._active: set[int] = set()  # slots of requests that have not ended
        self._read: tuple[TokenTree, tuple[int, ...]] | None = (
            None  # tree of the last forward, and the slots of its rows
        )
        self._gone: set[int] = set()  # slots released or forgotten since that forward
        # slot -> the tokens that may be taken back after which the last draft began, and the first's index
        self._assumed: dict[int, tuple[int, list[int]]] = {}

    @property
    def drafts_ahead(self) -> bool:
        """Whether it can draft after assumed tokens, which takes a KV cache of its own."""
        return not isinstance(self.model, ReadsTargetCache)

    def longest_draft(self, length: int) -> int:
        """Number of tokens that the model can draft after a text of `length` tokens."""
        return longest_draft(self.model.max_length, length + self._num_behind)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if not self._reads_leaves:
            return draft_within(self._propose, ctx, plan, self.model.max_length, skipped=-self._num_behind)
        limit = self.model.max_length
        for length, slot in zip(ctx.committed, ctx.slots, strict=True):
            if limit is not None and length > limit:
                raise text_beyond_draft(slot, limit)
        return self._propose(ctx, plan.within([self.longest_draft(length) for length in ctx.committed]))

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        with self.reading(ctx) as reader:
            tree = self._growth(ctx, plan, reader)
            carry = self._carry(tree, reader)
            if self._reads_leaves:
                tree = self._beside(ctx, tree, reader)
        return Draft(tree, reader.forwards, reader.seconds, carry)

    @contextmanager
    def reading(self, ctx: Context) -> Iterator[Reader]:
        """The forwards of one draft, for drafters in which several models draft together. Of the tree read
        last, the next draft keeps the KV entries of committed tokens. ValueError if logits are NaN."""
        reader = Reader(self, ctx)
        with reader.checked():
            yield reader
        if self._keeps_logits and reader.logits:
            self._logits = torch.cat(reader.logits)

    def _carry(self, tree: TokenTree, reader: Reader) -> Carry | None:
        """The outputs of the carried layer at all nodes of the tree."""
        if self._carried_layer is None or reader.gap is not None:
            return None
        self._read_whole(tree, reader)
        return Carry(tree, self._carried_layer, torch.cat(self._hidden[self._carried_layer]))

    def _read_whole(self, tree: TokenTree, reader: Reader) -> None:
        """Read the nodes of the tree that drafting has not read, those of the last level."""
        if self._read is None or len(self._read[0]) < len(tree):
            reader(tree)

    def _beside(self, ctx: Context, tree: TokenTree, reader: Reader) -> TokenTree:
        """The tree with the distributions after all its nodes in its claim."""
        self._read_whole(tree, reader)
        logits = torch.cat(reader.logits)
        after = LazyTargetProbs(Scores(0, logits), tree, ctx).probs(None)
        drawn = tree.claim or Drawn(after[:0], (-1,) * len(tree), ())
        assert isinstance(drawn, Drawn)
        claim = DrawnBeside(
            drawn.q, drawn.row, drawn.replace, drawn.ids, drawn.draws, after=after, logits=logits
        )
        return replaced(tree, claim=claim)

    def observe(self, step: Step) -> None:
        """Does nothing: `propose` reads the committed tokens from its context."""

    def release(self, slots: Sequence[int]) -> None:
        self.forget(slots)
        self._active.difference_update(slots)
        for slot in slots:
            self._assumed.pop(slot, None)
        if not self._active:  # free the memory of the KV cache until the next request
            self._cache = self._read = self._logits = None
            self._gone = set()

    def forget(self, slots: Sequence[int]) -> None:
        """Empty these slots of the KV cache, because tokens in them have changed; the next draft computes
        them anew."""
        if self._cache is not None:
            known = [slot for slot in slots if slot < len(self._cache.lengths)]
            self._cache.release(known)
            self._gone.update(known)

    def forget_all(self) -> None:
        """Empty the KV cache, because the model's weights have changed."""
        if self._cache is not None:
            self.forget(range(len(self._cache.lengths)))

    def hidden(self, nodes: Sequence[int]) -> Tensor:  # (M,) -> (M, D)
        """The hidden states at the LM head's input after these nodes, which the draft in progress has read.
        Requires `keeps_hidden`."""
        return torch.cat(self._hidden[LM_HEAD_INPUT])[list(nodes)]

    def read(self, ctx: Context, following: Sequence[Sequence[int]]) -> list[Tensor]:  # B × (F_b + 1, V)
        """Logits after each root of `ctx` and after each of the tokens that were committed after it,
        `following[b]`, before sampling parameters. With `keeps_logits`, tokens that the last draft has read
        are not read again. ValueError if they are NaN."""
        found = self._known(ctx, following)
        if missing := [row for row in range(len(ctx.slots)) if row not in found]:
            own = ctx if len(missing) == len(ctx.slots) else context_of_rows(ctx, missing)
            found |= zip(missing, self._read_on(own, [following[row] for row in missing]), strict=True)
        return [found[row] for row in range(len(ctx.slots))]

    def _known(self, ctx: Context, following: Sequence[Sequence[int]]) -> dict[int, Tensor]:
        """`read` in the rows of which the last draft has read all these tokens."""
        if self._read is None or self._logits is None:
            return {}
        tree, slots = self._read
        lengths, rows = self.cache(ctx).lengths, {slot: row for row, slot in enumerate(ctx.slots)}
        texts: list[Sequence[int]] = [following[rows[slot]] if slot in rows else () for slot in slots]
        found: dict[int, Tensor] = {}
        for slot, text, end in zip(slots, texts, tree.match(texts), strict=True):
            row, path = rows.get(slot), tree.forest.path(end)
            # the root of that draft may be an earlier token
            if row is not None and slot not in self._gone and lengths[slot] == ctx.committed[row] - 1:
                if len(path) == len(text) + 1:
                    found[row] = self._logits[path]
        return found

    def _read_on(self, ctx: Context, following: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """`read` in a forward, after which all these tokens are in the KV cache."""
        cache, gap = self._catch_up(ctx)
        forest = Forest.chain(tuple(map(len, following)))
        tokens = torch.tensor([token for text in following for token in text], dtype=torch.int64)
        tree = TokenTree(torch.cat((ctx.roots, tokens)), forest)
        logits = self.model.score(tree, ctx.slots, cache, gap=gap).logits
        assert logits is not None
        check_logits(logits)
        cache.commit(tree, [nodes[-1] for nodes in forest.nodes], ctx.slots)
        return [logits[list(nodes)] for nodes in forest.nodes]

    def cache(self, ctx: Context) -> Cache:
        """The model's KV cache, with a slot for each slot of the target's; opened if there is none."""
        if self._cache is None:
            if isinstance(self.model, ReadsTargetCache):
                self._cache = self.model.view(ctx.cache)
            else:
                self._cache = self.model.open(len(ctx.cache.lengths), ctx.cache.capacity)
            self._read, self._logits, self._gone = None, None, set()
        self._cache.grow(len(ctx.cache.lengths))
        return self._cache

    def _catch_up(self, ctx: Context) -> tuple[Cache, list[Tensor] | None]:
        """Bring the KV cache up to date. Returns it and, per row, the committed tokens before the root that
        it still lacks (None if it lacks none in any row), for the next forward."""
        cache = self.cache(ctx)
        self._active.update(ctx.slots)
        changed = self._taken_back(ctx)
        self._gone.update(changed)
        if self._read is not None:
            self._keep(cache, ctx, *self._read)
            self._read, self._logits, self._gone = None, None, set()
        if changed:
            cache.rewind(list(changed), list(changed.values()))
        gap = self._lacking(cache, ctx)
        limit = self._prompt_tokens
        if limit is not None and sum(map(len, gap)) > limit:
            for tokens, slot in zip(ctx.tokens, ctx.slots, strict=True):
                while (begin := cache.lengths[slot]) + 1 < len(tokens):
                    part = Prompt(tokens[begin : begin + limit + 1])
                    self.model.prefill([part], [slot], cache, NOTHING)
            gap = self._lacking(cache, ctx)
        return cache, gap if any(len(each) for each in gap) else None

    def _taken_back(self, ctx: Context) -> dict[int, int]:
        """The slots in whose texts other tokens have taken the place of assumed ones, and the index of the
        first of them."""
        changed: dict[int, int] = {}
        for row, slot in enumerate(ctx.slots):
            begin, before = self._assumed.pop(slot, (0, []))
            now = ctx.tokens[row][begin : begin + len(before)].tolist()
            pairs = enumerate(zip(before, now, strict=False))
            same = next((index for index, (old, new) in pairs if old != new), len(now))
            if same < len(before):
                changed[slot] = min(begin + same, ctx.committed[row] - 1)
            if assumed := ctx.assumed(row):
                self._assumed[slot] = (ctx.certain[row], assumed)
        return changed

    def _lacking(self, cache: Cache, ctx: Context) -> list[Tensor]:  # B × (G_b,)
        """The committed tokens before each root that the KV cache lacks."""
        return [tokens[cache.lengths[slot] : -1] for tokens, slot in zip(ctx.tokens, ctx.slots, strict=True)]

    def _keep(self, cache: Cache, ctx: Context, tree: TokenTree, slots: Sequence[int]) -> None:
        """Keep the KV cache entries of the nodes of `tree`, the last one scored, that have since been
        committed; none of rows whose requests have ended or are not in `ctx`."""
        rows = {slot: row for row, slot in enumerate(ctx.slots) if slot not in self._gone}
        follow: list[list[int]] = []
        for slot in slots:
            row = rows.get(slot)
            # tokens between the old root and the new one, whose own entry is not kept
            follow.append(
                []
                if row is None or not self._keeps_drafted
                else ctx.tokens[row][cache.lengths[slot] + 1 : ctx.committed[row] - 1].tolist()
            )
        leaf = tree.match(follow)
        # if no token was committed since, the root's entry is dropped: every forward computes its root anew
        moved = [slot in rows and ctx.committed[rows[slot]] > cache.lengths[slot] + 1 for slot in slots]
        cache.commit(tree, [node if each else -1 for node, each in zip(leaf, moved, strict=True)], slots)


class Reader(DraftReader):
    """The forwards of one draft, of each of which it keeps the logits."""

    def __init__(self, drafter: DraftModel, ctx: Context) -> None:
        super().__init__(ctx.cache.device)
        self._drafter, self._ctx = drafter, ctx
        with self.timed():
            self._cache, self.gap = drafter._catch_up(ctx)
        drafter._hidden = {layer: [] for layer in drafter._outputs.hidden}

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        drafter, slots = self._drafter, self._ctx.slots
        gap = None if self.forwards else self.gap
        if drafter._rereads:
            self._cache.discard()
        with self.timed():
            scores = drafter.model.score(tree, slots, self._cache, drafter._outputs, gap=gap)
        drafter._read = (tree, slots)
        self.forwards += 1
        assert scores.logits is not None
        # copied, as a compiled forward may overwrite the output of the one before it
        self.logits.append(scores.logits.clone() if drafter._keeps_logits else scores.logits)
        for layer, outputs in drafter._hidden.items():
            if drafter._rereads:
                outputs.clear()  # of the same nodes
            outputs.append(scores.hidden[layer])
        return scores.first, scores.logits

    def hidden(self, nodes: Sequence[int]) -> Tensor:  # (M,) -> (M, D)
        """Implementation of drafters.model.grow.ReadHidden. Requires `keeps_hidden`."""
        return self._drafter.hidden(nodes)

    def chain(self, depth: int, choose: Choose | None, ends: Ends | None) -> Tensor | None:
        """Implementation of drafters.model.grow.ReadChain."""
        drafter, ctx = self._drafter, self._ctx
        if not isinstance(drafter.model, ReadsChains) or drafter._outputs.hidden or drafter._reads_leaves:
            return None
        gap = None if self.gap is None else self.gap[0]

        def recorded(logits: Tensor) -> int:
            assert choose is not None
            self.logits.append(logits)  # if they are NaN, the forward after them may fail
            return choose(logits)

        chosen = None if choose is None else recorded
        with self.timed():
            found = drafter.model.continue_chain(
                ctx.roots, ctx.slots[0], self._cache, depth, chosen, gap=gap, ends=ends
            )
        if found is None:
            return None
        tokens = torch.tensor(found[0])
        read = TokenTree(torch.cat((ctx.roots, tokens[:-1])), Forest.chain((len(tokens) - 1,)))
        drafter._read = (read, ctx.slots)
        self.forwards += len(tokens)
        self.logits = [found[1]]
        return tokens
