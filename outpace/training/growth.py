"""Trains a draft model for a domain in rounds (Hong et al. 2025). Each round begins anew with twice as many
prompts as the one before; the rounds end when acceptance on held-out texts hardly rises any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from outpace.api.model import Model
from outpace.console import progress
from outpace.training.answers import LABEL, answered
from outpace.training.config import TrainConfig
from outpace.training.evaluation import DrafterEvaluation, Evaluation
from outpace.training.features import FeatureSource
from outpace.training.lessons.lesson import Lesson
from outpace.training.texts import DataError, Example, Prompt, fingerprint
from outpace.training.trainer import Trainer, processes, trained

HELD_OUT = "held-out"  # folder of the hidden states of these texts


@dataclass(frozen=True)
class Round:
    """The result of training on a part of the data."""

    num_prompts: int
    num_texts: int
    num_tokens: int  # of the texts
    evaluation: DrafterEvaluation  # on the held-out texts of the domain


@dataclass(frozen=True)
class Growth:
    """The results of the rounds of a run."""

    before: DrafterEvaluation  # of the draft model before training, on the held-out texts of the domain
    rounds: tuple[Round, ...]
    kept: int  # index of the round with the largest acceptance, whose draft model is kept
    # evaluations on texts of other domains: of the draft model before training, and of the kept one
    general: tuple[DrafterEvaluation, DrafterEvaluation] | None = None

    @property
    def findings(self) -> list[str]:
        """The acceptance of each round, and what was forgotten, in a few lines."""
        lines = [f"before training: {_acceptance(self.before)}"]
        lines += [f"{part.num_prompts} prompts: {_acceptance(part.evaluation)}" for part in self.rounds]
        if self.general is not None:
            before, after = map(_acceptance, self.general)
            lines.append(f"on texts of other domains: {before} before, {after} after training")
        return lines


def _acceptance(evaluation: DrafterEvaluation) -> str:
    return f"acceptance {evaluation.acceptance:.3f}, acceptance length {evaluation.acceptance_length:.2f}"


def sizes(num_prompts: int, first: int) -> Iterator[int]:
    """Numbers of prompts of the rounds: `first`, then twice as many each time, finally all."""
    size = first
    while size < num_prompts:
        yield size
        size *= 2
    yield num_prompts


def grown(
    model: Model,
    prompts: Sequence[Prompt],
    general: Sequence[Prompt],  # of other domains; may be none
    config: TrainConfig,
    begin: Callable[[], Lesson],  # the lesson of an untrained copy of the draft model
    states: Path,  # folder of answers and hidden states
    rounds: Path,  # folder of the checkpoints
) -> tuple[Growth, Trainer]:
    """Train the draft model anew in each round, on the first prompts, then on twice as many and so on, until
    the acceptance rate on held-out texts rises by less than `config.growth.least_gain`. Only prompts that a
    round uses are answered. Returns the trainer of the best round. DataError for too few prompts."""

    def evaluated(lesson: Lesson, texts: Sequence[Example], folder: str) -> DrafterEvaluation:
        source = FeatureSource(model.target, texts, lesson.layers, states / folder)
        indices = range(len(texts))
        groups = [indices[first : first + config.batch] for first in indices[:: config.batch]]
        batches = (source.batch(group).to(model.target.device) for group in groups)
        return _of_drafter(lesson.evaluation(0, batches))

    num_held = max(1, round(len(prompts) * config.held_out))
    held_out = _texts(model, prompts[:num_held], config, states / "answers-held-out")
    # runs that share answers may have other general texts
    general_folder = f"general-{fingerprint(general)}"
    others = _texts(model, general, config, states / f"answers-{general_folder}") if general else []
    if general and not others:
        raise DataError("the texts of other domains are too long to be answered: give shorter ones")
    results: list[Round] = []
    best: Trainer | None = None
    before = forgotten = None
    for size in sizes(len(prompts) - num_held, config.growth.first):
        learned = _texts(model, prompts[num_held:], config, states / "answers", size)
        if not (learned and held_out):
            raise DataError(f"{len(prompts)} prompts give too few texts: give more or longer ones")
        steps = ceil(config.growth.epochs * len(learned) / (config.batch * config.accumulate))
        steps = max(1, min(config.steps, ceil(steps / processes().num_processes)))
        own = replace(config, steps=steps, evaluate_every=steps)
        lesson = begin()
        if not results:
            before = evaluated(lesson, held_out, HELD_OUT)
            forgotten = evaluated(lesson, others, general_folder) if others else None
        trainer = trained(lesson, model.target, learned, held_out, own, states, rounds / f"{size:07d}")
        evaluation = _of_drafter(trainer.evaluations[-1])
        results.append(Round(size, len(learned), sum(len(text.tokens) for text in learned), evaluation))
        acceptances = [part.evaluation.acceptance for part in results]
        if best is None or acceptances[-1] > max(acceptances[:-1]):
            best = trainer
        if len(results) > 1 and acceptances[-1] - acceptances[-2] < config.growth.least_gain:
            break
    assert best is not None and before is not None
    acceptances = [part.evaluation.acceptance for part in results]
    both = None if forgotten is None else (forgotten, evaluated(best.lesson, others, general_folder))
    return Growth(before, tuple(results), acceptances.index(max(acceptances)), both), best


def _of_drafter(evaluation: Evaluation) -> DrafterEvaluation:
    assert isinstance(evaluation, DrafterEvaluation)
    return evaluation


def _texts(
    model: Model, prompts: Sequence[Prompt], config: TrainConfig, folder: Path, size: int | None = None
) -> list[Example]:
    """The texts of the first `size` prompts (None: all) with their answers, in pieces."""
    size = len(prompts) if size is None else size
    batch = config.answers.batch
    whole = prompts[: batch * ceil(size / batch)]  # prompts are answered and kept in groups
    with processes().main_process_first(), progress(len(whole), LABEL) as advance:
        examples = answered(model, whole, config.answers, folder, advance)
    return [piece for example in examples[:size] for piece in example.pieces(config.length)]
