"""SpecMemo: what a step needs is estimated from above, drafts fit a budget, and no text depends on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, product
from operator import mul

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from outpace.api.settings import resolve_settings
from outpace.controllers.step_cost import StepCost
from outpace.core.contracts import Context, Parts, Plan, Shape, Step
from outpace.core.sampling_params import SamplingParams
from outpace.cost.linear_cost import Numbers
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.eager.contiguous_cache import BLOCK, ContiguousCache
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.models import transformers_models
from outpace.proof.reference import table_logits
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.serving.specmemo.footprint import Footprint, StepMemory
from outpace.recipes.serving.specmemo.least_memory import FIRST_DEPTHS, LeastMemory
from outpace.recipes.serving.specmemo.recipe import RESERVE, MemoryBudget, specmemo
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.request import GenerationRequest
from outpace.serving.scheduler import Scheduler, Ticket
from tests.tiers import only

VOCAB, AMPLE = 1024, 1 << 30
SETTINGS = [{"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9}]


@cache
def models(dtype: torch.dtype = torch.float32) -> tuple[HFTarget, HFTarget]:
    """A small target, and a draft model that agrees with it often."""
    from transformers import LlamaConfig, LlamaForCausalLM

    known = transformers_models(vocab=VOCAB).target
    assert isinstance(known, HFTarget)
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    other = {"head_dim": 16, "initializer_range": 0.3, "max_position_embeddings": 4096}
    config = LlamaConfig.from_dict(known.model.config.to_dict() | sizes | other)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(dtype)
    disturbed = LlamaForCausalLM(config).to(dtype)
    disturbed.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in disturbed.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    return HFTarget(model.eval()), HFTarget(disturbed.eval())


@dataclass
class Watched:
    """A method whose planned depths, estimates and their times are recorded."""

    parts: Parts
    times: list[int] = field(default_factory=list[int])
    depths: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    estimates: list[Footprint] = field(default_factory=list[Footprint])

    def __post_init__(self) -> None:
        controller = self.parts.controller
        assert isinstance(controller, MemoryBudget)
        plan, memory = controller.plan, controller._step_memory

        def watched(ctx: Context) -> Plan:
            planned = plan(ctx)
            self.times.append(time.time_ns())
            self.depths.append(planned.depth)
            self.estimates.append(memory.of(ctx, planned.depth))
            return planned

        controller.plan = watched


def budgeted(memory: int = AMPLE, dtype: torch.dtype = torch.float32, min_speed: float = 0.0) -> Watched:
    target, draft = models(dtype)
    return Watched(specmemo.build(target, draft=draft, memory=memory, min_speed=min_speed))


def allocations(profiler: profile) -> list[tuple[int, int]]:
    """(time in ns, bytes) of every allocation of torch's allocator, negative when freed."""
    events = profiler.profiler.kineto_results.events()
    return sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")


def peak(profiler: profile) -> int:
    """The most bytes allocated at one time."""
    return max(accumulate(size for _, size in allocations(profiler)))


def metered() -> profile:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def prompts(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCAB, (length,), generator=generator) for length in lengths]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("settings", only([SETTINGS[0]], SETTINGS))
def test_the_estimate_is_between_the_measured_peak_and_three_times_it(
    settings: dict[str, float], dtype: torch.dtype
) -> None:
    watched = budgeted(dtype=dtype)
    sampling = [SamplingParams(**settings, max_tokens=24, seed=row) for row in range(3)]
    session = Session(watched.parts, (), (), LazyTargetProbs)
    with metered() as profiler:
        for prompt, params in zip(prompts(90, 40, 120), sampling, strict=True):
            session.add(prompt, params)
        step = None
        for step in session.steps():
            assert step
        del step
    peaks, live = [0] * len(watched.times), 0
    number = -1
    for when, size in allocations(profiler):
        live += size
        while number + 1 < len(peaks) and when >= watched.times[number + 1]:
            number += 1
        if number >= 0:
            peaks[number] = max(peaks[number], live)
    pairs = list(zip(peaks, watched.estimates, strict=True))
    assert all(peak <= 1.05 * estimate.total for peak, estimate in pairs)  # 5 % of a budget are in reserve
    assert max(peaks) * 3 > max(estimate.total for _, estimate in pairs)


