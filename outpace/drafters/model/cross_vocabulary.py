"""A drafter around a draft model with another vocabulary: each row's text is translated into the draft
model's tokens.

Letters: B rows, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read
from outpace.models.vocabulary import BEGIN, END, CrossVocabularyDraft

WINDOW = 10  # number of last tokens that are tokenized again when text is appended

Tails = Sequence[Sequence[int]]  # per row the last draft model tokens of its text: later text may change them
BuildTree = Callable[[Context, Plan, Read, Tails], TokenTree]  # builds the draft tree below those last tokens
# translates the draft tree into the target's tokens
TranslateTree = Callable[[TokenTree, Context, Tails], TokenTree]


class CrossVocabularyDrafter:
    """Implementation of core.contracts.Drafter around a draft model whose vocabulary differs from the
    target's.

    `build_tree` builds the draft tree from a context in the draft model's tokens. If that tree is not in the
    target's tokens yet, `translate_tree` translates it.

    Texts are translated token by token: into the matching token (same bytes or same special role) where there
    is one, else into the tokenization of its bytes. With `retokenize` texts are tokenized as a whole instead,
    as in the draft model's training; the tokens of the last word are then computed in every step, since later
    text may change them. A text that would exceed the model's maximum length is cut to its last tokens, at
    most half that length.
    """

    want = Want()
    learns_across_rows = drafts_across_rows = False

    def __init__(
        self,
        cross_vocabulary: CrossVocabularyDraft,
        build_tree: BuildTree,
        translate_tree: TranslateTree | None = None,
        *,
        nodes: int,  # maximum number of nodes per row in the tree of draft model tokens
        max_depth: int,  # largest depth of the tree of draft model tokens
        retokenize: bool = False,
        claims: tuple[type[Claim], ...] = (Drawn,),
        keeps_hidden: bool = False,  # for `hidden`
    ) -> None:
        if not cross_vocabulary.matching_tokens:
            raise ValueError(
                "the draft model and the target have no token in common: use a draft for the same kind of "
                "text"
            )
        limit, begin = cross_vocabulary.model.max_length, len(cross_vocabulary.draft_vocabulary.begin)
        if limit is not None and limit - max_depth <= begin:
            raise ValueError(
                f"the draft model reads at most {limit} tokens, and a draft may need {max_depth} besides the "
                "text: use a smaller depth or another draft model"
            )
        # tokens of a text that are kept when it gets too long for a model with a limit
        self._most_kept = 0 if limit is None else min(limit // 2, limit - max_depth)
        self.claims = claims
        self._cross_vocabulary, self._nodes, self._max_depth = cross_vocabulary, nodes, max_depth
        self._build_tree, self._translate_tree, self._retokenize = build_tree, translate_tree, retokenize
        self._draft_model = DraftModel(cross_vocabulary.model, growth=self._grow, keeps_hidden=keeps_hidden)
        self._texts: dict[int, TranslatedText] = {}
        # slot -> its request's sampling parameters, and those for the draft model
        self._sampling: dict[int, tuple[SamplingParams, SamplingParams]] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        if max(plan.depth, default=0) == 0:
            return Draft(TokenTree.roots(ctx.roots))
        draft = self._draft_model.propose(self._draft_context(ctx), plan)
        tree, roots = draft.tree, ctx.roots
        if self._translate_tree is not None:
            tree = self._translate_tree(tree, ctx, self._tails(ctx))
        tokens = torch.cat([roots.to(tree.tokens.device), tree.tokens[len(roots) :]])
        return replace(draft, tree=replace(tree, tokens=tokens))

    def observe(self, step: Step) -> None:
        """Does nothing: `propose` translates the committed tokens."""

    def release(self, slots: Sequence[int]) -> None:
        self._draft_model.release(slots)
        for slot in slots:
            self._texts.pop(slot, None)
            self._sampling.pop(slot, None)

    def forget_all(self) -> None:
        """Empty the draft model's KV cache, because its weights have changed."""
        self._draft_model.forget_all()

    def hidden(self, nodes: Sequence[int]) -> Tensor:  # (M,) -> (M, D)
        """The draft model's hidden states after these nodes of the tree of its tokens that is being built."""
        return self._draft_model.hidden(nodes)

    def _grow(self, ctx: Context, plan: Plan, read: Read) -> TokenTree:
        return self._build_tree(ctx, plan, read, self._tails(ctx))

    def _tails(self, ctx: Context) -> Tails:
        return [self._texts[slot].tail for slot in ctx.slots]

    def _own_sampling(self, slot: int, params: SamplingParams) -> SamplingParams:
        """The sampling parameters for the draft model, which ends a text with its own tokens."""
        known, own = self._sampling.get(slot, (None, params))
        if known is not params:
            matching, stops = self._cross_vocabulary.matching_tokens, list[int]()
            for stop in params.stop:
                first = next(iter(self._cross_vocabulary.translated(stop)), -1)
                stops += [first] if matching.get(first) == stop else []
            own = replace(params.without_logit_changes, stop=tuple(stops))
            self._sampling[slot] = params, own
        return own

    def _draft_context(self, ctx: Context) -> Context:
        """The context in the draft model's tokens, without the last ones that later text may change."""
        tokens: list[Tensor] = []
        for slot, row in zip(ctx.slots, ctx.tokens, strict=True):
            text = self._texts.get(slot)
            if text is None:
                kind = RetokenizedText if self._retokenize else TranslatedText
                text = self._texts[slot] = kind(self._cross_vocabulary)
            if not text.extend(row[text.num_translated :].tolist()):
                self._draft_model.forget([slot])
            limit = self._cross_vocabulary.model.max_length
            if limit is not None and len(text.tokens) + self._max_depth > limit:
                text.truncate(self._most_kept)
                self._draft_model.forget([slot])
            tokens.append(text.final)
        needed = max(len(self._texts[slot].tokens) for slot in ctx.slots) + self._nodes
        size = CacheSize(2 * needed, ctx.cache.lengths, ctx.cache.device)
        sampling = tuple(map(self._own_sampling, ctx.slots, ctx.sampling))
        return replace(
            ctx, tokens=tuple(tokens), committed=tuple(map(len, tokens)), cache=size, sampling=sampling
        )


