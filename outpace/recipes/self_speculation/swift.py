"""SWIFT (Xia et al. 2025): the target drafts without sub-layers that a search finds while it decodes.

New here: SkipSetSearch, which tries sets of attention and MLP sub-layers on the tokens that a request has
generated, with a Gaussian process at every 25th trial, and sibling_chain, a chain whose tokens have the more
siblings the less sure the draft is. Reuses: the target without these sub-layers on its own KV cache,
SkipSetDrafter, DraftModel, SelfDraft, Rejection, Confidence. Exact at any temperature: the set follows from
committed tokens, the number of siblings from the distribution before they are drawn, and a draft ends after
a token, which stays in it.

All requests share one search. It ends at a matchness above 0.95, after 300 trials without a gain or after
1000, and starts again when a later request has a lower matchness than chance explains. A trial is a forward
over `window` tokens after each step: it is a part of the time of decoding. Sets are compared on the same text
only. The first and the last layer are never skipped. Requests shorter than `window` draft with what earlier
ones have found. For eager targets: a model compiled with OpenVINO would have to be compiled for every trial.
"""

from functools import partial

from torch import Tensor

from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Cache, Drafter, Parts, Target, recipe
from outpace.core.skip_set import SkipSet
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.self_draft import SelfDraft
from outpace.drafters.model.sibling_chain import sibling_chain
from outpace.drafters.model.skip_set_drafter import SkipSetDrafter
from outpace.drafters.model.skip_set_search import SkipSetSearch
from outpace.models.slim.make import num_layers, switching
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2410.06916", family="self-speculation")
def swift(
    target: Target,
    *,
    skip_ratio: float = 0.45,
    window: int = 32,
    depth: int = 25,
    threshold: float = 0.8,
    sampled: bool = True,
) -> Parts:
    """A chain with siblings, drafted without sub-layers that are searched for, verified by rejection.

    Args:
        skip_ratio: share of the sub-layers, of all layers but the first and the last, that is skipped
        window: generated tokens of a request, its first, by which sets are scored
        depth: most tokens drafted on a path per step
        threshold: end the draft with a token whose draft probability is below this
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    layers = num_layers(target)
    without = switching(target)

    def draft(skip_set: SkipSet) -> Drafter:
        growth = partial(sibling_chain, sampled=sampled, siblings=not target.chains_only)
        return DraftModel(without(skip_set), sampled=sampled, growth=growth)

    def reread(skip_set: SkipSet, cache: Cache, slot: int, text: Tensor, begin: int) -> Tensor:
        return without(skip_set).reread(cache, slot, text, begin)

    search = SkipSetSearch(reread, layers, skip_ratio, window)
    drafter = SkipSetDrafter(draft, search, sampled=sampled)
    return Parts(target, SelfDraft(drafter), Rejection(), Confidence(depth, threshold))
