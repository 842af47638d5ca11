"""A draft with what a target reads after it: a text that asks to check the draft, and the draft once more.

Letters: N nodes of the draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from outpace.core.context import UNLIMITED
from outpace.core.contracts import Scores, Step
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session


def with_copies(tree: TokenTree, reflection: Sequence[int]) -> TokenTree:
    """The tree of chains with further nodes below the end of each: the reflection, and a copy of the chain.
    They stand behind all nodes of the draft, so that these keep their numbers; a row without a draft has
    none."""
    parents, tokens = list(tree.forest.parents), tree.token_list()
    added = list[int]()
    for nodes in tree.forest.nodes:
        if len(nodes) > 1:
            new = [*reflection, *(tokens[node] for node in nodes[1:])]
            parents += [nodes[-1], *range(len(parents), len(parents) + len(new) - 1)]
            added += new
    return TokenTree(torch.tensor([*tokens, *added]), Forest.of(parents, tree.forest.num_rows))


def copied_nodes(forest: Forest, num_reflection: int) -> list[int]:  # (N,)
    """By node of the draft, the node of the tree with copies that stands before the copy of the same next
    token; the node itself in a row without a draft."""
    found, end = list(range(len(forest))), len(forest)
    for nodes in forest.nodes:
        if len(nodes) > 1:
            end += num_reflection
            for node in nodes:
                found[node] = end - 1
                end += 1
            end -= 1  # nothing follows the last token of a copy
    return found


def longest_copied(max_length: int | None, length: int, num_reflection: int) -> int:
    """Number of tokens that a draft after a text of `length` tokens may have, so that the target, which reads
    at most `max_length` tokens, can read the reflection and the copy too."""
    return UNLIMITED if max_length is None else max(0, max_length - length - num_reflection) // 2


class ReflectiveSteps:
    """A schedule (see `Parts.schedule`): `speculative_steps` with drafts that the target reads twice in the
    same forward, the second time after the reflection. What is read after a draft leaves the KV cache with
    its rejected tokens and is no part of the step's draft."""

    def __init__(self, reflection: Sequence[int]) -> None:
        self._reflection = reflection

    def __call__(self, session: Session) -> Iterator[Step]:
        while session.rows:
            if session.prefills and (step := session.prefill()):
                yield step
            ctx = session.context()
            if not ctx.slots:
                continue  # prompts are not read yet
            parts, target = session.parts, session.parts.target
            longest = [
                longest_copied(target.max_length, length, len(self._reflection)) for length in ctx.committed
            ]
            draft = parts.propose(ctx, parts.plan(ctx).within(longest))
            if (
                ctx.stops is not None
            ):  # also on an accelerator: what is reflected on depends on the draft's end
                draft = replace(draft, tree=draft.tree.within(ctx.stops))
            session.timer.record("draft")
            whole = self.copied(draft.tree)
            scores = target.score(whole, ctx.slots, session.cache, session.want, gap=ctx.unread)
            assert scores.logits is not None
            session.timer.record("score")
            own = Scores(scores.first, scores.logits[: len(draft.tree)])
            target_probs = session.target_probs(own, draft.tree, ctx)
            verdict = parts.verify(draft.tree, target_probs, scores, ctx.noise)
            session.timer.settle("verify", warping=target_probs.seconds)
            yield session.commit(ctx, draft, scores, verdict)

    def copied(self, tree: TokenTree) -> TokenTree:
        """What the target reads."""
        return with_copies(tree, self._reflection)
