"""Repeated prompts: methods that learn accept more, and the others exactly as much as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outpace.api import load
from outpace.bench.measure.halves import in_halves
from outpace.bench.measure.line_up import method_contenders
from outpace.bench.measure.replay import RecordedText, build, replay
from outpace.bench.measure.run import EncodedPrompt, Run, batches, interleave, trials
from outpace.core.sampling_params import SamplingParams
from outpace.recipes import Method, get, of_family
from outpace.recipes._option_kinds import FunctionOpener

REMEMBER = {"aded", "rasd", "reader", "rest", "stand", "suffix-decoding", "token-recycling"}
PROMPTS = (
    "def read(path):\n    with open(path) as file:\n",
    "class Stack:\n    def push(self, item):\n",
    "import os\n\n",
)


@pytest.fixture(scope="module")
def models() -> Any:
    return {name: load(f"zoo:{name}", dtype="float32") for name in ("target", "draft")}


@pytest.mark.slow
@pytest.mark.parametrize("name", of_family("training-free"))
def test_the_second_half_of_prompts_decoded_twice(models: Any, name: str) -> None:
    target = models["target"]
    line, _ = method_contenders(
        [Method(name)], target.target, "draft", FunctionOpener(lambda name: models[name].target)
    )
    cases = [
        EncodedPrompt(text, "code", torch.tensor(target.tokenizer(text)["input_ids"])) for text in PROMPTS
    ]
    planned = list(trials(batches(cases, 1), [0.0], 1, repeat=2))
    runs = interleave(line[1:], planned, SamplingParams(max_tokens=20))
    halves = in_halves([(run, run) for run in runs])
    first, second = (half.mean_acceptance_length or 0.0 for half in halves or pytest.fail("no halves"))
    if name in REMEMBER:
        assert second > first
    else:
        assert second == first
    fresh = interleave(line[1:], planned[: len(cases)], SamplingParams(max_tokens=20))
    assert [run.counts and run.counts.steps for run in fresh] == [
        run.counts and run.counts.steps for run in runs[: len(cases)]
    ]


def test_halves_are_by_decoding_order() -> None:
    def run(index: int, again: int, seconds: float, name: str = "a") -> Run:
        case = EncodedPrompt(str(index), "w", torch.tensor([1, 2]))
        trial = next(
            trial
            for trial in trials([(case,)] * 3, [0.0], 1, 2)
            if (trial.index, trial.again) == (index, again)
        )
        return Run(name, trial, seconds, 0.0, 0, None, ((0,) * 12,))

    assert in_halves([(run(0, 0, 1.0), run(0, 0, 1.0))]) is None
    pairs = [(run(i, again, 2.0 - again), run(i, again, 2.0)) for again in (1, 0) for i in range(3)]
    first, second = in_halves(pairs) or pytest.fail("no halves")
    assert (first.tokens_per_second, second.tokens_per_second) == (6.0, 12.0)
    assert (first.speedup, second.speedup) == (1.0, 2.0) and first.mean_acceptance_length is None
    early, late = in_halves([pair for pair in pairs if pair[0].trial.again == 0]) or pytest.fail("no halves")
    assert early.tokens_per_second == late.tokens_per_second == 6.0


@pytest.mark.slow
def test_replayed_texts_are_summarised_in_halves() -> None:
    text = RecordedText([1], list(range(10, 60)))
    found = replay("suffix-decoding", build(get("suffix-decoding"), {}, 100), [text, text]).figures()
    first, second = found["mean_acceptance_length_of_halves"]
    assert first == 1 and second > 5
    alone = replay("suffix-decoding", build(get("suffix-decoding"), {}, 100), [text]).figures()
    assert alone["mean_acceptance_length_of_halves"] == []
