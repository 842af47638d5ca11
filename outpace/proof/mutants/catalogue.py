"""The mutants on table models: mistakes in published code, each of which the distribution test must detect.

Every mutant is a set of parts that would be exact but for one small change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.clock import Seconds
from outpace.core.contracts import MakeTargetProbs, Parts, Scores, TargetProbs, Verdict
from outpace.core.noise import TARGET, Key, Noise
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.predictors.hidden_state.predictor import untrained_hidden_state_predictor
from outpace.models.table import TableTarget
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.enumerated_noise import Branch, EnumeratedNoise
from outpace.proof.mutants.arms import BestSample, SameNoise, arms
from outpace.proof.mutants.bottom_up_rules import (
    BonusFromTarget,
    FirstRefusal,
    FirstWeight,
    LaterWeight,
    Unweighted,
    WeightAsProbability,
)
from outpace.proof.mutants.cross_vocabulary import (
    ClaimedAfterUpdate,
    CutPairs,
    HiddenStop,
    LastTokenDropped,
    Leftover,
    NotRenormalised,
    OneWay,
    TwoForOne,
    Unconditioned,
    Unsubtracted,
    translated,
)
from outpace.proof.mutants.drafters import (
    ArgmaxClaimed,
    ClaimedIndependent,
    CorrectDrafter,
    Coupled,
    Dropped,
    Numbered,
    OffByOne,
    OtherTemperature,
    ReadsRejected,
    Reranked,
    Sorted,
    TopClaimed,
    as_target,
)
from outpace.proof.mutants.dropped_end import EndDropped, ends_of_low_path_probability
from outpace.proof.mutants.exits import ExitByToken
from outpace.proof.mutants.fused_chains import fused
from outpace.proof.mutants.greedy_last import ChosenFirst, GreedyLast, WholeDistribution
from outpace.proof.mutants.kept_tokens import CutAfterDrawing, OtherOrder, WholeVocabularyClaimed
from outpace.proof.mutants.learning import NEVER, ClaimedByTheNextVersion
from outpace.proof.mutants.look_ahead import conditioned_on_the_first_token, level_before_claimed
from outpace.proof.mutants.most_confident import confident_of_draws
from outpace.proof.mutants.ngram_tables import BeforeTemperature, ClaimedWithReplacement, informed
from outpace.proof.mutants.position_heads import beams, ranks_claimed
from outpace.proof.mutants.prediction import Overwritten, PredictionSubstituted
from outpace.proof.mutants.retrieval import retrieved
from outpace.proof.mutants.routed_head import chains_of_router
from outpace.proof.mutants.sampling_history import histories
from outpace.proof.mutants.siblings import (
    CountedOnce,
    Merged,
    NeverFewer,
    Overdrawn,
    Resorted,
    Underscaled,
    likeliest_kept,
    one_expert_claimed,
)
from outpace.proof.mutants.skip_sets import BestDraft, chosen_layers, most_probable_siblings
from outpace.proof.mutants.windows import best_draft_claimed, confidence_claimed
from outpace.recipes.control.disco import LearnedConfidence
from outpace.recipes.control.specdec_pp import Survival
from outpace.recipes.online.aurora import aurora
from outpace.recipes.online.online_sd.recipe import online_sd
from outpace.recipes.training_free.stand.recipe import NGramProbabilityDrafter
from outpace.recipes.vocabularies.omnidraft.early_stop import Stop
from outpace.recipes.vocabularies.omnidraft.pair_merging import PairMergingDrafter
from outpace.recipes.vocabularies.slrs import StringDrafts
from outpace.recipes.vocabularies.tli import SharedTokenDrafts
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.block import Block
from outpace.verifiers.kseq import KSequential
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import RESIDUAL, Rejection
from outpace.verifiers.traversal import Traversal


class Forgetful(Rejection):
    """Mutant: after a rejection, draws the bonus token from p instead of the residual."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        verdict, forest = super().verify(tree, target_probs, scores, noise), tree.forest
        refused = [row for row, leaf in enumerate(verdict.leaf) if forest.children[leaf]]
        bonus = list(verdict.bonus)
        for row in refused:
            leaf = verdict.leaf[row]
            key = Key([row], [forest.local[leaf]], [forest.depths[leaf]], "again")
            bonus[row] = int(noise.choose(target_probs.probs([leaf]), key))
        return Verdict(verdict.leaf, bonus)


