"""Trains a drafter for a target: answers, hidden states, training, evaluation, a folder with the drafter."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from outpace import __version__
from outpace.api.model import Model, as_model
from outpace.console import progress
from outpace.indexes.prompt_profile import PromptProfile
from outpace.models.heads.fingerprint import target_fingerprint
from outpace.training.answers import answered, end_tokens
from outpace.training.card import write_card
from outpace.training.config import ConfigError, TrainConfig, changed
from outpace.training.drafters import check_answers, draft_model, lesson, save, untrained
from outpace.training.evaluation import Evaluation
from outpace.training.growth import Growth, grown
from outpace.training.lessons.draft_models import DraftModelLesson
from outpace.training.lessons.exit_predictor import ExitLesson
from outpace.training.lessons.lesson import Lesson
from outpace.training.lessons.position_heads import PositionHeadLesson
from outpace.training.methods import (
    ADAPTERS,
    DRAFT_MODELS,
    EXIT_MODELS,
    GROWING,
    ROUTED,
    TARGETS,
    check_start,
    defaults,
)
from outpace.training.texts import DataError, Prompt, fingerprint, read_prompts, split_texts
from outpace.training.trainer import Trainer, processes, trained

RUN, CAPTURED, PROVENANCE = "run.json", "captured.json", "training.json"


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    folder: Path
    evaluations: tuple[Evaluation, ...]
    num_texts: int
    num_tokens: int  # of the training texts
    growth: Growth | None = None  # of a method that trains on growing data


def train(
    method: str,
    *,
    target: str | Model,
    data: str,
    output: str | Path,
    draft: str | None = None,
    head: str | None = None,
    config: TrainConfig | None = None,
    changes: Iterable[str] = (),
    captured: str | Path | None = None,
    general: str | None = None,
    dry_run: bool = False,
) -> Trained:
    """Train a drafter with a method of `methods.METHODS` and write it to the folder `output`.

    `draft`: name or folder of the draft model that a method trains (`methods.DRAFT_MODELS`), or whose tokens
    specdec-pp and disco learn to judge; without it fastdraft makes a smaller one of the target's
    architecture. `head`: folder of a head to begin with, in place of a new one, or of the head whose draft
    lengths adaeagle learns. `changes`: settings such as
    "steps=500". `captured`: folder for the target's answers and hidden states, by default in `output`; runs
    with the same target, data and answers may share one. `general`: data of other domains, on which
    domain-drafter reports what the draft model forgets. `dry_run`: write an untrained drafter, without
    reading the data. A run that was stopped continues when it is started again with the same arguments, to
    the same result. ValueError for unsuited settings, data or targets.
    """
    config, folder = changed(config or defaults(method), changes), Path(output)
    model = as_model(target)
    check_start(method, draft, head, general)
    start = draft or head
    if dry_run:
        save(untrained(method, model, config, start=start), folder, model)
        return Trained(folder, (), 0, 0)
    running = processes()
    # before the target answers: what does not fit is refused at once
    at_once = start or method in (*ADAPTERS, *DRAFT_MODELS, *EXIT_MODELS, *TARGETS)
    begun = untrained(method, model, config, start=start) if at_once else None
    prompts = read_prompts(data, model, config.texts, config.answers.seed)
    texts = {"target": target_fingerprint(model.target), "data": fingerprint(prompts)}
    identity = {"method": method, **texts, "start": start, "config": asdict(config)}
    others: list[Prompt] = []
    if general is not None:
        others = read_prompts(general, model, max(2, round(len(prompts) * config.held_out)), config.seed)
        identity["general"] = fingerprint(others)
    work = folder / "work"
    states = Path(captured) if captured else work
    with running.main_process_first():  # what the first process writes, the others read
        _begin(folder / RUN, identity, "give another --output")
        made_of = texts | {"answers": asdict(config.answers)}
        made_of |= {"length": config.length, "held_out": config.held_out}
        _begin(states / CAPTURED, made_of, "give another folder")
    if method in GROWING:

        def begin() -> Lesson:
            return lesson(method, draft_model(model, config, draft), model.target, config)

        growth, trainer = grown(model, prompts, others, config, begin, states / "growth", work / "rounds")
        kept = growth.rounds[growth.kept]
        found = Trained(folder, (kept.evaluation,), kept.num_texts, kept.num_tokens, growth)
        if running.is_main_process:
            assert isinstance(trainer.lesson, DraftModelLesson)
            save(trainer.lesson.draft, folder, model)
            _finish(folder, identity, found, data, model, trainer.lesson.num_draft_parameters)
        return found
    with running.main_process_first():
        with progress(len(prompts)) as advance:
            examples = answered(model, prompts, config.answers, states / "answers", advance)
    learned, test = split_texts(examples, config.length, config.held_out)
    if not (learned and test):
        raise DataError(
            f"{data} gives {len(learned) + len(test)} texts to learn from: give more or longer ones"
        )
    for part in (learned, test):
        check_answers(method, part, config)
    reference = None
    if method == "adaspec":
        reference = draft_model(model, config, draft)
        plain = replace(config, distillation=replace(config.distillation, on_policy=0.0))
        first = lesson("distillspec", reference, model.target, plain)
        trained(first, model.target, learned, test, plain, states, work / "reference")
    drafter = begun or untrained(method, model, config, learned)
    trainer = trained(
        lesson(method, drafter, model.target, config, reference, end_tokens(model)),
        model.target,
        learned,
        test,
        config,
        states,
        work / "checkpoints",
    )
    found = Trained(
        folder, tuple(trainer.evaluations), len(learned), sum(len(each.tokens) for each in learned)
    )
    if running.is_main_process:
        if isinstance(trainer.lesson, PositionHeadLesson):
            trainer.lesson.head.rank_accuracies = rank_accuracies(trainer)
        if isinstance(trainer.lesson, ExitLesson):
            trainer.lesson.choose_layers(trainer.held_out())
        save(drafter, folder, model)
        if method in ROUTED:
            prompts_of = [example.tokens[: example.first] for example in examples]
            PromptProfile.learned(prompts_of, model.target.vocab).save(folder)
        _finish(folder, identity, found, data, model, trainer.lesson.num_draft_parameters)
    return found


def rank_accuracies(trainer: Trainer) -> tuple[tuple[float, ...], ...]:
    """By depth, the share of held-out texts in which the token of each rank is right; trees are shaped by
    it."""
    assert isinstance(trainer.lesson, PositionHeadLesson)
    sums = [trainer.lesson.ranks(batch) for batch in trainer.held_out()]
    found, counts = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
    shares = (found / counts.clamp_min(1)[:, None]).tolist()
    return tuple(tuple(round(share, 4) for share in each) for each in shares)


def _begin(path: Path, identity: dict[str, Any], otherwise: str) -> None:
    """Note in a file of the folder what the folder holds. ConfigError if it holds something else, which says
    what to do `otherwise`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = json.loads(json.dumps(identity))  # with lists for tuples, as in the file
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    different = [name for name in identity if before.get(name) != identity[name]]
    if different:
        raise ConfigError(
            f"{path.parent} was made with another {' and '.join(different)}: {otherwise}, or the same "
            "arguments to continue"
        )


def _finish(
    folder: Path,
    identity: dict[str, Any],
    found: Trained,
    data: str,
    model: Model,
    num_parameters: int,  # of the drafter
) -> None:
    """Write what the drafter was made of, and its model card."""
    facts = identity | {
        "target_name": model.name,
        "data_name": Path(data).name,  # cards are published: no folders of this machine
        "texts": found.num_texts,
        "tokens": found.num_tokens,
        "parameters": num_parameters,
        "processes": processes().num_processes,  # each of them has batches of its own
        "evaluations": [asdict(each) for each in found.evaluations],
        "versions": {
            "outpace": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
    if found.growth is not None:
        facts["growth"] = asdict(found.growth) | {"findings": found.growth.findings}
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    whole = sum(each.numel() for each in model.target.model.parameters())
    write_card(folder, facts, found.evaluations, (num_parameters, whole))
