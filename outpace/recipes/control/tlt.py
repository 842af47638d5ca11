"""TLT (Hu et al. 2026): trees of EAGLE's head by the number of rows that run, and none while many do.

New here: BatchStrategies. Reuses: FeatureDrafter, dynamic_tree, Match. Exact at any temperature: the tree's
tokens are chosen by probability and carry no claim.

Made for the rollouts of reinforcement learning, whose batches shrink until a few long answers are left: at
first the target's arithmetic is the limit, and drafts would only slow it down. The paper chooses among tree
sizes with recorded GPU graphs; the larger a batch, the fewer nodes. Which nodes a range of batch sizes has,
and how often it must be small before drafting begins again, are options. The ranges are the paper's. Its
training of the head on workers that have nothing else to do is left out: here the head does not change.
"""

from functools import partial

from outpace.controllers.batch_strategies import BatchStrategies
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.head_model import AnyEagleModel
from outpace.verifiers.match import Match


@recipe(paper="arXiv:2511.16665", family="control and routing")
def tlt(
    target: Target,
    *,
    head: AnyEagleModel,
    depths: tuple[int, ...] = (8,),
    num_nodes: tuple[int, ...] = (48, 32, 16, 8),
    first_rows: tuple[int, ...] = (1, 2, 5, 21),
    width: int = 4,
    most_rows: int = 32,
    checks: int = 3,
    exploring: float = 0.1,
) -> Parts:
    """Trees whose size follows from the number of rows, verified by matching.

    Args:
        head: folder with a head of EAGLE, HASS or EAGLE-3 that was trained for the target
        depths: longest paths, of which a bandit chooses one by tokens per second
        num_nodes: most draft tokens of a row, for each range of batch sizes
        first_rows: rows of the smallest batch of each range
        width: paths extended per level of the tree, and tokens tried after each
        most_rows: rows of the largest batch that drafts
        checks: steps in a row with no more rows after which drafting begins again
        exploring: probability of a step with any of the depths
    """
    controller = BatchStrategies(
        depths, num_nodes, first_rows, most_rows=most_rows, checks=checks, exploring=exploring
    )
    growth = partial(dynamic_tree, width=width, num_nodes=max(num_nodes))
    return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), controller)
