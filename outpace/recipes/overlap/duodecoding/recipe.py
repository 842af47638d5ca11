"""DuoDecoding (Lv et al. 2025): a draft model drafts several sequences while the target reads the last one.

New here: `sequences`, greedy sequences that begin with the most probable first tokens, the more of them the
less sure the draft model is, and SpeedRatio, by which a draft takes as long as a forward of the target.
Reuses: DraftModel, Match, the schedule RunAhead. Exact at any temperature: the draft's tokens are chosen, not
drawn, so they are matched with the target's own. (The paper's code decodes at temperature 0.)

The first tokens of all sequences are tested at the end of the draft before; the sequence that begins with the
accepted one is the next that the target reads. The paper runs the draft model on the CPU beside a target on a
GPU.
"""

from __future__ import annotations

from functools import partial

from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.overlap.duodecoding.sequences import sequences
from outpace.recipes.overlap.duodecoding.speed_ratio import SpeedRatio
from outpace.schedules.run_ahead import RunAhead
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2503.00784", family="overlap", proven_with={"depth": 6, "overlap": False})
def duodecoding(
    target: Target,
    *,
    draft: Target,
    depth: int | None = None,
    most: int = 8,
    overlap: bool = True,
) -> Parts:
    """A draft model that drafts several sequences while the target works.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        depth: tokens drafted per step, in all sequences together; none: as many as the measured times allow
        most: most sequences of a draft
        overlap: draft in a thread; false drafts between the target's forwards, the same texts in more time
    """
    if most < 1:
        raise ValueError(f"most is {most}: a draft has 1 sequence or more")
    if most > 1 and draft.chains_only:
        raise ValueError("this draft model reads chains only: give most=1, or another draft model")
    drafter = DraftModel(draft, sampled=False, growth=partial(sequences, most=most))
    return Parts(target, drafter, Match(), SpeedRatio(depth), schedule=RunAhead(drafter, overlap=overlap))
