"""Interleaved runs of several contenders, and what a run of the engine reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.contender import MethodContender, RunOutcome
from outpace.bench.measure.line_up import method_contenders
from outpace.bench.measure.run import (
    EncodedPrompt,
    Trial,
    batches,
    encode_prompts,
    interleave,
    rotated,
    run_trial,
    seeds,
    trials,
)
from outpace.bench.measure.workload import WorkloadItem
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Scores, Want
from outpace.core.sampling_params import SamplingParams
from outpace.decode import PROMPT_TOKENS
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.recipes import Method, parse_methods
from outpace.recipes._option_kinds import FunctionOpener
from outpace.verifiers.match import Match

SAMPLING = SamplingParams(max_tokens=9)


@dataclass
class Fake:
    """A contender that generates the token 0 only, and records the prompts it was given."""

    name: str
    requests: list[tuple[list[int], list[int], float]] = field(default_factory=list)
    kind: str = "outpace"
    options: dict[str, int] = field(default_factory=dict)
    single: bool = False
    precision: str = ""
    mode: str = "eager"

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        temperature = sampling[0].temperature
        self.requests.append(
            ([len(prompt) for prompt in prompts], [params.seed for params in sampling], temperature)
        )
        return RunOutcome([[0] * 4 for _ in prompts], 1.0)

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return AcceptanceBound()

    def lossless(self, temperature: float) -> bool:
        return True

    def reset(self) -> None:
        pass


def cases(count: int, workload: str = "w") -> list[EncodedPrompt]:
    return [EncodedPrompt(f"{workload}/{index}", workload, torch.arange(index + 2)) for index in range(count)]


def test_contenders_take_turns_and_each_goes_first_equally_often() -> None:
    line = [Fake("a"), Fake("b"), Fake("c")]
    planned = list(trials(batches(cases(3), 1), [0.0], 3))
    first = [rotated(line, trial)[0].name for trial in planned]
    assert {name: first.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}
    runs = interleave(line, planned, SAMPLING)
    assert [run.contender for run in runs[:6]] == ["a", "b", "c", "b", "c", "a"]


def test_all_contenders_meet_the_same_prompts_and_seeds() -> None:
    line = [Fake("a"), Fake("b")]
    interleave(line, list(trials(batches(cases(4), 2), [0.0, 1.0], 2)), SAMPLING, seed=5)
    assert line[0].requests == line[1].requests
    # new seeds for each batch and round
    assert len({tuple(requests[1]) for requests in line[0].requests}) == 4
    assert sorted({temperature for *_, temperature in line[0].requests}) == [0.0, 1.0]


def test_a_repeated_prompt_has_a_new_seed() -> None:
    planned = list(trials(batches(cases(3), 2), [1.0], 2, 2))
    assert len({seed for trial in planned for seed in seeds(trial, 7)}) == 3 * 2 * 2


def test_contenders_forget_between_rounds_and_temperatures_only() -> None:
    class Learning(Fake):
        def reset(self) -> None:
            self.requests.append(([], [], -1.0))

    learning = Learning("a")
    interleave([learning], list(trials(batches(cases(2), 1), [0.0, 1.0], 2)), SAMPLING)
    assert [heat for *_, heat in learning.requests] == [-1.0, 0.0, 0.0, -1.0, 1.0, 1.0] * 2


def test_a_batch_holds_prompts_of_one_workload_and_one_seed_a_row() -> None:
    groups = batches([*cases(3), *cases(1, "v")], 2)
    assert [[case.id for case in group] for group in groups] == [["w/0", "w/1"], ["w/2"], ["v/0"]]
    assert len(set(seeds(Trial(0, groups[0], 0.0, 0), 1))) == 2


def test_one_who_takes_single_prompts_is_given_them_one_by_one() -> None:
    alone = Fake("alone", single=True)
    (run,) = interleave([alone], [Trial(0, tuple(cases(3)), 0.0, 0)], SAMPLING)
    assert [requests[0] for requests in alone.requests] == [[2], [3], [4]]
    assert run.tokens == 12 and run.seconds == 3.0 and run.tokens_per_second == 4.0


def test_finished_runs_are_reported_even_if_the_next_run_is_interrupted() -> None:
    class Broken(Fake):
        def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
            if len(self.requests) == 2:
                raise KeyboardInterrupt
            return super().run(prompts, sampling)

    finished: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        planned = list(trials(batches(cases(5), 1), [0.0], 1))
        interleave(
            [Fake("a"), Broken("b")], planned, SAMPLING, after=lambda run: finished.append(run.contender)
        )
    assert sorted(finished) == ["a", "a", "b", "b"] or sorted(finished) == ["a", "a", "a", "b", "b"]


def test_turns_follow_the_replies_of_plain_decoding() -> None:
    class Words:
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1] * len(text.split())}

        def decode(self, tokens: list[int]) -> str:
            return " ".join("word" for _ in tokens)

    class Ending(Fake):
        def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
            outcome = super().run(prompts, sampling)
            return replace(outcome, outputs=[[*tokens, 9] for tokens in outcome.outputs])

    plain = Ending("plain")  # its stop token is no part of the conversation
    items = [
        WorkloadItem("q", "w", ("one two", "three"), True),
        WorkloadItem("long", "w", ("x " * 50,), True),
    ]
    sampling = replace(SAMPLING, temperature=0.7, stop=(9,))
    made, left_out = encode_prompts(items, Words(), plain, sampling, max_length=7 + 9)
    assert [(case.id, len(case.tokens)) for case in made] == [("q#1", 2), ("q#2", 2 + 4 + 1)]
    assert left_out == ["long"]
    assert plain.requests[0][2] == 0.0  # greedy, whatever is measured later


def line_up(*methods: Method) -> list[MethodContender]:
    target, draft = TableTarget(5), TableTarget(5, seed=1)
    found, _ = method_contenders(list(methods), target, "small", FunctionOpener(lambda name: draft))
    return found


@pytest.mark.parametrize("batch", [1, 3])
def test_the_engine_counts_what_it_emits(batch: int) -> None:
    for engine in line_up(
        *parse_methods("prompt-lookup:depth=3,allow_shorter=true,speculative-sampling:depth=2")
    ):
        runs = interleave([engine], list(trials(batches(cases(3), batch), [0.0, 1.0], 1)), SAMPLING)
        for run in runs:
            assert run.counts and run.counts.generated == run.tokens == 9 * len(run.outputs)
            assert run.prompt_seconds is not None and 0 <= run.prompt_seconds <= run.seconds


class Timed(TableTarget):
    """A target on whose clock a forward takes a second, and ten if it reads a part of a prompt."""

    now = 0.0

    def prefill(self, *args: Any, **options: Any) -> Any:
        self.now += 10
        return super().prefill(*args, **options)

    def score(self, *args: Any, gap: Any = None, **options: Any) -> Scores:
        self.now += 1 if gap is None else 10
        return super().score(*args, gap=gap, **options)


@pytest.mark.parametrize(("rows", "length", "parts_read"), [(2, 3, 1), (1, 3 * PROMPT_TOKENS - 100, 3)])
@pytest.mark.parametrize("early", [True, False])
def test_the_time_of_prompts_is_told_from_that_of_decoding(
    early: bool, rows: int, length: int, parts_read: int
) -> None:
    """`early`: the step that reads the last part of the prompts generates the first tokens."""
    target = Timed(5)
    # prompts have forwards of their own if their logits are wanted
    drafter = NoDraft() if early else NoDraft(Want(prompt_logits=True))
    parts = Parts(target, drafter, Match(), Fixed(0))
    contender = MethodContender("a", "a", parts, clock=lambda: target.now)
    prompt = EncodedPrompt("p", "w", torch.zeros(length, dtype=torch.int64))
    run = run_trial(contender, Trial(0, (prompt,) * rows, 0.0, 0), SAMPLING, 0)
    assert run.counts and run.prompt_seconds == 10 * parts_read and run.early_tokens == early * rows
    decoding = run.seconds - run.prompt_seconds
    assert decoding == run.counts.steps - early == 9 - early
    # all tokens at the speed of those that were not generated while prompts were read
    assert run.decode_seconds == pytest.approx(9.0)
    assert sum(run.counts.seconds.values()) == pytest.approx(decoding)
    assert sum(run.counts.figures()["milliseconds_per_step"].values()) == pytest.approx(1000)


def test_greedy_texts_are_those_of_plain_decoding() -> None:
    line = line_up(*parse_methods("prompt-lookup,speculative-sampling:depth=2,mcsd:widths=(2,2)"))
    assert [engine.name for engine in line] == [
        "plain",
        "prompt-lookup",
        "speculative-sampling:depth=2",
        "mcsd:widths=(2,2)",
    ]
    runs = interleave(line, list(trials(batches(cases(2), 1), [0.0], 1)), SAMPLING)
    plain = {run.trial.index: run for run in runs if run.contender == "plain"}
    assert all(run.differences(plain[run.trial.index]) == [None] for run in runs)
    assert plain[0].counts and plain[0].counts.mean_acceptance_length == 1.0


def test_a_method_choice_contains_all_options_of_the_method() -> None:
    target, draft = TableTarget(5), TableTarget(5, seed=1)
    wanted = parse_methods("speculative-sampling:depth=2,prompt-lookup,mcsd:draft=own")
    _, choices = method_contenders(wanted, target, "small", FunctionOpener(lambda name: draft))
    found = {name: (choice.method, choice.options, choice.draft) for name, choice in choices.items()}
    assert found == {
        "plain": ("autoregressive", {}, None),
        "speculative-sampling:depth=2": ("speculative-sampling", {"depth": 2, "draft": "small"}, "small"),
        "prompt-lookup": ("prompt-lookup", {}, None),
        "mcsd:draft=own": ("mcsd", {"draft": "own"}, "own"),
    }


def test_options_of_an_engine_include_the_defaults_and_the_plain_method_is_there_once() -> None:
    plain, other = line_up(Method("autoregressive"), Method("prompt-lookup", {"depth": 4}))
    assert plain.name == "plain" and other.options["depth"] == 4 and other.options["max_ngram"] == 3
