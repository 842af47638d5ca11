"""GTO: trees in training are those of decoding, their rewards follow from the target, and only the draft
probability of accepted paths has a gradient."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.api.model import Model
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.gto import gto
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import ConfigError, changed
from outpace.training.features import Batch, FeatureSource
from outpace.training.lessons.feature_heads import FeatureHeadLesson, features_of
from outpace.training.lessons.group_trees import GroupTreeLesson
from outpace.training.methods import named
from outpace.training.text_trees import ScoredTrees, drafted_trees, scored_trees
from outpace.training.texts import Example
from outpace.training.unrolled import unrolled

VOCAB, LENGTH = 12, 24
SIZES = {"depth": 4, "width": 3, "num_nodes": 9}
SETTINGS = ["head.unroll=2", "trees.size=3", *(f"trees.{name}={value}" for name, value in SIZES.items())]
NO_NOISE = torch.Generator()


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def text(*prompt: int) -> tuple[int, ...]:
    params = SamplingParams(0, max_tokens=LENGTH - len(prompt))
    session = Session(autoregressive.build(target()), [torch.tensor(prompt)], [params], LazyTargetProbs)
    list(session.steps())
    return tuple(session.request(0).text().tolist())


def batch_of(lesson: FeatureHeadLesson, *texts: tuple[int, ...]) -> Batch:
    examples = [Example(each, 2) for each in texts]
    return FeatureSource(target(), examples, lesson.layers, Path("none")).batch(list(range(len(texts))))


def lesson_of(*changes: str, seed: int = 3) -> GroupTreeLesson:
    method = named("gto")
    config = changed(method.defaults(), [*SETTINGS, *changes])
    made = method.lesson(untrained_eagle3(target(), seed), target(), config)
    assert isinstance(made, GroupTreeLesson)
    return made


def moved(lesson: GroupTreeLesson, amount: float = 0.2) -> GroupTreeLesson:
    """With a head that has learned something since it began."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in lesson.trained.values():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(noise * amount * weight.std() if weight.ndim > 1 else 0 * noise)
    return lesson


def trees_of(lesson: GroupTreeLesson, batch: Batch, columns: list[int]) -> ScoredTrees:
    tokens = batch.tokens[0]
    given = target(), target().open(1, 400), tokens
    features = features_of(lesson.head, batch)[0]
    tree = drafted_trees(lesson.head, *given, features, columns, lesson._growth, SIZES["depth"])
    return scored_trees(*given, columns, [tree])[0]


def test_the_reward_is_the_logarithm_of_the_sum_over_paths() -> None:
    chain = ScoredTrees(
        TokenTree(torch.tensor([0, 1, 2, 3]), Forest.chain((3,))), [1, 0.5, 0.4, 0.25], [1] * 4
    )
    assert chain.rewards().tolist() == pytest.approx([0.5 + 0.5 * 0.4 + 0.5 * 0.4 * 0.25])
    assert chain.accepted() == [[1]]
    # two rows: the first with the paths (1), (2, 3) and (2, 4), the second without a draft
    forest = Forest.of((-1, -1, 0, 0, 3, 3), 2)
    trees = ScoredTrees(
        TokenTree(torch.tensor([9, 9, 1, 2, 3, 4]), forest), [1, 1, 0.3, 0.6, 0.5, 0.1], [2, 0, 0, 4, 0, 0]
    )
    lengths = [0.3, 0.6 + 0.6 * 0.5, 0.6 + 0.6 * 0.1]
    assert trees.rewards().tolist() == pytest.approx([math.log(sum(map(math.exp, lengths))), 0.0])
    assert trees.accepted() == [[2, 4], []]