class LateDistribution(Rejection):
    """Mutant: tests a draft token against the target's distribution of the token after it."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        return super().verify(tree, _Late(target_probs, tree), scores, noise)


class PerPath(Match):
    """Mutant: samples target tokens separately for each path and accepts the longest path that matches its
    samples, which accepts drafted tokens too often."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, tokens = tree.forest, tree.tokens.tolist()
        leaf, bonus = [], []
        for row, nodes in enumerate(forest.nodes):
            best = (-1, row, 0)
            for end in nodes:
                if forest.children[end]:
                    continue
                node, path = row, forest.path(end)
                for below in [*path[1:], -1]:
                    token = target_probs.choose([node], noise, f"path{forest.local[end]}")[0]
                    if below < 0 or tokens[below] != token:
                        break
                    node = below
                best = max(best, (forest.depths[node], node, token), key=lambda accepted: accepted[0])
            leaf.append(best[1])
            bonus.append(best[2])
        return Verdict(leaf, bonus)


class _Late:
    """Implementation of core.contracts.TargetProbs whose `probs` are those of each node's first child."""

    def __init__(self, target_probs: TargetProbs, tree: TokenTree) -> None:
        self._distribution, self._forest = target_probs, tree.forest
        self.seconds: Seconds = 0.0

    def _down(self, nodes: Sequence[int] | None) -> list[int]:
        children = self._forest.children
        return [next(iter(children[n]), n) for n in (range(len(self._forest)) if nodes is None else nodes)]

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = TARGET) -> list[int]:
        return self._distribution.choose(nodes, noise, use)

    def probs(self, nodes: Sequence[int] | None) -> Tensor:
        return self._distribution.probs(self._down(nodes))


class _TargetResidual(Rejection):
    """Rejection sampling that draws from the residual with the noise keys of the target's tokens, which makes
    the drafter `Coupled` biased."""

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        return super().verify(tree, target_probs, scores, as_target(noise, RESIDUAL))


class PositionNoise(EnumeratedNoise):
    """Mutant: enumerated noise keyed by use and absolute position alone: after a rejection the next step
    reuses numbers whose outcomes have already influenced the text."""

    def _names(self, key: Key) -> list[tuple[Branch, tuple[object, ...]]]:
        pairs = zip(super()._names(key), key.rows, key.depths, strict=True)
        return [
            (branch, (key.use, self._lengths[row] + depth, key.draw)) for (branch, _), row, depth in pairs
        ]


@dataclass(frozen=True)
class Mutant:
    """One mutant: parts, noise and target probabilities, of which one is wrong."""

    name: str
    build: Callable[[], Parts]
    noise: type[EnumeratedNoise] = EnumeratedNoise
    target_probs: MakeTargetProbs = LazyTargetProbs
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])  # sampling parameters of its requests


