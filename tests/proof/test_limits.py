"""Draft models and heads that read less far than the target: they draft up to their limit in each row, read
nothing beyond it, and the distribution stays the promised one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from outpace.core.claim import DrawnBeside
from outpace.core.contracts import SamplingParams, Target
from outpace.core.row_error import TextTooLong
from outpace.decode import Session
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.models import Models, tables
from outpace.proof.option_values import choices
from outpace.proof.suite import Subject, ragged
from outpace.recipes import get, names
from outpace.sampling.target_probs import LazyTargetProbs
from tests.tiers import only

LIMIT = 6  # the requests' prompts have 7, 1, 5 and 3 tokens


def models_in(value: Any) -> Iterator[Target]:
    """The draft models among the values of a recipe's options."""
    if isinstance(value, tuple):
        for each in value:
            yield from models_in(each)
    elif isinstance(value, HeadModel | PositionModel):
        yield from models_in(value.model)
    elif isinstance(value, HFTarget | TableTarget):
        yield value


def limited(model: Target, limit: int) -> list[int]:
    """Let the model read `limit` tokens; returns the list to which the positions that it reads are added."""
    model.max_length, positions = limit, list[int]()
    if isinstance(model, HFTarget):
        model._check_positions = positions.append
        return positions
    score = model.score

    def noted(tree: Any, slots: Any, cache: Any, *rest: Any, gap: Any = None, **more: Any) -> Any:
        gaps = [0] * len(slots) if gap is None else list(map(len, gap))
        for row, depth in zip(tree.forest.rows, tree.forest.depths, strict=True):
            positions.append(cache.lengths[slots[row]] + gaps[row] + depth)
        return score(tree, slots, cache, *rest, gap=gap, **more)

    model.score = noted
    return positions


def with_models() -> list[str]:
    made = tables()
    return [name for name in names() if any(True for _ in drafts_of(name, made))]


def drafts_of(name: str, models: Models) -> list[Target]:
    options = next(choices(get(name), models))
    return [model for value in options.values() for model in models_in(value)]


QUICK = ["speculative-sampling", "eagle"]


@pytest.mark.parametrize("name", only(QUICK, with_models()))
def test_drafts_end_at_the_models_limit(name: str) -> None:
    recipe, models = get(name), tables()
    options = next(choices(recipe, models))
    drafts = [model for value in options.values() for model in models_in(value)]
    positions = [limited(model, LIMIT) for model in drafts if model is not models.target]
    parts = recipe.build(models.target, **options)
    if DrawnBeside in parts.drafter.claims or parts.target.max_length == LIMIT:
        with pytest.raises(TextTooLong, match="reads texts of up to 6 tokens, and this method needs it"):
            Subject(recipe, options, models).prove(ragged, 600)
        return
    proof = Subject(recipe, options, models).prove(ragged, 600)
    assert proof.as_promised and not proof.fault, proof.verdict
    assert proof.accepted > 0 or not proof.drafted or proof.tokens == 2 or recipe.exact_with
    # of the exits of a draft model, which read text by themselves, no positions are noted
    assert max((position for each in positions for position in each), default=0) < LIMIT


@pytest.mark.parametrize("name", ["speculative-sampling", "s2d", "cosine", "lookup-or-draft", "eagle"])
def test_each_row_is_drafted_as_far_as_the_model_reads(name: str) -> None:
    recipe, models, depth = get(name), tables(), 5
    options = next(choices(recipe, models)) | {"depth": depth}
    if name == "s2d":
        options["thresholds"] = (0.0,) * 3  # no draft ends because an exit is unsure
    drafts = [model for value in options.values() for model in models_in(value)]
    positions = [limited(model, LIMIT) for model in drafts]
    first = int(name == "eagle")  # heads do not read the first token
    sampling = [SamplingParams(1.0, max_tokens=14, seed=row) for row in range(3)]
    prompts = [torch.tensor(prompt) for prompt in ((0, 1), (2, 0, 2, 1, 1, 0, 2, 0), (1,))]
    session = Session(recipe.build(models.target, **options), prompts, sampling, LazyTargetProbs)
    drafted = set[tuple[int, int]]()
    for step in session.steps():
        forest = step.draft.tree.forest
        for row, length in enumerate(step.ctx.committed):
            found = forest.depths[forest.nodes[row][-1]]
            most = min(depth, max(0, LIMIT + first - length), step.ctx.max_draft_depth[row])
            if step.generated[row]:
                chosen = name in ("cosine", "lookup-or-draft")  # their controllers may plan less
                assert found == most or (chosen and found < most) or (name == "lookup-or-draft" and not most)
                drafted.add((length, found))
    lengths = {length for length, found in drafted if found}
    assert max(lengths) >= LIMIT + first - 1 and min(lengths) < LIMIT - 1
    if name == "speculative-sampling":
        assert max(positions[0]) == LIMIT - 1  # the last draft token of a row, while another row drafts on


def test_a_text_beyond_the_draft_models_limit_is_looked_up() -> None:
    recipe, models = get("lookup-or-draft"), tables()
    limited(models.drafts[0], 3)
    prompt = torch.tensor((0, 1, 2) * 4)
    parts = recipe.build(models.target, draft=models.drafts[0])
    session = Session(parts, [prompt], [SamplingParams(max_tokens=8)], LazyTargetProbs)
    assert max(len(step.draft.tree) for step in session.steps()) > 1
