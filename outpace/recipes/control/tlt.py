"""TLT (Hu et al. 2026): trees of EAGLE's head by the number of rows that run, none while many do, and a head
that learns while few run.

New here: BatchStrategies. Reuses: FeatureDrafter, dynamic_tree, OnlineLearning, TreeNotes, Match. Exact at
any temperature: the tree's tokens are chosen by probability and carry no claim, and weights change between
steps only.

Made for the rollouts of reinforcement learning, whose batches shrink until a few long answers are left: at
first the target's arithmetic is the limit, and drafts would only slow it down. The paper chooses among tree
sizes with recorded GPU graphs; the larger a batch, the fewer nodes. Which nodes a range of batch sizes has,
and how often it must be small before drafting begins again, are options. The ranges are the paper's.

The paper trains the head on workers that have run out of requests, on the texts of this rollout and of
earlier ones. Here texts are noted at any time, and the updates wait until at most `spot_rows` rows run, when
the device has little to do: between two steps, or in a server in a process of its own (`--learn`). The loss
is the divergence from the target at the tokens of the texts and of accepted drafts, without the paper's
regression to hidden states. So a head follows a target whose weights change between rollouts. Change them
between two steps of an `Engine`, and tell it by `target_changed`: it drops the KV entries that the weights
before have computed.
"""

from functools import partial

from outpace.controllers.batch_strategies import BatchStrategies
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.learning.online_learning import LearningDrafter, OnlineLearning
from outpace.drafters.learning.trainer import LocalTrainer
from outpace.drafters.learning.verified_trees import Objective, TreeNotes
from outpace.drafters.learning.versions import Versions
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.head_model import AnyEagleModel
from outpace.models.heads.learning_head import LearningHead
from outpace.sampling.divergence import forward_kl
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
    spot_rows: int = 0,
    requests: int = 32,
    positions: int = 2048,
    learning_rate: float = 1e-4,
    replay: float = 0.25,
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
        spot_rows: rows of the largest batch during which the head learns; 0: it does not learn
        requests: requests after whose end it learns
        positions: tokens after which it learns even if fewer requests have ended
        learning_rate: step size with which it learns
        replay: earlier requests that are learned again, for each new one
    """
    if spot_rows < 0 or learning_rate <= 0:
        raise ValueError(
            f"spot_rows is {spot_rows} and learning_rate {learning_rate}: give a number of rows (0: it does "
            "not learn) and a positive step size"
        )
    controller = BatchStrategies(
        depths, num_nodes, first_rows, most_rows=most_rows, checks=checks, exploring=exploring
    )
    growth = partial(dynamic_tree, width=width, num_nodes=max(num_nodes))
    if not spot_rows:
        return Parts(target, FeatureDrafter(head, target.vocab, growth, sampled=False), Match(), controller)
    model = LearningHead(head)
    trainer = LocalTrainer(model.weights, learning_rate, positions=positions, replay=replay)
    learning = OnlineLearning(
        TreeNotes(model, Objective(forward_kl, discarded=0.0, labels=0.0)),
        Versions(model, trainer),
        requests=requests,
        positions=positions,
        most_rows=spot_rows,
    )
    drafter = FeatureDrafter(model.opened, target.vocab, growth, sampled=False)
    return Parts(target, LearningDrafter(model, drafter, learning), Match(), controller)
