"""Known-wrong variants: mistakes made in published code, kept so that the law test is seen to catch each of them.

Every variant is a set of parts on table models that would be exact but for one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Law, Parts, Scores, Verdict
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.lm import LM
from outpace.drafters.logit_ngrams import LogitNGram
from outpace.law.enumerate import Branch, EnumeratedNoise
from outpace.law.wrong_bottom_up import FirstRefusal, FirstWeight, LaterWeight, Unweighted, WeightAsChance, WholeAgain
from outpace.law.wrong_drafters import (
    ArgmaxClaimed,
    ClaimedIndependent,
    Coupled,
    Dropped,
    Honest,
    Numbered,
    OffByOne,
    OtherTemperature,
    ReadsRefused,
    Sorted,
    TopClaimed,
    as_target,
)
from outpace.law.wrong_greedy import ChosenFirst, GreedyLast, WholeLaw
from outpace.law.wrong_predicted import Overwritten, Preferred
from outpace.law.wrong_retrieved import retrieved
from outpace.law.wrong_settings import histories
from outpace.law.wrong_siblings import (
    CountedOnce,
    Merged,
    NeverFewer,
    Overdrawn,
    Resorted,
    Underscaled,
    likeliest_kept,
)
from outpace.law.wrong_tables import BeforeTemperature, NotLessItsElders, informed
from outpace.law.wrong_translated import (
    Leftover,
    NotRenormalised,
    OneWay,
    TwoForOne,
    Unconditioned,
    Unsubtracted,
    translated,
)
from outpace.models.toy import Table
from outpace.models.vocabulary import Foreign, Vocabulary
from outpace.recipes.omnidraft import Merging
from outpace.recipes.slrs import Strings
from outpace.recipes.tli import Shared
from outpace.sampling.law import TargetLaw
from outpace.verifiers.block import Block
from outpace.verifiers.kseq import KSequential
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import RESIDUAL, Rejection
from outpace.verifiers.traversal import Traversal


class Forgetful(Rejection):
    """After a refusal it draws from p instead of what is left of p."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, law, scores, noise), tree.forest
        refused = [row for row, leaf in enumerate(verdict.leaf) if forest.children[leaf]]
        bonus = list(verdict.bonus)
        for row in refused:
            leaf = verdict.leaf[row]
            key = Key([row], [forest.local[leaf]], [forest.depths[leaf]], "again")
            bonus[row] = int(noise.choose(law.probs([leaf]), key))
        return Verdict(verdict.leaf, bonus)


class LateLaw(Rejection):
    """Off by one on the target's side: a node is tested against the law after it."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        return super().verify(tree, _Late(law, tree), scores, noise)


class PerPath(Match):
    """Every path is checked with draws of its own and the longest match wins: the most agreeable draw is picked."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.tokens.tolist()
        leaf, bonus = [], []
        for row, nodes in enumerate(forest.nodes):
            best = (-1, row, 0)
            for end in nodes:
                if forest.children[end]:
                    continue
                node, path = row, forest.path(end)
                for below in [*path[1:], -1]:
                    token = law.choose([node], noise, f"path{forest.local[end]}")[0]
                    if below < 0 or tokens[below] != token:
                        break
                    node = below
                best = max(best, (forest.depths[node], node, token), key=lambda each: each[0])
            leaf.append(best[1])
            bonus.append(best[2])
        return Verdict(leaf, bonus)


class _Late:
    """The law, looked up one node too far down a chain."""

    def __init__(self, law: Law, tree: TokenTree) -> None:
        self._law, self._forest, self.seconds = law, tree.forest, 0.0

    def _down(self, nodes: Sequence[int] | None) -> list[int]:
        children = self._forest.children
        return [next(iter(children[n]), n) for n in (range(len(self._forest)) if nodes is None else nodes)]

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        return self._law.choose(nodes, noise, use)

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        return self._law.probs(self._down(nodes))


