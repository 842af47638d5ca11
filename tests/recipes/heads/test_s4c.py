"""S4C: the first head continues the whole text, each further one the state of the head before it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu, smooth_l1_loss

from outpace.api.model import Model
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.s4c.head import S4CHead, untrained_s4c
from outpace.models.heads.s4c.kind import S4CModel
from outpace.proof.decode_all import texts
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.s4c import s4c
from outpace.training.config import changed
from outpace.training.features import FeatureSource
from outpace.training.methods import named
from outpace.training.texts import Example
from tests.recipes.heads.position_heads import (
    GREEDY,
    VOCAB,
    check_ranks,
    hidden_states,
    plain,
    small,
    steps_of,
)


def untrained(seed: int = 2) -> S4CHead:
    head = untrained_s4c(small(), seed)
    assert isinstance(head, S4CHead) and head.prefix is not None
    return head


def opened(head: S4CHead) -> S4CModel:
    return S4CModel(PositionModel(head))


def last_of(text: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What the first head reads of a text without its root, as the last of a list."""
    return [(text, hidden_states(text))]


@torch.no_grad()
def states_after(head: S4CHead, text: Tensor, hidden: Tensor, read: list[int]) -> list[Tensor]:
    """The states of the nodes on a path, by forwards over the whole text without a KV cache. `read`: the root
    and the draft tokens."""
    layer: Any = head.prefix
    tokens = torch.tensor([*text[1:].tolist(), read[0]])
    found = [layer(tokens[None], torch.arange(len(tokens))[None], features=hidden[None]).logits[0, -1]]
    for index, token in enumerate(read[1:]):
        both = torch.cat((found[-1], small().embed(torch.tensor(token))))
        block = {name: head.own[f"mixers.{index}.{name}"] for name in ("linear.weight", "residual.weight")}
        found.append(block["residual.weight"] @ both + silu(block["linear.weight"] @ both))  # biases are 0
    return found


def logits_after(head: S4CHead, before: tuple[Tensor, Tensor], read: list[int]) -> Tensor:
    return small().head(states_after(head, *before, read)[-1])


@pytest.mark.parametrize(("tree", "prompt_tokens"), [("dynamic", 3), ("chain", 512)])
def test_every_node_has_the_candidates_of_its_head_after_the_whole_text(
    tree: str, prompt_tokens: int
) -> None:
    """However many tokens a step commits and however prompts are divided: what is kept of a text is what
    forwards over the whole of it give."""
    head: Any = untrained()
    parts = s4c.build(small(), head=opened(head), tree=tree)
    generated, steps = steps_of(parts, prompt_tokens=prompt_tokens)
    assert generated == plain(small())
    assert len({len(each) for step in steps for each in step.generated}) > 1
    before: Any = last_of
    assert check_ranks(steps, partial(logits_after, head), before) > 50
    depths = max(max(step.draft.tree.forest.depths) for step in steps)
    assert depths == head.num_heads == 5 and max(step.draft.forwards for step in steps) == 1


def test_nodes_below_different_parents_have_different_candidates() -> None:
    _, steps = steps_of(s4c.build(small(), head=opened(untrained())))
    tree = max((step.draft.tree for step in steps), key=len)
    forest, tokens = tree.forest, tree.tokens.tolist()
    best = {tokens[forest.children[node][0]] for node in forest.children[0] if forest.children[node]}
    assert len(best) > 1


def test_a_head_is_read_as_it_was_written_and_fits_its_target_alone(tmp_path: Path) -> None:
    head = untrained()
    save_head(head, tmp_path, small())
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "s4c"
    again = load_head("s4c", tmp_path, small())
    assert (
        isinstance(again, S4CHead) and again.lm_head is small().head and again.own.keys() == head.own.keys()
    )
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())
    assert not any("embed" in name or "lm_head" in name for name in head.own)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"num_heads": 4}, r"has mixers\.3\.linear\.bias"),
        ({"num_heads": None}, "its num_heads is None: restore its config.json"),
        ({"hidden_size": 24}, r"hidden states of 24 numbers, and this target's have 16: give"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(HeadFileError, match=message):
            load_head("s4c", tmp_path, small())


def lesson_and_batch(first: int, *read: list[int]) -> tuple[Any, Any]:
    method: Any = named("s4c")
    config = method.defaults()
    assert (config.head.num_heads, config.head.decay, config.head.feature_weight) == (5, 0.8, 1.0)
    config = changed(config, ["head.num_heads=3", "head.feature_weight=0.5"])
    lesson = method.lesson(method.untrained(Model("target", small()), config), small(), config)
    examples = [Example(tuple(each), first) for each in read]
    return lesson, FeatureSource(small(), examples, lesson.layers, Path("none")).batch(range(len(read)))


def test_the_loss_is_that_of_all_heads_tokens_and_of_the_first_ones_features() -> None:
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    lesson, batch = lesson_and_batch(5, text)
    head, hidden = lesson.head, hidden_states(torch.tensor(text))
    for index, mixer in enumerate(head.mixers):
        torch.nn.init.normal_(mixer.linear.weight, std=0.2 + index)
    head.double()
    distances, losses = list[float](), [list[float]() for _ in range(3)]
    for column in range(len(text) - 2):
        read = text[column + 1 : column + 4]
        states = states_after(head, torch.tensor(text[: column + 1]), hidden[: column + 1], read)
        for step, state in enumerate(states):
            if 5 <= (label := column + 2 + step) < len(text):
                p = small().head(hidden[label - 1]).softmax(-1).detach()
                log_q = small().head(state).log_softmax(-1).detach()
                losses[step].append(-float((p * log_q).sum()))
                if not step:
                    distances.append(float(smooth_l1_loss(state, hidden[label - 1])))
    expected = 0.5 * sum(distances) / len(distances)
    expected += sum(0.8**step * sum(each) / len(each) for step, each in enumerate(losses))
    assert lesson(batch, torch.Generator()).item() == pytest.approx(expected, rel=1e-5)


def test_all_weights_learn_and_the_heads_agree_more() -> None:
    prompts = [[first, second] for first in range(VOCAB) for second in (1, 7)]
    greedy = texts(autoregressive.build(small()), prompts, GREEDY[:1] * len(prompts))
    read = [[*prompt, *text] for prompt, text in zip(prompts, greedy, strict=True)]
    lesson, batch = lesson_and_batch(2, *read)
    before = lesson.evaluation(0, [batch]).agreement
    weights, frozen = list(lesson.trained.values()), next(small().head.parameters()).clone()
    optimizer = torch.optim.Adam(weights, lr=5e-3)
    for _ in range(40):
        loss = lesson(batch, torch.Generator())
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)
        optimizer.step()
    after = lesson.evaluation(1, [batch]).agreement
    assert len(after) == 3 and after[0] > before[0] + 0.2 and after[1] > 0.1
    assert torch.equal(next(small().head.parameters()), frozen)
