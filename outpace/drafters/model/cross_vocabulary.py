"""A drafter around a draft model with another vocabulary: each row's text is translated into the draft
model's tokens.

Letters: B rows, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read
from outpace.models.vocabulary import BEGIN, END, CrossVocabularyDraft

WINDOW = 10  # number of last tokens that are tokenized again when text is appended

Tails = Sequence[Sequence[int]]  # per row the last draft model tokens of its text: later text may change them
Growing = Callable[[Context, Plan, Read, Tails], TokenTree]  # builds the draft tree below those last tokens
Returning = Callable[
    [TokenTree, Context, Tails], TokenTree
]  # translates the draft tree into the target's tokens


class CrossVocabularyDrafter:
    """Implementation of core.contracts.Drafter around a draft model whose vocabulary differs from the
    target's.

    `growing` builds the draft tree from a context in the draft model's tokens. If that tree is not in the
    target's tokens yet, `returning` translates it.

    Texts are translated token by token: into the matching token (same bytes or same special role) where there
    is one, else into the tokenization of its bytes. With `recut` texts are tokenized as a whole instead, as
    in the draft model's training; the tokens of the last word are then computed in every step, since later
    text may change them. A text that would exceed the model's maximum length is cut to its last tokens, half
    that length.
    """

    want = Want()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self,
        cross_vocabulary: CrossVocabularyDraft,
        growing: Growing,
        returning: Returning | None = None,
        *,
        nodes: int,  # maximum number of nodes per row in the tree of draft model tokens
        reach: int,  # largest depth of the tree of draft model tokens
        recut: bool = False,
        claims: tuple[type[Claim], ...] = (Drawn,),
    ) -> None:
        if not cross_vocabulary.matching_tokens:
            raise ValueError(
                "the draft model and the target have no token in common: use a draft for the same kind of "
                "text"
            )
        self.claims = claims
        self._cross_vocabulary, self._growing, self._returning = cross_vocabulary, growing, returning
        self._nodes, self._reach, self._recut = nodes, reach, recut
        self._lm = DraftModel(cross_vocabulary.model, growth=self._grow)
        self._texts: dict[int, Text] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if max(plan.depth, default=0) == 0:
            return Draft(TokenTree.roots(ctx.roots))
        draft = self._lm.propose(self._abroad(ctx), plan)
        tree, roots = draft.tree, ctx.roots
        if self._returning is not None:
            tree = self._returning(tree, ctx, self._tails(ctx))
        tokens = torch.cat([roots.to(tree.tokens.device), tree.tokens[len(roots) :]])
        return replace(draft, tree=replace(tree, tokens=tokens))

    def observe(self, step: Step) -> None:
        """Does nothing: `propose` translates the committed tokens."""

    def release(self, slots: Sequence[int]) -> None:
        self._lm.release(slots)
        for slot in slots:
            self._texts.pop(slot, None)

    def _grow(self, ctx: Context, plan: Plan, read: Read) -> TokenTree:
        return self._growing(ctx, plan, read, self._tails(ctx))

    def _tails(self, ctx: Context) -> Tails:
        return [self._texts[slot].unsettled for slot in ctx.slots]

    def _abroad(self, ctx: Context) -> Context:
        """The context in the draft model's tokens, without the last ones that later text may change."""
        tokens: list[Tensor] = []
        for slot, row in zip(ctx.slots, ctx.tokens, strict=True):
            text = self._texts.get(slot)
            if text is None:
                text = self._texts[slot] = (Recut if self._recut else Text)(self._cross_vocabulary)
            if not text.extend(row[text.num_translated :].tolist()):
                self._lm.forget([slot])
            limit = self._cross_vocabulary.model.max_length
            if limit is not None and len(text.tokens) + self._reach > limit:
                text.shorten(limit // 2)
                self._lm.forget([slot])
            tokens.append(text.settled)
        needed = max(len(self._texts[slot].tokens) for slot in ctx.slots) + self._nodes
        size = CacheSize(2 * needed, ctx.cache.lengths)
        sampling = tuple(params.without_logit_changes for params in ctx.sampling)
        return replace(
            ctx, tokens=tuple(tokens), committed=tuple(map(len, tokens)), cache=size, sampling=sampling
        )


@dataclass(frozen=True, eq=False)
class CacheSize:
    """Implementation of core.contracts.Cache that stores nothing: it carries the number of slots and the
    capacity that the draft model's KV cache needs."""

    capacity: int  # cache positions per slot; a position holds one draft model token
    lengths: list[int]

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        raise AssertionError("a drafter does not write to the target's cache")

    def release(self, slots: Sequence[int]) -> None:
        raise AssertionError("a drafter does not write to the target's cache")


class Text:
    """One row's text in the draft model's tokens, translated token by token; a translated token never
    changes."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        self.cross_vocabulary = cross_vocabulary
        self.tokens: list[int] = list(cross_vocabulary.theirs.begin)
        self.num_translated = 0  # number of target tokens translated
        self.settled = torch.empty(
            0, dtype=torch.int64
        )  # (T,) tokens that later text will not change; at least one after `extend`

    def extend(self, ours: Sequence[int]) -> bool:
        """Append the next tokens of the target's text. Returns False if tokens in `settled` have changed, so
        that their KV cache entries are invalid."""
        self.num_translated += len(ours)
        first = self.take(ours)
        specials = self.cross_vocabulary.theirs.specials
        if not self.tokens:  # the draft model needs at least one token: begin, end or token 0
            self.put(specials.get(BEGIN, specials.get(END, 0)))
        kept = min(first, len(self.settled))
        changed, self.settled = kept < len(self.settled), self.settled[:kept]
        end = max(kept, self.end())
        self.settled = torch.cat([self.settled, torch.tensor(self.tokens[kept:end], dtype=torch.int64)])
        return not changed

    def take(self, ours: Sequence[int]) -> int:
        """Append the translation of these target tokens; returns the number of leading tokens that are
        unchanged."""
        before = len(self.tokens)
        self.tokens += [own for token in ours for own in self.cross_vocabulary.translated(token)]
        return before

    def put(self, token: int) -> None:
        """Append a special token: the text before it and the text after it are tokenized separately."""
        self.tokens.append(token)

    def end(self) -> int:
        """Number of leading tokens that later text will not change."""
        return len(self.tokens)

    def shorten(self, most: int) -> None:
        """Keep the begin token, if there is one, and the last tokens of the text, `most` tokens together."""
        begin = self.cross_vocabulary.theirs.begin
        self.tokens = [*begin, *self.tokens[len(begin) - most :]]
        self.settled = torch.tensor(self.tokens[: self.end()], dtype=torch.int64)

    @property
    def unsettled(self) -> list[int]:
        """The tokens after `settled`, which later text may change."""
        return self.tokens[len(self.settled) :]


class Recut(Text):
    """One row's text tokenized as a whole: when text is appended, the last `WINDOW` tokens are tokenized
    again with it."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        super().__init__(cross_vocabulary)
        self._run = len(self.tokens)  # index of the first token after the last special token

    def take(self, ours: Sequence[int]) -> int:
        first, added = len(self.tokens), b""
        for token in ours:
            piece = self.cross_vocabulary.ours.pieces[token]
            if piece is not None:
                added += piece
                continue
            first = min(first, self._add(added))
            added = b""
            for match in self.cross_vocabulary.translated(token):
                self.put(match)
        return min(first, self._add(added))

    def put(self, token: int) -> None:
        super().put(token)
        self._run = len(self.tokens)

    def end(self) -> int:
        # the last word may continue and change its tokens; those before the start of a new word are final
        pieces, lowest = self.cross_vocabulary.theirs.pieces, max(1, len(self.tokens) - WINDOW)
        for place in range(len(self.tokens) - 1, lowest - 1, -1):
            if place < self._run:
                return place + 1
            if (piece := pieces[self.tokens[place]] or b"")[:1].isspace() and piece.strip():
                return place
        return lowest

    def shorten(self, most: int) -> None:
        before = len(self.tokens)
        self._run = max(len(self.cross_vocabulary.theirs.begin), self._run + min(most, before) - before)
        super().shorten(most)

    def _add(self, added: bytes) -> int:
        """Append bytes to the text and tokenize its end again; returns the number of leading tokens that are
        unchanged."""
        if not added:
            return len(self.tokens)
        theirs, start = self.cross_vocabulary.theirs, max(self._run, len(self.tokens) - WINDOW)
        window = self.tokens[start:]
        text = theirs.spell(window) + added
        cut = theirs.cut(text)
        if theirs.spell(cut) != text:  # tokenizing changes the bytes, so byte offsets cannot be compared
            self.tokens += theirs.cut(added)
            return start + len(window)
        if start > self._run:
            agreeing = _agreeing(window, cut, theirs.pieces)
            if agreeing is None:
                start, window = self._run, self.tokens[self._run :]
                cut = theirs.cut(theirs.spell(window) + added)
            else:
                cut = window[: agreeing[0]] + cut[agreeing[1] :]
        self.tokens[start:] = cut
        same = zip(window, cut, strict=False)
        return start + next(
            (place for place, (old, new) in enumerate(same) if old != new), min(len(window), len(cut))
        )


def _agreeing(
    old: Sequence[int], new: Sequence[int], pieces: Sequence[bytes | None]
) -> tuple[int, int] | None:
    """Index in `old` and index in `new` of the first token of `old` that `new` has at the same byte offset;
    None if there is no such token."""
    at, places = 0, dict[int, int]()
    for index, token in enumerate(new):
        places[at] = index
        at += len(pieces[token] or b"")
    at = 0
    for index, token in enumerate(old):
        place = places.get(at)
        if place is not None and new[place] == token:
            return index, place
        at += len(pieces[token] or b"")
    return None