@dataclass(frozen=True, eq=False)
class CacheSize:
    """Implementation of core.contracts.Cache that stores nothing: it carries the number of slots and the
    capacity that the draft model's KV cache needs."""

    capacity: int  # cache positions per slot; a position holds one draft model token
    lengths: list[int]
    device: torch.device = torch.device("cpu")

    @property
    def num_bytes(self) -> int:
        return 0

    def slot_bytes(self, slot: int, tokens: int) -> int:
        return 0

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        return 0

    def grow(self, slots: int) -> None:
        raise AssertionError("a drafter does not write to the target's cache")

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        raise AssertionError("a drafter does not write to the target's cache")

    def discard(self) -> None:
        raise AssertionError("a drafter does not write to the target's cache")

    def release(self, slots: Sequence[int]) -> None:
        raise AssertionError("a drafter does not write to the target's cache")


class TranslatedText:
    """One row's text in the draft model's tokens, translated token by token; a translated token never
    changes."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        self.cross_vocabulary = cross_vocabulary
        self.tokens: list[int] = list(cross_vocabulary.draft_vocabulary.begin)
        self.num_translated = 0  # number of target tokens translated
        # (T,) tokens that later text will not change; at least one after `extend`
        self.final = torch.empty(0, dtype=torch.int64)

    def extend(self, target_tokens: Sequence[int]) -> bool:
        """Append the next tokens of the target's text. Returns False if tokens in `final` have changed, so
        that their KV cache entries are invalid."""
        self.num_translated += len(target_tokens)
        first = self.append(target_tokens)
        specials = self.cross_vocabulary.draft_vocabulary.specials
        if not self.tokens:  # the draft model needs at least one token: begin, end or token 0
            self.append_special(specials.get(BEGIN, specials.get(END, 0)))
        kept = min(first, len(self.final))
        changed, self.final = kept < len(self.final), self.final[:kept]
        num_final = max(kept, self.num_final())
        self.final = torch.cat([self.final, torch.tensor(self.tokens[kept:num_final], dtype=torch.int64)])
        return not changed

    def append(self, target_tokens: Sequence[int]) -> int:
        """Append the translation of these target tokens; returns the number of leading tokens that are
        unchanged."""
        before = len(self.tokens)
        self.tokens += [own for token in target_tokens for own in self.cross_vocabulary.translated(token)]
        return before

    def append_special(self, token: int) -> None:
        """Append a special token: the text before it and the text after it are tokenized separately."""
        self.tokens.append(token)

    def num_final(self) -> int:
        """Number of leading tokens that later text will not change."""
        return len(self.tokens)

    def truncate(self, max_tokens: int) -> None:
        """Keep the begin token, if there is one, and the last tokens of the text: `max_tokens` tokens."""
        begin = self.cross_vocabulary.draft_vocabulary.begin
        self.tokens = [*begin, *self.tokens[len(begin) - max_tokens :]]
        self.final = torch.tensor(self.tokens[: self.num_final()], dtype=torch.int64)

    @property
    def tail(self) -> list[int]:
        """The tokens after `final`, which later text may change."""
        return self.tokens[len(self.final) :]


class RetokenizedText(TranslatedText):
    """One row's text tokenized as a whole: when text is appended, the last `WINDOW` tokens are tokenized
    again with it."""

    def __init__(self, cross_vocabulary: CrossVocabularyDraft) -> None:
        super().__init__(cross_vocabulary)
        self._segment_start = len(self.tokens)  # index of the first token after the last special token

    def append(self, target_tokens: Sequence[int]) -> int:
        first, added = len(self.tokens), b""
        for token in target_tokens:
            piece = self.cross_vocabulary.target_vocabulary.pieces[token]
            if piece is not None:
                added += piece
                continue
            first = min(first, self._append_bytes(added))
            added = b""
            for match in self.cross_vocabulary.translated(token):
                self.append_special(match)
        return min(first, self._append_bytes(added))

    def append_special(self, token: int) -> None:
        super().append_special(token)
        self._segment_start = len(self.tokens)

    def num_final(self) -> int:
        # the last word may continue and change its tokens; those before the start of a new word are final
        pieces, lowest = self.cross_vocabulary.draft_vocabulary.pieces, max(1, len(self.tokens) - WINDOW)
        for index in range(len(self.tokens) - 1, lowest - 1, -1):
            if index < self._segment_start:
                return index + 1
            if (piece := pieces[self.tokens[index]] or b"")[:1].isspace() and piece.strip():
                return index
        return lowest

    def truncate(self, max_tokens: int) -> None:
        before = len(self.tokens)
        first = len(self.cross_vocabulary.draft_vocabulary.begin)
        self._segment_start = max(first, self._segment_start + min(max_tokens, before) - before)
        super().truncate(max_tokens)

    def _append_bytes(self, added: bytes) -> int:
        """Append bytes to the text and tokenize its end again; returns the number of leading tokens that are
        unchanged."""
        if not added:
            return len(self.tokens)
        vocabulary = self.cross_vocabulary.draft_vocabulary
        start = max(self._segment_start, len(self.tokens) - WINDOW)
        window = self.tokens[start:]
        text = vocabulary.to_bytes(window) + added
        new = vocabulary.tokenize(text)
        if vocabulary.to_bytes(new) != text:  # tokenizing changes the bytes: their offsets differ
            self.tokens += vocabulary.tokenize(added)
            return start + len(window)
        if start > self._segment_start:
            common = _first_common_token(window, new, vocabulary.pieces)
            if common is None:
                start, window = self._segment_start, self.tokens[self._segment_start :]
                new = vocabulary.tokenize(vocabulary.to_bytes(window) + added)
            else:
                new = window[: common[0]] + new[common[1] :]
        self.tokens[start:] = new
        pairs = enumerate(zip(window, new, strict=False))
        unchanged = min(len(window), len(new))
        return start + next((index for index, (before, after) in pairs if before != after), unchanged)


def _first_common_token(
    old: Sequence[int], new: Sequence[int], pieces: Sequence[bytes | None]
) -> tuple[int, int] | None:
    """Index in `old` and index in `new` of the first token of `old` that `new` has at the same byte offset;
    None if there is no such token."""
    offset, new_indices = 0, dict[int, int]()  # byte offset -> index of the token that starts there in `new`
    for index, token in enumerate(new):
        new_indices[offset] = index
        offset += len(pieces[token] or b"")
    offset = 0
    for index, token in enumerate(old):
        new_index = new_indices.get(offset)
        if new_index is not None and new[new_index] == token:
            return index, new_index
        offset += len(pieces[token] or b"")
    return None
