"""VocabTrim (Goel et al. 2025): a draft model whose LM head computes the most frequent tokens only.

New here: TrimmedDraft, which runs a copy of the draft with a smaller LM head, and kept_tokens, which chooses
its tokens from TokenCounts. Reuses: DraftModel, Rejection, Fixed. Exact at any temperature: a drawn token
carries the distribution that it was drawn from, normalised over the kept tokens and 0 for the others, which
the target can still sample in place of a rejected token or after the last one.

A small draft model spends much of its time in its LM head, whose rows are all read for every drafted token.
Only this head is reduced: the draft's input embedding and the target stay whole. Special tokens are always
kept: a draft that cannot end a text would go on after its end. The best texts to count are the target's own
answers to requests like those to come. Without a file the tokens with the lowest ids are kept: byte-pair
tokenizers number tokens in the order in which they learned them, which begins with frequent ones.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.kept_tokens import kept_tokens
from outpace.indexes.store import TokenCountsFile
from outpace.models.heads.trimmed_draft import trimmed_draft
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2506.22694", family="control and routing")
def vocab_trim(
    target: Target,
    *,
    draft: Target,
    counts: TokenCountsFile | None = None,
    size: int | None = None,
    depth: int = 5,
    sampled: bool = True,
) -> Parts:
    """A chain of the draft model's most frequent tokens, verified by rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        counts: file of `outpace index build --kind token-counts`; without one the lowest ids are kept
        size: number of tokens that the draft keeps; none keeps a quarter of the vocabulary
        depth: tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    small = trimmed_draft(draft, kept_tokens(counts, target, size))
    return Parts(target, DraftModel(small, sampled=sampled), Rejection(), Fixed(depth))