@pytest.mark.parametrize("state_layer", [0, -1], ids=["before the norm", "normed output"])
def test_trees_of_training_are_those_of_decoding_and_scored_by_plain_forwards(state_layer: int) -> None:
    lesson, columns = lesson_of(), [6, 7, 8]
    lesson.head.state_layer = state_layer
    batch = batch_of(lesson, text(1, 2))
    found = trees_of(lesson, batch, columns)
    nodes = found.tree.forest.nodes
    for row, column in enumerate(columns):
        begin = list(text(1, 2)[: column + 2])
        parts = gto.build(target(), head=HeadModel(lesson.head), **SIZES)
        params = SamplingParams(0, max_tokens=SIZES["depth"] + 1)
        session = Session(parts, [torch.tensor(begin)], [params], LazyTargetProbs)
        step = next(step for step in session.steps() if any(step.generated))
        drafted, forest = step.draft.tree, step.draft.tree.forest
        paths = {tuple(drafted.tokens[forest.path(node)].tolist()) for node in range(len(forest))}
        own = [found.tree.forest.path(node) for node in nodes[row]]
        assert {tuple(found.tree.tokens[path].tolist()) for path in own} == paths and len(paths) == 10
        assert found.accepted()[row] == step.generated[0][: len(step.generated[0]) - 1]
        for node, path in zip(nodes[row][1:], own[1:], strict=True):
            read = torch.tensor([[*begin, *found.tree.tokens[path[1:]].tolist()]])
            logits = target().model(read, use_cache=False).logits[0].detach()
            assert found.probs[node] == pytest.approx(float(logits[-2].softmax(-1)[read[0, -1]]), abs=1e-6)
            assert found.best[node] == int(logits[-1].argmax())


def test_rewards_rise_with_the_mean_number_of_accepted_tokens() -> None:
    """At temperature 1 that number is the sum over all nodes of the probability that they are reached."""
    lesson, rewards, expected = lesson_of(), list[Tensor](), list[float]()
    for first in range(0, VOCAB, 3):
        found = trees_of(lesson, batch_of(lesson, text(first, 5)), list(range(1, LENGTH - 4)))
        forest, reached = found.tree.forest, [1.0] * len(found.tree)
        sums = [0.0] * forest.num_rows
        for node in range(forest.num_rows, len(forest)):
            reached[node] = reached[forest.parents[node]] * found.probs[node]
            sums[forest.rows[node]] += reached[node]
        rewards.append(found.rewards())
        expected += sums
    pair = torch.stack((torch.cat(rewards), torch.tensor(expected, dtype=torch.float64)))
    assert torch.corrcoef(pair)[0, 1] > 0.7


def gradients(lesson: FeatureHeadLesson, loss: Tensor) -> list[Tensor]:
    weights = list(lesson.trained.values())
    return [
        each.detach()
        for each in torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
    ]


def test_a_head_that_has_not_moved_learns_from_tokens_alone() -> None:
    lesson = lesson_of()
    batch = batch_of(lesson, text(1, 2), text(4, 4)[:17])
    plain = FeatureHeadLesson.forward(lesson, batch, NO_NOISE)
    whole = lesson(batch, torch.Generator().manual_seed(0))
    assert torch.equal(whole, plain)
    assert all(map(torch.equal, gradients(lesson, whole), gradients(lesson, plain)))


def test_the_gradient_is_that_of_the_accepted_paths_draft_probabilities() -> None:
    """With advantages and lengths as constants; the probabilities by forwards over each whole path."""
    lesson = moved(lesson_of("trees.clip=5", "trees.width=6", "trees.num_nodes=40"))
    batch, groups = batch_of(lesson, text(1, 2), text(4, 4)), [[[3, 4, 5], [9, 10, 11]], [[6, 7, 8]]]
    loss = lesson.tree_loss(batch, groups)
    advantages, paths = lesson.advantages(batch, groups)
    assert any(len(path) > 1 for path in paths) and advantages.abs().max() > 0.5
    for begin in (0, 3, 6):
        assert float(advantages[begin : begin + 3].sum()) == pytest.approx(0, abs=1e-5)
        assert float(advantages[begin : begin + 3].std()) == pytest.approx(1, abs=1e-3)
    places = [(row, column) for row, of_row in enumerate(groups) for group in of_row for column in group]
    total = torch.zeros((), dtype=torch.float64)
    for (row, column), path, advantage in zip(places, paths, advantages.tolist(), strict=True):
        logs: list[Tensor] = []
        for head in (lesson.head, lesson._reference[0]):
            tokens = torch.tensor([[*batch.tokens[row, : column + 2].tolist(), *path, 0]])
            features = features_of(head, batch)[row : row + 1, : column + 1]
            at = torch.zeros(1, tokens.shape[1] - 1, dtype=torch.bool)
            at[0, column] = True
            features = torch.cat((features, features.new_zeros(1, len(path) + 1, features.shape[2])), 1)
            log_q = torch.zeros((), dtype=torch.float64)
            for outputs in unrolled(head, tokens, features, at, len(path)):
                logits = head.lm_head(head.norm(outputs.states))[0]
                log_q = log_q + logits.log_softmax(-1)[path[outputs.step]]
            logs.append(log_q)
        ratio = ((logs[0] - logs[1].detach()) / max(1, len(path))).exp()
        total = total - ratio * advantage / len(places)
    assert loss.item() == pytest.approx(total.item(), abs=1e-5)
    for found, expected in zip(gradients(lesson, loss), gradients(lesson, total), strict=True):
        assert (found - expected).abs().max() < 1e-5
    assert max(float(each.abs().max()) for each in gradients(lesson, loss)) > 1e-3


