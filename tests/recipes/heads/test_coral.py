"""CORAL: the router among groups of rows of the LM head, features aligned across steps, files, training."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.coral.head import untrained_coral
from outpace.models.heads.coral.lesson import info_nce
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.self_check import self_check
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.coral import coral
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.config import ConfigError, TrainConfig, changed
from outpace.training.features import Batch, FeatureSource
from outpace.training.methods import named
from outpace.training.texts import Example
from outpace.training.unrolled import unrolled

VOCAB = 12
PROMPT = (1, 2, 3, 4, 5, 6, 7)
SMALL: dict[str, Any] = {"depth": 3, "width": 3, "num_nodes": 8}


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def steps_of(
    head: HeadModel, prompts: list[tuple[int, ...]], of: HFTarget | None = None, **options: Any
) -> list[Step]:
    parts: Parts = coral.build(of or target(), head=head, **(SMALL | options))
    params = SamplingParams(0.0, max_tokens=12)
    session = Session(
        parts, [torch.tensor(each) for each in prompts], [params] * len(prompts), LazyTargetProbs
    )
    return [step for step in session.steps() if any(step.generated)]


def trees(steps: list[Step]) -> list[tuple[list[int], tuple[int, ...], list[float]]]:
    """Of each step's draft the tokens, the parents and the logarithms of the draft probabilities."""
    drafts = [step.draft.tree for step in steps]
    confidences = [[] if tree.confidence is None else tree.confidence.tolist() for tree in drafts]
    return [
        (tree.tokens.tolist(), tree.forest.parents, each)
        for tree, each in zip(drafts, confidences, strict=True)
    ]


@torch.no_grad()
def test_each_state_has_the_logits_of_the_first_group_and_of_the_routers_choice() -> None:
    """Against the whole LM head and a mask by hand; in a forward over several states these choose alone."""
    head: Any = untrained_coral(target(), seed=2)
    states = torch.randn(5, head.config.hidden_size, dtype=torch.float64, generator=torch.manual_seed(1))
    logits, ids = head.draft_logits(states)
    scores = head.router.scores(torch.nn.functional.silu(head.router.inner(states)))
    groups = head.token_order.view(4, 3)
    whole, chosen = target().head(states), []
    for node in range(5):
        other = 1 + int(scores[node, 1:].argmax())
        chosen.append(other)
        allowed = {*groups[0].tolist(), *groups[other].tolist()}
        for column, token in enumerate(ids.tolist()):
            expected = float(whole[node, token]) if token in allowed else -torch.inf
            assert float(logits[node, column]) == pytest.approx(expected, abs=1e-12)
        alone, own = head.draft_logits(states[node : node + 1])
        assert len(own) == 6 and set(own.tolist()) == allowed and alone.isfinite().all()
    assert len({*chosen}) > 1 and len(ids) == 3 * len({0, *chosen})


@torch.no_grad()
def test_with_all_groups_the_drafts_are_those_of_the_whole_head() -> None:
    routed: Any = untrained_coral(target(), seed=2)
    whole = copy.deepcopy(routed)
    routed.num_active, whole.router = 4, None
    states = torch.randn(5, routed.config.hidden_size, dtype=torch.float64)
    logits, ids = routed.draft_logits(states)
    assert (logits - target().head(states)[:, ids]).abs().max() < 1e-12
    prompts = [PROMPT, (4, 4, 2), (9, 1)]
    found = [trees(steps_of(HeadModel(head), prompts)) for head in (routed, whole)]
    for (tokens, parents, first), (others, above, second) in zip(*found, strict=True):
        assert tokens == others and parents == above and first == pytest.approx(second, abs=1e-6)
    assert trees(steps_of(HeadModel(untrained_coral(target(), seed=2)), prompts)) != found[1]