def variants(target: TableTarget, draft: TableTarget, cross_vocabulary: CrossVocabularyDraft) -> list[Mutant]:
    """All mutants on table models; none of them has the target's output distribution."""
    once, chain, twice = Fixed(1), Fixed(2), Fixed(Shape.branching((2,)))
    sequences, tree = Fixed(Shape.branching((2, 1))), Fixed(Shape.branching((1, 2)))
    other = TableTarget(target.vocab, seed=3, order=1)
    twofold = CrossVocabularyDraft(
        cross_vocabulary.model,
        Vocabulary.longest_match((b"b", b"a", b"b", b"a")),
        cross_vocabulary.target_vocabulary,
    )

    drafters = retrieved(target)

    def wide(kind: type[CorrectDrafter], **options: bool) -> CorrectDrafter:
        return kind(draft, width=2, **options)

    def merging(kind: type[PairMergingDrafter], stop: Stop | None = None) -> Parts:
        drafter = kind(cross_vocabulary, target.vocab, 2, 4, pairs="all", stop=stop)
        return Parts(target, drafter, Rejection(), chain)

    def renaming(kind: type[SharedTokenDrafts], pair: CrossVocabularyDraft) -> Parts:
        return Parts(target, translated(kind(pair, target.vocab, sampled=True), pair), Rejection(), chain)

    def spelling(kind: type[StringDrafts], controller: Fixed) -> Parts:
        return Parts(
            target,
            translated(kind(cross_vocabulary, target.vocab, 0.01), cross_vocabulary),
            Rejection(),
            controller,
        )

    def recalling(kind: type[NGramProbabilityDrafter]) -> Parts:
        return Parts(target, informed(kind(target.vocab), draft), Rejection(), twice)

    def survival() -> Survival:
        return Survival(untrained_hidden_state_predictor(draft), depth=2, least=1, threshold=0.2)

    def two_drafters() -> Parts:
        both = Merged([DraftModel(model, replace=True) for model in (draft, other)])
        return Parts(target, both, Rejection(random_order=True), once)

    return [
        Mutant("medusa: ranks claimed", lambda: Parts(target, ranks_claimed(target), Rejection(), twice)),
        Mutant("redrafter: draws per path", lambda: Parts(target, beams(target), PerPath(), chain)),
        Mutant(
            "jakiro: q of the level before claimed",
            lambda: Parts(target, level_before_claimed(target), Rejection(), chain),
        ),
        Mutant(
            "jakiro*: one expert's q claimed for all siblings",
            lambda: Parts(target, one_expert_claimed(target), Rejection(), twice),
        ),
        Mutant(
            "falcon: q of the second token conditioned on the first",
            lambda: Parts(target, conditioned_on_the_first_token(target), Rejection(), chain),
        ),
        Mutant(
            "window in confidence order claimed",
            lambda: Parts(target, confidence_claimed(draft), Rejection(), chain),
        ),
        Mutant(
            "best draft of a window claimed",
            lambda: Parts(target, best_draft_claimed(draft), Rejection(), sequences),
            sampling={"max_tokens": 2},  # with more tokens it has many more runs
        ),
        Mutant("argmax claimed as a draw", lambda: Parts(target, ArgmaxClaimed(draft), Rejection(), chain)),
        Mutant("top-k claimed as draws", lambda: Parts(target, TopClaimed(draft), Rejection(), twice)),
        Mutant("dropped after looking", lambda: Parts(target, Dropped(draft), Rejection(), chain)),
        Mutant(
            "token of low survival dropped",
            lambda: Parts(target, EndDropped(draft, keeps_hidden=True), Rejection(), survival()),
        ),
        Mutant(
            "token of low probability dropped",
            lambda: Parts(target, EndDropped(draft), Rejection(), LearnedConfidence(2, 0.4)),
        ),
        Mutant("re-ranked tree claimed", lambda: Parts(target, wide(Reranked), Rejection(), chain)),
        Mutant("token of low path probability dropped", lambda: ends_of_low_path_probability(target)),
        Mutant("siblings re-sorted", lambda: Parts(target, wide(Sorted), Rejection(), twice)),
        Mutant("siblings in token order", lambda: Parts(target, wide(Numbered), Rejection(), twice)),
        Mutant(
            "siblings sorted by the target",
            lambda: Parts(target, wide(CorrectDrafter), Resorted(Rejection()), twice),
        ),
        Mutant("equal tokens of two drafters merged", two_drafters),
        Mutant(
            "claimed independent",
            lambda: Parts(target, wide(ClaimedIndependent), Rejection(), twice),
        ),
        Mutant(
            "exit chosen by the drawn token",
            lambda: Parts(target, ExitByToken(draft, other), Rejection(), chain),
        ),
        # both have many more runs with a third token
        Mutant(
            "drafter chosen by its sample",
            lambda: arms(target, (draft, other), BestSample),
            sampling={"max_tokens": 2},
        ),
        Mutant(
            "tree chosen by its drawn tokens",
            lambda: confident_of_draws(target),
            sampling={"max_tokens": 2},
        ),
        Mutant(
            "drafter chosen with the noise of its draft",
            lambda: arms(target, (draft, other), controller=SameNoise),
        ),
        Mutant("most probable siblings claimed as draws", lambda: most_probable_siblings(target)),
        Mutant("skip set chosen by its sample", lambda: chosen_layers(target, BestDraft)),
        Mutant("fused token claimed as drawn by one draft model", lambda: fused(target, (draft, other))),
        Mutant("distribution off by one", lambda: Parts(target, OffByOne(draft), Rejection(), chain)),
        Mutant(
            "distribution before temperature",
            lambda: Parts(target, OtherTemperature(draft), Rejection(), chain),
        ),
        Mutant("coupled but claimed", lambda: Parts(target, Coupled(draft), _TargetResidual(), chain)),
        Mutant("residual forgotten", lambda: Parts(target, CorrectDrafter(draft), Forgetful(), chain)),
        Mutant(
            "target distribution off by one",
            lambda: Parts(target, CorrectDrafter(draft), LateDistribution(), chain),
        ),
        Mutant(
            "last draw claimed from the whole distribution",
            lambda: Parts(target, wide(WholeDistribution), Rejection(), twice),
        ),
        Mutant(
            "chosen tried before the drawn", lambda: Parts(target, wide(GreedyLast), ChosenFirst(), twice)
        ),
        Mutant("draws per path", lambda: Parts(target, wide(CorrectDrafter), PerPath(), twice)),
        Mutant("likeliest paths kept", lambda: Parts(target, likeliest_kept(draft, 2), Rejection(), once)),
        Mutant(
            "scaled for one draw",
            lambda: Parts(target, DraftModel(draft, replace=True), Underscaled(), twice),
        ),
        Mutant(
            "overdrawn residual",
            lambda: Parts(target, DraftModel(draft, replace=True), Overdrawn(tolerance=1), twice),
        ),
        Mutant(
            "sequences never fewer",
            lambda: Parts(target, DraftModel(draft, replace=True), NeverFewer(2), sequences),
        ),
        Mutant(
            "repeated draws counted once", lambda: Parts(target, CountedOnce(draft), KSequential(), twice)
        ),
        Mutant(
            "k-sequential without replacement",
            lambda: Parts(target, wide(ClaimedIndependent), KSequential(), twice),
        ),
        Mutant(
            "k-sequential of the likeliest",
            lambda: Parts(target, wide(TopClaimed, replace=True), KSequential(), twice),
        ),
        Mutant("n-grams: claimed with replacement", lambda: recalling(ClaimedWithReplacement)),
        Mutant("n-grams: distribution before temperature", lambda: recalling(BeforeTemperature)),
        Mutant(
            "predictions claimed",
            lambda: Parts(target, Overwritten(CorrectDrafter(draft), (0, 1)), Rejection(), chain),
        ),
        Mutant(
            "predicted or drawn alike",
            lambda: Parts(target, PredictionSubstituted(CorrectDrafter(draft), (0, 1)), Rejection(), chain),
        ),
        Mutant(
            "noise keyed by position",
            lambda: Parts(target, ReadsRejected(draft), Rejection(), chain),
            PositionNoise,
        ),
        Mutant("block: first refusal", lambda: Parts(target, CorrectDrafter(draft), FirstRefusal(), chain)),
        Mutant(
            "block: weight as probability",
            lambda: Parts(target, CorrectDrafter(draft), WeightAsProbability(), chain),
        ),
        Mutant(
            "block: residual unweighted", lambda: Parts(target, CorrectDrafter(draft), Unweighted(), chain)
        ),
        Mutant("block: dropped after looking", lambda: Parts(target, Dropped(draft), Block(), chain)),
        Mutant(
            "block: noise by position",
            lambda: Parts(target, CorrectDrafter(draft), Block(), chain),
            PositionNoise,
        ),
        Mutant("traversal: first weight", lambda: Parts(target, wide(CorrectDrafter), FirstWeight(), chain)),
        Mutant("traversal: weight too late", lambda: Parts(target, DraftModel(other), LaterWeight(), tree)),
        Mutant(
            "traversal: residual forgotten",
            lambda: Parts(target, wide(CorrectDrafter), BonusFromTarget(), twice),
        ),
        Mutant(
            "traversal: siblings re-sorted",
            lambda: Parts(target, wide(CorrectDrafter), Resorted(Traversal()), twice),
        ),
        Mutant(
            "traversal: claimed independent",
            lambda: Parts(target, wide(ClaimedIndependent), Traversal(), twice),
        ),
        Mutant("merged without its condition", lambda: merging(Unconditioned)),
        Mutant("merged mass counted twice", lambda: merging(Unsubtracted)),
        Mutant("draft model updated before its claim", lambda: merging(ClaimedAfterUpdate)),
        Mutant(
            "draft claimed by the next version of the draft model",
            lambda: ClaimedByTheNextVersion.of(online_sd.build(target, draft=draft, depth=2, **NEVER)),
        ),
        Mutant(
            "draft claimed by the next version of the head",
            lambda: ClaimedByTheNextVersion.of(aurora.build(target, depth=2, **NEVER)),
        ),
        Mutant("pair ruled out by the stop", lambda: merging(CutPairs, HiddenStop(0.5))),
        Mutant("token that stops the draft dropped", lambda: merging(LastTokenDropped, HiddenStop(0.5))),
        Mutant("cut to shared tokens, not rescaled", lambda: renaming(NotRenormalised, cross_vocabulary)),
        Mutant("two tokens renamed to one", lambda: renaming(TwoForOne, twofold)),
        Mutant(
            "kept tokens: whole vocabulary claimed",
            lambda: Parts(target, WholeVocabularyClaimed(draft), Rejection(), chain),
        ),
        Mutant(
            "kept tokens: columns in another order than their ids",
            lambda: Parts(target, OtherOrder(draft), Rejection(), chain),
        ),
        Mutant("router: q not normalised over its groups", lambda: chains_of_router(target)),
        Mutant(
            "ids beyond the target's cut after drawing",
            lambda: Parts(target, CutAfterDrawing(target.vocab), Rejection(), chain),
        ),
        Mutant("strings written one way only", lambda: spelling(OneWay, once)),
        Mutant("what is left of a string used again", lambda: spelling(Leftover, chain)),
        Mutant(
            "traversal: noise by position",
            lambda: Parts(target, wide(CorrectDrafter), Traversal(), chain),
            PositionNoise,
        ),
        *(
            Mutant(f"draws per path: {name}", lambda d=d: Parts(target, d(), PerPath(), chain))
            for name, d in drafters
        ),
        *(
            Mutant(name, build, target_probs=target_probs, sampling=params)
            for name, build, target_probs, params in histories(target, draft)
        ),
    ]
