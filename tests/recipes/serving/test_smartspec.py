"""SmartSpec: depths follow acceptance and load, and requests without drafts cost the draft model nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outpace.controllers.adaptive_depth import FIRST_DEPTHS, AdaptiveDepth
from outpace.core.contracts import NOTHING, Cache, Context, Parts, Plan, Scores, TokenTree, Want
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.compose.planned_rows import PlannedRows
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.table import TableTarget
from outpace.recipes.serving.smartspec import smartspec
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection

TARGET, UNLIKE = TableTarget(6, seed=1), TableTarget(6, seed=2, order=2)
PROMPTS = [torch.tensor([1, 2, 3]), torch.tensor([4, 0]), torch.tensor([5, 5, 1, 0])]


def session(parts: Parts, temperature: float = 0.0) -> Session:
    sampling = [SamplingParams(temperature, max_tokens=60, seed=seed) for seed in range(len(PROMPTS))]
    return Session(parts, PROMPTS, sampling, LazyTargetProbs)


def plain(prompt: torch.Tensor) -> list[int]:
    text = prompt.tolist()
    for _ in range(60):
        text.append(int(TARGET.logits[TARGET.state(text)].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("draft", [TARGET, UNLIKE, None])
def test_greedy_texts_are_those_of_plain_decoding(draft: TableTarget | None) -> None:
    decoded = session(smartspec.build(TARGET, draft=draft))
    drafted = sum(len(step.draft.tree) - len(step.ctx.slots) for step in decoded.steps())
    assert [decoded.request(slot).output() for slot in range(len(PROMPTS))] == [*map(plain, PROMPTS)]
    assert drafted > 0


def test_the_first_token_does_not_wait_for_a_draft() -> None:
    first = next(session(smartspec.build(TARGET, draft=TARGET)).steps())
    assert first.draft.forwards == 0 and all(len(generated) == 1 for generated in first.generated)


def test_the_first_steps_after_the_prompts_try_several_depths() -> None:
    steps = session(smartspec.build(TARGET, draft=TARGET, depth=8)).steps()
    next(steps)
    drafted = [
        len(step.draft.tree) - len(step.ctx.slots) for step, _ in zip(steps, FIRST_DEPTHS, strict=False)
    ]
    assert drafted == [24, 12, 6, 24]


class FirstRowPlain(AdaptiveDepth):
    """Plans drafts in every row but the first, and in all rows from the sixth step on."""

    num_steps = 0

    def plan(self, ctx: Context) -> Plan:
        self.num_steps += 1
        return Plan(tuple(0 if slot == 0 and self.num_steps < 6 else 3 for slot in ctx.slots))


class CountingTarget(TableTarget):
    """A table model that records the slots of each of its forwards."""

    def __init__(self) -> None:
        super().__init__(6, seed=1)
        self.slots: list[tuple[int, ...]] = []

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[torch.Tensor] | None = None,
    ) -> Scores:
        self.slots.append(tuple(slots))
        return super().score(tree, slots, cache, want, gap=gap)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_draft_model_does_not_read_requests_without_drafts(temperature: float) -> None:
    draft = CountingTarget()
    drafter = PlannedRows(DraftModel(draft))
    decoded = session(Parts(TARGET, drafter, Rejection(), FirstRowPlain(3)), temperature)
    for number, step in enumerate(decoded.steps(), 1):
        seen = {slot for slots in draft.slots for slot in slots}
        if number < 6:
            assert seen == {1, 2}
            assert len(step.draft.tree.forest.nodes[0]) == 1 < len(step.draft.tree.forest.nodes[1])
        elif number == 6:
            assert seen == {0, 1, 2}  # it has read the first request's text by now
    if temperature == 0:
        assert [decoded.request(slot).output() for slot in range(len(PROMPTS))] == [*map(plain, PROMPTS)]
