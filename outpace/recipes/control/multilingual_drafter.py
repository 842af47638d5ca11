"""Multilingual drafters (Yi et al. 2024): a draft model per language, chosen once by each request's prompt.

Reuses: PromptProfile, which knows the tokens of one language's prompts, PromptRouter, which chooses the draft
model whose prompts are most like the request's, ArmsDrafter, DraftModel, Rejection. Exact at any temperature:
the draft model follows from the prompt alone, so that the q that it records is the
distribution of its tokens.

The paper trains small models on answers of the target to prompts in one language each and finds that the
language of the prompt matters more than that of the answer. `outpace train multilingual-drafter` trains one
such specialist and writes the numbers of tokens and pairs of tokens of its prompts beside it. The paper does
not say how a prompt's language is detected: here it is that of the specialist under whose numbers the tokens
of the prompt are most likely, if they are well above chance. Other prompts, such as those in a language
unlike that of any specialist, get the generic `draft`. Specialists may as well be for domains.

Only the chosen draft model reads the request, which keeps it to its end. Texts that change language are
better served by `hedge-spec`, whose draft models all read everything.

Use it where prompts come in several languages, or are of several kinds, and a single small draft model cannot
learn all of them.
"""

from __future__ import annotations

from outpace.controllers.fixed import Fixed
from outpace.controllers.prompt_router import PromptRouter
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.specialists import Specialists
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2406.16758", family="control and routing")
def multilingual_drafter(
    target: Target, *, draft: Target, specialists: Specialists | None = None, depth: int = 5
) -> Parts:
    """A chain of the draft model for the prompt's language, or of the generic one.

    Args:
        draft: generic draft model, for prompts that no specialist suits, with the target's vocabulary
        specialists: folders of draft models for one language each; none: the generic one drafts all
        depth: tokens drafted per step
    """
    special = () if specialists is None else specialists.each
    models = [draft, *(each.model for each in special)]
    arms = [Parts(target, DraftModel(model), Rejection(), Fixed(depth)) for model in models]
    router = PromptRouter([each.profile for each in special], depth)
    return Parts(target, ArmsDrafter(arms), Rejection(), router)
