"""How dUltra's planner (Chen et al. 2025) learns which masks of a window to reveal together.

It first imitates the rule that reveals all tokens of a high draft probability. Then it learns from rewards,
by GRPO: of several drafts of one window, with reveals drawn from its probabilities, those of a higher reward
than the others become more probable.

Letters: R texts, C columns (see training.lessons.lesson), W columns with windows, G drafts of each, M = WG
drafts, n masks of a window, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from outpace.api.model import Model
from outpace.drafters.model.windows import as_many_as_expected
from outpace.models.hf.target import HFTarget
from outpace.models.mask_token import WINDOW_MASK
from outpace.models.predictors.reveals.predictor import KIND, RevealPlanner
from outpace.training.config import ConfigError, Reveals, TrainConfig
from outpace.training.draft_model import draft_model
from outpace.training.evaluation import RevealEvaluation
from outpace.training.features import Batch
from outpace.training.lessons.classifier import ClassifierLesson
from outpace.training.lessons.lesson import Lesson, following
from outpace.training.method import NOTHING, Beside, FirstRun, frozen_head
from outpace.training.predictor_methods import DraftPredictorMethod, Judged
from outpace.training.texts import DataError, Example
from outpace.training.window_drafts import WindowDrafts, WindowForward, at_least_one, tokens_of
from outpace.training.window_methods import NUM_ADDED

LEAST_DEVIATION = 1e-6  # added to the standard deviation of a group's rewards


def whole_windows(batch: Batch, size: int) -> Tensor:  # (R, C) bool
    """The columns behind which the text has as many generated tokens as a window has masks."""
    return following(batch.learns, 2) & following(batch.learns, 1 + size)


def side_by_side(batch: Batch, size: int) -> Tensor:  # (R, C) bool
    """Of these columns the first of each text, and further ones whose windows do not overlap."""
    columns = whole_windows(batch, size)
    return columns & ((columns.cumsum(1) - 1) % size == 0)


def surest(confidence: float, states: Tensor, draft_probs: Tensor, is_mask: Tensor) -> Tensor:
    """The tokens of this draft probability or a higher one, at least one: what the planner first imitates."""
    return at_least_one(draft_probs >= confidence, draft_probs, is_mask)


def drawn(
    planner: RevealPlanner, noise: torch.Generator, states: Tensor, draft_probs: Tensor, is_mask: Tensor
) -> Tensor:
    """Each mask with the planner's probability; if there is none, the most probable one."""
    probs = planner(states).sigmoid()
    return at_least_one(torch.rand(probs.shape, generator=noise).to(probs) < probs, probs, is_mask)


def expected(planner: RevealPlanner, states: Tensor, draft_probs: Tensor, is_mask: Tensor) -> Tensor:
    """What the planner reveals in decoding."""
    probs, revealed = planner(states).sigmoid().cpu(), torch.zeros_like(is_mask)
    for window, masks in enumerate(is_mask.cpu()):
        if masks.any():
            places = masks.nonzero()[:, 0]
            revealed[window, places[as_many_as_expected(0, probs[window, places].tolist())]] = True
    return revealed


def log_prob(planner: RevealPlanner, forward: WindowForward) -> Tensor:  # (M,)
    """The log probability of what was revealed after a forward: log u of the revealed masks and log(1 - u)
    of those that were kept. That of the tokens is left out, as the draft model is not trained and the planner
    has no part in it."""
    log_odds = planner(forward.states)
    each = torch.where(forward.revealed, logsigmoid(log_odds), logsigmoid(-log_odds))
    return torch.where(forward.is_mask, each, 0.0).sum(-1)


class ImitationLesson(ClassifierLesson):
    """The first stage: binary cross entropy with what `surest` reveals, in all forwards of its drafts. Masks
    that it keeps have a weight of their own."""

    layers = ()
    predictor: RevealPlanner

    def __init__(self, planner: RevealPlanner, drafts: WindowDrafts, config: TrainConfig) -> None:
        super().__init__(planner, nn.Identity(), config.predictor.rejection_weight)
        self._drafts, self._confidence = drafts, config.reveals.confidence

    def labelled(self, batch: Batch) -> tuple[Tensor, Tensor]:  # (N, D + 1), (N,) bool
        columns = side_by_side(batch, self._drafts.size)
        forwards = self._drafts(batch.tokens, columns, partial(surest, self._confidence))
        states = [each.states[each.is_mask] for each in forwards]
        none = torch.zeros(0, self.predictor.hidden_size + 1, device=columns.device)
        labels = [each.revealed[each.is_mask] for each in forwards]
        return torch.cat([none, *states]), torch.cat([columns[:0, 0], *labels])


