"""Online speculative decoding (Liu et al. 2024): a draft model that learns where its drafts are rejected.

New here: RejectedPositions, the target's distributions at rejected tokens, which verification has computed
anyway. Reuses: OnlineLearning, LowRankAdapter, DraftModel, PromptRouter, Rejection, Fixed or AdaptiveDepth.
Exact at any temperature: weights change between steps only, where no draft is pending, so that every draft is
drawn from the distributions that it claims.

When `requests` requests have ended, or `positions` rejections were seen, the draft model makes one update on
them and on some of earlier updates, which keep it from forgetting other kinds of texts. The next step uses
the new weights: the KV cache of the draft model is emptied, and the texts in flight are read again with the
next draft. A version whose drafts are accepted less often than those of the version before it is dropped.

The paper trains all weights; here a low-rank adapter learns, as small as what a version, its moments and its
predecessor need, in float32 beside weights of any type. So its steps are larger: 1e-3, the paper has 1e-4 for
a narrow stream and 1e-5 for an open chat. The user's draft model is not changed, and what was learned lasts
as long as these parts, one call of `outpace.generate` or a server, which saves it with `--learn`.

With `adaptive` the length of each draft is the one with the most expected tokens per time, from the present
acceptance rate and the measured cost of drafting, as the paper plans it. Where it then drafts nothing,
nothing is rejected and nothing learned.

With `specialists` each kind of prompts has a draft model of its own, which learns from these requests alone,
so that a change of topics takes nothing from it. Requests are routed as in `multilingual-drafter`, by which
tokens follow one another in the prompt, and `outpace train multilingual-drafter` makes such a folder.
"""

from __future__ import annotations

from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.controllers.fixed import Fixed
from outpace.controllers.prompt_router import PromptRouter
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.specialists import Specialists
from outpace.drafters.learning.online_learning import LearningDrafter, OnlineLearning
from outpace.drafters.learning.target_labels import DIVERGENCES, DivergenceName
from outpace.drafters.learning.trainer import LocalTrainer
from outpace.drafters.learning.versions import Versions
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.hf.low_rank import LowRankAdapter
from outpace.models.table import LearningTable, TableTarget
from outpace.recipes.online.online_sd.rejected_positions import RejectedPositions
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2310.07177", family="online learning", proven_with={"positions": 2})
def online_sd(
    target: Target,
    *,
    draft: Target,
    specialists: Specialists | None = None,
    depth: int = 5,
    requests: int = 8,
    positions: int = 512,
    loss: DivergenceName = "forward_kl",
    learning_rate: float = 1e-3,
    replay: float = 0.25,
    adaptive: bool = False,
) -> Parts:
    """A draft model's chain, verified by rejection; the model learns from what is rejected.

    Args:
        draft: model that drafts and learns, with the target's vocabulary, run eagerly
        specialists: folders of draft models for one kind of prompts each, which learn from these alone
        depth: tokens drafted per step
        requests: requests after whose end the draft model learns
        positions: rejected tokens after which it learns even if fewer requests have ended
        loss: divergence from the target's distribution that is made smaller; jsd is 0.9 parts the target's
        learning_rate: step size with which it learns
        replay: earlier requests that are learned again, for each new one
        adaptive: depth is an upper bound: as many tokens as pay by measured times and acceptance
    """
    if learning_rate <= 0:
        raise ValueError(f"learning_rate is {learning_rate}; give a positive step size")

    def arm(draft: Target) -> Parts:
        model = LearningTable(draft) if isinstance(draft, TableTarget) else LowRankAdapter(draft)
        trainer = LocalTrainer(model.weights, learning_rate, positions=positions, replay=replay)
        learning = OnlineLearning(
            RejectedPositions(model.network, DIVERGENCES[loss]),
            Versions(model, trainer),
            requests=requests,
            positions=positions,
        )
        drafter = DraftModel(model.target)
        learner = LearningDrafter(model, drafter, learning, drafter.forget_all)
        controller = AdaptiveDepth(depth, target.sizes, target.chain_sizes) if adaptive else Fixed(depth)
        return Parts(target, learner, Rejection(), controller)

    generic = arm(draft)
    if specialists is None:
        return generic
    arms = [generic, *(arm(each.model) for each in specialists.each)]
    router = PromptRouter([each.profile for each in specialists.each], depth)
    return Parts(target, ArmsDrafter(arms, apart=True), Rejection(), router)
