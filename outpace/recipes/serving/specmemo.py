"""SpecMemo (Yildirim and Chen 2025): drafts as large as a budget of generation memory permits.

New here: MemoryBudget. Reuses: DraftModel, Match. Exact at any temperature: the tokens are the draft model's
most probable ones and carry no claim, so no distributions of the draft need memory, and a row's text under a
seed is that of plain decoding, whatever the budget.
"""

from itertools import accumulate
from operator import mul

from outpace.controllers.footprint import StepMemory
from outpace.controllers.memory_budget import MemoryBudget
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.hf.target import HFTarget
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2506.01986", family="batching and serving")
def specmemo(
    target: Target, *, draft: Target, memory: int = 1 << 30, widths: tuple[int, ...] = (2, 2, 1, 1, 1)
) -> Parts:
    """A tree of a draft model's most probable tokens, cut to a memory budget.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        memory: bytes for the KV caches, logits and temporary tensors of both models, without their weights
        widths: children of every node at each depth of the largest draft
    """
    drafter = DraftModel(draft, sampled=False)
    step_memory = StepMemory(target, drafter, list(accumulate(widths, mul)))
    controller = MemoryBudget(Shape.branching(widths), memory, step_memory, drafter)
    target = target.on_demand() if isinstance(target, HFTarget) else target
    return Parts(target, drafter, Match(), controller)
