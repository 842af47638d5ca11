"""A drafter that is itself drafted for: an exact method with a middle model in the target's place.

The method's output has the middle model's distribution, so its tokens are drafts drawn from that
distribution, whatever drafted them and whether they were accepted, came from a residual or are bonus tokens.
That is what the claim says: q are the middle model's processed distributions, recorded as tokens are
generated (Spector and Ré 2023, arXiv:2308.04623; Wang et al. 2025, arXiv:2510.26527).

How long a draft gets depends on the number of tokens in each of the method's steps, and these on tokens. That
leaves the claim true: whether a step reaches a token depends, given the tokens before it, not on that token,
since the steps that did not reach it would have continued with the middle model's distribution as well. No
token is dropped after it was generated.

Letters: B rows, n tokens of a row, V vocabulary size.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import UNLIMITED, Context
from outpace.core.contracts import (
    Cache,
    Draft,
    DraftsAhead,
    Guarantee,
    Parts,
    Plan,
    Prompt,
    ReadsTargetCache,
    Scores,
    Step,
    TargetProbs,
    Want,
)
from outpace.core.noise import Key, Noise
from outpace.core.one_step import draft_and_verify, new_tokens
from outpace.core.sampling_params import SamplingParams
from outpace.core.step_timer import StepTimer
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.compose.rows import context_of_rows, draft_within
from outpace.drafters.compose.union import Rekeyed
from outpace.drafters.model.draft_reader import check_logits
from outpace.sampling.target_probs import LazyTargetProbs

PROMPT_TOKENS = 512  # most tokens of a text that the middle model reads before its first draft at once
READING = SamplingParams()  # of rows that only read
SIBLING = "sibling"  # use of the noise keys


class Staged:
    """Implementation of core.contracts.DraftsAhead: drafts chains with `inner`, whose target is the middle
    model, and `siblings` further tokens beside each chain's first, drawn without replacement. Rows at
    temperature 0 and drafts of an inner method that is not EXACT have no claim.

    A draft has as many tokens as planned, or with `least` at least so many: the draft then ends with the step
    of the inner method in which a row gets them, and the plan's depth is its limit.
    """

    want = Want()  # nothing of the target
    drafts_across_rows = False
    drafts_ahead = True

    def __init__(self, inner: Parts, *, least: int = UNLIMITED, siblings: int = 0) -> None:
        """ValueError for an inner method that cannot draft after tokens that may be taken back."""
        if least < 1:
            raise ValueError(f"a draft of at least {least} tokens: use 1 or more")
        if inner.schedule is not None:
            raise ValueError(
                "a method with a schedule of its own cannot draft for a middle model: use one without"
            )
        if isinstance(inner.target, ReadsTargetCache):
            raise ValueError(
                "the middle model is a part of the target: give a model with a KV cache of its own"
            )
        if not (isinstance(inner.drafter, DraftsAhead) and inner.drafter.drafts_ahead):
            raise ValueError(
                f"{type(inner.drafter).__name__} cannot draft for a middle model, whose tokens the target may"
                " take back: use prompt lookup, a draft model with a KV cache of its own or a head of EAGLE"
            )
        self.inner, self._least, self._siblings = inner, least, siblings
        self._exact = inner.guarantee is Guarantee.EXACT
        self.claims: tuple[type[Claim], ...] = (Drawn,) if self._exact else ()
        if not self._exact:
            warnings.warn(
                "the method of the middle model is not exact: the target accepts of its drafts what matches "
                "its own tokens, which are fewer; the output stays the target's",
                stacklevel=2,
            )
        self.learns_across_rows = inner.drafter.learns_across_rows or inner.controller.plans_across_rows
        self._cache: Cache | None = None
        # slot -> tokens that the middle model may have read and that may be taken back, and the first's index
        self._assumed: dict[int, tuple[int, list[int]]] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return draft_within(self._propose, ctx, plan, self.inner.target.max_length)

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        cache = self._open(ctx)
        cache.discard()  # of a draft that ended with an error
        self._take_back(ctx, cache)
        drafted = _Drafted([[] for _ in ctx.slots], [[] for _ in ctx.slots], [[] for _ in ctx.slots])
        for number in range(max(plan.depth)):
            rows = [row for row, depth in enumerate(plan.depth) if self._goes_on(ctx, row, depth, drafted)]
            if not rows:
                break
            self._step(ctx, plan, rows, number, drafted)
        return Draft(self._tree(ctx, drafted), drafted.forwards, drafted.seconds)

    def _goes_on(self, ctx: Context, row: int, depth: int, drafted: _Drafted) -> bool:
        new, stop = drafted.tokens[row], ctx.sampling[row].stop
        return len(new) < min(depth, self._least) and (not new or new[-1] not in stop)

    def _step(self, ctx: Context, plan: Plan, rows: Sequence[int], number: int, drafted: _Drafted) -> None:
        """A step of the inner method in these rows, the draft's tokens so far being committed."""
        inner, cache = self.inner, self._open(ctx)
        timer = StepTimer(cache.device)
        timer.restart()
        own = self._context(ctx, plan, rows, number, drafted)
        if missing := self._missing(own, cache):
            drafted.forwards += self._read(own, missing, cache)
            timer.record("score")
        own = replace(own, unread=self._unread(own, cache))
        made: list[LazyTargetProbs] = []

        def target_probs(scores: Scores, tree: TokenTree, ctx: Context) -> TargetProbs:
            assert scores.logits is not None
            check_logits(scores.logits)
            made.append(LazyTargetProbs(scores, tree, ctx))
            return made[0]

        draft, scores, verdict = draft_and_verify(inner, own, cache, inner.want, target_probs, timer)
        room = [depth + 1 for depth in own.max_draft_depth]
        found = [
            new_tokens(draft.tree, verdict, index, room[index], own.sampling[index].stop)
            for index in range(len(rows))
        ]
        for row, slot, (_, new) in zip(rows, own.slots, found, strict=True):
            drafted.tokens[row] += new
            begin, before = self._assumed[slot]
            self._assumed[slot] = begin, [*before, *new]
        self._record_q(own, rows, draft.tree, found, made[0], drafted)
        if self._siblings and number == 0:
            assert scores.logits is not None
            self._add_siblings(ctx, rows, scores.logits, drafted)
        kept = tuple([node for node, _ in found])
        cache.commit(draft.tree, kept, own.slots)
        timer.record("commit")
        step = Step(own, draft, scores, verdict, kept, tuple([new for _, new in found]), timer.seconds)
        inner.drafter.observe(step)
        inner.controller.observe(step)
        drafted.forwards += 1 + draft.forwards
        drafted.seconds += timer.seconds["score"] + float(draft.seconds)

    def _context(
        self, ctx: Context, plan: Plan, rows: Sequence[int], number: int, drafted: _Drafted
    ) -> Context:
        """The state of these rows before step `number` of the inner method."""
        own = ctx.assuming(drafted.tokens)
        own = own if len(rows) == len(ctx.slots) else context_of_rows(own, rows)
        return replace(
            own,
            cache=self._open(ctx),
            noise=noise_of_step(own.noise, number),
            # the bonus token is a draft token, too
            max_draft_depth=tuple([plan.depth[row] - len(drafted.tokens[row]) - 1 for row in rows]),
            unread=None,
        )

    def _record_q(
        self,
        own: Context,
        rows: Sequence[int],
        tree: TokenTree,
        found: Sequence[tuple[int, Sequence[int]]],
        target_probs: TargetProbs,
        drafted: _Drafted,
    ) -> None:
        """Keep the middle model's distributions from which the new tokens of sampled rows were drawn."""
        if not self._exact:
            return
        nodes = {
            row: tree.forest.path(node)
            for index, (row, (node, _)) in enumerate(zip(rows, found, strict=True))
            if not own.sampling[index].greedy
        }
        if nodes:
            q = target_probs.probs([node for path in nodes.values() for node in path])
            for row, each in zip(nodes, q.split([len(path) for path in nodes.values()]), strict=True):
                drafted.q[row].append(each)

    def _add_siblings(self, ctx: Context, rows: Sequence[int], logits: Tensor, drafted: _Drafted) -> None:
        """Choose siblings of the first tokens: drawn from what is left of q without them, or the most
        probable ones. `logits`: of the middle model; those at the roots of these rows are its first."""
        for row, at_root in zip(rows, logits[: len(rows)], strict=True):
            first = drafted.tokens[row][0]
            if drafted.q[row]:
                left = drafted.q[row][0][:1].clone()
                left[0, first] = 0
                key, none_left = Key([row], [0], [0], SIBLING), not float(left.sum()) > 0
                draws = 0 if none_left else self._siblings
                found = ctx.noise.draw(left, draws, key, replace=False)[0].tolist() if draws else []
            else:
                found = at_root.topk(min(self._siblings + 1, len(at_root))).indices.tolist()
            others = [token for token in found if token not in (first, -1)]
            drafted.siblings[row] = others[: self._siblings]

    def _tree(self, ctx: Context, drafted: _Drafted) -> TokenTree:
        lengths = tuple(map(len, drafted.tokens))
        listed = [token for tokens in (*drafted.tokens, *drafted.siblings) for token in tokens]
        new = torch.tensor(listed, dtype=torch.int64)
        beside = [row for row, tokens in enumerate(drafted.siblings) for _ in tokens]  # their parents
        forest = Forest.chain(lengths)
        forest = Forest.of((*forest.parents, *beside), len(lengths)) if beside else forest
        q = [each for of_row in drafted.q for each in of_row]
        claim = None
        if q:
            row, count = [-1] * len(lengths), 0
            first: list[int] = []  # the row of q at each root
            for length, of_row in zip(lengths, drafted.q, strict=True):
                first.append(count if of_row else -1)
                row += range(count, count + length) if of_row else [-1] * length
                count += length if of_row else 0
            row += [first[parent] for parent in beside]
            claim = Drawn(torch.cat(q), tuple(row), (False,) * count)
        return TokenTree(torch.cat((ctx.roots, new)), forest, None, claim)

    def _open(self, ctx: Context) -> Cache:
        """The middle model's KV cache, with a slot for each slot of the target's."""
        if self._cache is None:
            self._cache = self.inner.target.open(len(ctx.cache.lengths), ctx.cache.capacity)
        self._cache.grow(len(ctx.cache.lengths))
        return self._cache

    def _take_back(self, ctx: Context, cache: Cache) -> None:
        """Discard the entries of tokens in whose place the texts have others now."""
        for row, slot in enumerate(ctx.slots):
            begin, before = self._assumed.get(slot, (0, []))
            now = ctx.tokens[row][begin : begin + len(before)].tolist()
            pairs = enumerate(zip(before, now, strict=False))
            same = next((index for index, (old, new) in pairs if old != new), len(now))
            # the root is read anew by every forward
            if cache.lengths[slot] > (length := min(begin + same, ctx.committed[row] - 1)):
                cache.rewind([slot], [length])
            begin = ctx.certain[row] if ctx.certain else ctx.committed[row]
            self._assumed[slot] = begin, ctx.assumed(row)

    def _missing(self, own: Context, cache: Cache) -> list[int]:
        """The rows whose text the middle model reads in forwards of their own, before the next step."""
        lacking = self._unread(own, cache) or ()
        limit = 0 if self.inner.want.outputs_at_prompt else min(PROMPT_TOKENS, self.inner.prompt_part)
        return [row for row, tokens in enumerate(lacking) if len(tokens) > limit]

    def _unread(self, own: Context, cache: Cache) -> tuple[Tensor, ...] | None:  # B × (G_b,)
        """The tokens before each root that the middle model has not read; None if there are none."""
        lacking = [t[cache.lengths[slot] : -1] for t, slot in zip(own.tokens, own.slots, strict=True)]
        return tuple(lacking) if any(map(len, lacking)) else None

    def _read(self, own: Context, rows: Sequence[int], cache: Cache) -> int:
        """Read the texts of these rows up to the root, in parts; returns the number of forwards."""
        inner, forwards = self.inner, 0
        for row in rows:
            alone, slot = context_of_rows(own, [row]), own.slots[row]
            while (begin := cache.lengths[slot]) + 1 < own.committed[row]:
                end = min(begin + min(PROMPT_TOKENS, inner.prompt_part) + 1, own.committed[row])
                part = [Prompt(own.tokens[row][begin:end])]
                tree, scores = inner.target.prefill(part, [slot], cache, inner.want)
                before = replace(
                    alone,
                    tokens=(own.tokens[row][: begin + 1],),
                    committed=(begin + 1,),
                    max_draft_depth=(0,),
                    sampling=(READING,),
                    certain=tuple([min(length, begin + 1) for length in alone.certain]),
                )
                step = Step.of_prefill(before, part, tree, scores, {})
                inner.drafter.observe(step)
                inner.controller.observe(step)
                forwards += 1
        return forwards

    def observe(self, step: Step) -> None:
        """Does nothing: the inner method sees its own steps, with the middle model's outputs."""

    def release(self, slots: Sequence[int]) -> None:
        self.inner.drafter.release(slots)
        self.inner.controller.release(slots)
        for slot in slots:
            self._assumed.pop(slot, None)
        if self._cache is not None:
            self._cache.release([slot for slot in slots if slot < len(self._cache.lengths)])
        if not self._assumed:  # free the memory of the KV cache until the next request
            self._cache = None


@dataclass
class _Drafted:
    """A draft in progress."""

    tokens: list[list[int]]  # B × (n,)
    q: list[list[Tensor]]  # B × tensors (n, V) of several steps, together one row per token; or none
    siblings: list[list[int]]  # B × tokens beside the first
    forwards: int = 0
    seconds: float = field(default=0.0)


def noise_of_step(noise: Noise, number: int) -> Noise:
    """The noise of step `number` of an inner method: its keys differ from those of the other steps and of the
    method for which it drafts, also where that one drafts for another. The target's choices, too, are those
    of one step only: the token at their position may be drawn again."""

    def rekeyed(key: Key) -> Key:
        return Key(key.rows, key.nodes, key.depths, f"{key.use} of inner step {number}", key.draw)

    return Rekeyed(noise, rekeyed)