@torch.no_grad()
def test_a_draft_is_that_of_forwards_over_the_whole_text_and_does_not_depend_on_its_batch() -> None:
    head: Any = untrained_coral(target(), seed=2)
    plain = copy.deepcopy(head)
    plain.config._attn_implementation = "sdpa"
    opened = HeadModel(head)
    ((root, *drafted), _, (_, *found)) = trees(steps_of(opened, [PROMPT], width=1, num_nodes=3))[0]
    assert root == PROMPT[-1] and len(drafted) == 3
    with OutputCapture(target().model, target().num_layers).capture(frozenset({-1}), True) as hidden:
        target().model(torch.tensor([PROMPT]), use_cache=False)
    features = hidden[-1][0, : len(PROMPT) - 1]
    for index, token in enumerate(drafted):
        read = torch.tensor([[*PROMPT, *drafted[:index]]])[:, 1:]
        states = plain(read, torch.arange(read.shape[1])[None], None, features[None]).logits[0, -1:]
        logits, ids = plain.draft_logits(states)
        assert token == int(ids[logits.argmax()])
        assert float(logits.log_softmax(-1).max()) == pytest.approx(found[index], abs=2e-6)
        features = torch.cat((features, states))
    (alone, *_), (together, *_) = (
        trees(steps_of(opened, prompts))[0] for prompts in ([PROMPT], [PROMPT, (4, 4, 2), (9, 1)])
    )
    rows = steps_of(opened, [PROMPT, (4, 4, 2), (9, 1)])[0].draft.tree.forest.rows
    assert [token for token, row in zip(together, rows, strict=True) if row == 0] == alone


def test_a_head_is_read_as_it_was_written_and_fits_its_target_alone(tmp_path: Path) -> None:
    head: Any = untrained_coral(target(), seed=4)
    save_head(head, tmp_path, target())
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "coral"
    again: Any = load_head("coral", tmp_path, target())
    assert again.num_active == 2 and torch.equal(again.token_order, head.token_order)
    assert all(torch.equal(again.own[name], weight) for name, weight in head.own.items())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_active_groups": 5}))
    with pytest.raises(HeadFileError, match=r"5 active groups of 4 do not fit 12 tokens: use"):
        load_head("coral", tmp_path, target())
    del head.router
    head.router, head.token_order = None, head.token_order[:-1]
    save_head(head, tmp_path / "short", target())
    with pytest.raises(HeadFileError, match=r"lacks token_order, each of the target's 12 tokens once"):
        load_head("coral", tmp_path / "short", target())


def config_of(*changes: str) -> TrainConfig:
    return changed(named("coral").defaults(), ["head.noise=0", *changes])


@cache
def examples() -> list[Example]:
    prompts = [(first, second) for first in range(VOCAB) for second in (1, 7)]
    params = [SamplingParams(0.0, max_tokens=16)] * len(prompts)
    read = texts(autoregressive.build(target()), prompts, params)
    return [Example((*prompt, *text), 2) for prompt, text in zip(prompts, read, strict=True)]


@cache
def batch(count: int = 24) -> Batch:
    source = FeatureSource(target(), examples(), [-1], Path("none"))
    return source.batch(list(range(count)))


@torch.no_grad()
def by_token(head: Any, texts: Batch) -> dict[tuple[int, int], dict[int, Tensor]]:
    """(text, token) -> step -> the feature of this token, where the target generated the token after it."""
    columns = torch.ones(texts.tokens.shape[0], texts.tokens.shape[1] - 1, dtype=torch.bool)
    features = texts.hidden[-1][:, :-1].float()
    found: dict[tuple[int, int], dict[int, Tensor]] = {}
    for step in unrolled(head, texts.tokens, features, columns, 3, detached=True):
        for (text, column), feature in zip(columns.nonzero().tolist(), step.features, strict=True):
            at = column + 1 + step.step
            if at + 1 < texts.tokens.shape[1] and texts.learns[text, at + 1]:
                found.setdefault((text, at), {})[step.step] = feature
    return found


def test_features_of_one_token_in_two_steps_are_aligned_whatever_their_columns() -> None:
    method: Any = named("coral")
    head = method.new(target(), config_of(), None)
    texts = batch(3)
    of_hass: Any = named("hass")
    hass, with_alignment = (
        trains.lesson(head, target(), config_of())(texts, torch.Generator()) for trains in (of_hass, method)
    )
    found, total = by_token(head, texts), 0.0
    for first in range(3):
        for second in range(3):
            if first == second:
                continue
            pairs = [each for each in found.values() if first in each and second in each]
            logits = torch.tensor(
                [
                    [float(torch.cosine_similarity(a[first], b[second], dim=0)) / 0.07 for b in pairs]
                    for a in pairs
                ]
            )
            total += float(-logits.log_softmax(-1).diagonal().mean()) / 6
    assert (with_alignment - hass).item() == pytest.approx(0.1 * total, rel=1e-4)
    assert info_nce(torch.empty(0, 4), torch.empty(0, 4), 1.0) == 0


