"""OmniDraft (Ramakrishnan et al. 2025): one draft model for any target, its tokens merged in pairs.

New here: two draft tokens whose bytes together are those of a target token that has no matching draft token
are merged into that token; and the resulting distribution over target tokens, merged or not. Reuses:
CrossVocabularyDrafter, Rejection, Fixed. Exact at any temperature: the probability of a target token sums
over the ways in which the draft model can generate it. A token that could have begun a pair but was not
merged rules out the second tokens of that pair, so the next distribution is without them. Pairs are
considered for the target tokens that occurred in any text so far, prompts included, of which there are never
more than the vocabulary has; `pairs` "request" takes those of the request's own text, so that no text depends
on other requests, and "all" takes all tokens at once. Only pairs that begin with one of the draft's
`pair_starts` most probable tokens are merged: the distributions after those are computed in the same forwards
as the draft. Runs of more than two tokens are not merged.

With `learn_every` the draft model learns while it drafts: every `learn_every` verified tokens a low-rank
adapter is updated with the paper's hybrid loss (`online_distillation.py`). The user's draft model is not
changed, and what was learned lasts as long as these parts: one call of `outpace.generate` with all its
prompts, or a server. Weights change between steps only, where no draft is pending, so that every draft is
drawn from the distributions that it claims.

With `stop_threshold` a head on the draft model's hidden states predicts whether each drafted token will be
accepted, learns from what the target accepts (`early_stop.py`), and drafting ends behind the token with which
the probability that any drafted token is rejected exceeds the threshold. The head is one linear layer and
learns whether each token was accepted, with one weight for all; the paper's learns min(1, p/q) with a
weighted loss. The token with which a draft ends stays. Where it could have begun a pair, ending the draft
also decides that it is not merged: the prediction is made for all tokens that could begin a pair there, and
those that would end the draft are counted with the probability of their pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.models.hf.low_rank import LowRankAdapter
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.recipes.vocabularies.omnidraft.early_stop import Stop
from outpace.recipes.vocabularies.omnidraft.online_distillation import OnlineDistillation
from outpace.recipes.vocabularies.omnidraft.pair_merging import PairMergingDrafter
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2507.02659", family="other vocabularies")
def omnidraft(
    target: Target,
    *,
    draft: CrossVocabularyDraft,
    depth: int = 5,
    pair_starts: int = 4,
    pairs: Literal["seen", "request", "all"] = "seen",
    learn_every: int = 0,
    learning_rate: float = 1e-3,
    stop_threshold: float | None = None,
) -> Parts:
    """A drafted chain in which pairs of draft tokens are merged into single target tokens.

    Args:
        draft: model that drafts; its vocabulary may differ from the target's
        depth: tokens drafted per step, in the draft's tokens
        pair_starts: most probable draft tokens at each position considered as the first token of a pair
        pairs: merge into tokens that occurred in any text so far, in the request's own, or into all tokens
        learn_every: verified tokens after which the draft learns from them; 0: it does not learn
        learning_rate: step size with which it learns
        stop_threshold: predicted probability of a rejection above which drafting stops; none: it does not
    """
    if learn_every < 0 or learning_rate <= 0:
        raise ValueError(
            f"learn_every is {learn_every} and learning_rate {learning_rate}; give a number of tokens (0: no "
            "learning) and a positive rate"
        )
    if stop_threshold is not None and not 0 < stop_threshold < 1:
        raise ValueError(f"stop_threshold is {stop_threshold}; give a probability between 0 and 1")
    learning = None
    if learn_every:
        adapter = LowRankAdapter(draft.model)
        draft = replace(draft, model=adapter.target)
        learning = OnlineDistillation(draft, adapter, learn_every, learning_rate)
    drafter = PairMergingDrafter(
        draft,
        target.vocab,
        depth,
        pair_starts,
        pairs=pairs,
        learning=learning,
        stop=None if stop_threshold is None else Stop(stop_threshold),
    )
    return Parts(target, drafter, Rejection(), Fixed(depth))
