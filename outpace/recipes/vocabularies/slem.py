"""String-level exact match (Timor et al. 2025): a draft of any vocabulary, retokenized for the target.

New here: the drafted text is decoded to bytes and tokenized with the target's vocabulary. Reuses:
CrossVocabularyDrafter, Match, Fixed. Exact at any temperature, whatever the tokenizers do: the tokens carry
no claim, and every generated token is drawn by the target. The draft model reads the text in its own
tokenization, as in its training. A draft that ends within a UTF-8 character loses those bytes; one that ends
within a word keeps them, since a wrong last token costs nothing. `heuristic` drafts two tokens more after a
fully accepted draft and one less after any other, as transformers does.
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

MAX_DEPTH = 32  # largest depth that `Heuristic` reaches with any draft model


@recipe(paper="arXiv:2502.05202", family="other vocabularies")
def slem(
    target: Target,
    *,
    draft: CrossVocabularyDraft,
    depth: int = 5,
    sampled: bool = True,
    heuristic: bool = True,
) -> Parts:
    """A drafted chain, translated as text into the target's tokens and verified by matching.

    Args:
        draft: model that drafts; its vocabulary may differ from the target's
        depth: tokens drafted per step, in the draft's tokens; with `heuristic` in the first step
        sampled: draw the draft tokens; false drafts the most probable ones
        heuristic: draft two tokens more after a fully accepted draft and one less after any other
    """
    drafts = RetokenizedDrafts(draft, sampled=sampled)
    longest = MAX_DEPTH if heuristic else depth
    if heuristic and draft.model.max_length is not None:
        longest = max(depth, min(longest, draft.model.max_length // 2 - WINDOW))
    drafter = CrossVocabularyDrafter(
        draft,
        drafts.grow,
        drafts.retokenized,
        nodes=longest + WINDOW + 1,
        max_depth=longest + WINDOW + 1,
        retokenize=True,
        claims=(),
    )
    return Parts(target, drafter, Match(), Heuristic(depth, longest) if heuristic else Fixed(depth))


class RetokenizedDrafts:
    """Drafts of a model with another vocabulary, and their tokenization in the target's vocabulary."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft, *, sampled: bool) -> None:
        self._cross_vocabulary, self._sampled = cross_vocabulary, sampled

    def grow(self, ctx: Context, plan: Plan, read: Read, tails: Tails) -> TokenTree:
        """A chain in every row, in the draft's tokens, below the last tokens of the text (`tails`), which
        later text may change."""
        return grow(ctx, plan, read, sampled=self._sampled, given=tails)

    def retokenized(self, tree: TokenTree, ctx: Context, tails: Tails) -> TokenTree:
        """The draft tokens after `tails`, as chains in the target's tokens."""
        tokens, chains = tree.token_list(), list[list[int]]()
        for row, nodes in enumerate(tree.forest.nodes):
            drafted = [tokens[node] for node in nodes[1 + len(tails[row]) :]]
            chains.append(self.to_target_tokens(ctx.tokens[row], drafted)[: ctx.max_draft_depth[row]])
        flat = torch.tensor([token for chain in chains for token in chain], dtype=torch.int64)
        return TokenTree(torch.cat([ctx.roots, flat]), Forest.chain(tuple(map(len, chains))))

    def to_target_tokens(
        self, before: Tensor, drafted: Sequence[int]
    ) -> list[int]:  # (T,) of the target's tokens
        """These draft model tokens, up to and including the first special one, in the target's tokens."""
        target_vocabulary = self._cross_vocabulary.target_vocabulary
        draft_vocabulary = self._cross_vocabulary.draft_vocabulary
        special = next(
            (index for index, token in enumerate(drafted) if not draft_vocabulary.pieces[token]), len(drafted)
        )
        added = draft_vocabulary.to_bytes(drafted[:special])
        end = self._cross_vocabulary.matching_tokens.get(drafted[special]) if special < len(drafted) else None
        window: list[int] = []
        for token in reversed(before[-WINDOW:].tolist()):
            if target_vocabulary.pieces[token] is None:
                break
            window.append(token)
        known = target_vocabulary.to_bytes(window[::-1])
        tokens = _tokens_after(
            known,
            known + added if end is not None else _complete_characters(known, added),
            self._cross_vocabulary,
        )
        return tokens if end is None else [*tokens, end]


def _complete_characters(known: bytes, added: bytes) -> bytes:
    """Both byte strings joined, without an incomplete UTF-8 character at the end."""
    text = known + added
    for missing in range(min(3, len(added)) + 1):
        if not STRAY.search(text[: len(text) - missing].decode("utf-8", "surrogateescape")[-1:]):
            return text[: len(text) - missing]
    return text


def _tokens_after(known: bytes, text: bytes, cross_vocabulary: CrossVocabularyDraft) -> list[int]:
    """The target's tokens of the part of `text` after its prefix `known`, which is tokenized already and so
    ends a token."""
    ours = cross_vocabulary.target_vocabulary
    cut = ours.tokenize(text)
    if ours.to_bytes(cut) != text:  # tokenizing changes the bytes, so byte offsets cannot be compared
        return ours.tokenize(text[len(known) :])
    at = 0
    for index, token in enumerate(cut):
        if at == len(known):
            return cut[index:]
        at += len(ours.pieces[token] or b"")
        if at > len(known):  # a token spans the end of `known`: tokenize its rest
            return [*ours.tokenize(text[len(known) : at]), *cut[index + 1 :]]
    return []


class Heuristic:
    """Implementation of core.contracts.Controller: a request's depth grows by two after a fully accepted
    draft and shrinks by one after any other."""

    want = Want()
    plans_across_rows = False

    def __init__(self, depth: int, longest: int = MAX_DEPTH) -> None:
        self._first, self._longest, self._depth = depth, longest, dict[int, int]()

    def plan(self, ctx: Context) -> Plan:
        return Plan(tuple(self._depth.get(slot, self._first) for slot in ctx.slots))

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            if len(forest.nodes[row]) > 1 and step.generated[row]:  # a draft, not a part of the prompt
                depth = self._depth.get(slot, self._first)
                fully_accepted = not forest.children[step.verdict.leaf[row]]
                self._depth[slot] = min(self._longest, depth + 2) if fully_accepted else max(1, depth - 1)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._depth.pop(slot, None)
