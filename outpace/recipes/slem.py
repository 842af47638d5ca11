"""String-level exact match (Timor et al. 2025): a draft of any vocabulary, rewritten as text in the target's
tokens.

New here: what the draft model wrote is spelt out and cut into the target's tokens. Reuses: Translated, Match,
Fixed. Exact at any temperature, whatever the tokenizers do: the tokens carry no claim, and each one generated
is the target's own choice. The draft model reads the text cut anew, as it met text in training. A draft that
ends within a character loses that part of it; one that ends within a word keeps it, since a wrong last token
costs nothing. `heuristic` drafts two tokens more after a draft that was kept whole and one less after any
other, as transformers does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, Want, recipe
from outpace.core.tree import Forest, TokenTree
from outpace.drafters.model.cross_vocabulary import WINDOW, CrossVocabularyDrafter, Tails
from outpace.drafters.model.grow import Read, grow
from outpace.models.vocabulary import STRAY, CrossVocabularyDraft
from outpace.verifiers.match import Match

MOST = 32  # tokens of the longest draft that successes lead to


@recipe(paper="arXiv:2502.05202", family="other vocabularies")
def slem(
    target: Target,
    *,
    draft: CrossVocabularyDraft,
    depth: int = 5,
    sampled: bool = True,
    heuristic: bool = True,
) -> Parts:
    """A drafted chain, translated as text into the target's tokens.

    Args:
        draft: model that drafts; its vocabulary may differ from the target's
        depth: tokens drafted per step, in the draft's tokens; with `heuristic` in the first step
        sampled: draw the draft tokens; false drafts the most probable ones
        heuristic: draft two tokens more after a fully accepted draft and one less after any other
    """
    spoken = Spoken(draft, sampled=sampled)
    longest = MOST if heuristic else depth
    drafter = CrossVocabularyDrafter(
        draft,
        spoken.grow,
        spoken.retold,
        nodes=longest + WINDOW + 1,
        reach=longest + WINDOW + 1,
        recut=True,
        claims=(),
    )
    return Parts(target, drafter, Match(), Heuristic(depth) if heuristic else Fixed(depth))


class Spoken:
    """Drafting text, and cutting it into the target's tokens."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, *, sampled: bool) -> None:
        self._cross_vocabulary, self._sampled = cross_vocabulary, sampled

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the draft's tokens, below those that may yet change."""
        return grow(ctx, plan, read, sampled=self._sampled, given=tails)

    def retold(self, tree: TokenTree, ctx: Context, tails: Tails) -> TokenTree:
        """What was drafted after the tails, in the target's tokens."""
        tokens, chains = tree.tokens.tolist(), list[list[int]]()
        for row, nodes in enumerate(tree.forest.nodes):
            drafted = [tokens[node] for node in nodes[1 + len(tails[row]) :]]
            chains.append(self.rewritten(ctx.tokens[row], drafted)[: ctx.room[row]])
        flat = torch.tensor([token for chain in chains for token in chain], dtype=torch.int64)
        return TokenTree(torch.cat([ctx.roots, flat]), Forest.chain(tuple(map(len, chains))))

    def rewritten(self, before: Tensor, drafted: Sequence[int]) -> list[int]:  # (T,) of the target's tokens
        """These tokens of the draft's, spelt with the target's; up to the first that spells nothing."""
        ours, theirs = self._cross_vocabulary.ours, self._cross_vocabulary.theirs
        special = next(
            (place for place, token in enumerate(drafted) if not theirs.pieces[token]), len(drafted)
        )
        added = theirs.spell(drafted[:special])
        end = self._cross_vocabulary.matching_tokens.get(drafted[special]) if special < len(drafted) else None
        window: list[int] = []
        for token in reversed(before[-WINDOW:].tolist()):
            if ours.pieces[token] is None:
                break
            window.append(token)
        known = ours.spell(window[::-1])
        tokens = _after(
            known, known + added if end is not None else _whole(known, added), self._cross_vocabulary
        )
        return tokens if end is None else [*tokens, end]


def _whole(known: bytes, added: bytes) -> bytes:
    """Both, up to the last character that is complete."""
    text = known + added
    for missing in range(min(3, len(added)) + 1):
        if not STRAY.search(text[: len(text) - missing].decode("utf-8", "surrogateescape")[-1:]):
            return text[: len(text) - missing]
    return text


def _after(known: bytes, text: bytes, cross_vocabulary: CrossVocabularyDraft) -> list[int]:
    """The tokens of a text that come after what is known of it, where the target has set an end of a token
    already."""
    ours = cross_vocabulary.ours
    cut = ours.cut(text)
    if ours.spell(cut) != text:  # it writes this text otherwise, so places in it mean nothing
        return ours.cut(text[len(known) :])
    at = 0
    for place, token in enumerate(cut):
        if at == len(known):
            return cut[place:]
        at += len(ours.pieces[token] or b"")
        if at > len(known):  # it would have been one token
            return [*ours.cut(text[len(known) : at]), *cut[place + 1 :]]
    return []


class Heuristic:
    """core.contracts.Controller: two more after a draft that was kept whole, one less after any other."""

    want = Want()

    def __init__(self, depth: int) -> None:
        self._first, self._depth = depth, dict[int, int]()

    def plan(self, ctx: Context) -> Plan:
        return Plan(tuple(self._depth.get(slot, self._first) for slot in ctx.slots))

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            if len(forest.nodes[row]) > 1 and step.scores.logits is not None:  # a draft, and not a prompt
                depth = self._depth.get(slot, self._first)
                whole = not forest.children[step.verdict.leaf[row]]
                self._depth[slot] = min(MOST, depth + 2) if whole else max(1, depth - 1)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._depth.pop(slot, None)
