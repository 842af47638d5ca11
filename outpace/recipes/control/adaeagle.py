"""AdaEAGLE (Zhang et al. 2024): before each draft a trained network predicts how long it should be.

New here: PredictedLength and DraftLengthPredictor, a small network on the embedding and the target's hidden
state of the last token that the target has read. Reuses: FeatureDrafter, grow, Rejection. Exact at any
temperature: the length follows from committed tokens only, so tokens that are drawn keep their claim.

`outpace train adaeagle --target TARGET --head HEAD --output FOLDER` trains the predictor for a head of EAGLE
or HASS; neither is changed. It learns from the target's greedy text how many of the head's most probable
tokens are the target's, from every position, up to `predictor.depth` of them. The paper drafts at temperature
0; with `sampled`, as in other methods, tokens of requests at higher temperatures are drawn, and fewer of them
may be accepted than predicted.

A predicted length of 0 is a step of plain decoding. Where padding makes forwards over few tokens equally
expensive, as in compiled ones, short drafts save less than they seem to.
"""

from functools import partial

from outpace.controllers.predicted_length import PredictedLength
from outpace.core.contracts import Parts, TargetWithLayers, recipe
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.predictors.draft_length.predictor import DraftLengthPredictor
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2412.18910", family="control and routing")
def adaeagle(
    target: TargetWithLayers,
    *,
    head: EagleModel,
    predictor: DraftLengthPredictor,
    ddd: bool = False,
    sampled: bool = True,
) -> Parts:
    """A chain from a head, of a length that is predicted before it is drafted, verified by rejection.

    Args:
        head: folder with a head of EAGLE or HASS that was trained for the target
        predictor: folder with a predictor that was trained for the head and the target
        ddd: go on beyond the predicted length while the draft's probability is at least exp(-0.6)
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    predictor.prepare(head, target)
    drafter = FeatureDrafter(head, target.vocab, partial(grow, sampled=sampled), sampled=sampled)
    return Parts(target, drafter, Rejection(), PredictedLength(predictor, target.embed, ddd=ddd))
