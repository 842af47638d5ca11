"""TLT: tree sizes by the number of rows, and no drafts in large batches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from outpace.controllers.batch_strategies import BatchStrategies
from outpace.core.context import Context
from outpace.core.contracts import Step
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.drafters.model.cross_vocabulary import CacheSize
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.control.tlt import tlt
from outpace.sampling.target_probs import LazyTargetProbs

RANGES: dict[str, Any] = {"num_nodes": (12, 6, 2), "first_rows": (1, 2, 4)}


def controller(depths: tuple[int, ...] = (3,), **options: Any) -> BatchStrategies:
    return BatchStrategies(depths, **RANGES, **{"most_rows": 5, "checks": 3, "exploring": 0.0} | options)


def context(rows: int) -> Context:
    return Context(
        tokens=(torch.zeros(4, dtype=torch.int64),) * rows,
        committed=(4,) * rows,
        max_draft_depth=(9,) * rows,
        slots=tuple(range(rows)),
        cache=CacheSize(1 << 20, [0] * rows),
        sampling=(SamplingParams(),) * rows,
        noise=KeyedNoise([0] * rows, [0] * rows, [4] * rows),
    )


def ended(made: BatchStrategies, ctx: Context, generated: list[int], seconds: float) -> None:
    step: Any = SimpleNamespace(
        ctx=ctx, generated=[[0] * count for count in generated], seconds={"score": seconds}
    )
    made.observe(step)


@pytest.mark.parametrize(("rows", "nodes"), [(1, 12), (2, 6), (3, 6), (4, 2), (5, 2)])
def test_larger_batches_draft_fewer_tokens(rows: int, nodes: int) -> None:
    made = controller()
    plan = made.plan(context(rows))
    assert plan.depth == (3,) * rows and plan.size is made
    scores = [numpy.zeros(20)] * rows
    assert made.keep(scores, 1) == [nodes] * rows and made.extend(scores, scores, 1) == [20] * rows


def test_drafting_begins_again_when_few_rows_have_run_for_some_steps() -> None:
    made, drafted = controller(), list[bool]()
    for rows in (5, 6, 5, 5, 6, 4, 4, 4, 4):
        drafted.append(any(made.plan(context(rows)).depth))
    assert drafted == [True, False, False, False, False, False, False, True, True]


def test_the_depth_with_the_largest_median_of_rewards_drafts() -> None:
    """A step with a long draft in one of three rows, and a slow step, change no median."""
    made, seconds = controller((2, 4)), {2: 1.0, 4: 1.5}
    used = list[int]()
    for index in range(30):
        ctx = context(3)
        depth = made.plan(ctx).depth[0]
        used.append(depth)
        generated = [2, 9, 2] if depth == 2 and index % 2 else [2, 2, 2] if depth == 2 else [4, 4, 1]
        ended(made, ctx, generated, 100.0 if index == 5 else seconds[depth])
    assert set(used[:2]) == {2, 4} and used[2:] == [4] * 28  # 4 · 3 / 1.5 against 2 · 3 / 1
    assert not any(made._rewards[0]) and not any(made._rewards[2])  # each range learns for itself


def test_other_depths_are_explored() -> None:
    made, used = controller((2, 4), exploring=0.5), list[int]()
    for index in range(200):
        ctx = context(1)
        ctx = replace(ctx, noise=KeyedNoise([0], [index], [4]))
        used.append(made.plan(ctx).depth[0])
        ended(made, ctx, [used[-1]], 1.0)
    assert 25 < used[2:].count(2) < 75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": (8, 4)}, "2 num_nodes and 4 first_rows: give one of each"),
        ({"first_rows": (2, 3, 4, 5)}, "begin with 1 and go up"),
        ({"first_rows": (1, 5, 4, 6)}, "begin with 1 and go up"),
        ({"depths": ()}, "numbers of 1 or more"),
        ({"num_nodes": (8, 4, 0, 1)}, "numbers of 1 or more"),
        ({"exploring": 1.5}, "a probability"),
        ({"checks": 0}, "checks 1 or more"),
    ],
)
def test_values_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    target = transformers_models().target
    with pytest.raises(ValueError, match=message):
        tlt(target, head=HeadModel(untrained_eagle(target)), **options)


def decoded(parts: Any) -> tuple[list[list[int]], list[Step]]:
    """The texts of four requests of different lengths, and their steps."""
    prompts = [torch.tensor([1, 2, row]) for row in range(4)]
    sampling = [SamplingParams(temperature=0, max_tokens=count) for count in (4, 8, 16, 24)]
    steps = list(Session(parts, prompts, sampling, LazyTargetProbs).steps())
    texts = list[list[int]]()
    for slot in range(4):
        rows = [(step, step.ctx.slots.index(slot)) for step in steps if slot in step.ctx.slots]
        texts.append([token for step, row in rows for token in step.generated[row]])
    return texts, steps


def test_texts_are_those_of_plain_decoding_while_a_batch_shrinks() -> None:
    """Rows end one after the other: drafting begins late, with a head that has to read what it missed. Then
    the target's weights change, as those of a policy that is trained."""
    target: Any = transformers_models().target
    head = HeadModel(untrained_eagle(target))
    found = list[list[list[int]]]()
    for _ in range(2):
        parts = tlt(target, head=head, num_nodes=(6, 3), first_rows=(1, 2), most_rows=2, checks=2)
        texts, steps = decoded(parts)
        assert texts == decoded(autoregressive(target))[0]
        sizes = [(len(step.ctx.slots), step.draft.forwards, len(step.draft.tree)) for step in steps]
        assert not any(forwards for rows, forwards, _ in sizes if rows > 2), sizes
        assert (2, 8, 2 + 2 * 3) in sizes, sizes
        assert any(rows == 1 and nodes == 1 + 6 for rows, _, nodes in sizes), sizes
        found.append(texts)
        with torch.no_grad():
            for layer in target.model.model.layers:
                layer.mlp.down_proj.weight.mul_(-2.0)
    assert found[0] != found[1]


