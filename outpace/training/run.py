"""Trains a drafter for a target: answers, hidden states, training, evaluation, a folder with the drafter."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from outpace import __version__
from outpace.api.model import Model, as_model
from outpace.console import progress
from outpace.models.fingerprint import target_fingerprint
from outpace.training.answers import LABEL, answered, end_tokens
from outpace.training.card import write_card
from outpace.training.config import ConfigError, TrainConfig, changed
from outpace.training.evaluation import Evaluation
from outpace.training.growth import Growth, grown
from outpace.training.lessons.draft_models import DraftModelLesson
from outpace.training.lessons.lesson import Lesson
from outpace.training.method import Beside
from outpace.training.methods import named
from outpace.training.texts import DataError, Prompt, fingerprint, read_prompts, split_texts
from outpace.training.trainer import processes, trained

RUN, CAPTURED, PROVENANCE = "run.json", "captured.json", "training.json"
DRY_RUN = {"dry_run": True}  # content of RUN for an untrained drafter, which any run may overwrite


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
    """Train a drafter with a method of `methods.methods()` and write it to the folder `output`.

    `draft`: name or folder of the draft model to train, or of the draft model that a predictor is for;
    without it fastdraft makes a smaller one of the target's architecture. `head`: folder of a head to begin
    with, in place of a new one, or of the head that a predictor is for. `changes`: settings such as
    "steps=500". `captured`: folder for the target's answers and hidden states, by default in `output`; runs
    with the same target, data, settings of the answers, `length` and `held_out` may share one. `general`:
    data of other domains, on which domain-drafter reports what the draft model forgets. `dry_run`: write an
    untrained drafter, without reading the data. A run that was stopped continues when it is started again
    with the same arguments, to the same result. ValueError for unsuited settings, data or targets.
    """
    trains, folder = named(method), Path(output)
    config = changed(config or trains.defaults(), changes)
    _check_output(folder, dry_run)
    if not dry_run:
        processes()  # assigns each process its GPU, to which `as_model` loads the target
    model = as_model(target)
    trains.check_start(draft, head, general)
    start = draft or head
    if dry_run:
        trains.save(trains.untrained(model, config, start=start), folder, model)
        (folder / RUN).write_text(json.dumps(DRY_RUN) + "\n", encoding="utf-8")
        return Trained(folder, (), 0, 0)
    running = processes()
    # made before the target generates answers, so that unsuited arguments are refused at once
    drafter = None if trains.reads_texts and not start else trains.untrained(model, config, start=start)
    prompts = read_prompts(data, model, config.texts, config.answers.seed, marked=trains.reads_marks)
    texts = {"target": target_fingerprint(model.target), "data": fingerprint(prompts)}
    identity = {"method": method, **texts, "start": start, "config": asdict(config)}
    others: list[Prompt] = []
    if general is not None:
        others = read_prompts(general, model, max(2, round(len(prompts) * config.held_out)), config.seed)
        identity["general"] = fingerprint(others)
    work = folder / "work"
    states = Path(captured) if captured else work
    with running.main_process_first():  # other processes read the files that the first one writes
        made_of = texts | {"answers": asdict(config.answers)}
        made_of |= {"length": config.length, "held_out": config.held_out}
        again = "give another --output"
        if _keeps_answers(states, made_of):
            again += f", and --captured {states} to keep the target's answers"
        _begin(folder / RUN, identity, again)
        _begin(states / CAPTURED, made_of, "give another folder")
    if trains.grows:

        def begin() -> Lesson:
            return trains.lesson(trains.untrained(model, config, start=start), model.target, config)

        growth, trainer = grown(model, prompts, others, config, begin, states / "growth", work / "rounds")
        kept = growth.rounds[growth.kept]
        result = Trained(folder, (kept.evaluation,), kept.num_texts, kept.num_tokens, growth)
        if running.is_main_process:
            assert isinstance(trainer.lesson, DraftModelLesson)
            trains.save(trainer.lesson.draft, folder, model)
            _finish(folder, identity, result, data, model, trainer.lesson.num_draft_parameters)
        return result
    with running.main_process_first():
        with progress(len(prompts), LABEL) as advance:
            examples = answered(model, prompts, config.answers, states / "answers", advance)
    examples = trains.prepared(examples, model, config)
    learned, test = split_texts(examples, config.length, config.held_out)
    if not (learned and test):
        num_answered = sum(example.first < len(example.tokens) for example in examples)
        raise DataError(_too_few(data, config, num_answered, len(learned) + len(test)))
    for part in (learned, test):
        trains.check_texts(part, config)
    first = trains.first_run(model, config, start)
    if first is not None:
        trained(first.lesson, model.target, learned, test, first.config, states, work / "reference")
    if drafter is None:
        drafter = trains.untrained(model, config, learned)
    beside = Beside(None if first is None else first.model, end_tokens(model))
    lesson = trains.lesson(drafter, model.target, config, beside)
    trainer = trained(lesson, model.target, learned, test, config, states, work / "checkpoints")
    result = Trained(
        folder, tuple(trainer.evaluations), len(learned), sum(len(example.tokens) for example in learned)
    )
    if running.is_main_process:
        trainer.lesson.finish(trainer.held_out())
        trains.save(drafter, folder, model)
        trains.save_prompts(examples, folder, model.target.vocab)
        _finish(folder, identity, result, data, model, trainer.lesson.num_draft_parameters)
    return result


def _check_output(folder: Path, dry_run: bool) -> None:
    """ConfigError for a folder whose content would be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: give a folder as --output")
    if (folder / RUN).is_file():
        if dry_run and not _is_dry(folder / RUN):
            raise ConfigError(f"{folder} holds a trained drafter or a run: give another --output")
    elif (folder / "config.json").exists() or any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} already holds a model or a drafter: give another --output")


