"""The target's answers to the prompts of the data, written to disk as they are generated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from outpace.api.model import Model
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine
from outpace.models.hf.target import HFTarget
from outpace.recipes.base.autoregressive import autoregressive
from outpace.training.config import Answers
from outpace.training.marked_answers import SKIPPED
from outpace.training.texts import DataError, Example, Prompt

LABEL = "the target answers"  # of the progress
MAX_PROMPT = 1024  # tokens; longer prompts are cut to their last ones


def answered(
    model: Model,
    prompts: Sequence[Prompt],
    settings: Answers,
    folder: Path,
    advance: Callable[[str, int], None],
) -> list[Example]:
    """The prompts with their answers. Answers in the folder are not generated again: a run that was stopped
    continues with the group of prompts that it was answering."""
    folder.mkdir(parents=True, exist_ok=True)
    examples: list[Example] = []
    for first in range(0, len(prompts), settings.batch):
        group = prompts[first : first + settings.batch]
        path = folder / f"{first:07d}.json"
        if path.exists():
            advance(LABEL, len(group))
        else:
            made = _answers(model, group, settings, settings.seed + first, partial(advance, LABEL))
            unfinished = path.with_suffix(".partial")
            unfinished.write_text(json.dumps(made), encoding="utf-8")
            os.replace(unfinished, path)
        try:
            answers = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{path} is damaged: remove it, and the target answers anew ({error})") from error
        for prompt, answer in zip(group, answers, strict=True):
            tokens = prompt.tokens[-MAX_PROMPT:]
            labels = prompt.labels if answer == list(prompt.answer or ()) else ()
            before = (SKIPPED,) * len(tokens) if labels else ()
            examples.append(Example((*tokens, *answer), len(tokens), (*before, *labels)))
    return examples


def sampled(
    model: HFTarget,
    texts: Sequence[Sequence[int]],
    max_tokens: int,
    temperatures: Sequence[float],  # of each text
    seed: int,
    *,
    stop: tuple[int, ...] = (),
    top_p: float = 1.0,
    advance: Callable[[int], None] = lambda done: None,  # called with the number of texts that just ended
) -> list[list[int]]:
    """A model's continuations of texts, decoded in one batch, each with a seed of its own."""
    limit = model.max_length or max(map(len, texts)) + max_tokens
    params = [
        SamplingParams(
            temperature=temperature,
            top_p=top_p if temperature else 1.0,
            max_tokens=max(1, min(max_tokens, limit - len(text))),
            stop=stop,
            seed=seed + index,
        )
        for index, (text, temperature) in enumerate(zip(texts, temperatures, strict=True))
    ]
    tensors = [torch.tensor(text) for text in texts]
    engine = Engine.of(autoregressive.build(model), tensors, params)
    for step in engine.steps():
        advance(len(step.finished))
    return [engine.output(slot) for slot in range(len(texts))]


def _answers(
    model: Model, group: Sequence[Prompt], settings: Answers, seed: int, advance: Callable[[int], None]
) -> list[list[int]]:
    if not settings.generate:
        advance(len(group))
        return [list(prompt.answer or ()) for prompt in group]
    texts = [prompt.tokens[-MAX_PROMPT:] for prompt in group]
    given = settings.temperatures
    temperatures = [given[(seed + index) % len(given)] for index in range(len(texts))]
    return sampled(
        model.target,
        texts,
        settings.max_tokens,
        temperatures,
        seed,
        stop=end_tokens(model),
        top_p=settings.top_p,
        advance=advance,
    )


def end_tokens(model: Model) -> tuple[int, ...]:
    """The tokens that end a text of the model."""
    end = getattr(model.defaults, "eos_token_id", None)
    return tuple(end) if isinstance(end, list | tuple) else () if end is None else (int(end),)
