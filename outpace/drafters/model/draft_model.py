"""A smaller language model as drafter, with a cache of its own that catches up by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Cache, Draft, Plan, Step, Target, Want
from outpace.core.tree import TokenTree
from outpace.drafters.model.grow import Read, grow, with_replacement, without_replacement

Growth = Callable[[Context, Plan, Read], TokenTree]


class DraftModel:
    """core.contracts.Drafter around any model that scores trees.

    Its cache starts each draft by keeping what it read of the last one that has been committed since;
    whatever else was committed (the prompt, tokens of skipped turns) is read in the same forward as the first
    level. `growth` makes the tree in place of `drafters.grow`.
    """

    want = Want()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self, model: Target, *, sampled: bool = True, replace: bool = False, growth: Growth | None = None
    ) -> None:
        self.model = model
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        self._growth = growth or partial(
            grow, sampled=sampled, children=with_replacement if replace else without_replacement
        )
        self._cache: Cache | None = None
        self._active: set[int] = set()  # slots of requests that have not ended
        self._read: tuple[TokenTree, tuple[int, ...]] | None = (
            None  # the tree last read, and the slots of its rows
        )
        self._gone: set[int] = set()  # slots released since

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if max(plan.depth, default=0) == 0:
            return Draft(TokenTree.roots(ctx.roots))
        cache, gap = self._catch_up(ctx)
        forwards, seconds, slots = 0, 0.0, ctx.slots

        every_logits: list[Tensor] = []

        def read(tree: TokenTree) -> tuple[int, Tensor]:
            nonlocal forwards, seconds
            began = perf_counter()
            scores = self.model.score(tree, slots, cache, gap=None if forwards else gap)
            self._read = (tree, slots)
            forwards += 1
            seconds += perf_counter() - began
            assert scores.logits is not None
            every_logits.append(scores.logits)
            return scores.first, scores.logits

        try:
            tree = self._growth(ctx, plan, read)
        except (
            Exception
        ) as error:  # a token drawn from NaN is none of the vocabulary, which fails in many places
            for logits in every_logits:
                _check(logits, error)
            raise
        if every_logits:
            _check(
                every_logits[-1]
            )  # one look a step: a model with a NaN somewhere has one everywhere after it
        return Draft(tree, forwards, seconds)

    def observe(self, step: Step) -> None:
        """Nothing to learn: `propose` catches up from the committed tokens."""

    def release(self, slots: Sequence[int]) -> None:
        self.forget(slots)
        self._active.difference_update(slots)
        if not self._active:  # free the memory until the next request
            self._cache = self._read = None
            self._gone = set()

    def forget(self, slots: Sequence[int]) -> None:
        """Read the texts in these slots again from their first token: tokens that were read have changed."""
        if self._cache is not None:
            self._cache.release(slots)
            self._gone.update(slots)

    def _catch_up(self, ctx: Context) -> tuple[Cache, list[Tensor] | None]:
        """Keep what was read and has been committed since; the committed tokens still unread, if any."""
        if self._cache is None or len(self._cache.lengths) < len(ctx.cache.lengths):
            self._cache = self.model.open(len(ctx.cache.lengths), ctx.cache.capacity)
            self._read, self._gone = None, set()
        cache = self._cache
        self._active.update(ctx.slots)
        if self._read is not None:
            self._keep(cache, ctx, *self._read)
            self._read, self._gone = None, set()
        gap = [
            ctx.tokens[row][cache.lengths[slot] : committed - 1]
            for row, (slot, committed) in enumerate(zip(ctx.slots, ctx.committed, strict=True))
        ]
        return cache, gap if any(len(each) for each in gap) else None

    def _keep(self, cache: Cache, ctx: Context, tree: TokenTree, slots: Sequence[int]) -> None:
        """Keep of the tree last read what has been committed since; nothing of rows that have ended."""
        rows = {slot: row for row, slot in enumerate(ctx.slots) if slot not in self._gone}
        follow: list[list[int]] = []
        for slot in slots:
            row = rows.get(slot)
            # up to the new root, which stays unread
            follow.append(
                []
                if row is None
                else ctx.tokens[row][cache.lengths[slot] + 1 : ctx.committed[row] - 1].tolist()
            )
        leaf = tree.match(follow)
        # a root that has not moved on stays unread, like every root
        moved = [slot in rows and ctx.committed[rows[slot]] > cache.lengths[slot] + 1 for slot in slots]
        cache.commit(tree, [node if each else -1 for node, each in zip(leaf, moved, strict=True)], slots)


def _check(logits: Tensor, cause: Exception | None = None) -> None:
    """ValueError if there is a NaN or an infinite logit; -inf is none, it masks a token."""
    if not float(logits.amax()) < float("inf"):
        raise ValueError(
            "the draft model gave NaN or infinite logits: load it in another dtype, such as float32, or use "
            "another draft"
        ) from cause
