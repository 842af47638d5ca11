"""S2D (Kavehzadeh et al. 2024): every draft token comes from the first of a draft model's exits that is sure.

New here: ExitsDrafter, which goes to deeper exits of a draft model until one is sure of the next token, and
Exits, in which deeper layers read earlier tokens together when they are first needed. Reuses: grow,
Rejection, Fixed. Exact at any temperature: the exit follows from the text before the token, whose claim is
the distribution of the exit that was used; `sampled` false drafts the most probable tokens, without a claim.

`outpace train s2d` trains the exits of a draft model at once, for the data and not for one target: the same
draft model serves all targets with its tokenizer. The paper does not say whether a token of which the deepest
exit is unsure is drafted; here it is, as it has been computed, and the draft ends with it. Its thresholds are
taken as 0.9 for the first exit, 0.1 less for each further one and 0.4 for the deepest. The draft model runs
eagerly, even if it is compiled.

Letters: F nodes of one level, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn
from outpace.core.common_length import common_length
from outpace.core.context import Context
from outpace.core.contracts import Draft, Frontier, Parts, Plan, Step, Target, Want, recipe
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import draft_within
from outpace.drafters.model.draft_reader import DraftReader, check_logits
from outpace.drafters.model.grow import grow
from outpace.models.slim.exits import Exits, default_thresholds, exits_of, usual_exits
from outpace.sampling.topk import at_least_float32
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2407.01955", family="control and routing")
def s2d(
    target: Target,
    *,
    draft: Target,
    exits: tuple[int, ...] | None = None,
    thresholds: tuple[float, ...] | None = None,
    depth: int = 8,
    sampled: bool = True,
) -> Parts:
    """A chain from a draft model with exits, verified by rejection token by token.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        exits: numbers of layers before each exit; none: those it was trained with, or half, 3/4 and all
        thresholds: largest probability from which each exit is sure; none: 0.9, 0.8 ..., 0.4 for the last
        depth: most tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    chosen = usual_exits(draft) if exits is None else exits
    model = exits_of(draft, chosen)
    sure = default_thresholds(len(chosen)) if thresholds is None else thresholds
    if len(sure) != len(chosen):
        raise ValueError(f"there are {len(sure)} thresholds for {len(chosen)} exits: give one for each exit")
    drafter = ExitsDrafter(model, sure, sampled=sampled, max_length=draft.max_length)
    return Parts(target, drafter, Rejection(), Fixed(depth))


class ExitsDrafter:
    """Implementation of core.contracts.Drafter: chains from a draft model with exits.

    A token is drawn from the first exit whose largest probability, before sampling parameters, reaches the
    exit's threshold; from the deepest if none does, and with that token the draft ends. So the exit follows
    from the text before the token, and the token's claim is the distribution of the exit that was used."""

    want = Want()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self,
        exits: Exits,
        thresholds: Sequence[float],
        *,
        sampled: bool = True,
        max_length: int | None = None,
    ) -> None:
        """`thresholds`: one for each exit; `sampled`: draw the draft tokens instead of taking the most
        probable ones; `max_length`: most tokens that the draft model reads. ValueError for a threshold
        outside of 0 to 1."""
        for each in thresholds:
            if not 0 <= each <= 1:
                raise ValueError(f"threshold is {each}; give a probability from 0 to 1")
        self.exits, self.thresholds, self._max_length = exits, tuple(thresholds), max_length
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        self._grow = partial(grow, sampled=sampled)
        self._texts: dict[int, Tensor] = {}  # slot -> (T,) tokens that the first exit has read

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return draft_within(self._propose, ctx, plan, self._max_length)

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        self.exits.open(len(ctx.cache.lengths), ctx.cache.capacity)
        for row, slot in enumerate(ctx.slots):
            # the root is always read
            self.exits.keep(slot, min(self._num_common(ctx, row), ctx.committed[row] - 1))
        reader = _Reader(self, ctx, plan)
        try:
            tree = self._grow(ctx, replace(plan, stop=reader.stopped), reader)
        except Exception:
            self.release(ctx.slots)  # which exits have read these texts is not known: they are read anew
            raise
        return Draft(tree, reader.forwards, reader.seconds)

    def _num_common(self, ctx: Context, row: int) -> int:
        """How many of the tokens that were read for a row are the first tokens of its text."""
        known, text = self._texts.get(ctx.slots[row]), ctx.tokens[row]
        return 0 if known is None else common_length(known, text)

    def remember(self, slot: int, text: Tensor) -> None:  # (T,)
        """Note what the first exit has read."""
        self._texts[slot] = text

    def observe(self, step: Step) -> None:
        """Does nothing: `propose` reads the committed tokens from its context."""

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._texts.pop(slot, None)
        self.exits.release(slots)
        if not self._texts:  # free the memory of the KV caches until the next request
            self.exits.close()


class _Reader(DraftReader):
    """The forwards of one draft."""

    def __init__(self, drafter: ExitsDrafter, ctx: Context, plan: Plan) -> None:
        super().__init__(ctx.cache.device)
        self._drafter, self._ctx, self._plan = drafter, ctx, plan
        self._num_read = 0  # nodes of the tree
        self._unsure: set[int] = set()  # rows in which the deepest exit was not sure

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        """The logits from which the next token of each row is drawn; zeros in rows that draft none."""
        ctx, forest, first = self._ctx, tree.forest, self._num_read
        self._num_read = len(tree)
        nodes = [
            node for node in range(first, len(tree)) if self._goes_on(forest.rows[node], forest.depths[node])
        ]
        texts = [
            torch.cat((ctx.tokens[forest.rows[node]], tree.tokens[forest.path(node)[1:]].cpu()))
            for node in nodes
        ]
        with self.timed():
            found = self._read([forest.rows[node] for node in nodes], texts)
        check_logits(found)
        logits = found.new_zeros(len(tree) - first, found.shape[1])
        logits[[node - first for node in nodes]] = found
        return first, logits

    def _goes_on(self, row: int, depth: int) -> bool:
        return row not in self._unsure and self._plan.depth[row] > depth

    def _read(self, rows: Sequence[int], texts: Sequence[Tensor]) -> Tensor:  # (F,) -> (F, V)
        """The logits of the exit that is used in each row."""
        drafter, slots = self._drafter, [self._ctx.slots[row] for row in rows]
        for slot, text in zip(slots, texts, strict=True):
            drafter.remember(slot, text)
        used: list[Tensor | None] = [None] * len(rows)
        asked = list(range(len(rows)))  # indices of the rows in which no exit has been sure
        for index, threshold in enumerate(drafter.thresholds):
            logits = drafter.exits.read(index, [texts[at] for at in asked], [slots[at] for at in asked])
            self.forwards += 1
            largest = at_least_float32(logits).softmax(-1).amax(-1).tolist()
            for at, own in zip(asked, logits, strict=True):
                used[at] = own
            asked = [at for at, each in zip(asked, largest, strict=True) if each < threshold]
            if not asked:
                break
        self._unsure.update(rows[at] for at in asked)
        return torch.stack([each for each in used if each is not None])

    def stopped(self, frontier: Frontier) -> list[bool]:
        """Implementation of Plan.stop: a draft ends with a token of which no exit was sure."""
        stop = self._plan.stop
        given = [False] * len(frontier.rows) if stop is None else stop(frontier)
        return [ends or row in self._unsure for ends, row in zip(given, frontier.rows, strict=True)]
