"""Draft models and draft heads that draft only some tokens of the vocabulary, with an LM head for these.

The kept tokens have the logits of the whole model, all other tokens -inf: draft probabilities are normalised
over the kept tokens.

Letters: N nodes, K kept tokens, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor

from outpace.core.contracts import NOTHING, Cache, Carry, Choose, Ends, Prompt, Scores, Target, Want
from outpace.core.tree import TokenTree
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.hf.trimmed_head import with_trimmed_head


class TrimmedDraft:
    """Implementation of core.contracts.Target: `draft` with the logits of the tokens `ids` only.

    A transformers model is run as a copy with a smaller LM head, compiled if the draft is; any other model
    computes all its logits. ValueError for a transformers model whose LM head is not a linear layer or that
    has none of these tokens."""

    def __init__(self, draft: Target, ids: Tensor) -> None:  # (K,) different ids in increasing order
        self.vocab, self._ids = draft.vocab, ids
        self.model: Target = draft
        if isinstance(draft, HFTarget):
            ids = ids[ids < draft.own_vocab]
            if not len(ids):
                raise ValueError("the draft model has none of the tokens that are kept: keep more tokens")
            model, weights = with_trimmed_head(draft.model, ids, draft.compressed_weights)
            self.model = HFTarget(
                model, compile=draft.compiled is not None, weights=weights, kv_cache=draft.kv_cache
            ).fitted(draft.vocab)
            self.model.count_caches_with(draft)
            self._ids = ids.to(self.model.device)
        self.max_length, self.chains_only = draft.max_length, draft.chains_only

    @property
    def sizes(self) -> Sequence[int]:
        return self.model.sizes

    @property
    def chain_sizes(self) -> Sequence[int]:
        return self.model.chain_sizes

    @property
    def torch_threads(self) -> int | None:
        return self.model.torch_threads

    @property
    def token_bytes(self) -> int:
        return self.model.token_bytes

    @property
    def state_bytes(self) -> int:
        return self.model.state_bytes

    @property
    def caches(self) -> Sequence[Cache]:
        """The KV caches in use of this model and of the draft from which it was made."""
        return self.model.caches

    def open(self, slots: int, capacity: int) -> Cache:
        return self.model.open(slots, capacity)

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        tree, scores = self.model.prefill(prompts, slots, cache, want)
        return tree, self._wide(scores)

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        return self._wide(self.model.score(tree, slots, cache, want, gap=gap, carry=carry))

    def continue_chain(
        self,
        root: Tensor,  # (1,)
        slot: int,
        cache: Cache,
        depth: int,
        choose: Choose | None,
        *,
        gap: Tensor | None = None,
        features: Tensor | None = None,
        ends: Ends | None = None,
    ) -> tuple[list[int], Tensor] | None:
        """Implementation of core.contracts.ReadsChains. The logits that it returns are (D, K)."""
        if not isinstance(self.model, HFTarget):
            return None

        def choose_of(logits: Tensor) -> int:
            assert choose is not None
            return choose(self._over_vocabulary(logits))

        chosen = None if choose is None else choose_of
        return self.model.continue_chain(
            root, slot, cache, depth, chosen, gap=gap, features=features, ends=ends
        )

    def _wide(self, scores: Scores) -> Scores:
        logits = scores.logits
        return scores if logits is None else replace(scores, logits=self._over_vocabulary(logits))

    def _over_vocabulary(self, logits: Tensor) -> Tensor:  # (N, K) or (N, V) -> (N, V)
        kept = logits if isinstance(self.model, HFTarget) else logits[:, self._ids.to(logits.device)]
        return over_vocabulary(kept, self._ids, self.vocab)


# cached, as compiling takes seconds and methods may be built many times for one draft
_DRAFTS: WeakKeyDictionary[HFTarget, dict[bytes, TrimmedDraft]] = WeakKeyDictionary()
_HEADS: WeakKeyDictionary[HeadModel, dict[bytes, HeadModel]] = WeakKeyDictionary()


def trimmed_draft(draft: Target, ids: Tensor | None) -> Target:  # (K,) different ids in increasing order
    """The draft model restricted to the tokens `ids`; None: unchanged. ValueError as in `TrimmedDraft`."""
    if ids is None:
        return draft
    if not isinstance(draft, HFTarget):
        return TrimmedDraft(draft, ids)
    made, key = _DRAFTS.setdefault(draft, {}), _key(ids)
    if key not in made:
        made[key] = TrimmedDraft(draft, ids)
    return made[key]


def trimmed_head(head: HeadModel, ids: Tensor | None) -> HeadModel:  # (K,) different ids in increasing order
    """The draft head with an LM head for the tokens `ids`, which are its draft vocabulary; None: unchanged.
    For heads that draft from the whole vocabulary. ValueError if the LM head is not a linear layer."""
    if ids is None:
        return head
    made, key = _HEADS.setdefault(head, {}), _key(ids)
    if key not in made:
        model, weights = with_trimmed_head(head.head, ids, head.model.compressed_weights)
        assert isinstance(model, DraftHead)
        made[key] = HeadModel(model, compile=head.model.compiled is not None, weights=weights)
    return made[key]


def _key(ids: Tensor) -> bytes:
    return ids.cpu().numpy().tobytes()
