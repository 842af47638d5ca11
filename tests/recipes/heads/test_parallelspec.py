"""ParallelSpec and P-EAGLE: several levels in one forward of a head with masks. Their packed training, and
that of DART."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.drafters.model.look_ahead import LookAhead
from outpace.drafters.model.masks import with_masks
from outpace.models.heads.dart.head import untrained_dart
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.p_eagle.head import untrained_p_eagle
from outpace.models.heads.parallelspec.head import untrained_parallelspec
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.p_eagle import p_eagle
from outpace.recipes.heads.parallelspec import parallelspec
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.packed import packed

VOCAB = 12
UNTRAINED = {"parallelspec": untrained_parallelspec, "p-eagle": untrained_p_eagle, "dart": untrained_dart}
RECIPES: dict[str, Any] = {"parallelspec": parallelspec, "p-eagle": p_eagle}
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def head_of(kind: str = "parallelspec") -> Any:
    """A head whose masks matter as much as tokens do."""
    head: Any = UNTRAINED[kind](target(), 4)
    with torch.no_grad():
        for name, weight in head.own.items():
            if name.startswith("mask_"):
                weight.mul_(30)
    return head


def steps_of(parts: Parts, temperature: float = 0.0) -> list[Any]:
    params = [SamplingParams(temperature, max_tokens=14, seed=seed) for seed in range(len(PROMPTS))]
    session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def read_alone(head: DraftHead, tokens: Tensor, features: Tensor, num_masks: int) -> Tensor:
    """The logits (1 + k, V) after a text and in the masks behind it, in one forward without a cache."""
    ids, feature = head.mask_inputs(num_masks)
    read = torch.cat((tokens[1:], ids))[None]
    given = torch.cat((features, feature.expand(num_masks, -1)))[None]
    at = torch.arange(read.shape[1])[None]
    return head(read, at, features=given, use_cache=False).logits[0, -num_masks - 1 :]


def features_of(text: Tensor, head: DraftHead) -> Tensor:  # (T - 1, F)
    model, states = target().model.model, dict[int, Tensor]()
    hooks = [
        model.layers[tap].register_forward_hook(lambda _, __, out, tap=tap: states.update({tap: out}))
        for tap in head.taps
        if tap >= 0
    ]
    with torch.no_grad():
        states[-1] = model(text[None], use_cache=False).last_hidden_state
        for hook in hooks:
            hook.remove()
        joined = torch.cat([states[tap] for tap in head.taps], -1)[0]
        return head.fuse(joined.to(next(head.parameters())))[:-1]


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("tree", ["dynamic", "chain"])
def test_drafts_are_those_of_a_head_that_reads_the_whole_text(tree: Any, kind: str) -> None:
    """What the KV cache keeps after a draft is the text's alone."""
    head, drafted = head_of(kind), 0
    parts = RECIPES[kind].build(target(), head=HeadModel(head), tree=tree, depth=5, width=2, num_nodes=6)
    for step in steps_of(parts):
        forest = step.draft.tree.forest
        if len(forest) == forest.num_rows:
            continue
        assert step.draft.forwards == 1
        for row in range(len(step.ctx.slots)):
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            with torch.no_grad():
                alone = read_alone(head, text, features_of(text, head), 4).log_softmax(-1)
            for node in forest.nodes[row][1:]:
                depth, token = forest.depths[node], int(step.draft.tree.tokens[node])
                ranks = alone[depth - 1].argsort(descending=True).tolist()
                assert token in ranks[: 2 if tree == "dynamic" else 1]
                drafted += 1
    assert drafted > 30


def test_a_second_forward_stands_behind_drafted_tokens() -> None:
    """Levels 6 to 8 of a chain: its first five tokens have the masks' feature."""
    head = head_of()
    model = HeadModel(head)
    steps = steps_of(parallelspec.build(target(), head=model, tree="chain", depth=8))
    step = next(each for each in steps if len(each.draft.tree) == 2 * 9)
    assert step.draft.forwards == 2
    forest = step.draft.tree.forest
    for row in range(2):
        text = step.ctx.tokens[row][: step.ctx.committed[row]]
        chain = step.draft.tree.tokens[list(forest.nodes[row][1:])]
        with torch.no_grad():
            given = torch.cat((features_of(text, head), head.mask_feature.expand(5, -1)))
            alone = read_alone(head, torch.cat((text, chain[:5])), given, 2)
        assert alone.argmax(-1).tolist() == chain[5:].tolist()


