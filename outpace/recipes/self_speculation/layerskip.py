"""LayerSkip (Elhoushi et al. 2024): the target's first layers and its LM head draft a chain.

New here: nothing; the method is the training (`outpace train layerskip`), after which early layers predict
what the last one does. Reuses: the target without its last layers on its own KV cache, DraftModel, SelfDraft,
Rejection, Fixed. Exact at any temperature: the tokens are drawn from the distribution after the exit layer,
which they carry as a claim; `sampled` false drafts the most probable ones, without a claim.

No second model is needed, and no KV cache: the target has computed the entries of the text. Of a target that
was not trained with early exits hardly any draft is accepted.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import drafting_layers, num_layers, without
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2404.16710", family="self-speculation")
def layerskip(
    target: Target, *, exit_layer: int | None = None, depth: int = 6, sampled: bool = True
) -> Parts:
    """A chain drafted by the target's first layers, verified by rejection token by token.

    Args:
        exit_layer: number of layers that draft; none: that for which the target was trained, or a quarter
        depth: tokens drafted per step
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    kept = drafting_layers(target) if exit_layer is None else exit_layer
    model = without(target, SkipSet.after(kept, num_layers(target)))
    drafter = DraftModel(model, sampled=sampled, carried_layer=model.carried_layer)
    return Parts(target, SelfDraft(drafter), Rejection(), Fixed(depth))
