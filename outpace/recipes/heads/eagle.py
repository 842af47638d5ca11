"""EAGLE (Li et al. 2024): a one-layer head continues the target's hidden states, a static tree is drafted.

New here: SHAPE, the paper's tree. Reuses: FeatureDrafter, grow, Rejection, Fixed. Exact at any temperature:
the children of a node are drawn without replacement from the head's distribution, which they carry as a
claim; at temperature 0 they are the most probable tokens.

The head was trained for one target. A prompt is read by the target and, part by part, by the head, in
forwards of their own; the server's prefix cache has no effect.
"""

from functools import partial
from typing import Literal

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Shape, Target, recipe
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.kind import EagleModel
from outpace.verifiers.rejection import Rejection

# ranks of the tokens on each path, by depth
PATHS = (
    ("0", "1", "2", "3"),
    ("00", "01", "02", "10", "11", "20", "21", "30"),
    ("000", "001", "002", "010", "011", "020", "021", "100"),
    ("0000", "0001", "0002"),
    ("00000", "00001"),
)


def _shape() -> Shape:
    index = {"": 0}
    parents: list[int] = []
    for path in (path for level in PATHS for path in level):
        parents.append(index[path[:-1]])
        index[path] = len(parents)
    return Shape(tuple(parents))


SHAPE = _shape()


@recipe(paper="arXiv:2401.15077", family="trained heads")
def eagle(
    target: Target,
    *,
    head: EagleModel,
    tree: Literal["static", "chain"] = "static",
    depth: int = 5,
    sampled: bool = True,
) -> Parts:
    """A tree or chain drawn from a head over the target's last hidden states, verified by rejection.

    Args:
        head: folder with a head of EAGLE that was trained for the target
        tree: the paper's tree of 25 tokens, or a chain, which costs less where forwards are not free
        depth: tokens of the chain
        sampled: draw the draft tokens; false drafts the most probable ones
    """
    drafter = FeatureDrafter(head, target.vocab, partial(grow, sampled=sampled), sampled=sampled)
    return Parts(target, drafter, Rejection(), Fixed(depth if tree == "chain" else SHAPE))
