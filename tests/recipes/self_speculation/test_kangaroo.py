"""Kangaroo: the target's first layers and an adapter draft, and the target continues from their outputs."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

import outpace
from outpace import recipes
from outpace.core.claim import Drawn
from outpace.core.contracts import Context, Controller, Plan, Scores, Step, TargetProbs
from outpace.core.row_error import NoTokenLeft
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session, speculative_steps
from outpace.models.heads.draft_head import head_config
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.kangaroo.head import KangarooHead, default_early_layers, untrained_kangaroo
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.recipes._option_kinds import FunctionOpener
from outpace.recipes._options import RecipeError, configure
from outpace.recipes.self_speculation.kangaroo import adapter_drafter
from outpace.recipes.self_speculation.kangaroo.recipe import kangaroo
from outpace.sampling.target_probs import LazyTargetProbs
from tests.llama import llama_config

LAYERS, EARLY, VOCAB = 4, 2, 24
PROMPTS = ([5, 9, 3, 7, 1, 5, 9], [8, 3], [4])


def model() -> LlamaForCausalLM:
    """A model whose late layers change little, so that many drafts are accepted and some are not."""
    torch.manual_seed(3)
    config = llama_config(
        VOCAB,
        LAYERS,
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.4,
    )
    made = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for layer in made.model.layers[EARLY:]:
            layer.self_attn.o_proj.weight *= 0.1
            layer.mlp.down_proj.weight *= 0.1
    return made


@cache
def made() -> tuple[HFTarget, KangarooHead]:
    """A target and an adapter whose attention changes the early layers' output a little."""
    target = HFTarget(model())
    head = KangarooHead(head_config(target, VOCAB), target.embed, target.head, EARLY)
    torch.manual_seed(5)
    head.layers.double()
    head.norm.double()
    with torch.no_grad():
        for parameter in head.layers.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    return target, head.eval()