class RevealLesson(Lesson):
    """The second stage. The reward of a draft is our reading of the paper's, which counts right answers: its
    tokens that equal the text's, up to the first other one, minus a cost for each forward, plus a weight
    times the target's log probability minus the draft model's, in the mean over the tokens behind right ones.
    As a draft is worth its accepted tokens per time, the cost to set is about r d / (1 + f d), with r tokens
    per step, f forwards, and d the time of a forward in that of a step without drafts.

    Advantages are relative to the mean and deviation of a window's drafts, those below a threshold 0. Left
    out of the paper's stage are the training of the draft model, which stays as it is, and the clipping of
    probability ratios: a step learns from drafts of the present planner, whose ratios are 1."""

    evaluation_type = RevealEvaluation

    def __init__(
        self,
        planner: RevealPlanner,
        drafts: WindowDrafts,
        target_head: nn.Module,
        settings: Reveals,
        temperature: float,
    ) -> None:
        super().__init__(dict(planner.named_parameters()), target_head)
        self.planner, self._drafts = planner, drafts
        self._settings, self._temperature = settings, temperature

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        settings = self._settings
        possible = whole_windows(batch, self._drafts.size)
        share = settings.windows * len(possible) / max(1, int(possible.sum()))
        columns = possible & (torch.rand(possible.shape, generator=noise).to(possible.device) < share)
        forwards = self._drafts(
            batch.tokens,
            columns,
            partial(drawn, self.planner, noise),
            copies=settings.group,
            temperature=self._temperature,
            noise=noise,
        )
        if not forwards:
            return 0 * torch.cat([each.flatten() for each in self.planner.parameters()]).sum()
        advantages = self.advantages(self.rewards(batch, columns, forwards))
        return -(advantages * torch.stack([log_prob(self.planner, each) for each in forwards])).sum(0).mean()

    def advantages(self, rewards: Tensor) -> Tensor:  # (M,) -> (M,)
        """How much better each draft is than the others of its window, in units of their deviation."""
        groups = rewards.view(-1, self._settings.group)
        better = groups - groups.mean(1, keepdim=True)
        better = better / (groups.std(1, keepdim=True) + LEAST_DEVIATION)
        return torch.where(better < self._settings.least_advantage, 0.0, better).flatten()

    @torch.no_grad()
    def rewards(self, batch: Batch, columns: Tensor, forwards: list[WindowForward]) -> Tensor:  # (M,)
        tokens, draft_probs, num_forwards = tokens_of(forwards)
        copies = len(tokens) // int(columns.sum())
        right = self._right(batch, columns, tokens.view(-1, copies, tokens.shape[1])).flatten(0, 1)
        head, places = self._target_head[0], range(tokens.shape[1])
        states = torch.stack([following(batch.hidden[-1], 1 + place)[columns] for place in places], 1)
        log_p = head(states.to(next(head.parameters()).dtype)).float().log_softmax(-1)  # (W, n, V)
        log_p = log_p.gather(-1, tokens.view(-1, copies, len(places)).mT).mT.flatten(0, 1)
        tested = torch.cat((torch.ones_like(right[:, :1]), right[:, :-1]), 1)
        gain = (tested * (log_p - draft_probs.log())).sum(1) / tested.sum(1)
        settings = self._settings
        return right.sum(1) + settings.distillation * gain - settings.cost * num_forwards

    @torch.no_grad()
    def evaluation(self, step: int, batches: Iterable[Batch]) -> RevealEvaluation:
        policies = partial(expected, self.planner), partial(surest, self._settings.confidence)
        sums = torch.zeros(len(policies), 3, dtype=torch.float64)  # drafts, accepted tokens, forwards
        for batch in batches:
            columns = side_by_side(batch, self._drafts.size)
            for policy, choose in enumerate(policies):
                if forwards := self._drafts(batch.tokens, columns, choose):
                    tokens, _, num_forwards = tokens_of(forwards)
                    right = self._right(batch, columns, tokens[:, None])
                    sums[policy] += torch.tensor([len(tokens), right.sum(), num_forwards.sum()])
        means = (sums[:, 1:] / sums[:, :1].clamp_min(1)).flatten().tolist()
        return RevealEvaluation(step, *means)

    def quality(self, evaluation: RevealEvaluation) -> float:
        return evaluation.accepted - self._settings.cost * evaluation.forwards

    def _right(self, batch: Batch, columns: Tensor, tokens: Tensor) -> Tensor:  # (W, G, n) -> (W, G, n)
        """1 for the draft tokens that would be accepted, else 0."""
        places = range(tokens.shape[2])
        labels = torch.stack([following(batch.tokens, 2 + place)[columns] for place in places], 1)
        return (tokens == labels[:, None]).long().cumprod(2)