def _is_dry(path: Path) -> bool:
    return _read(path, "give another --output") == DRY_RUN


def _read(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}): {otherwise}") from error


def _begin(path: Path, identity: dict[str, Any], otherwise: str) -> None:
    """Write what the folder holds to a file in it. ConfigError, which ends with the advice `otherwise`, if
    the folder holds something else."""
    if path.parent.exists() and not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is a file: {otherwise}")
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = json.loads(json.dumps(identity))  # with lists for tuples, as in the file
    if not path.exists() or _is_dry(path):
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
        return
    different = _different(_read(path, otherwise), identity)
    if different:
        raise ConfigError(
            f"{path.parent} was made with another {' and '.join(different)}: {otherwise}, or the same "
            "arguments to continue"
        )


def _keeps_answers(states: Path, made_of: dict[str, Any]) -> bool:
    """Whether a folder holds answers made with the same settings and data."""
    if not (states / CAPTURED).is_file() or not any((states / "answers").glob("*.json")):
        return False
    return not _different(_read(states / CAPTURED, "give another folder"), json.loads(json.dumps(made_of)))


def _different(before: Any, now: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the items of `now` that differ from those in `before`."""
    names = list[str]()
    for name, value in now.items():
        old = before.get(name) if isinstance(before, dict) else None
        if isinstance(value, dict):
            # settings have the names that --set takes, without "config."
            names += _different(old, value, "" if name == "config" else f"{prefix}{name}.")
        elif old != value:
            names.append(f"{prefix}{name}")
    return names


def _too_few(data: str, config: TrainConfig, num_answered: int, num_texts: int) -> str:
    """Why there are not enough texts to train and to evaluate, and what to do."""
    if not num_answered and not config.answers.generate:
        return f"no row of {data} has an answer: add answers, or leave answers.generate=false out"
    if not num_texts:
        return (
            f"{data} gives no text of four tokens, three of them answered, to learn from: give longer "
            "answers (answers.max_tokens) or other prompts"
        )
    return (
        f"{data} gives {num_texts} texts, of which held_out={config.held_out} leaves none to learn from or "
        "none to evaluate: give more prompts"
    )


def _finish(
    folder: Path,
    identity: dict[str, Any],
    result: Trained,
    data: str,
    model: Model,
    num_parameters: int,  # of the drafter
) -> None:
    """Write a record of how the drafter was made, and its model card."""
    facts = identity | {
        "target_name": model.name,
        "data_name": Path(data).name,  # cards are published: no folders of this machine
        "texts": result.num_texts,
        "tokens": result.num_tokens,
        "parameters": num_parameters,
        "processes": processes().num_processes,  # each of them has batches of its own
        "evaluations": [asdict(evaluation) for evaluation in result.evaluations],
        "versions": {
            "outpace": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
    if result.growth is not None:
        facts["growth"] = asdict(result.growth) | {"findings": result.growth.findings}
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    whole = sum(parameter.numel() for parameter in model.target.model.parameters())
    write_card(folder, facts, result.evaluations, (num_parameters, whole))