def run(
    prompts: Sequence[Sequence[int]] = PROMPTS[:1], temperature: float = 0.0, **options: Any
) -> list[Step]:
    target, head = made()
    parts = kangaroo.build(target, head=HeadModel(head), **{"threshold": 0.0, "depth": 4, **options})
    sampling = [SamplingParams(temperature, max_tokens=40 - 9 * row, seed=row) for row in range(len(prompts))]
    session = Session(parts, [torch.tensor(text) for text in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def fresh_draft(text: list[int], depth: int) -> list[int]:
    """The greedy draft after a text, computed without any cache. The adapter reads the output of the layer
    with index `EARLY` - 1: entry `EARLY` of transformers' hidden states, whose entry 0 is the embedding."""
    target, head = made()
    length, text = len(text), list(text)
    for _ in range(depth):
        ids = torch.tensor([text])
        with torch.no_grad():
            states = target.model(ids, output_hidden_states=True, use_cache=False).hidden_states[EARLY]
            logits = head(ids, torch.arange(len(text))[None], features=states).logits
        text.append(int(logits[0, -1].argmax()))
    return text[length:]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_drafts_equal_those_of_a_run_without_a_cache(prompt: list[int]) -> None:
    steps, after_all, after_some, length = run([prompt]), 0, 0, -1
    for step in steps:
        drafted = step.draft.tree.tokens[1:].tolist()
        assert drafted == fresh_draft(step.ctx.tokens[0].tolist(), len(drafted))
        after_all += length == 4
        after_some += 0 <= length < 4
        length = len(step.generated[0]) - 1
    assert after_all and after_some


@pytest.mark.parametrize("joining", [[17, 3, 11, 13, 10, 19], [2]])
@pytest.mark.parametrize("depths", [(4, 4), (0, 4)])  # of the steps after the error
def test_drafts_go_on_after_one_that_was_not_verified(joining: list[int], depths: tuple[int, int]) -> None:
    """An error ends the request in slot 1 while its draft is verified, and another request takes its slot."""
    target, head = made()
    parts = kangaroo.build(target, head=HeadModel(head), threshold=0.0, depth=4)
    controller, planned, ended = parts.controller, list[int](), list[int]()

    class Planned:
        """The controller, with these depths in the two steps after the error."""

        def __getattr__(self, name: str) -> Any:
            return getattr(controller, name)

        def plan(self, ctx: Context) -> Plan:
            plan = controller.plan(ctx)
            if ended and len(planned) < len(depths):
                planned.append(depths[len(planned)])
                plan = plan.within(planned[-1:] * len(ctx.slots))
            return plan

    def target_probs(scores: Scores, tree: TokenTree, ctx: Context) -> TargetProbs:
        if not ended and 1 in ctx.slots and ctx.committed[ctx.slots.index(1)] > 8:
            raise NoTokenLeft(1, "no token is left")
        return LazyTargetProbs(scores, tree, ctx)

    def loop(session: Session) -> Iterator[Step]:
        try:
            yield from speculative_steps(session)
        except NoTokenLeft as error:
            ended.append(error.slot)
            session.cache.discard()
            session.cancel(error.slot)
            assert session.add(torch.tensor(joining), SamplingParams(max_tokens=20)) == error.slot
            yield from speculative_steps(session)

    sampling = [SamplingParams(max_tokens=30)] * len(PROMPTS)
    with_error = replace(parts, controller=cast("Controller", Planned()))
    session = Session(with_error, [torch.tensor(text) for text in PROMPTS], sampling, target_probs)
    after = dict.fromkeys(range(len(PROMPTS)), 0)
    for step in session.steps(loop):
        if not any(step.generated):
            continue
        tokens, forest = step.draft.tree.tokens, step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            drafted = tokens[list(forest.nodes[row][1:])].tolist()
            assert drafted == fresh_draft(step.ctx.tokens[row].tolist(), len(drafted))
            after[slot] += len(drafted) if ended else 0
    assert ended == [1] and planned == list(depths) and all(after.values())


def test_the_adapter_reads_on_where_nothing_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the early layers' outputs would pile up, and be copied in every step."""
    monkeypatch.setattr(adapter_drafter, "MOST_UNREAD", 4)
    target, head = made()
    parts = kangaroo.build(target, head=HeadModel(head), threshold=0.0, depth=4)
    drafter, plan, num_steps, drafted, most = parts.drafter, parts.controller.plan, 0, 0, 0
    assert isinstance(drafter, adapter_drafter.AdapterDrafter)

    def rarely(ctx: Context) -> Plan:
        return plan(ctx).within((0 if num_steps % 11 else 4,) * len(ctx.slots))

    monkeypatch.setattr(parts.controller, "plan", rarely)
    sampling = [SamplingParams(max_tokens=40)] * len(PROMPTS)
    session = Session(parts, [torch.tensor(text) for text in PROMPTS], sampling, LazyTargetProbs)
    for step in session.steps():
        num_steps += 1
        most = max(most, *map(len, drafter._unread.values()), 0)
        for row, nodes in enumerate(step.draft.tree.forest.nodes if any(step.generated) else ()):
            tokens = step.draft.tree.tokens[list(nodes[1:])].tolist()
            assert tokens == fresh_draft(step.ctx.tokens[row].tolist(), len(tokens))
            drafted += len(tokens)
    assert most == 4 and drafted > 20


@pytest.mark.parametrize("early", [EARLY - 1, EARLY + 1])
def test_outputs_of_the_layer_before_or_after_give_other_drafts(early: int) -> None:
    """Else the test above would not see which layer the adapter reads."""
    target, head = made()
    text = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        states = target.model(text, output_hidden_states=True, use_cache=False).hidden_states
        right, wrong = (
            head(text, torch.arange(text.shape[1])[None], features=states[layer]).logits
            for layer in (EARLY, early)
        )
    assert (right - wrong).abs().max() > 0.01


def test_the_adapter_is_one_attention_block_between_two_norms() -> None:
    target, head = made()
    attention = {f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"}
    assert set(head.own) == attention | {"layers.0.input_layernorm.weight", "norm.weight"}
    alone = copy.deepcopy(head)
    with torch.no_grad():
        alone.layers[0].self_attn.o_proj.weight.zero_()
        alone.norm.weight.copy_(torch.linspace(0.5, 2, 24))
        states = torch.randn(1, 5, 24, dtype=torch.float64)
        logits = alone(torch.zeros(1, 5, dtype=torch.int64), torch.arange(5)[None], features=states).logits
        normed = states / (states.square().mean(-1, keepdim=True) + alone.config.rms_norm_eps).sqrt()
        assert torch.allclose(logits, target.head(normed * alone.norm.weight), atol=1e-6)


@pytest.mark.slow
def test_rows_of_a_batch_draft_as_they_do_alone() -> None:
    found: list[list[list[int]]] = []
    for group in ([[text] for text in PROMPTS], [list(PROMPTS)]):
        drafts: dict[tuple[int, ...], list[list[int]]] = {}
        for prompts in group:
            for step in run(prompts):
                forest, tokens = step.draft.tree.forest, step.draft.tree.tokens
                for row, slot in enumerate(step.ctx.slots):
                    kept = drafts.setdefault(tuple(prompts[slot]), [])
                    # shorter near the end, and the limits differ
                    if step.ctx.max_draft_depth[row] >= 4 and len(kept) < 4:
                        kept.append(
                            [*step.ctx.tokens[row].tolist(), *tokens[list(forest.nodes[row])].tolist()]
                        )
        found.append([text for texts in drafts.values() for text in texts])
    assert found[0] == found[1] and len(found[0]) == 12


def test_the_target_runs_its_late_layers_only() -> None:
    target, _ = made()
    read = [0] * LAYERS
    # forwards run on copies of the model that share its weights: count where these are used
    originals = {
        id(layer.mlp.gate_proj.weight): index for index, layer in enumerate(target.model.model.layers)
    }
    linear = nn.functional.linear

    def counting(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if (index := originals.get(id(weight))) is not None:
            read[index] += states.shape[:-1].numel()
        return linear(states, weight, bias)

    nn.functional.linear = counting
    try:
        steps = run()
    finally:
        nn.functional.linear = linear
    prompt = len(PROMPTS[0]) - 1
    verified = sum(len(step.draft.tree) for step in steps)
    assert len(steps) < verified / 3
    # for each drafted token and root, the draft runs the early layers once and the target only the others
    assert [count - prompt for count in read] == [verified] * LAYERS


def test_no_draft_is_shorter_than_its_depth_without_a_threshold_or_longer_than_one_with_the_largest() -> None:
    for threshold, expected in ((0.0, 4), (1.0, 1)):
        steps = run(temperature=1.0, threshold=threshold)
        lengths = [len(step.draft.tree) - 1 for step in steps if step.ctx.max_draft_depth[0] >= 4]
        assert set(lengths) == {expected}


def test_a_draft_ends_with_the_first_token_of_an_unsure_distribution() -> None:
    ends = 0
    for step in run(temperature=1.0, threshold=0.5, depth=6):
        claim = step.draft.tree.claim
        if not isinstance(claim, Drawn):
            continue
        sure = (claim.q.amax(-1) >= 0.5).tolist()
        assert all(sure[:-1])
        assert len(sure) == min(6, step.ctx.max_draft_depth[0]) or not sure[-1]
        ends += len(sure) < 6 and not sure[-1]
    assert ends > 2


def test_greedy_text_is_that_of_plain_decoding() -> None:
    target, _ = made()
    for prompt in PROMPTS:
        text = torch.tensor([prompt])
        plain = target.model.generate(text, max_new_tokens=40, do_sample=False)[0, len(prompt) :].tolist()
        for options in ({}, {"sampled": False, "threshold": 0.3}):
            assert [token for step in run([prompt], **options) for token in step.generated[0]] == plain


def test_an_adapter_comes_back_from_its_folder(tmp_path: Path) -> None:
    target, head = made()
    save_head(head, tmp_path, target)
    again = load_head("kangaroo", tmp_path, target)
    assert isinstance(again, KangarooHead) and again.num_early_layers == EARLY and again.taps == (EARLY - 1,)
    for name, each in again.own.items():
        assert torch.allclose(each, head.own[name], atol=1e-6)  # heads are filled in float32


def test_adapters_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    target, head = made()
    save_head(head, tmp_path, target)
    with pytest.raises(HeadFileError, match="holds a head of Kangaroo: use it with the method kangaroo"):
        load_head("eagle", tmp_path, target)
    other = model()
    with torch.no_grad():
        other.lm_head.weight += 1
    with pytest.raises(HeadFileError, match="was trained for another target: give that target, or remove"):
        load_head("kangaroo", tmp_path, HFTarget(other))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for wrong in (0, LAYERS, "two"):
        path.write_text(json.dumps(config | {"num_early_layers": wrong}))
        with pytest.raises(HeadFileError, match=f"is {wrong}, and a target of 4 layers has 1 to 3 before an"):
            load_head("kangaroo", tmp_path, target)
    opener = FunctionOpener(lambda value: target)
    with pytest.raises(RecipeError, match="the head is a head for the method eagle, not for kangaroo"):
        eagle = HeadModel(untrained_eagle(target))
        configure(recipes.get("kangaroo"), target, {"head": eagle}, opener)
    with pytest.raises(RecipeError, match="kangaroo needs head: a folder with a draft head that was"):
        configure(recipes.get("kangaroo"), target, {}, opener)


@pytest.mark.parametrize("threshold", [-0.1, 1.5])
def test_a_threshold_is_a_probability(threshold: float) -> None:
    with pytest.raises(ValueError, match=f"threshold is {threshold}; give a probability from 0 to 1"):
        run(threshold=threshold)


def test_a_target_of_one_layer_has_no_exit() -> None:
    class Shallow(TableTarget):
        num_layers = 1

    with pytest.raises(ValueError, match="a target of one layer has no early exit: use a draft model"):
        untrained_kangaroo(Shallow(3))


def test_early_layers_are_those_of_the_paper_by_default() -> None:
    assert [default_early_layers(count) for count in (2, 8, 32, 40)] == [1, 1, 2, 3]
    assert made()[1].method == "kangaroo"


def test_it_is_used_by_name(loaded, tmp_path: Path) -> None:
    target, _ = loaded
    save_head(untrained_kangaroo(target.target), tmp_path, target.target)
    given = {"method": "kangaroo", "head": str(tmp_path), "max_tokens": 12}
    found = outpace.generate(target, ["def add(a, b):", "for"], **given)
    plain = outpace.generate(target, ["def add(a, b):", "for"], method="autoregressive", max_tokens=12)
    assert [each.text for each in found] == [each.text for each in plain]