def test_the_head_learns_while_few_rows_run() -> None:
    """Rows of different lengths: all are noted, and updates are made while at most two run."""
    models = transformers_models()
    given = HeadModel(untrained_eagle(models.target, 1))
    parts = tlt.build(models.target, head=given, **RANGES, spot_rows=2, positions=12, learning_rate=1e-2)
    assert isinstance(parts.drafter, LearningDrafter)
    learning, rows_at_updates, noted = parts.drafter.learning, list[int](), list[int]()
    sampling = [SamplingParams(1.0, max_tokens=length, seed=length) for length in (4, 6, 30, 40)]
    prompts = [torch.tensor([row]) for row in range(4)]
    before = 0
    for step in Session(parts, prompts, sampling, LazyTargetProbs).steps():
        if learning.versions.num_updates > before:
            before = learning.versions.num_updates
            rows_at_updates.append(len(step.ctx.slots))
        noted.append(learning._num_new)
    assert len(rows_at_updates) > 2 and max(rows_at_updates) <= 2
    assert max(noted) <= 12 + 4 * 8 and learning.num_left_out > 0
    with pytest.raises(ValueError, match="spot_rows is -1"):
        tlt.build(models.target, head=given, spot_rows=-1)


@pytest.mark.slow
def test_a_head_that_learns_follows_a_target_that_changes() -> None:
    """The target's weights are exchanged twice; acceptance afterwards is above that of a fixed head."""
    rates = dict[int, float]()
    for spot_rows in (0, 4):
        models = transformers_models()
        target: Any = models.target
        parts = tlt.build(
            models.target,
            head=HeadModel(untrained_eagle(models.target, 1)),
            depths=(3,),
            num_nodes=(3,),
            first_rows=(1,),
            width=1,
            spot_rows=spot_rows,
            positions=64,
            learning_rate=1e-2,
        )
        drafted = accepted = 0
        for change in range(2):
            weight = target.model.lm_head.weight
            weight.data = weight.data.roll(change, 0)
            for seed in range(12):
                sampling = [SamplingParams(max_tokens=24, seed=10 * seed + row) for row in range(4)]
                prompts = [torch.tensor([row % 3, seed % 3]) for row in range(4)]
                for step in Session(parts, prompts, sampling, LazyTargetProbs).steps():
                    if seed >= 8:
                        drafted += len(step.ctx.slots)
                        accepted += sum(step.draft.tree.forest.depths[node] for node in step.kept)
        rates[spot_rows] = accepted / drafted
    assert rates[4] > 1.2 * rates[0]
