"""Acceptance and its upper bound: exact where it can be computed, absent where no token is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outpace.bench.measure.acceptance_bound import (
    ROW_STEPS,
    AcceptanceBound,
    acceptance_bound,
    acceptance_bounds,
)
from outpace.bench.measure.contender import MethodContender
from outpace.bench.measure.run import EncodedPrompt
from outpace.bench.measure.transformers_peer import TransformersContender
from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.recipes import get

PROMPTS = [torch.tensor([0, 1, 2]), torch.tensor([3])]


def pair() -> tuple[TableTarget, TableTarget]:
    return TableTarget(4, seed=1, order=2), TableTarget(4, seed=2, order=2)


def parts(name: str, **options: object) -> Parts:
    target, draft = pair()
    return get(name)(target, draft=draft, **options)


def row_params(temperature: float, count: int = 2) -> list[SamplingParams]:
    return [SamplingParams(temperature, max_tokens=20, seed=seed) for seed in range(count)]


def test_greedy_drafts_have_nothing_to_bound() -> None:
    assert acceptance_bound(parts("mcsd", widths=(2,)), PROMPTS, row_params(0.0)) == AcceptanceBound()
    assert (
        acceptance_bound(parts("speculative-sampling", sampled=False), PROMPTS, row_params(1.0))
        == AcceptanceBound()
    )
    assert acceptance_bound(get("prompt-lookup")(pair()[0]), PROMPTS, row_params(1.0)) == AcceptanceBound()


def test_a_draft_of_the_target_itself_could_always_be_accepted() -> None:
    target, _ = pair()
    found = acceptance_bound(
        get("speculative-sampling")(target, draft=target, depth=2), PROMPTS, row_params(1.0)
    )
    assert found.row_steps > 5 and found.accepted == found.row_steps
    assert found.bound == pytest.approx(found.row_steps, abs=1e-9)


@pytest.mark.parametrize("name", ["mcsd", pytest.param("optimal-mdsd", marks=pytest.mark.slow)])
def test_accepted_tokens_are_close_to_the_bound(name: str) -> None:
    total = AcceptanceBound()
    for seed in range(30):
        sampling = [SamplingParams(1.0, max_tokens=24, seed=2 * seed + row) for row in range(2)]
        total += acceptance_bound(parts(name, widths=(2,)), PROMPTS, sampling)
    rate, most = total.accepted / total.row_steps, total.bound / total.row_steps
    deviation = (most * (1 - most) / total.row_steps) ** 0.5
    assert rate <= most + 5 * deviation
    if name == "optimal-mdsd":  # it reaches the bound
        assert rate >= most - 5 * deviation


def test_the_work_is_limited() -> None:
    sampling = [SamplingParams(1.0, max_tokens=200, seed=seed) for seed in range(20)]
    found = acceptance_bound(parts("speculative-sampling"), [PROMPTS[0]] * 20, sampling)
    assert found.row_steps < ROW_STEPS + 20


def test_every_workload_and_temperature_is_looked_at_where_it_samples() -> None:
    target, draft = pair()
    drafting = MethodContender("drafting", "mcsd", get("mcsd")(target, draft=draft, widths=(2,)))
    plain = MethodContender("plain", "autoregressive", get("autoregressive")(target))
    groups: Sequence[Sequence[EncodedPrompt]] = [
        [EncodedPrompt("a", "code", PROMPTS[0])],
        [EncodedPrompt("b", "edit", PROMPTS[1])],
    ]
    found = acceptance_bounds([plain, drafting], groups, SamplingParams(max_tokens=8), [0.0, 0.7, 1.0])
    assert set(found) == {("drafting", w, t) for w in ("code", "edit") for t in (0.7, 1.0)}


def test_a_peer_has_no_acceptance_bound() -> None:
    assert TransformersContender("peer", None).acceptance_bound(PROMPTS, row_params(1.0)) == AcceptanceBound()


def test_what_is_reported() -> None:
    assert AcceptanceBound(4, 3, 3.2).to_json() == {"row_steps": 4, "any_accepted": 0.75, "bound": 0.8}
    assert AcceptanceBound().to_json()["bound"] is None
