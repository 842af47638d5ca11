"""PEARL: tokens per round are those of the published formula, and both halves of it are worth something."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.cost.overlap import seconds_on_two_devices, tokens_per_round
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.recipes.overlap.pearl import pearl
from outpace.schedules import run_ahead


def context_free(*probs: float) -> TableTarget:
    """A model that gives every token the same probability after any text."""
    table = TableTarget(len(probs), order=1)
    table.logits = torch.tensor(probs, dtype=torch.float64).log().expand(2 * len(probs), -1).contiguous()
    return table


TARGET, DRAFT = context_free(0.3, 0.4, 0.3), context_free(0.5, 0.3, 0.2)
RATE = 0.3 + 0.3 + 0.2  # the overlap of the two


def tokens_per_step(depth: int) -> float:
    parts = pearl.build(TARGET, draft=DRAFT, depth=depth, overlap=False)
    steps = list[Step]()
    sampling = [SamplingParams(1.0, max_tokens=600, seed=seed) for seed in range(4)]
    texts(parts, [[0]] * 4, sampling, observe=steps.append)
    rows = [new for step in steps for new in step.generated]
    return sum(map(len, rows)) / len(rows)


@pytest.mark.parametrize(
    ("rate", "depth", "first", "tokens"),
    [(0.8, 5, None, 2.283), (0.6, 4, None, 1.480), (0.9, 8, None, 3.876), (0.8, 5, 0.95, 2.437)],
)
def test_tokens_per_round_by_the_formula(rate: float, depth: int, first: float | None, tokens: float) -> None:
    assert tokens_per_round(rate, depth, first=first) == pytest.approx(tokens, abs=5e-4)
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        tokens_per_round(1.0, depth)


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_tokens_per_step_are_those_of_the_formula(depth: int) -> None:
    # 2,400 tokens: the standard error of the mean is about 2 %
    assert tokens_per_step(depth) == pytest.approx(tokens_per_round(RATE, depth), rel=0.06)


@pytest.mark.slow
def test_without_either_half_it_takes_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, left = tokens_per_step(5), run_ahead.left_below

    def no_post_verify(session: Any, draft: Any, step: Step, assumed: list[list[int]]) -> Any:
        """A draft is not read while the next one is made, only after a step without one."""
        return {} if any(assumed) else left(session, draft, step, assumed)

    monkeypatch.setattr(run_ahead, "left_below", no_post_verify)
    assert tokens_per_step(5) < 0.9 * whole
    # and without the test of its first token beside the last draft, a step gives one token in such rounds
    assert tokens_per_round(RATE, 5, first=0.0) == 1.0


def test_a_step_on_two_devices() -> None:
    seconds = {"draft": 3.0, "score": 2.0, "verify": 0.5, "commit": 0.25, "caller": 9.0}
    assert seconds_on_two_devices(seconds) == 3.75
    assert seconds_on_two_devices({**seconds, "score": 4.0}) == 4.75


def test_a_text_ends_inside_a_pending_draft() -> None:
    parts = pearl.build(TARGET, draft=TARGET, depth=4, overlap=False)  # every token is accepted
    found = list[Step]()
    for seed in range(20):
        params = SamplingParams(1.0, max_tokens=40, stop=(2,), seed=seed)
        [text] = texts(parts, [[0]], [params], observe=found.append)
        assert 2 not in text[:-1] and (text[-1] == 2 or len(text) == 40)
    ends = [step for step in found if step.finished]
    assert any(len(step.draft.tree) > len(step.generated[0]) for step in ends), "none ended inside one"