@pytest.mark.slow
def test_both_caches_hold_what_was_estimated() -> None:
    watched = budgeted()
    sampling = [SamplingParams(max_tokens=80, seed=row) for row in range(3)]
    session = Session(watched.parts, prompts(60, 10, 120), sampling, LazyTargetProbs)
    drafter, grown = watched.parts.drafter, 0
    assert isinstance(drafter, DraftModel) and isinstance(session.cache, ContiguousCache)
    for step in session.steps():
        if len(session.rows) < 3:
            break
        estimate = watched.estimates[-1]
        assert session.cache.num_bytes == estimate.target_kv
        assert drafter.cache(step.ctx).num_bytes == estimate.draft_kv
        grown += estimate.growth > 0
    assert grown > 2
    longest = max(session.request(slot).length for slot in range(3))
    assert session.cache.num_bytes < 3 * (longest + BLOCK) * session.cache.planes.token_bytes


def test_a_slot_that_grows_holds_a_part_of_its_entries_twice() -> None:
    target = models()[0].on_demand()
    cache = target.open(1, 0)
    held = 10 * BLOCK * target.token_bytes
    with metered() as profiler:
        cache.reserve(0, 10 * BLOCK)
        cache.reserve(0, 11 * BLOCK)
    assert held < peak(profiler) - BLOCK * target.token_bytes <= held * 5 // 4 + (1 << 16)  # and masks


