"""A draft head as drafter: it continues the target's hidden states token by token.

The head's KV cache follows the committed text with the target's hidden states: what it computed while
drafting, from its own guesses of them, is dropped after every draft.

Letters: P tokens, F size of a feature, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn
from outpace.core.context import Context, longest_draft
from outpace.core.contracts import NOTHING, Cache, Choose, Draft, Ends, Plan, Step, Want
from outpace.core.device_copies import indices
from outpace.core.tree import TokenTree
from outpace.drafters.compose.rows import draft_of_some, draft_within
from outpace.drafters.model.draft_reader import MOST_UNREAD, DraftReader
from outpace.drafters.model.grow import Growth
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.heads.head_model import HeadModel


class FeatureDrafter:
    """Implementation of core.contracts.DraftsAhead around a head that reads a token together with the
    target's hidden states at the token before it, or at the token itself (`DraftHead.feature_lag`).

    Prompts are read part by part as the target reads them. A draft begins at the root with the target's
    hidden states at the token before it; deeper nodes read the head's own output at their parents. Where
    nothing is drafted, the head reads the text in parts of `MOST_UNREAD` tokens, so that no more features are
    kept. Nothing is drafted or kept for a text that is longer than the head's positions allow, and nothing is
    drafted where a block of a head that reads blocks goes beyond them.

    Of tokens that may be taken back the features are kept, and the head reads them anew for every draft."""

    learns_across_rows = drafts_across_rows = False
    drafts_ahead = True  # where the target has read the assumed tokens, as that of an inner method has

    def __init__(
        self,
        opened: HeadModel,
        vocab: int,  # of the target
        growth: Growth,
        *,
        sampled: bool,  # `growth` draws tokens
        reader: Callable[[FeatureDrafter, Context, Plan], FeatureReader] | None = None,  # None: FeatureReader
    ) -> None:
        self.opened = opened
        self._reader = reader or FeatureReader
        self.vocab, self._growth = vocab, growth
        self.want = Want(hidden=frozenset(opened.head.taps))
        self.claims: tuple[type[Claim], ...] = (Drawn,) if sampled else ()
        self._lag = opened.head.feature_lag
        self._cache: Cache | None = None
        # slot -> (P, F) features of the committed tokens that the cache lacks; with a lag the last is the one
        # that the root is read with
        self._features: dict[int, Tensor] = {}
        # slot -> those tokens of the last features that may be taken back, and the index of the first
        self._uncertain: dict[int, tuple[int, list[int]]] = {}

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        head, limit = self.opened.head, self.opened.model.max_length
        if head.two_way and limit is not None:
            longest = limit - (head.num_masks or 0)  # a block is always read as a whole
            rows = [row for row, length in enumerate(ctx.committed) if length <= longest and plan.depth[row]]
            return draft_of_some(self._propose, ctx, plan, rows)
        # with a lag the head does not read the first token, which no hidden states precede
        return draft_within(self._propose, ctx, plan, self.opened.model.max_length, skipped=self._lag)

    def _propose(self, ctx: Context, plan: Plan) -> Draft:
        self._take_back(ctx)
        reader = self._reader(self, ctx, plan)
        try:
            with reader.checked():
                tree = self._growth(ctx, plan, reader)
        finally:
            reader.cache.discard()
        if reader.logits:
            for row, slot in enumerate(ctx.slots):
                if slot in self._features:
                    if ctx.certain:
                        reader.cache.rewind([slot], [ctx.certain[row] - self._lag])
                    unread = ctx.committed[row] - 1 - reader.cache.lengths[slot]
                    self._features[slot] = _last(self._features[slot], unread)
        return Draft(tree, reader.forwards, reader.seconds)

    def observe(self, step: Step) -> None:
        """Take the target's hidden states at the committed tokens; of a prompt's part, all but the last token
        are read at once."""
        self._take_back(step.ctx)
        forest, hidden = step.draft.tree.forest, step.scores.hidden
        paths = [forest.path(node) for node in step.kept]
        nodes = torch.tensor([node for path in paths for node in path])
        head = self.opened.head
        states = [hidden[layer][nodes.to(hidden[layer].device)] for layer in head.taps]
        weight = next(head.parameters())
        features = head.fuse(torch.cat(states, -1).to(weight))
        if head.knows_tokens:
            features = head.with_tokens(features, *self._tokens_of(step, paths))
        features = features.split([len(path) for path in paths])
        is_prompt = not any(step.generated)
        for row, (slot, path, new) in enumerate(zip(step.ctx.slots, paths, features, strict=True)):
            length = step.ctx.committed[row] + len(path) - self._lag
            if not longest_draft(self.opened.model.max_length, length):
                self._forget(slot)  # the head reads no text of this length
                continue
            before = self._features.get(slot)
            is_certain = not step.ctx.certain or step.ctx.committed[row] + len(path) <= step.ctx.certain[row]
            if not is_certain or is_prompt and before is not None and len(before) > self._lag:
                self._features[slot] = new if before is None else torch.cat((before, new))
                self._note_uncertain(step.ctx, row, step.draft.tree.tokens[path].tolist())
            elif is_prompt:
                self._read_prompt(slot, step.draft.tree.tokens[path], new, before, step.ctx.cache)
                self._features[slot] = _last(new, self._lag)
            else:
                self._features[slot] = new if before is None else torch.cat((before, new))
                if len(self._features[slot]) > MOST_UNREAD:
                    self._read_on(step, row)

    def _tokens_of(self, step: Step, paths: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """The tokens of these paths, row by row, and the token before each in its text; a text's first token
        stands before itself."""
        read, before = list[Tensor](), list[Tensor]()
        for text, committed, path in zip(step.ctx.tokens, step.ctx.committed, paths, strict=True):
            tokens, root = step.draft.tree.tokens[path], max(0, committed - 2)
            read.append(tokens)
            before += [text[root : root + 1].to(tokens.device), tokens[:-1]]
        device = self.opened.model.device
        return torch.cat(read).to(device), torch.cat(before).to(device)

    def _note_uncertain(self, ctx: Context, row: int, tokens: list[int]) -> None:
        """Note which of the tokens from the root on, whose features have come, may be taken back."""
        slot, first = ctx.slots[row], ctx.committed[row] - 1
        certain = ctx.certain[row] if ctx.certain else first + len(tokens)
        begin, before = self._uncertain.get(slot, (max(first, certain), []))
        if noted := [*before, *tokens[max(0, certain - first) :]]:
            self._uncertain[slot] = begin, noted

    def _take_back(self, ctx: Context) -> None:
        """Drop the features of tokens in whose place the texts have others now, and of roots, which are read
        anew; those of tokens that are committed now stay for good."""
        for row, slot in enumerate(ctx.slots):
            begin, before = self._uncertain.pop(slot, (0, []))
            now = ctx.tokens[row][begin : ctx.committed[row] - 1].tolist()
            pairs = enumerate(zip(before, now, strict=False))
            same = next((index for index, (old, new) in pairs if old != new), min(len(before), len(now)))
            if wrong := len(before) - same:
                self._features[slot] = self._features[slot][:-wrong]
            certain = ctx.certain[row] if ctx.certain else ctx.committed[row]
            if kept := before[max(0, certain - begin) : same]:
                self._uncertain[slot] = max(begin, certain), kept

    def _read_prompt(
        self, slot: int, tokens: Tensor, features: Tensor, before: Tensor | None, target: Cache
    ) -> None:
        """Read the tokens (P,) of a part of a prompt, each with its feature; `before`: with a lag, that of
        the token before the part; None if the text begins with the part."""
        read = features[: len(features) - self._lag]
        if before is None:
            tokens = tokens[self._lag :]
        else:
            read = torch.cat((before, read))
        if len(tokens):
            self.keep(tokens.cpu(), slot, read, target)

    def _read_on(self, step: Step, row: int) -> None:
        """Read the committed tokens after the step, except for the next root."""
        slot, cache = step.ctx.slots[row], self.open_cache(step.ctx.cache)
        before, new = step.ctx.tokens[row][cache.lengths[slot] + self._lag :], step.generated[row][:-1]
        tokens = torch.cat((before, torch.tensor(new, dtype=torch.int64)))
        features = self._features_before_root(slot, len(tokens))
        self._features[slot] = _last(features, self._lag)
        if len(tokens):
            self.keep(tokens, slot, features[: len(tokens)], step.ctx.cache)

    def keep(self, tokens: Tensor, slot: int, features: Tensor, target: Cache) -> None:
        """Append these committed tokens (P,) of a slot to the head's KV cache; the head reads each with its
        feature (P, F). `target`: the target's KV cache, whose slots the head's cache has too."""
        self.opened.model.keep([tokens], [slot], self.open_cache(target), NOTHING, [features])

    def _forget(self, slot: int) -> None:
        self._features.pop(slot, None)
        self._uncertain.pop(slot, None)
        if self._cache is not None and slot < len(self._cache.lengths):
            self._cache.release([slot])

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._forget(slot)
        if not self._features:  # free the memory of the KV cache until the next request
            self._cache = None

    def open_cache(self, target: Cache) -> Cache:
        """The head's KV cache, with a slot for each slot of the target's."""
        if self._cache is None:
            self._cache = self.opened.model.open(len(target.lengths), target.capacity)
        self._cache.grow(len(target.lengths))
        return self._cache

    def missing(self, ctx: Context, row: int) -> tuple[Tensor, Tensor]:  # (P - lag,), (P, F)
        """The committed tokens before the root that the head has not read, and the features of these and,
        with a lag, of the root."""
        slot, committed = ctx.slots[row], ctx.committed[row]
        length = self.open_cache(ctx.cache).lengths[slot]
        tokens = ctx.tokens[row][length + self._lag : committed - 1]
        return tokens, self._features_before_root(slot, len(tokens))

    def _features_before_root(self, slot: int, num_tokens: int) -> Tensor:  # (P, F)
        """The features that the last `num_tokens` tokens before the root and, with a lag, the root are read
        with. Zeros stand for hidden states that the target never gave, as before a text's first token."""
        features = self._features.get(slot)
        if features is None:
            head = self.opened.head
            weight = next(head.parameters())
            features = torch.zeros(0, head.feature_size, dtype=weight.dtype, device=weight.device)
        needed = num_tokens + self._lag
        features = _last(features, needed)  # a draft that failed left features of tokens that it has read
        if unknown := needed - len(features):
            features = torch.cat((features.new_zeros(unknown, features.shape[1]), features))
        return features


