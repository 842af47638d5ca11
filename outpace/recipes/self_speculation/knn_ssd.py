"""KNN-SSD (Song et al. 2025): the target drafts without the sub-layers that suit the kind of the prompt.

New here: SkipSetAnchors, a file with a skip set for each domain, and SkipSetRoutes, which gives a request the
set of the domain whose prompts its own is nearest to. Reuses: the target without these sub-layers on its own
KV cache, SkipSetDrafter, DraftModel, SelfDraft, Rejection, Confidence. Exact at any temperature: the set
follows from the prompt, and a draft ends after a token, which stays in it. With `sampled` false the tokens
are chosen, not drawn, and carry no claim.

`outpace index build --kind skip-sets --from maths.jsonl --from stories.jsonl --tokenizer MODEL` makes the
file: each `--from` is a domain, with lines that have a "prompt" or "messages", or texts in the chat template
that requests will have. The paper searches sets by measured tokens per second; here the tokens are counted,
and the forwards with the share of the weights that each reads, which is repeatable. No speed of this method
has been measured here, only tokens per weights read (docs/log.md): where a step's time does not follow the
weights that it reads, as on a GPU with a small model, the sets that are found need not be the fastest. A
prompt that is far from all anchors has every second layer skipped. A compiled target is compiled once for
each set that is used.
"""

from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Drafter, Parts, Target, recipe
from outpace.core.skip_set import SkipSet
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.self_draft import SelfDraft
from outpace.drafters.model.skip_set_drafter import SkipSetDrafter
from outpace.drafters.model.skip_set_routes import SkipSetRoutes
from outpace.indexes import store
from outpace.indexes.skip_set_anchors import SkipSetAnchors
from outpace.indexes.store import SkipSetFile
from outpace.models.slim.make import num_layers, without
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2505.16162", family="self-speculation")
def knn_ssd(
    target: Target,
    *,
    anchors: SkipSetFile,
    depth: int = 12,
    threshold: float = 0.8,
    sampled: bool = True,
) -> Parts:
    """A chain drafted without the sub-layers of the prompt's domain, verified by rejection.

    Args:
        anchors: file of `outpace index build --kind skip-sets --tokenizer MODEL`
        depth: most tokens drafted per step
        threshold: end the draft with a token whose draft probability is below this
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    layers = num_layers(target)
    routes = SkipSetRoutes(store.load(SkipSetAnchors, anchors), layers)

    def draft(skip_set: SkipSet) -> Drafter:
        return DraftModel(without(target, skip_set), sampled=sampled)

    drafter = SkipSetDrafter(draft, routes, sampled=sampled)
    return Parts(target, SelfDraft(drafter), Rejection(), Confidence(depth, threshold))
