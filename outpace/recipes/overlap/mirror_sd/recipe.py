"""Mirror-SD (Bhendawade et al. 2025): a draft model works during the target's last layers.

New here: TwoRendezvous, the schedule, and stem_of_keys, which chooses by the distribution after the target's
first layers what is drafted. Reuses: the target without its last layers on its own KV cache, DraftModel,
Match, Fixed. Exact: every token is the target's own sample, so that texts are those of plain decoding with
the same seed at any temperature.

The paper has no code, so this is our reading: the exit is the target's own norm and LM head; a draft token
that is matched is accepted with the target's probability of it, so that a continuation is ranked by the
product of the exit's probabilities of its tokens, in place of min(1, p/q); where no draft is ready, the draft
model works first and the target waits. Not built: the paper's draft model, which drafts several tokens in one
forward.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.hf.target import HFTarget
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import num_layers, without
from outpace.models.slim.slim_table import SlimTable
from outpace.models.slim.slim_target import SlimTarget
from outpace.recipes.overlap.mirror_sd.two_rendezvous import TwoRendezvous
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2510.13161", family="overlap", proven_with={"depth": 3, "overlap": False})
def mirror_sd(
    target: Target,
    *,
    draft: Target,
    depth: int = 4,
    exit_layer: int | None = None,
    candidates: int = 4,
    budget: int = 16,
    overlap: bool = True,
) -> Parts:
    """A draft model that drafts what may follow the pending draft while the target's last layers read that.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted per step
        exit_layer: number of the target's layers before the drafter starts; none: half of them
        candidates: tokens considered after each token of the pending draft, the most probable at the exit
        budget: continuations drafted per step and text, the most probable ones
        overlap: draft in a thread; false drafts between the target's forwards, the same texts in more time
    """
    early = first_layers(target, exit_layer)
    if draft.chains_only:
        raise ValueError(
            "the draft model reads chains only, and mirror-sd drafts many continuations in one tree: give "
            "another draft model, or use pearl"
        )
    drafter = DraftModel(draft, sampled=False)
    schedule = TwoRendezvous(drafter, early, candidates=candidates, budget=budget, overlap=overlap)
    return Parts(target, drafter, Match(), Fixed(depth), schedule=schedule)


def first_layers(target: Target, count: int | None) -> SlimTarget | SlimTable:
    """A model of the target's first `count` layers (None: half of them), its last norm and its LM head.
    ValueError for a target whose remaining layers cannot start from the outputs of these layers."""
    layers = num_layers(target)
    model = without(target, SkipSet.after(max(1, layers // 2) if count is None else count, layers))
    goes_on = not isinstance(target, HFTarget) or target.reader.begins_later
    if isinstance(model, SlimTarget) and (model.carried_layer is None or not goes_on):
        raise ValueError(
            "mirror-sd lets the target go on from the outputs of its first layers, which neither compiled "
            "models can nor those whose last layers read the keys of earlier ones: load it without "
            "compiling, or use pearl"
        )
    return model