def test_texts_are_the_target_s_and_drafts_are_accepted() -> None:
    params = [SamplingParams(0.0, max_tokens=14)] * 2
    parts = parallelspec.build(target(), head=HeadModel(head_of()))
    assert texts(parts, PROMPTS, params) == texts(autoregressive.build(target()), PROMPTS, params)
    assert len(steps_of(parts)) < len(steps_of(autoregressive.build(target())))


@pytest.mark.parametrize("kind", UNTRAINED)
def test_packed_groups_are_the_columns_one_at_a_time(kind: str) -> None:
    head: Any = head_of(kind)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [5, 3, 1, 9, 11, 2, 0, 4]])
    features = torch.stack([features_of(text, head) for text in tokens])
    columns = torch.zeros(2, 7, dtype=torch.bool)
    columns[0, [1, 4, 6]], columns[1, [0, 3]] = True, True
    with torch.no_grad():
        steps = list(packed(head, tokens, features, columns, 4))
        assert [step.step for step in steps] == [0, 1, 2, 3]
        found = torch.stack([head.lm_head(head.norm(step.states)) for step in steps], 1)
        places = columns.nonzero().tolist()
        for of_group, (row, column) in zip(found, places, strict=True):
            text = tokens[row, : column + 2]
            alone = read_alone(head, text, features[row, : column + 1], 3)
            assert (of_group - alone).abs().max() < 1e-5
    steps = list(packed(head, tokens, features, columns, 4))
    sum(step.states.square().sum() for step in steps).backward()
    masks = [weight for name, weight in head.own.items() if "mask_" in name]
    assert masks and all(mask.grad is not None and mask.grad.abs().max() > 0 for mask in masks)


def test_levels_between_anchors_have_the_logits_of_their_anchor() -> None:
    """Forwards over 2, 1 and 2 levels, in a tree with two children of each node."""
    asked = list[tuple[list[int], int]]()

    def read(tree: TokenTree, anchors: Any, levels: int) -> Tensor:
        asked.append((list(anchors), levels))
        return torch.tensor([[[10.0 * anchor + level] for level in range(levels)] for anchor in anchors])

    look = LookAhead(read, (2, 1, 2))
    parents, level, found = [-1, -1], [0, 1], []
    for _ in range(5):
        tree = TokenTree(torch.zeros(len(parents), dtype=torch.int64), Forest.of(parents, 2))
        first, logits = look(tree)
        assert first == level[0] and len(logits) == len(level)
        found.append(logits[:, 0].tolist())
        level = [len(parents) + index for index in range(2 if len(found) > 1 else 4)]
        above = [first, first, first + 1, first + 1] if len(level) == 4 else [first, first + 1]
        parents += above
    assert asked == [([0, 1], 2), ([6, 7], 1), ([8, 9], 2)]
    assert found == [[0, 10], [1, 1, 11, 11], [60, 70], [80, 90], [81, 91]]
    with pytest.raises(ValueError, match="beyond a node of depth 5: draft 5 tokens or fewer"):
        look(TokenTree(torch.zeros(len(parents), dtype=torch.int64), Forest.of(parents, 2)))
    with pytest.raises(ValueError, match="each gives the logits of one level or more"):
        LookAhead(read, (2, 0))


def test_no_mask_stands_behind_the_end_of_a_rows_draft() -> None:
    """The second row may draft two tokens: one at the root and one at a mask."""
    roots = TokenTree.roots(torch.tensor([5, 6]))
    masked, nodes = with_masks(roots, [0, 1], torch.tensor([7, 8, 9]), [3, 1])
    assert masked.forest.parents == (-1, -1, 0, 1, 2, 4)
    assert masked.tokens.tolist() == [5, 6, 7, 7, 8, 9]
    assert nodes == [0, 2, 4, 5, 1, 3, 3, 3]
    read = list[int]()
    parts = parallelspec.build(target(), head=HeadModel(head_of()), tree="chain", depth=5)
    drafter: Any = parts.drafter
    score = drafter.opened.model.score

    def counted(tree: TokenTree, *given: Any, **more: Any) -> Any:
        read.append(len(tree))
        return score(tree, *given, **more)

    drafter.opened.model.score = counted
    params = [SamplingParams(0.0, max_tokens=tokens) for tokens in (14, 4)]
    session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    assert [step for step in session.steps() if any(step.generated)]
    assert max(read) == 5 + 3, "of the second text, which ends after four tokens, three are drafted at most"
