"""How SPRINTER's predictor (Zhong et al. 2025) learns which draft tokens can stay without the target's test.

From a place in each text the draft model draws one token after the other. The predictor learns which of them
are at least as probable for the target as for the draft model. Such a token stays in the text; in the place
of another one the target draws a token. The texts are therefore like those of decoding.

Letters: B rows, N draft tokens, D hidden size of the draft model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim, Drawn, DrawnBeside
from outpace.core.contracts import Guarantee, Parts, SamplingParams, Scores, TargetProbs, Verdict, Want
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_model import DraftModel
from outpace.engine.engine import Engine
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.trust.predictor import KIND, TrustPredictor
from outpace.training.config import Optimizer, Predictor, TrainConfig
from outpace.training.evaluation import ClassifierEvaluation
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.classifier import ClassifierLesson
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import NOTHING, Beside
from outpace.training.predictor_methods import DraftPredictorMethod, Judged

GROUP = 16  # texts in which draft tokens are drawn together
Labelled = tuple[Tensor, Tensor]  # (N, D) states after draft tokens, (N,) bool whether they can stay


class TrustLesson(ClassifierLesson):
    """A predictor of which draft tokens can stay; neither of the models is trained."""

    layers = ()

    def __init__(
        self,
        predictor: TrustPredictor,
        draft: PreTrainedModel,
        target: HFTarget,
        settings: Predictor,
        end_tokens: tuple[int, ...] = (),
    ) -> None:
        super().__init__(predictor, target.head, settings.rejection_weight)
        self._models = (target, HFTarget(draft))  # not as modules: they are not trained
        self._settings, self._end_tokens = settings, end_tokens
        # text and where its answer begins -> its draft tokens, which are drawn once
        self._known: dict[tuple[int, ...], Labelled] = {}

    def batch(self, source: FeatureSource, indices: Sequence[int], seed: int) -> Batch:
        # in groups that do not depend on the step, so that a run that was stopped computes the same again
        for begin in sorted({index - index % GROUP for index in indices}):
            group = source.examples[begin : begin + GROUP]
            self._draw([(text.first, *text.tokens) for text in group])
        return source.batch(indices)

    def labelled(self, batch: Batch) -> Labelled:
        keys = [
            (int(learns.long().argmax()), *tokens[is_token].tolist())
            for tokens, is_token, learns in zip(batch.tokens, batch.is_token, batch.learns, strict=True)
        ]
        self._draw(keys)
        states, stays = zip(*(self._known[key] for key in keys), strict=True)
        return torch.cat(states).to(batch.tokens.device), torch.cat(stays).to(batch.tokens.device)

    def quality(self, evaluation: ClassifierEvaluation) -> float:
        return evaluation.auc

    def _draw(self, keys: Sequence[tuple[int, ...]]) -> None:
        if new := [key for key in dict.fromkeys(keys) if key not in self._known]:
            self._known.update(zip(new, self._drawn(new), strict=True))

    def _drawn(self, keys: Sequence[tuple[int, ...]]) -> list[Labelled]:
        """The draft tokens after a place in the answer of each text, which follows from the text."""
        (target, draft), count = self._models, self._settings.depth
        prompts, sampling = list[Tensor](), list[SamplingParams]()
        longest = min(model.max_length or 1 << 30 for model in self._models) - count - 1
        for first, *tokens in keys:
            choice = random.Random(f"{first} {tokens}")
            place = max(1, min(choice.randint(first, len(tokens)), longest))
            prompts.append(torch.tensor(tokens[:place]))
            # one more, as no token is drafted where only one is missing
            params = SamplingParams(self._settings.temperature, max_tokens=count + 1, stop=self._end_tokens)
            sampling.append(replace(params, seed=choice.getrandbits(31)))
        drafter = DraftModel(draft, keeps_hidden=True, reads_leaves=True)
        labelling = Labelling(drafter)
        engine = Engine.of(Parts(target, drafter, labelling, Fixed(1)), prompts, sampling)
        states, stays = [[list[Tensor]() for _ in keys] for _ in range(2)]
        for step in engine.steps():
            for row, (state, stay) in labelling.newest.items():
                slot = step.ctx.slots[row]
                states[slot].append(state)
                stays[slot].append(stay)
        none = draft.embed(torch.zeros(0, dtype=torch.int64, device=draft.device)), torch.zeros(0).bool()
        # copies, as tensors of inference cannot be learned from
        return [
            (torch.stack(each).clone(), torch.stack(stay).clone()) if each else none
            for each, stay in zip(states, stays, strict=True)
        ]


class Labelling:
    """Implementation of core.contracts.Verifier for drafts of one token: the token stays if it is at least as
    probable for the target as for the draft model, else the target draws one in its place. Either is the
    bonus token, so that each step adds one."""

    want = Want()
    accepts: tuple[type[Claim], ...] = (Drawn,)
    guarantee = Guarantee.LOSSY

    def __init__(self, drafter: DraftModel) -> None:
        self._drafter = drafter
        # row of the newest step -> the state (D,) after its draft token, and () bool whether that can stay
        self.newest: dict[int, tuple[Tensor, Tensor]] = {}

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        forest, claim = tree.forest, tree.claim
        assert isinstance(claim, DrawnBeside)
        roots = range(forest.num_rows)
        bonus = target_probs.choose(roots, noise)
        self.newest, drafted = {}, [(row, forest.children[row][0]) for row in roots if forest.children[row]]
        if drafted:
            rows, nodes = ([pair[part] for pair in drafted] for part in (0, 1))
            at = tree.tokens[nodes].to(claim.after.device)[:, None]
            p, q = target_probs.probs(rows), claim.after[rows]
            stays = (q.gather(1, at) <= p.gather(1, at))[:, 0]
            self.newest = dict(zip(rows, zip(self._drafter.hidden(nodes), stays, strict=True), strict=True))
            for (row, node), stay in zip(drafted, stays.tolist(), strict=True):
                if stay:
                    bonus[row] = int(tree.tokens[node])
        return Verdict(list(roots), bonus)


@dataclass(frozen=True, kw_only=True)
class TrustMethod(DraftPredictorMethod):
    """Trains a predictor of the draft tokens that can stay without the target's test."""

    promise: ClassVar[str] = (
        "lets draft tokens stay that the target has not tested: the output has another distribution"
    )

    def defaults(self) -> TrainConfig:
        config = TrainConfig(optimizer=self.optimizer, evaluate_every=50)
        answers = replace(config.answers, max_tokens=64)
        return replace(config, answers=answers, predictor=replace(config.predictor, rejection_weight=1.0))

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        return TrustLesson(drafter.predictor, drafter.drafter, target, config.predictor, beside.end_tokens)

    def described(self, target: str, start: str | None) -> str:
        return f"predictor of which tokens of {start} need no test by {target}"


def _new(draft: PreTrainedModel, config: TrainConfig) -> TrustPredictor:
    return TrustPredictor(int(next(draft.get_input_embeddings().parameters()).shape[1]))


METHODS = (
    TrustMethod(
        optimizer=Optimizer(rate=5e-3),
        name=KIND.predictor.method,
        title=KIND.title,
        paper=KIND.paper,
        new=_new,
    ),
)
