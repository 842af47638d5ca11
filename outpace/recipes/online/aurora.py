"""Aurora (Wang et al. 2026): a head of EAGLE-3 that learns from the drafts that the target has verified.

New here: TreeNotes, which notes the target's hidden states and its distributions at accepted tokens and on
rejected branches. Reuses: OnlineLearning, LearningHead, TextReader, FeatureDrafter, Rejection, Fixed or
AdaptiveDepth. Exact at any temperature: weights change between steps only, where no draft is pending, so that
every draft is drawn from the distributions that it claims.

The loss is a divergence at the tokens of the accepted path, `discarded` times the same on rejected branches,
and `labels` times the cross entropy of the text's next token. The head reads the text with the target's
features, and the draft trees with its own outputs, as it does in drafting. The weights of the three terms are
not in the paper, which finds reverse KL with all three best.

Without a `head` it begins with an untrained one, whose drafts are rejected: a small `depth` is best then.
When `requests` requests have ended, or `positions` positions were noted, the head makes one update on them
and on some of earlier updates. Requests in flight keep the entries of its KV cache that it has computed with
the weights before: the target's hidden states that they were made from are not kept. So their drafts are a
little worse, and no less exact, as each claim has the distribution that its token was drawn from. A version
whose drafts are accepted less often than those of the version before it is dropped, which is not in the
paper.

The paper's trainer runs beside the server, as it does here with `outpace serve --learn`, which also saves
what was learned. Otherwise the process that decodes makes an update between two steps, and forgets what was
learned at the end of the call of `outpace.generate` or of the server. The given head is not changed.
"""

from __future__ import annotations

from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, TargetWithLayers, recipe
from outpace.drafters.learning.online_learning import LearningDrafter, OnlineLearning
from outpace.drafters.learning.target_labels import DIVERGENCES, DivergenceName
from outpace.drafters.learning.trainer import LocalTrainer
from outpace.drafters.learning.verified_trees import Objective, TreeNotes
from outpace.drafters.learning.versions import Versions
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.eagle3.kind import Eagle3Model
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.learning_head import LearningHead
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2602.06932", family="online learning", proven_with={"positions": 24})
def aurora(
    target: TargetWithLayers,
    *,
    head: Eagle3Model | None = None,
    depth: int = 5,
    requests: int = 8,
    positions: int = 512,
    loss: DivergenceName = "reverse_kl",
    discarded: float = 0.3,
    labels: float = 0.1,
    learning_rate: float = 1e-3,
    replay: float = 0.25,
    adaptive: bool = False,
) -> Parts:
    """A chain of EAGLE-3's head, verified by rejection; the head learns from what is accepted and rejected.

    Args:
        head: folder with a head of EAGLE-3, run eagerly; none: one with random weights learns from nothing
        depth: tokens drafted per step
        requests: requests after whose end the head learns
        positions: draft and text tokens after which it learns even if fewer requests have ended
        loss: divergence from the target's distribution that is made smaller; jsd is 0.9 parts the target's
        discarded: weight of the divergence on rejected branches
        labels: weight of the cross entropy of the text's next token
        learning_rate: step size with which it learns
        replay: earlier requests that are learned again, for each new one
        adaptive: depth is an upper bound: as many tokens as pay by measured times and acceptance
    """
    if learning_rate <= 0:
        raise ValueError(f"learning_rate is {learning_rate}; give a positive step size")
    model = LearningHead(HeadModel(untrained_eagle3(target)) if head is None else head)
    learning = OnlineLearning(
        TreeNotes(model, Objective(DIVERGENCES[loss], discarded, labels)),
        Versions(model, LocalTrainer(model.weights, learning_rate, positions=positions, replay=replay)),
        requests=requests,
        positions=positions,
    )
    drafter = LearningDrafter(model, FeatureDrafter(model.opened, target.vocab, grow, sampled=True), learning)
    controller = AdaptiveDepth(depth, target.sizes, target.chain_sizes) if adaptive else Fixed(depth)
    return Parts(target, drafter, Rejection(), controller)