class _TargetResidual(Rejection):
    """Draws the residual with the target's noise."""

    def verify(self, tree: TokenTree, law: Law, scores: Scores, noise: Noise) -> Verdict:
        return super().verify(tree, law, scores, as_target(noise, RESIDUAL))


class PositionNoise(EnumeratedNoise):
    """Every use keyed by absolute position alone: met again after a refusal, when its outcome has been looked at."""

    def _names(self, key: Key) -> list[tuple[Branch, tuple[object, ...]]]:
        pairs = zip(super()._names(key), key.rows, key.depths, strict=True)
        return [(branch, (key.use, self._lengths[row] + depth, key.draw)) for (branch, _), row, depth in pairs]


@dataclass(frozen=True)
class Wrong:
    """One known-wrong variant."""

    name: str
    build: Callable[[], Parts]
    noise: type[EnumeratedNoise] = EnumeratedNoise
    law: Callable[[Scores, TokenTree, Context], Law] = TargetLaw
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])  # settings of its requests


def variants(target: Table, draft: Table, foreign: Foreign) -> list[Wrong]:
    """Variants whose output law is not the target's."""
    once, chain, twice = Fixed(1), Fixed(2), Fixed(Shape.branching((2,)))
    sequences, tree = Fixed(Shape.branching((2, 1))), Fixed(Shape.branching((1, 2)))
    other = Table(target.vocab, seed=3, order=1)
    twofold = Foreign(foreign.model, Vocabulary.longest_match((b"b", b"a", b"b", b"a")), foreign.ours)

    found = retrieved(target)

    def wide(kind: type[Honest], **options: bool) -> Honest:
        return kind(draft, width=2, **options)

    def merging(kind: type[Merging]) -> Parts:
        return Parts(target, kind(foreign, target.vocab, 2, 4, online=False), Rejection(), chain)

    def renaming(kind: type[Shared], pair: Foreign) -> Parts:
        return Parts(target, translated(kind(pair, target.vocab, sampled=True), pair), Rejection(), chain)

    def spelling(kind: type[Strings], controller: Fixed) -> Parts:
        return Parts(target, translated(kind(foreign, target.vocab, 0.01), foreign), Rejection(), controller)

    def recalling(kind: type[LogitNGram]) -> Parts:
        return Parts(target, informed(kind(target.vocab), draft), Rejection(), twice)

    def beside() -> Parts:
        both = Merged([LM(model, replace=True) for model in (draft, other)])
        return Parts(target, both, Rejection(random_order=True), once)

    return [
        Wrong("argmax claimed as a draw", lambda: Parts(target, ArgmaxClaimed(draft), Rejection(), chain)),
        Wrong("top-k claimed as draws", lambda: Parts(target, TopClaimed(draft), Rejection(), twice)),
        Wrong("dropped after looking", lambda: Parts(target, Dropped(draft), Rejection(), chain)),
        Wrong("siblings re-sorted", lambda: Parts(target, wide(Sorted), Rejection(), twice)),
        Wrong("siblings in token order", lambda: Parts(target, wide(Numbered), Rejection(), twice)),
        Wrong("siblings sorted by the target", lambda: Parts(target, wide(Honest), Resorted(Rejection()), twice)),
        Wrong("equal tokens of two drafters merged", beside),
        Wrong(
            "claimed independent",
            lambda: Parts(target, wide(ClaimedIndependent), Rejection(), twice),
        ),
        Wrong("law off by one", lambda: Parts(target, OffByOne(draft), Rejection(), chain)),
        Wrong("law before temperature", lambda: Parts(target, OtherTemperature(draft), Rejection(), chain)),
        Wrong("coupled but claimed", lambda: Parts(target, Coupled(draft), _TargetResidual(), chain)),
        Wrong("residual forgotten", lambda: Parts(target, Honest(draft), Forgetful(), chain)),
        Wrong("target law off by one", lambda: Parts(target, Honest(draft), LateLaw(), chain)),
        Wrong("last draw claimed from the whole law", lambda: Parts(target, wide(WholeLaw), Rejection(), twice)),
        Wrong("chosen tried before the drawn", lambda: Parts(target, wide(GreedyLast), ChosenFirst(), twice)),
        Wrong("draws per path", lambda: Parts(target, wide(Honest), PerPath(), twice)),
        Wrong("likeliest paths kept", lambda: Parts(target, likeliest_kept(draft, 2), Rejection(), once)),
        Wrong("scaled for one draw", lambda: Parts(target, LM(draft, replace=True), Underscaled(), twice)),
        Wrong("overdrawn residual", lambda: Parts(target, LM(draft, replace=True), Overdrawn(slack=1), twice)),
        Wrong("sequences never fewer", lambda: Parts(target, LM(draft, replace=True), NeverFewer(2), sequences)),
        Wrong("repeated draws counted once", lambda: Parts(target, CountedOnce(draft), KSequential(), twice)),
        Wrong(
            "k-sequential without replacement", lambda: Parts(target, wide(ClaimedIndependent), KSequential(), twice)
        ),
        Wrong(
            "k-sequential of the likeliest",
            lambda: Parts(target, wide(TopClaimed, replace=True), KSequential(), twice),
        ),
        Wrong("n-grams: not less its elders", lambda: recalling(NotLessItsElders)),
        Wrong("n-grams: law before temperature", lambda: recalling(BeforeTemperature)),
        Wrong("predictions claimed", lambda: Parts(target, Overwritten(Honest(draft), (0, 1)), Rejection(), chain)),
        Wrong("predicted or drawn alike", lambda: Parts(target, Preferred(Honest(draft), (0, 1)), Rejection(), chain)),
        Wrong("noise keyed by position", lambda: Parts(target, ReadsRefused(draft), Rejection(), chain), PositionNoise),
        Wrong("block: first refusal", lambda: Parts(target, Honest(draft), FirstRefusal(), chain)),
        Wrong("block: weight as chance", lambda: Parts(target, Honest(draft), WeightAsChance(), chain)),
        Wrong("block: residual unweighted", lambda: Parts(target, Honest(draft), Unweighted(), chain)),
        Wrong("block: dropped after looking", lambda: Parts(target, Dropped(draft), Block(), chain)),
        Wrong("block: noise by position", lambda: Parts(target, Honest(draft), Block(), chain), PositionNoise),
        Wrong("traversal: first weight", lambda: Parts(target, wide(Honest), FirstWeight(), chain)),
        Wrong("traversal: weight too late", lambda: Parts(target, LM(other), LaterWeight(), tree)),
        Wrong("traversal: residual forgotten", lambda: Parts(target, wide(Honest), WholeAgain(), twice)),
        Wrong("traversal: siblings re-sorted", lambda: Parts(target, wide(Honest), Resorted(Traversal()), twice)),
        Wrong("traversal: claimed independent", lambda: Parts(target, wide(ClaimedIndependent), Traversal(), twice)),
        Wrong("merged without its condition", lambda: merging(Unconditioned)),
        Wrong("merged mass counted twice", lambda: merging(Unsubtracted)),
        Wrong("cut to shared tokens, not rescaled", lambda: renaming(NotRenormalised, foreign)),
        Wrong("two tokens renamed to one", lambda: renaming(TwoForOne, twofold)),
        Wrong("strings written one way only", lambda: spelling(OneWay, once)),
        Wrong("what is left of a string used again", lambda: spelling(Leftover, chain)),
        Wrong("traversal: noise by position", lambda: Parts(target, wide(Honest), Traversal(), chain), PositionNoise),
        *(Wrong(f"draws per path: {name}", lambda d=d: Parts(target, d(), PerPath(), chain)) for name, d in found),
        *(Wrong(name, build, law=law, sampling=asked) for name, build, law, asked in histories(target, draft)),
    ]