def similarity(head: Any) -> float:
    """The mean cosine similarity of the features of a token in the first and the third step."""
    pairs = [each for each in by_token(head, batch()).values() if 0 in each and 2 in each]
    return sum(float(torch.cosine_similarity(each[0], each[2], dim=0)) for each in pairs) / len(pairs)


def learned(lesson: Any, steps: int) -> list[float]:
    optimizer, losses = torch.optim.Adam(lesson.trained.values(), lr=3e-3), list[float]()
    for _ in range(steps):
        loss = lesson(batch(), torch.Generator())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
def test_heads_learn_alike_features_and_then_their_router_alone(tmp_path: Path) -> None:
    method: Any = named("coral")
    alike = list[float]()
    for weight in (0.0, 0.1):
        config = config_of(f"head.alignment_weight={weight}")
        head = method.new(target(), config, None)
        losses = learned(method.lesson(head, target(), config), 40)
        assert losses[-1] < 0.6 * losses[0]
        alike.append(similarity(head))
    assert alike[1] > alike[0]
    head.token_order = untrained_coral(target(), seed=1).token_order
    text = [token for each in examples()[:3] for token in each.tokens]
    assert self_check(target(), copy.deepcopy(head).double(), text).first > 0.4
    head.lm_head = target().head
    save_head(head, tmp_path, target())

    routed: Any = load_head("coral", tmp_path, target())
    frozen = {name: weight.clone() for name, weight in copy.deepcopy(routed).float().own.items()}
    config = config_of("head.groups=6", "head.active_groups=2")
    model: Any = type("Opened", (), {"target": target()})
    routed = method.untrained(model, config, (), str(tmp_path))
    lesson = method.lesson(routed, target(), config)
    assert lesson.trained and all(name.startswith("router.") for name in lesson.trained)
    before = lesson.evaluation(0, [batch()]).agreement[0]
    losses = learned(lesson, 60)
    after = lesson.evaluation(60, [batch()])
    assert losses[-1] < losses[0] and after.agreement[0] > before
    assert all(torch.equal(routed.own[name], weight) for name, weight in frozen.items())
    # what is evaluated is what is drafted
    states = torch.randn(4, routed.config.hidden_size)
    logits, ids = routed.draft_logits(states)
    wide = torch.full((4, VOCAB), -torch.inf)
    wide[:, ids] = logits
    torch.testing.assert_close(lesson.routed(states), wide)


def test_a_router_is_trained_for_a_head_that_is_given(tmp_path: Path) -> None:
    method: Any = named("coral")
    model: Any = type("Opened", (), {"target": target()})
    with pytest.raises(ConfigError, match=r"head\.groups=4 trains the router of a head .*: give that head"):
        method.untrained(model, config_of("head.groups=4"))
    head = method.untrained(model, config_of(), [Example((0, 0, 5, 5, 3, 9, 9, 9), 2)])
    assert head.token_order.tolist() == [9, 5, 3, 0, 1, 2, 4, 6, 7, 8, 10, 11]
    save_head(untrained_coral(target()), tmp_path, target())
    with pytest.raises(ConfigError, match="the head has a router already"):
        method.untrained(model, config_of(), (), str(tmp_path))
    with pytest.raises(ConfigError, match="2 active groups of 13 do not fit 12 tokens"):
        method.untrained(model, config_of("head.groups=13"), (), str(tmp_path))


@pytest.mark.slow
def test_a_compiled_head_has_the_logits_of_its_choice_too(tiny: Any) -> None:
    pytest.importorskip("openvino")
    model = outpace.load(tiny.target, dtype="float32")
    head = untrained_coral(model.target, seed=2, num_groups=16)
    found = list[list[Step]]()
    for compile in (False, True):
        opened = HeadModel(head, compile=compile)
        assert (opened.model.compiled is not None) == compile
        found.append(steps_of(opened, [PROMPT, (4, 4, 2)], of=model.target))
    for (tokens, parents, first), (others, above, second) in zip(*map(trees, found), strict=True):
        assert tokens == others and parents == above and first == pytest.approx(second, abs=1e-3)