@dataclass(frozen=True, kw_only=True)
class RevealMethod(DraftPredictorMethod):
    """Trains a planner of which masks of a draft model's windows are revealed together."""

    noun: ClassVar[str] = "a planner"
    settings: ClassVar[tuple[str, ...]] = ("predictor", "reveals")
    promise: ClassVar[str] = (
        "decides how many forwards draft the tokens that the target verifies: the output's distribution "
        "stays that of the target"
    )

    def defaults(self) -> TrainConfig:
        config = super().defaults()
        return replace(
            config, predictor=replace(config.predictor, num_layers=1, depth=10, rejection_weight=0.5)
        )

    def untrained(
        self, model: Model, config: TrainConfig, examples: Sequence[Example] = (), start: str | None = None
    ) -> Judged:
        draft = draft_model(model, config, start, num_added=NUM_ADDED)
        if getattr(draft.config, WINDOW_MASK, None) is None:
            raise ConfigError(
                f"{start} has no {WINDOW_MASK} in its config.json, so it fills no windows: give a draft "
                "model of `outpace train specdiff`"
            )
        return self.judging(draft, model.target, config)

    def check_texts(self, examples: Sequence[Example], config: TrainConfig) -> None:
        depth = config.predictor.depth
        # the first two tokens of a text are in front of all windows
        if max(len(example.tokens) - max(2, example.first) for example in examples) < depth:
            raise DataError(
                f"no answer has the {depth} tokens of a window: give more prompts, a larger "
                "answers.max_tokens or a smaller predictor.depth"
            )

    def first_run(self, model: Model, config: TrainConfig, start: str | None) -> FirstRun:
        judged = self.untrained(model, config, start=start)
        lesson = ImitationLesson(judged.predictor, self.drafts(judged.drafter, model.target, config), config)
        return FirstRun(judged.predictor, lesson, config)

    def lesson(
        self, drafter: Judged, target: HFTarget, config: TrainConfig, beside: Beside = NOTHING
    ) -> Lesson:
        planner: RevealPlanner = drafter.predictor
        if beside.reference is not None:
            planner.load_state_dict(beside.reference.state_dict())
        return RevealLesson(
            planner,
            self.drafts(drafter.drafter, target, config),
            frozen_head(target),
            config.reveals,
            config.predictor.temperature,
        )

    def drafts(self, draft: PreTrainedModel, target: HFTarget, config: TrainConfig) -> WindowDrafts:
        """How the draft model drafts."""
        return WindowDrafts(draft, config.predictor.depth, getattr(draft.config, WINDOW_MASK), target.vocab)

    def described(self, target: str, start: str | None) -> str:
        return f"planner of the windows in which {start} drafts for {target}"


def _new(draft: PreTrainedModel, config: TrainConfig) -> RevealPlanner:
    size = int(next(draft.get_input_embeddings().parameters()).shape[1])
    return RevealPlanner(size, config.predictor.width, config.predictor.num_layers)


METHODS = (RevealMethod(name=KIND.predictor.method, title=KIND.title, paper=KIND.paper, new=_new),)
