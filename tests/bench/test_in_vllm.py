"""`python -m benchmarks.in_vllm` with contenders that take no time: which prompts each round has, which
setting is chosen, and what the rows say. tests/vllm runs vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.in_vllm import (
    KINDS,
    NGRAM,
    OURS,
    PLAIN,
    REPEATED,
    Turn,
    batches,
    rows,
    searched,
    shares,
    take_turn,
    vllm_settings,
)
from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.contender import PeerFailed, RunOutcome
from outpace.bench.measure.run import EncodedPrompt
from outpace.core.sampling_params import SamplingParams

SAMPLING = SamplingParams(0.0, max_tokens=4)


@dataclass
class Fake:
    """Writes the prompt's first token four times, in as many seconds as it is told."""

    seconds: float
    name: str = ""
    kind: str = "peer"
    mode: str = ""
    precision: str = ""
    single: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        return RunOutcome([[int(prompt[0])] * 4 for prompt in prompts], self.seconds * len(prompts))

    def acceptance_bound(self, prompts: Any, sampling: Any) -> AcceptanceBound:
        return AcceptanceBound()

    def lossless(self, temperature: float) -> bool:
        return True

    def reset(self) -> None:
        pass


def prompts(number: int) -> dict[str, list[EncodedPrompt]]:
    return {
        kind: [EncodedPrompt(f"{kind}{each}", kind, torch.tensor([each, 1])) for each in range(number)]
        for kind in KINDS
    }


@pytest.mark.parametrize("streams", [1, 3])
def test_every_round_has_new_prompts_and_asks_them_again(streams: int) -> None:
    planned = batches(prompts(10), streams, 2)
    asked: list[str] = []
    for batch in planned:
        names = [each.id for each in batch.prompts]
        assert len(names) == streams
        if batch.workload == REPEATED:
            assert set(names) <= set(asked)
        else:
            assert batch.workload == batch.prompts[0].workload and not set(names) & set(asked)
            asked += names
    assert len(asked) == 2 * (10 // streams * streams)
    again = [
        name for batch in planned if batch.workload == REPEATED for name in (e.id for e in batch.prompts)
    ]
    assert sorted(again) == sorted(asked)


def test_numbers_of_streams_have_prompts_of_their_own() -> None:
    each = prompts(9)["code"]
    parts = shares([*each, *each[:4]], each[:2], 2)
    names = [[one.id for one in part] for part in parts]
    assert names == [["code2", "code4", "code6", "code8"], ["code3", "code5", "code7"]]


def test_the_fastest_setting_takes_part_and_what_does_not_start_is_named() -> None:
    def broken() -> Fake:
        raise PeerFailed("no such module")

    starts = {
        PLAIN: {"": partial(Fake, 1.0)},
        NGRAM: {"slow": partial(Fake, 2.0), "fast": partial(Fake, 0.5), "broken": broken},
        "vLLM suffix": {"": broken},
    }
    failed: dict[str, str] = {}
    tried = {streams: batches(prompts(4), streams, 1) for streams in (1, 2)}
    lines, speeds = searched(starts, tried, SAMPLING, failed)
    for line in lines.values():
        assert line.settings == {PLAIN: "", NGRAM: "fast"} and list(line.contenders) == [PLAIN, NGRAM]
    assert failed == {f"{NGRAM} broken": "no such module", "vLLM suffix": "no such module"}
    assert speeds[NGRAM]["1"] == {"slow": pytest.approx(2.0), "fast": pytest.approx(8.0)}


def test_rows_have_ratios_of_turns_on_the_same_prompts() -> None:
    turns: list[Turn] = []
    for batch in batches(prompts(6), 1, 2):
        for name, seconds in ((PLAIN, 1.0), (NGRAM, 0.5), (OURS, 0.25)):
            turn = take_turn(name, Fake(seconds * (1 + batch.index)), batch, SAMPLING)
            turn.forward, turn.num_steps = 0.010, 2
            turn.propose = None if name == PLAIN else 0.001
            turns.append(turn)
    found = rows(turns, 1, {PLAIN: "", NGRAM: "5", OURS: "8"})
    assert [(row["workload"], row["contender"]) for row in found[:3]] == [
        ("code", PLAIN),
        ("code", NGRAM),
        ("code", OURS),
    ]
    for row in found:
        if row["contender"] == OURS:
            assert row["over_plain"]["median"] == pytest.approx(4) and row["same_texts"] == 1
            assert row["over_ngram"]["low"] == row["over_ngram"]["high"] == pytest.approx(2)
            assert row["propose_percent"]["median"] == pytest.approx(10)
            assert row["tokens_per_forward"] == 2
        assert ("propose_ms" in row) == (row["contender"] != PLAIN)


def test_every_contender_has_settings_of_vllm() -> None:
    for name, settings in vllm_settings("draft", "head").items():
        for each in settings.values():
            config = each["config"]
            assert (config is None) == (name == PLAIN)
            if name == OURS:
                depth = each["additional"]["outpace"]["depth"]
                assert depth == config["num_speculative_tokens"]