def _last(features: Tensor, count: int) -> Tensor:  # (P, F) -> (count, F), fewer if there are fewer
    return features[max(0, len(features) - count) :]


class FeatureReader(DraftReader):
    """The forwards of one draft, of the last of which it keeps the logits."""

    def __init__(self, drafter: FeatureDrafter, ctx: Context, plan: Plan) -> None:
        super().__init__(drafter.opened.model.device)
        self._drafter, self._ctx = drafter, ctx
        self.cache = drafter.open_cache(ctx.cache)
        self._states: list[Tensor] = []  # (N, F) the head's outputs at all nodes so far, in parts
        self.layer_outputs: Mapping[int, Tensor] = {}  # by layer, at the nodes of the last forward

    def __call__(self, tree: TokenTree) -> tuple[int, Tensor]:
        first, logits, ids = self.over_draft_vocabulary(tree)
        return first, over_vocabulary(logits, ids, self._drafter.vocab)

    def over_draft_vocabulary(self, tree: TokenTree) -> tuple[int, Tensor, Tensor | None]:
        """Implementation of drafters.model.grow.ReadDraftVocabulary."""
        opened = self._drafter.opened
        with self.timed():
            gap, features = self._inputs(tree)
            slots = self._ctx.slots
            scores = opened.model.score(tree, slots, self.cache, opened.state, gap=gap, features=features)
            assert scores.logits is not None
            self.layer_outputs = scores.hidden
            self._states.append(self.layer_outputs[opened.head.state_layer])
            logits, ids = opened.head.draft_logits(scores.logits)
        self.forwards += 1
        self.logits = [logits]
        return scores.first, logits, ids

    def _inputs(self, tree: TokenTree) -> tuple[list[Tensor] | None, list[Tensor]]:
        """Per row the committed tokens that the head reads with the root, and the features of its tokens."""
        ctx = self._ctx
        if not self.forwards:
            missing = [self._drafter.missing(ctx, row) for row in range(len(ctx.slots))]
            return [tokens for tokens, _ in missing], [states for _, states in missing]
        states = self._states[0] if len(self._states) == 1 else torch.cat(self._states)
        self._states = [states]
        forest, first = tree.forest, len(states)
        parents = [[forest.parents[node] for node in nodes if node >= first] for nodes in forest.nodes]
        return None, [states[indices(each, states.device)] for each in parents]

    def chain(self, depth: int, choose: Choose | None, ends: Ends | None) -> Tensor | None:
        """Implementation of drafters.model.grow.ReadChain."""
        drafter, ctx, opened = self._drafter, self._ctx, self._drafter.opened
        if opened.head.logits_follow:  # between two forwards of the chain
            return None
        ids = opened.head.draft_ids

        def choose_of(logits: Tensor) -> int:
            assert choose is not None
            self.logits = [logits]  # if they are NaN, the forward after them may fail
            return choose(over_vocabulary(logits, ids, drafter.vocab))

        chosen = None if choose is None else choose_of
        with self.timed():
            gap, features = drafter.missing(ctx, 0)
            found = opened.model.continue_chain(
                ctx.roots, ctx.slots[0], self.cache, depth, chosen, gap=gap, features=features, ends=ends
            )
        if found is None:
            return None
        self.logits = [found[1]]
        self.forwards += len(found[0])
        return torch.tensor(found[0])
