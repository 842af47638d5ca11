"""Reflective verification (Wang et al. 2025): the target reads a draft twice and weighs both readings.

Before the second reading stands a text that asks the target to check the draft. One that follows
instructions is to recognise so a draft that says the same in other words, and to accept more of it.

Draft, reflection and the copy of the draft are read in one forward, in this order: the copy sees what is
before it. New here: the forward with copies, Fused and the distribution of its steps. Reuses: DraftModel,
Fixed. Reflection and copy are no part of the draft, leave the KV cache with each step and count in no
statistics. Of the acceptance rules that the paper names this is rejection of a chosen token. After a
rejection or a whole accepted draft the token is the target's own, and log probabilities are the first
reading's. With `weight` 0 nothing is read twice, and the output has the target's distribution.

Whether a target reflects at all depends on what it was trained for: none of the package's models follows
instructions, so what is proven here is the mechanism, not its use. A forward reads twice the draft and the
reflection, so short drafts cannot pay; where the target reads no more tokens, drafts become shorter. The
layout is reconstructed from the paper's description."""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.relaxed.reflective_verification.copied_draft import ReflectiveSteps
from outpace.recipes.relaxed.reflective_verification.fused import Fused, FusedSteps
from outpace.recipes.relaxed.reflective_verification.reflection import USUAL, Reflection
from outpace.verifiers.match import Match


@recipe(
    paper="arXiv:2505.18629",
    family="relaxed acceptance",
    guarantee=Guarantee.LOSSY,
    exact_with={"weight": 0.0},
)
def reflective_verification(
    target: Target, *, draft: Target, weight: float = 0.3, reflection: Reflection = USUAL, depth: int = 8
) -> Parts:
    """A draft model's chain, which the target reads a second time after a text that asks to check it.

    Args:
        draft: model whose most probable tokens are drafted; it has the same vocabulary
        weight: weight of the second reading's logits: 0 the first alone, which is exact, 1 the second alone
        reflection: text between draft and copy, or a list of its token ids
        depth: tokens drafted per step
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight is {weight}: give a number from 0, the first reading, to 1, the second")
    drafter, controller = DraftModel(draft, sampled=False), Fixed(depth)
    if not weight:
        return Parts(target, drafter, Match(), controller)
    tokens = reflection.opened
    return Parts(
        target,
        drafter,
        Fused(weight, len(tokens)),
        controller,
        FusedSteps(target, draft, tokens, depth, weight),
        schedule=ReflectiveSteps(tokens),
    )
