"""SpecEE (Xu et al. 2025): a token leaves the target early when a predictor finds its prediction final.

New here: the target with early exits (models/slim): EAGLE's head names four tokens, their logits, their
probabilities and the change since the last check go into a small network for each layer, and a token leaves
if that is sure enough and the most probable token of the whole vocabulary is one of the four. Layers where
tokens often leave are checked, and those near the exits of the last five tokens. Reuses: NoDraft, Match,
Fixed; as a drafter DraftModel, Rejection. LOSSY: the output is that of the target with early exits, which
`Parts.reference` computes by its definition. EXACT with `role` drafter: the target with early exits drafts,
on a KV cache of its own, and the whole target verifies, at any temperature.

`outpace train specee --target TARGET --head HEAD --output FOLDER` trains the predictor. The rule is the
paper's for greedy decoding; at other temperatures the token is drawn from the distribution after the exit.
Prompts run through all layers, and so does the text of a request that was preempted. Later layers lack the
keys and values of a token that exited early. Draft tokens are checked one after the other: trees whose paths
exit together, as in the paper, are not built. Not for compiled targets.
"""

from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target, Want, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.no_draft import NoDraft
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.predictors.exits.predictor import ExitPredictor
from outpace.models.slim.make import with_exits
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

PROMPTS_APART = Want(hidden=frozenset({-1}))  # prompts are read in forwards of their own, which are whole


@recipe(
    paper="arXiv:2504.08850",
    family="self-speculation",
    guarantee=Guarantee.LOSSY,
    exact_with={"threshold": 1.0},
)
def specee(
    target: Target,
    *,
    head: EagleModel,
    predictor: ExitPredictor,
    role: Literal["target", "drafter"] = "target",
    threshold: float = 0.5,
    scheduled: bool = True,
    depth: int = 4,
) -> Parts:
    """The target with early exits that a predictor decides about.

    Args:
        head: folder with a head of EAGLE that was trained for the target
        predictor: folder with a predictor of early exits that was trained for the target and the head
        role: target: the target with exits is decoded, LOSSY; drafter: it drafts for the whole one, EXACT
        threshold: a token leaves when its prediction is final with more than this probability; 1: never
        scheduled: check the layers where tokens often leave or have just left; false checks all
        depth: tokens drafted per step, with role drafter
    """
    model, reference = with_exits(target, head, predictor, threshold, scheduled=scheduled)
    if role == "drafter":
        return Parts(target, DraftModel(model), Rejection(), Fixed(depth))
    stated = reference if threshold < 1 else None
    return Parts(model, NoDraft(PROMPTS_APART), Match(), Fixed(0), stated)
