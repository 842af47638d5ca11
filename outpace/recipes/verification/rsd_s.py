"""RSD-S (Jeon et al. 2024): stochastic beam search draws the paths of the tree without replacement.

New here: beam. Reuses: DraftModel, Rejection, Fixed. Exact at any temperature: which node gets another child
depends on earlier draws, never on the child about to be drawn, so recursive rejection in drawing order stays
exact. Improbable paths end early. The paper's beam has the same width at every depth. At temperature 0 the
most probable paths are kept, without a claim.

Every path of a level has an exponentially distributed arrival time whose rate is its probability under the
draft model, and the first `widths[level]` arrivals are kept (Kool et al. 2019; Jeon et al. 2024). A node's
first child arrives at the node's own arrival time, since the children's rates add up to the node's: this is
what the papers' conditioning of perturbed scores on the parent's score amounts to. Exponential times are
memoryless, so only the order of arrivals is drawn: the next arrival is either the first child of the next
node of the level above or a further child of a node that has arrived, in proportion to the probability of the
tokens not yet drawn below it. These are discrete choices, which a proof can enumerate, unlike Gumbel noise.

Letters: F frontier nodes, G of them that get a child, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Target, recipe
from outpace.core.grower import Grower
from outpace.core.noise import Key, Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read, going_on
from outpace.sampling.adjust import adjust
from outpace.sampling.topk import at_least_float32, top
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import Rejection

BEAM = "beam"


@recipe(paper="arXiv:2402.14160", family="exact verification")
def rsd_s(target: Target, *, draft: Target, widths: tuple[int, ...] = (6, 6, 6, 6, 6)) -> Parts:
    """A tree drawn by stochastic beam search, verified by recursive rejection.

    Args:
        draft: model that drafts; it has the same vocabulary as the target
        widths: nodes kept at each depth, distributed over parents in any way
    """
    drafter = DraftModel(draft, growth=partial(beam, widths=widths))
    return Parts(target, drafter, Rejection(), Fixed(len(widths)))


@dataclass(slots=True)
class _Path:
    """The path to a kept node, and the state of the draws of its children; the paths of a level are in order
    of arrival."""

    node: int
    mass: float  # probability of the path under the draft model
    rate: float  # total rate of all possible arrivals when this path arrived
    children: int = 0
    left: float = 1.0  # probability, given the path, of the tokens not yet drawn as its children
    distribution: Tensor | None = None  # (1, V) distribution of its next child, once `last` is removed
    last: int | None = None  # child drawn last, if `distribution` still contains it

    @property
    def open(self) -> float:
        """Probability of the path followed by a token not yet drawn below it: the rate of its next child."""
        return self.mass * self.left

    def next_distribution(self) -> Tensor:  # (1, V)
        """The distribution of the next child, in which tokens drawn before have probability 0."""
        assert self.distribution is not None
        if self.last is not None:
            self._drop(self.last)
        return self.distribution

    def come(self, token: int, share: float) -> None:
        """Record that the token was drawn as a child; `share` is its probability in the distribution of the
        next child."""
        self.children += 1
        if share < 0.9:
            # removed only when another child is drawn: most paths get none
            self.left, self.last = (self.left * (1 - share), token)
        else:
            self.left *= self._drop(token)  # little is left: 1 - share would be mostly rounding error

    def _drop(self, token: int) -> float:
        """Set the token's probability to 0 and renormalise the rest; returns the rest's probability
        before."""
        assert self.distribution is not None
        distribution = self.distribution.clone()
        distribution.select(1, token).zero_()
        left = float(distribution.sum())
        self.distribution, self.last = distribution.div_(left) if left > 0 else distribution, None
        return left


def beam(ctx: Context, plan: Plan, read: Read, *, widths: Sequence[int]) -> TokenTree:
    """Build a tree with `widths[level]` nodes at each level of every row; `read` is called once per level.

    Rows at temperature 0 keep the most probable paths, the limit of stochastic beam search as the temperature
    falls to 0.
    """
    grower = Grower(ctx.roots)
    beams = {row: [_Path(row, 1.0, 1.0)] for row in range(len(plan.depth))}
    for level, width in enumerate(widths):
        beams = {row: paths for row, paths in beams.items() if plan.depth[row] > level and paths}
        if not beams:
            break
        frontier = [path.node for paths in beams.values() for path in paths]
        first, logits = read(grower.structure() if level else TokenTree.roots(ctx.roots))
        if len(frontier) != len(logits) or frontier != list(range(first, first + len(frontier))):
            logits = logits[[node - first for node in frontier]]
        logits = adjust(logits, ctx, grower, frontier)
        index_of = {node: index for index, node in enumerate(frontier)}
        drawn = {row: paths for row, paths in beams.items() if not ctx.sampling[row].greedy}
        chosen = {row: paths for row, paths in beams.items() if ctx.sampling[row].greedy}
        after, before = dict[int, list[_Path]](), len(grower)
        if drawn:
            if chosen:
                at = [index_of[path.node] for paths in drawn.values() for path in paths]
            q = warp(
                logits[at] if chosen else logits,
                [ctx.sampling[row] for row, paths in drawn.items() for _ in paths],
            )
            after |= _race(grower, drawn, q, width, level, ctx.noise)
        if chosen:
            after |= _argmaxes(
                grower, chosen, logits[[index_of[p.node] for ps in chosen.values() for p in ps]], width
            )
        # paths with which a text ends have left the race for the next level
        open_nodes = set(going_on(ctx, grower, before))
        beams = {row: [path for path in paths if path.node in open_nodes] for row, paths in after.items()}
    return grower.tree()


def _race(
    grower: Grower,
    beams: dict[int, list[_Path]],
    q: Tensor,  # (F, V) distributions after the paths of `beams`, in order
    width: int,
    level: int,
    noise: Noise,
) -> dict[int, list[_Path]]:
    """The paths kept at the next level of each row: up to `width` arrivals, each with a token drawn as child
    of its parent."""
    for path, distribution in zip(
        (path for paths in beams.values() for path in paths), q.split(1), strict=True
    ):
        path.distribution = distribution
    after: dict[int, list[_Path]] = {row: [] for row in beams}
    come = dict.fromkeys(beams, 0)  # row -> number of its paths whose first child has arrived
    for step in range(width):
        coming: list[tuple[int, _Path, float]] = []  # row, parent of the new node, total rate of the arrivals
        for row, paths in beams.items():
            masses = [path.open for path in paths[: come[row]]]
            if come[row] < len(paths):
                masses.append(paths[come[row]].rate)
            index = _next(masses, row, level, step, noise)
            if index < 0:
                continue
            come[row] += index == come[row]
            coming.append((row, paths[index], sum(masses)))
        # a noise key contains the number of a node's earlier children: one call per number
        groups: dict[int, list[tuple[int, _Path, float]]] = {}
        for each in coming:
            groups.setdefault(each[1].children, []).append(each)
        for group in groups.values():
            distributions = [path.next_distribution() for _, path, _ in group]
            distribution = distributions[0] if len(distributions) == 1 else torch.cat(distributions)
            nodes = grower.add_drawn([path.node for _, path, _ in group], distribution, 1, noise)
            tokens = grower.newest
            shares = distribution.gather(1, tokens[:, None]).tolist()
            for (row, path, rate), node, token, (share,) in zip(
                group, nodes, tokens.tolist(), shares, strict=True
            ):
                after[row].append(_Path(node, path.open * share, rate))
                path.come(token, share)
    return after


def _next(masses: Sequence[float], row: int, level: int, step: int, noise: Noise) -> int:
    """Index of the next arrival, drawn in proportion to `masses`; -1 if all of them are 0."""
    for index, mass in enumerate(masses):
        rest = sum(masses[index:])
        if mass > 0 and (rest == mass or noise.flip((mass / rest,), _key(row, level, step, index))[0]):
            return index
    return -1


def _key(row: int, level: int, step: int, index: int) -> Key:
    return Key((row,), (index,), (level,), BEAM, (level << 8) + step)


def _argmaxes(
    grower: Grower, beams: dict[int, list[_Path]], logits: Tensor, width: int
) -> dict[int, list[_Path]]:
    """The paths kept at the next level of rows at temperature 0: the `width` most probable continuations of
    all paths in a row, without a claim."""
    logits = at_least_float32(logits)
    found_values, found_ids = top(logits.log_softmax(-1), min(width, logits.shape[-1]))
    values, ids = found_values.exp().tolist(), found_ids.tolist()
    after: dict[int, list[_Path]] = {}
    at: list[int] = []
    tokens: list[int] = []
    masses: list[float] = []
    first = 0
    for row, paths in beams.items():
        found = [
            (path.mass * value, path.node, token)
            for index, path in enumerate(paths, first)
            for value, token in zip(values[index], ids[index], strict=True)
        ]
        first += len(paths)
        kept = sorted(found, key=lambda each: -each[0])[:width]
        after[row] = [
            _Path(len(grower) + len(at) + index, mass, 0.0) for index, (mass, _, _) in enumerate(kept)
        ]
        for mass, node, token in kept:
            at.append(node)
            tokens.append(token)
            masses.append(mass)
    grower.add_chosen(at, torch.tensor(tokens, device=logits.device))
    return after