def test_paths_that_have_changed_enough_have_no_gradient() -> None:
    lesson = moved(lesson_of("trees.clip=0"))
    batch, groups = batch_of(lesson, text(1, 2)), [[[3, 4, 5], [9, 10, 11]]]
    advantages, paths = lesson.advantages(batch, groups)
    loss = lesson.tree_loss(batch, groups)
    columns = torch.zeros(1, LENGTH - 1, dtype=torch.bool)
    columns[0, [3, 4, 5, 9, 10, 11]] = True
    own, before = (
        lesson.path_log_probs(head, batch, columns, paths) for head in (lesson.head, lesson._reference[0])
    )
    lengths = torch.tensor([max(1, len(path)) for path in paths])
    ratio = ((own - before.detach()) / lengths).exp()
    # better trees whose path has become more probable, and worse ones with a less probable path, are left
    left = torch.sign(ratio.detach() - 1) == torch.sign(advantages)
    expected = -torch.where(left, advantages, ratio * advantages).mean()
    assert 0 < left.sum() and loss.item() == pytest.approx(expected.item(), abs=1e-5)
    pairs = zip(gradients(lesson, loss), gradients(lesson, expected), strict=True)
    assert all((found - wanted).abs().max() < 1e-5 for found, wanted in pairs)


def test_groups_are_adjacent_places_of_the_answer_that_do_not_overlap() -> None:
    lesson = lesson_of("trees.groups=3")
    columns = torch.zeros(40, dtype=torch.bool)
    columns[5:25] = True
    begins = set[int]()
    for seed in range(20):
        groups = lesson._groups(columns, torch.Generator().manual_seed(seed))
        assert len(groups) == 3 and all(group == list(range(group[0], group[0] + 3)) for group in groups)
        flat = [column for group in groups for column in group]
        assert flat == sorted(set(flat)) and 5 <= flat[0] and flat[-1] < 25
        begins.update(group[0] for group in groups)
    assert len(begins) > 10
    assert lesson._groups(columns[:7], NO_NOISE) == [] and len(lesson._groups(columns[:8], NO_NOISE)) == 1


def test_it_begins_with_a_head_and_needs_a_target_that_scores_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method: Any = named("gto")
    with pytest.raises(ConfigError, match="gto needs head: a trained head of EAGLE-3, with which it begins"):
        method.check_start(None, None)
    save_head(untrained_eagle3(target(), 3), tmp_path, target())
    model = Model("target", target())
    head = method.untrained(model, method.defaults(), start=str(tmp_path))
    assert next(iter(head.own.values())).dtype == torch.float32
    lesson = method.lesson(head, target(), changed(method.defaults(), SETTINGS))
    reference = lesson._reference[0]
    assert reference.embed_tokens is target().embed and not set(reference.own.values()) & set(
        head.own.values()
    )
    assert lesson(batch_of(lesson, text(1, 2)), torch.Generator().manual_seed(1)).isfinite()
    monkeypatch.setattr(target(), "chains_only", True)
    with pytest.raises(ConfigError, match="gto learns from draft trees, and this target scores chains only"):
        method.untrained(model, method.defaults(), start=str(tmp_path))