def test_prompts_are_read_in_parts_that_fit_and_give_the_same_text() -> None:
    target, draft = models(torch.float64)
    sizes = {target: set[int](), draft: set[int]()}
    for model, found in sizes.items():
        read = model.reader.read

        def watched(request, cache, read=read, found=found):
            found.add(sum(request.sizes))
            return read(request, cache)

        model.reader.read = watched
    rows = [prompt.tolist() for prompt in prompts(300, 90)]
    sampling = [SamplingParams(0.8, max_tokens=12, seed=row) for row in range(2)]
    try:
        plain = texts(autoregressive.build(target), rows, sampling)
        for found in sizes.values():
            found.clear()
        parts = specmemo.build(target, draft=draft, memory=3_000_000)
        assert texts(parts, rows, sampling) == plain
    finally:
        for model in sizes:
            del model.reader.read
    assert 16 <= parts.prompt_part < 90
    nodes = 1 + sum(accumulate((2, 2, 1, 1, 1), mul))
    assert all(max(found) <= parts.prompt_part + 2 * nodes for found in sizes.values())
    assert any(size > parts.prompt_part // 2 for size in sizes[draft])


@pytest.mark.slow
def test_half_of_the_memory_is_enough_for_a_long_prompt() -> None:
    most, tokens = long_prompt(budgeted())
    found, fewer = long_prompt(budgeted(most // 2))
    assert found <= most // 2
    assert fewer >= 0.7 * tokens > 1


def long_prompt(watched: Watched) -> tuple[int, float]:
    """The most bytes allocated at one time while a prompt of 400 tokens is read and continued, and the mean
    number of tokens of a step."""
    session = Session(watched.parts, (), (), LazyTargetProbs)
    with metered() as profiler:
        session.add(prompts(400)[0], SamplingParams(max_tokens=24))
        lengths = [len(step.generated[0]) for step in session.steps() if step.generated and step.generated[0]]
    return peak(profiler), sum(lengths) / len(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_server_retains_no_more_than_the_budget_has_left(share: float) -> None:
    free = budgeted()
    most, _ = long_prompt(free)
    watched = budgeted(int(share * most))
    target, draft = models()
    scheduler = Scheduler({"specmemo": watched.parts}, max_rows=1, drafts=[draft])
    settings = resolve_settings({"max_tokens": 8}, vocab=VOCAB)
    shared, held, retained = prompts(60)[0].tolist(), list[int](), list[int]()
    for number in range(20):
        own = torch.randint(0, VOCAB, (100,), generator=torch.Generator().manual_seed(number)).tolist()
        request = GenerationRequest(shared + own, settings, 1000, number)
        scheduler.submit(Ticket(request, lambda event: None))
    with metered() as profiler:
        while scheduler.step() is not None:
            held.append(scheduler.num_bytes + scheduler.retained_bytes + scheduler.draft_bytes)
            retained.append(scheduler.retained_bytes)
    assert max(held) <= peak(profiler) <= share * most
    assert max(retained) > 0 and scheduler.num_cached_tokens > 0


class ForEachRow(MemoryBudget):
    """Wrong: every row has the whole budget."""

    def _fits(self, ctx: Context, depths: Sequence[int]) -> bool:
        return all(
            super(ForEachRow, self)._fits(
                ctx, [depth if row == other else 0 for other, depth in enumerate(depths)]
            )
            for row in range(len(depths))
        )


def conversation(watched: Watched, turns: int) -> list[list[int]]:
    """The texts generated in these turns of two conversations."""
    session = Session(watched.parts, (), (), LazyTargetProbs)
    history, answers = prompts(20, 33), list[list[int]]()
    for turn in range(turns):
        slots = [session.add(text, SamplingParams(0.7, max_tokens=5, seed=turn)) for text in history]
        list(session.steps())
        answers += [session.request(slot).output() for slot in slots]
        history = [
            torch.cat((session.request(slot).text().clone(), more))
            for slot, more in zip(slots, prompts(6, 9), strict=True)
        ]
    return answers


def peak_of(watched: Watched, turns: int) -> tuple[int, list[list[int]]]:
    """The most bytes allocated at one time during a conversation, and its texts."""
    with metered() as profiler:
        answers = conversation(watched, turns)
    return peak(profiler), answers


@pytest.mark.slow
def test_a_budget_is_kept_over_twenty_turns_and_changes_no_text() -> None:
    wide = torch.float64  # in float32 a draft of another length may change how a drawn token is rounded
    free = budgeted(dtype=wide)
    expected = conversation(free, 20)
    budget = max(estimate.total for estimate in free.estimates) * 6 // 10
    watched = budgeted(budget, wide)
    most, found = peak_of(watched, 20)
    assert most <= budget
    assert found == expected
    assert len({depth for depths in watched.depths for depth in depths}) > 2


def test_a_budget_for_each_row_is_exceeded() -> None:
    free, (target, draft) = budgeted(), models()
    conversation(free, 4)
    budget = max(estimate.total for estimate in free.estimates) * 6 // 10
    parts = specmemo.build(target, draft=draft, memory=budget)
    controller = parts.controller
    assert isinstance(controller, MemoryBudget) and isinstance(parts.drafter, DraftModel)
    wrong = ForEachRow(controller._shape, budget, controller._step_memory, parts.drafter)
    watched = Watched(Parts(parts.target, parts.drafter, parts.verifier, wrong))
    conversation(watched, 4)
    assert max(estimate.total for estimate in watched.estimates) > budget


def accepted(watched: Watched) -> float:
    """Mean number of generated tokens per row and step; the texts are always the same."""
    sampling = [SamplingParams(max_tokens=60)] * 3
    session = Session(watched.parts, prompts(4, 3, 5), sampling, LazyTargetProbs)
    lengths = [len(row) for step in session.steps() for row in step.generated if row]
    return sum(lengths) / len(lengths)


@pytest.mark.slow
def test_a_smaller_budget_accepts_less_down_to_plain_decoding() -> None:
    watched = budgeted()
    full = accepted(watched)
    most = max(estimate.total for estimate in watched.estimates)
    shares = (1.0, 0.7, 0.5, 0.3, 0.2)
    found = [accepted(budgeted(int(share * most / (1 - RESERVE)) + 1)) for share in shares]
    assert found[0] == full > 2
    assert found == sorted(found, reverse=True) and len(set(found)) == len(found)
    assert found[shares.index(0.5)] > 0.9 * full
    assert accepted(budgeted(1)) == 1  # less than plain decoding needs: it decodes plainly


def test_the_draft_models_cache_is_freed_when_plain_decoding_needs_its_memory() -> None:
    watched = budgeted()
    accepted(watched)
    session = Session(watched.parts, prompts(300), [SamplingParams(max_tokens=40)], LazyTargetProbs)
    controller, drafter = watched.parts.controller, watched.parts.drafter
    assert isinstance(controller, MemoryBudget) and isinstance(drafter, DraftModel)
    held = list[int]()
    for number, step in enumerate(session.steps()):
        held.append(drafter.cache(step.ctx).num_bytes)
        if number == 2:
            controller._memory = 1
    assert held[2] > 0 and held[4] == 0 and watched.depths[-1] == (0,)


TARGET, DRAFT = TableTarget(3, seed=1), TableTarget(3, seed=2, order=2)
LOGITS = table_logits(TARGET.logits, TARGET.state)


def scripted(memory: int, committed: Sequence[int], rates: dict[int, tuple[int, int]]) -> tuple[int, ...]:
    """The depths planned for rows with texts of this length and these tokens accepted and tested."""
    parts = specmemo.build(TARGET, draft=DRAFT, memory=memory, widths=(1, 1, 1, 1))
    controller = parts.controller
    assert isinstance(controller, MemoryBudget)
    sampling = [SamplingParams(max_tokens=20)] * len(committed)
    session = Session(
        parts, [torch.zeros(length, dtype=torch.int64) for length in committed], sampling, LazyTargetProbs
    )
    controller._rates = dict(rates)
    return controller.plan(session.context()).depth


def test_levels_go_to_the_rows_that_accept_more() -> None:
    rates = {0: (1, 10), 1: (9, 10), 2: (5, 10)}
    planned = [scripted(memory, (5, 5, 5), rates) for memory in range(1, 3_000, 20)]
    assert planned[0] == (0, 0, 0) and planned[-1] == (4, 4, 4)
    assert all(
        one <= other for one, other in zip(map(sum, planned), list(map(sum, planned))[1:], strict=False)
    )
    some = [depths for depths in planned if 0 < sum(depths) < 12]
    assert all(depths[1] >= depths[2] >= depths[0] for depths in some)
    assert len(set(some)) > 5


@pytest.mark.slow
def test_the_distribution_is_plain_decodings_with_any_budget() -> None:
    cases = [Case((0, 1), SamplingParams(1.0, max_tokens=4)), Case((2,), SamplingParams(0.7, max_tokens=4))]
    row = SamplingParams(1.0, top_k=2, max_tokens=3)
    groups, depths = [Group((1, 1), (row, row))], set[int]()
    for memory in (600, 850):

        def build(memory: int = memory) -> Parts:
            watched = Watched(specmemo.build(TARGET, draft=DRAFT, memory=memory, widths=(2, 1)))
            watched.depths = Depths(depths)
            return watched.parts

        found = enumerate_distributions(build, cases, batch=1)  # the budget is shared by the rows
        assert largest_error(found, LOGITS, cases) < BOUND
        joint = enumerate_joint(build, groups, batch=1)
        assert largest_joint_error(joint, LOGITS, groups) < BOUND
    assert {0, 1, 2} <= depths


class Depths(list[tuple[int, ...]]):
    """A list that keeps the single depths only, in a set."""

    def __init__(self, found: set[int]) -> None:
        self._found = found

    def append(self, depths: tuple[int, ...]) -> None:
        self._found.update(depths)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_plain_decodings_with_any_budget(temperature: float) -> None:
    target, draft = models(torch.float64)
    rows = [prompt.tolist() for prompt in prompts(30, 20, 50)]
    sampling = [SamplingParams(temperature, max_tokens=18, seed=row) for row in range(3)]
    plain = texts(autoregressive.build(target), rows, sampling)
    for memory in (1, 1_500_000, AMPLE):
        assert texts(specmemo.build(target, draft=draft, memory=memory), rows, sampling) == plain


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="memory is 0"):
        specmemo.build(TARGET, draft=DRAFT, memory=0)


def test_a_tree_that_is_cut_has_the_nodes_that_were_counted() -> None:
    memory = StepMemory(TARGET, DraftModel(DRAFT), (2, 4, 4))
    shape = Shape.branching((2, 2, 1))
    assert memory.nodes == [0, 2, 6, 10] and len(shape.parents) == 10


class Clock(StepCost):
    """Times that are known exactly, in seconds."""

    def __init__(self, per_node: float, per_forward: float = 0.1) -> None:
        super().__init__()
        self.per_node, self.per_forward = per_node, per_forward

    def record(self, step: Step, drafted: int) -> None:
        """Does nothing: nothing is left to measure."""

    def record_drafting(self, step: Step, read: int) -> None:
        """Does nothing, as `record`."""

    def seconds(self, rows: int, context: int, unread: int, forwards: Numbers, drafted: Numbers) -> Numbers:
        return 1 + self.per_node * drafted + self.per_forward * forwards


def speed(clock: Clock, depths: Sequence[int], rates: Sequence[float], nodes: Sequence[int]) -> float:
    """Tokens per second with these depths, as the paper's planner predicts it."""
    tokens = sum(
        sum(rate**level for level in range(depth + 1)) for rate, depth in zip(rates, depths, strict=True)
    )
    drafted = sum(nodes[depth] for depth in depths)
    return tokens / (1 + clock.per_node * drafted + clock.per_forward * max(depths))


class TokensPerStep(LeastMemory):
    """Wrong: counts tokens per step, so that what a draft costs is not seen."""

    def _speeds(self, ctx: Context, choices: Sequence[Sequence[int]], rates: Sequence[float]) -> Numbers:
        known, self._cost = self._cost, Clock(0.0, 0.0)
        speeds = super()._speeds(ctx, choices, rates)
        self._cost = known
        return speeds


def smallest(
    share: float, clock: Clock, fitting: int, rates: Sequence[float], kind: type[LeastMemory] = LeastMemory
) -> list[int]:
    """The depths for rows with these acceptance rates, where the budget permits `fitting` levels each."""
    parts = specmemo.build(TARGET, draft=DRAFT, widths=WIDTHS)
    controller = parts.controller
    assert isinstance(controller, MemoryBudget)
    session = Session(
        parts,
        [torch.zeros(5, dtype=torch.int64)] * len(rates),
        [SamplingParams(max_tokens=20)] * len(rates),
        LazyTargetProbs,
    )
    ctx, memory = session.context(), controller._step_memory
    least = kind(share, memory.nodes)
    least._cost, least._num_drafts = clock, len(FIRST_DEPTHS)
    controller._rates = {row: (round(rate * 1000), 1000) for row, rate in enumerate(rates)}
    full, fits = [len(WIDTHS)] * len(rates), [fitting] * len(rates)
    return least.reduced(ctx, full, fits, rates, lambda row, level: controller._gain(ctx, row, level))


WIDTHS = (2, 2, 1, 1)
NODES = (0, 2, 6, 10, 14)


@pytest.mark.parametrize("share", [0.7, 0.9, 0.96])
@pytest.mark.parametrize("per_node", [0.002, 0.02, 0.1])
def test_the_smallest_drafts_that_are_fast_enough_are_taken(share: float, per_node: float) -> None:
    clock, rates = Clock(per_node), (0.9, 0.5)
    depths = smallest(share, clock, 4, rates)
    best = max(speed(clock, (depth, depth), rates, NODES) for depth in range(5))
    assert speed(clock, depths, rates, NODES) >= share * best
    # no smaller choice is fast enough: none with as many levels or fewer in each row
    below = (one for one in product(*(range(depth + 1) for depth in depths)) if one != tuple(depths))
    assert all(speed(clock, one, rates, NODES) < share * best for one in below)
    assert sum(depths) < 8


def test_a_larger_share_needs_more_memory_and_costly_drafts_are_given_up() -> None:
    sizes = [sum(smallest(share, Clock(0.01), 4, (0.8, 0.6))) for share in (0.4, 0.7, 0.9, 0.99)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    assert smallest(0.96, Clock(2.0), 4, (0.8, 0.6)) == [0, 0]  # no speculation is worth its memory
    assert smallest(0.96, Clock(0.01), 1, (0.8, 0.6)) == [1, 1]  # the budget keeps even these from the bound


def test_a_choice_that_ignores_time_is_caught() -> None:
    assert smallest(0.96, Clock(2.0), 4, (0.8, 0.6), TokensPerStep) != [0, 0]


def test_less_memory_gives_the_same_text() -> None:
    free, least = budgeted(), budgeted(min_speed=0.9)
    controller = least.parts.controller
    assert isinstance(controller, MemoryBudget) and controller._least is not None
    controller._least._cost = Clock(0.01)
    assert conversation(free, 4) == conversation(least, 4)
    # after the first drafts, which try several depths
    most, less = (max(each.total for each in found.estimates[6:]) for found in (free, least))
    levels = [sum(map(sum, found.depths[6:])) / len(found.depths[6:]) for found in (free, least)]
    assert less < most and 0 < levels[1] < levels[0]


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_speed is 1\.5"):
        specmemo.build(TARGET, draft=DRAFT, min_speed=1.5)
