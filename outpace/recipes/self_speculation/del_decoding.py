"""DEL (Entezari Zarch et al. 2025): an early exit drafts, chosen with its length by measured acceptance.

New here: ExitChoice, which applies the LM head to the layers' outputs at the verified positions, counts how
often each exit's token is accepted, and chooses the exit and the length with the most expected tokens
per loaded layer; and ExitDrafter, which has a draft model for each exit.
Reuses: the target without its last layers on its own KV cache, DraftModel, SelfDraft, Rejection. Exact at any
temperature: exit and length follow from committed tokens, and a draft ends after a token, which stays in the
draft, by the exit's confidence before that token was drawn.

The paper's forgetting factor is taken as 0.95, and the last positions of the prompt as the first step,
where exits are compared with what the target would generate; a request also starts with the acceptance
counts of the request that ended last, scaled down. At a temperature above 0 a position counts with the
probability that a token drawn from the exit would be accepted. A token below a threshold ends the draft:
halfway between the mean confidence of the exit where it is accepted and where it is rejected, or none while
tokens below it are worth the layers. To save time, exits that could not be the best even if all their
tokens were accepted are not compared, and after the first steps of the first request the others are compared
once in four steps, for the positions of all four. With a target that was not trained with early exits
(`outpace train layerskip`) it rarely drafts. A compiled target is compiled again for every exit that is used,
which takes seconds: there an exit is used once it has been the best in eight steps, and in half as many as
any other.
"""

from outpace.controllers.exit_choice import ExitChoice
from outpace.core.contracts import Drafter, Parts, Target, recipe
from outpace.core.skip_set import SkipSet
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.exit_drafter import ExitDrafter
from outpace.drafters.model.self_draft import SelfDraft
from outpace.models.slim.make import exit_logits, num_layers, without
from outpace.verifiers.rejection import Rejection

COMPILED_PATIENCE = 8  # steps
TOGETHER = 4  # steps whose positions the exits are compared at together


@recipe(paper="arXiv:2504.05598", family="self-speculation")
def del_decoding(target: Target, *, depth: int = 18) -> Parts:
    """A chain drafted by as many of the target's first layers as pays, verified by rejection.

    Args:
        depth: most tokens drafted per step
    """
    layers = num_layers(target)

    def draft(exit_layer: int) -> Drafter:
        model = without(target, SkipSet.after(exit_layer, layers))
        return SelfDraft(DraftModel(model))

    patience = COMPILED_PATIENCE if target.sizes else 0  # compiled forwards have sizes
    choice = ExitChoice(exit_logits(target), layers, depth, patience, TOGETHER)
    return Parts(target, ExitDrafter(draft), Rejection(), choice)
