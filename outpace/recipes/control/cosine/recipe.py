"""CoSine (Gao et al. 2025): draft models for different domains agree on each token of one draft.

New here: RoutingScores, which learns in each request how well each draft model drafts it, and FusedChains, in
which the chosen ones propose a token each at every level and all continue from the one with the largest
product of confidence and score; the others' tokens become side branches. Reuses: DraftModel, AdaptiveDepth,
Match. Exact at any temperature: all draft tokens are chosen, none is drawn, and matching verifies them
whatever they are. The choice of the draft models follows from earlier steps and noise of its own.

A draft model's score follows the tokens that it proposed itself and that were generated, times its confidence
in them. The `chosen` draft models with the largest scores draft; with probability `explore`, and after a step
in which nothing was accepted, one more is added at random. The paper leaves the formulas and constants partly
open: these are the ones taken here. Scores begin at 1, so that every draft model is tried.

With `adaptive`, drafts have the length with the least predicted time of a step per expected token, from the
times and the acceptance measured so far.

Built are routing and fusion, which is half of the method. The other half is not: in the paper draft models
run on nodes of their own and draft for one batch of requests while another is verified, and a scheduler
solves a small linear programme for the requests of a batch and the draft tokens of each, within limits of
memory and latency, so that neither side waits. Here they run one after the other on one machine, before the
target, so that each one more makes a step longer; the paper's latency and throughput are not to be expected.

With one draft model chosen and without fusion it is greedy drafting by the model with the best score. Use it
with two or three small draft models for different domains, for texts that mix these domains; where one of
them suits the whole text, `hedge-spec` or `multilingual-drafter` runs only that one.
"""

from outpace.controllers.adaptive_depth import AdaptiveDepth
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Controller, Parts, Target, recipe
from outpace.recipes.control.cosine.fused_chains import FusedChains
from outpace.recipes.control.cosine.routing_scores import RoutingScores
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2503.10325", family="control and routing")
def cosine(
    target: Target,
    *,
    drafts: tuple[Target, ...],
    depth: int = 5,
    chosen: int = 2,
    fusion: bool = True,
    adaptive: bool = True,
    beta: float = 0.8,
    explore: float = 0.05,
) -> Parts:
    """One chain of several draft models with side branches, verified by matching.

    Args:
        drafts: models that draft, one or more; they have the same vocabulary as the target
        depth: most levels drafted per step
        chosen: draft models that draft in a step, those with the best scores of the request
        fusion: agree on each token; false lets each draft model draft a chain of its own
        adaptive: draft as deep as pays by measured times; false always drafts to depth
        beta: share of a score that is kept per step
        explore: probability per step that one more draft model takes part
    """
    if not drafts:
        raise ValueError("cosine needs drafts: give one draft model or more")
    if depth < 1:
        raise ValueError(f"depth is {depth}; use 1 or more")
    routing = RoutingScores(len(drafts), chosen, beta=beta, explore=explore)
    controller: Controller = Fixed(depth)
    if adaptive:
        controller = AdaptiveDepth(depth, target.sizes, num_models=min(chosen, len(drafts)))
    return Parts(target, FusedChains(drafts, routing, fusion=fusion), Match(), controller)
