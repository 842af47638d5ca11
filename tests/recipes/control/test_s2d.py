"""S2D: every draft token comes from the first of a draft model's exits that is sure of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

import outpace
from outpace.core.claim import Drawn
from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.hf.target import HFTarget
from outpace.models.slim.exits import (
    CONFIG,
    HFExits,
    default_exits,
    default_thresholds,
    exits_of,
    usual_exits,
)
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import transformers_models
from outpace.proof.suite import CAUGHT, mistakes
from outpace.recipes.control.s2d import ExitsDrafter, s2d
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.guarded import GuardedDrafter
from tests.llama import llama_config

VOCAB, LAYERS, EXITS = 12, 4, (1, 2, 4)
PROMPTS = ([5, 9, 3, 7, 1, 5, 9], [8, 3], [4])


def model(layers: int = LAYERS, vocab: int = VOCAB, seed: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = llama_config(
        vocab,
        layers,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.6,
    )
    return LlamaForCausalLM(config).double().eval()


@cache
def draft() -> HFTarget:
    return HFTarget(model())


@cache
def target(seed: int = 7) -> HFTarget:
    """The draft's weights, disturbed: it agrees often, not always."""
    made = model()
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.15 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    return HFTarget(made)


@cache
def truncated(layers: int) -> LlamaForCausalLM:
    """The first layers of the draft model as a model of its own."""
    made = model(layers)
    weights = {name: each for name, each in draft().model.state_dict().items() if name in made.state_dict()}
    made.load_state_dict(weights)
    return made


@torch.no_grad()
def logits_after(text: Sequence[int], layers: int) -> Tensor:  # (V,)
    return truncated(layers)(torch.tensor([list(text)]), use_cache=False).logits[0, -1]


def run(
    prompts: Sequence[Sequence[int]] = PROMPTS[:1], temperature: float = 1.0, **options: Any
) -> list[Step]:
    given = {"draft": draft(), "exits": EXITS, "thresholds": (0.7, 0.6, 0.5), "depth": 5, **options}
    sampling = [
        SamplingParams(temperature, max_tokens=50 - 11 * row, seed=row) for row in range(len(prompts))
    ]
    parts = s2d.build(given.pop("target", target()), **given)
    return list(Session(parts, [torch.tensor(text) for text in prompts], sampling, LazyTargetProbs).steps())


def drafts_with_an_error(breaks: bool) -> tuple[list[int | None], list[list[list[int]]]]:
    """The slots whose drafts ended, and each slot's drafts. If it `breaks`, the second exit fails for slot 1
    from where it reads several tokens of slot 0 too, for which the first exit was enough."""
    parts = s2d.build(target(), draft=draft(), exits=EXITS, thresholds=(0.45, 0.6, 0.3), depth=5)
    drafter = parts.drafter
    assert isinstance(drafter, ExitsDrafter) and isinstance(drafter.exits, HFExits)
    deeper, broken, failed = drafter.exits._ranges[1], list[int](), list[int | None]()
    keep: Any = deeper.keep

    def failing(tokens: Sequence[Tensor], slots: Sequence[int], *rest: Any) -> Any:
        if {0, 1} <= set(slots) and len(tokens[slots.index(0)]) > 2:
            broken.append(1)
        if breaks and broken and 1 in slots:
            raise RuntimeError("broken")
        return keep(tokens, slots, *rest)

    deeper.keep = failing
    guarded = GuardedDrafter(drafter, parts.target.vocab, lambda slot, error: failed.append(slot))
    sampling = [SamplingParams(1.0, max_tokens=40, seed=row + 1) for row in range(len(PROMPTS))]
    texts = [torch.tensor(text) for text in PROMPTS]
    drafts = [list[list[int]]() for _ in PROMPTS]
    for step in Session(replace(parts, drafter=guarded), texts, sampling, LazyTargetProbs).steps():
        for slot, nodes in zip(step.ctx.slots, step.draft.tree.forest.nodes, strict=True):
            drafts[slot].append(step.draft.tree.tokens[list(nodes[1:])].tolist())
    assert broken
    return failed, drafts


@pytest.mark.slow
def test_an_error_in_a_deeper_exit_ends_the_drafts_of_one_request() -> None:
    failed, undisturbed = drafts_with_an_error(False)
    assert not failed
    failed, drafts = drafts_with_an_error(True)
    assert failed == [1] and drafts[1] != undisturbed[1]
    assert drafts[0] == undisturbed[0] and drafts[2] == undisturbed[2]


@pytest.mark.parametrize("most", [4, 64])
def test_exits_have_the_logits_of_models_that_end_there(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.models.slim.exits.MOST_WAITING", most)
    exits, choice = HFExits(draft(), EXITS), random.Random(0)
    exits.open(3, 64)
    texts: dict[int, list[int]] = {0: [], 2: []}
    filled = 0
    for _ in range(60):
        for slot, text in texts.items():
            if choice.random() < 0.2:  # some of it is rejected, in these layers or in those
                del text[choice.randrange(len(text) + 1) :]
                exits.keep(slot, len(text))
            text += [choice.randrange(VOCAB) for _ in range(choice.choice([1, 1, 1, 4]))]
        asked = list(texts)
        for index, layers in enumerate(EXITS):
            before = [cache.lengths[slot] for slot in asked for cache in exits._caches[index : index + 1]]
            found = exits.read(index, [torch.tensor(texts[slot]) for slot in asked], asked)
            for slot, read, logits in zip(asked, before, found, strict=True):
                assert (logits - logits_after(texts[slot], layers)).abs().max() < 1e-9
                filled += len(texts[slot]) - read > 5
            assert all(len(each) <= most for waiting in exits._outputs for each in waiting.values())
            asked = [slot for slot in asked if choice.random() < 0.4]
            if not asked:
                break
        if any(len(text) > 50 for text in texts.values()):
            exits.release([0, 2])
            texts = {0: [], 2: []}
    # deeper layers had not read many tokens, and read them together
    assert filled > 3 if most > 5 else not filled


def expected_exit(text: Sequence[int], thresholds: Sequence[float]) -> tuple[int, bool]:
    """The number of layers of the exit that drafts after a text, and whether it is sure."""
    for layers, threshold in zip(EXITS, thresholds, strict=True):
        if float(logits_after(text, layers).softmax(-1).max()) >= threshold:
            return layers, True
    return EXITS[-1], False


@pytest.mark.slow
def test_each_token_is_drawn_from_the_first_exit_that_is_sure_and_an_unsure_one_ends_the_draft() -> None:
    thresholds, used, ended = (0.7, 0.6, 0.5), set[int](), 0
    for step in run(PROMPTS):
        tree, claim = step.draft.tree, step.draft.tree.claim
        tokens = tree.tokens.tolist()
        if not isinstance(claim, Drawn):
            continue
        for row, nodes in enumerate(tree.forest.nodes):
            text, sure = step.ctx.tokens[row].tolist(), True
            for node in nodes[1:]:
                assert sure  # no token follows one of which no exit was sure
                layers, sure = expected_exit(text, thresholds)
                used.add(layers)
                q = logits_after(text, layers).softmax(-1)
                assert (claim.q[claim.row[node]] - q).abs().max() < 1e-9
                text.append(tokens[node])
            length = len(nodes) - 1
            assert length == min(5, step.ctx.max_draft_depth[row]) or not sure
            ended += length < 5 and not sure
    assert used == set(EXITS) and ended > 5


def test_layers_read_a_token_once_and_only_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    # forwards run on copies of the model that share its weights: count where these are used
    weights = {
        id(layer.mlp.gate_proj.weight): index for index, layer in enumerate(draft().model.model.layers)
    }
    reads: list[list[int]] = [[] for _ in range(LAYERS)]
    linear = nn.functional.linear

    def counting(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if (index := weights.get(id(weight))) is not None:
            reads[index].append(states.shape[:-1].numel())
        return linear(states, weight, bias)

    exits = HFExits(draft(), EXITS)
    exits.open(2, 64)
    parts = s2d.build(target(), draft=draft(), exits=EXITS, thresholds=(0.0,) * 3)
    session = Session(parts, [torch.tensor(PROMPTS[0])], [SamplingParams(max_tokens=30)], LazyTargetProbs)
    monkeypatch.setattr(nn.functional, "linear", counting)
    list(session.steps())
    assert reads[0] and not any(reads[1:])
    for each in reads:
        each.clear()
    texts = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    exits.read(0, texts, [0, 1])
    more = [torch.cat((text, torch.tensor([6]))) for text in texts]
    exits.read(0, more, [0, 1])
    exits.read(2, more, [0, 1])
    # both texts in one forward, which for the deeper layers is their first
    assert reads == [[5, 2], [7], [7], [7]]


@pytest.mark.slow
def test_the_distribution_is_plain_decodings_with_a_draft_of_several_layers() -> None:
    models, used = transformers_models(), set[int]()
    deep = HFTarget(model(3, vocab=4, seed=2))

    def build() -> Any:
        parts = s2d.build(models.target, draft=deep, thresholds=(0.7, 0.5), depth=3)
        exits = parts.drafter.exits
        read = exits.read

        def watched(index: int, texts: Sequence[Tensor], slots: Sequence[int]) -> Tensor:
            used.add(index)
            return read(index, texts, slots)

        exits.read = watched
        return parts

    cases = [
        Case((0, 1, 2), SamplingParams(1.0, top_k=2, max_tokens=4)),
        Case((3,), SamplingParams(0.7, top_k=2, max_tokens=3)),
        Case((2, 2), SamplingParams(0.0, max_tokens=5)),
    ]
    found = enumerate_distributions(build, cases)
    assert largest_error(found, models.logits, cases) < BOUND
    assert found.counts.deepest >= 2 and used == {0, 1}


def test_an_exit_chosen_by_the_drawn_token_is_caught() -> None:
    assert mistakes()["exit chosen by the drawn token"]() > CAUGHT


@pytest.mark.slow
def test_one_draft_model_serves_several_targets() -> None:
    for seed in (7, 8):
        plain = [
            target(seed).model.generate(torch.tensor([prompt]), max_new_tokens=50 - 11 * row, do_sample=False)
            for row, prompt in enumerate(PROMPTS)
        ]
        for sampled in (True, False):
            steps = run(PROMPTS, temperature=0.0, target=target(seed), sampled=sampled)
            texts: list[list[int]] = [list(prompt) for prompt in PROMPTS]
            for step in steps:
                for slot, tokens in zip(step.ctx.slots, step.generated, strict=True):
                    texts[slot] += tokens
            assert texts == [each[0].tolist() for each in plain]
            assert sum(len(tokens) > 2 for step in steps for tokens in step.generated) > 5
    assert target(7) is not target(8)


def test_exits_are_those_of_the_training_or_half_three_quarters_and_all() -> None:
    assert [default_exits(count) for count in (1, 2, 4, 12)] == [(1,), (1, 2), (2, 3, 4), (6, 9, 12)]
    assert default_thresholds(3) == (0.9, 0.8, 0.4) and default_thresholds(1) == (0.4,)
    trained = HFTarget(model())
    assert usual_exits(trained) == (2, 3, 4) and usual_exits(TableTarget(3)) == (2, 3, 4)
    setattr(trained.model.config, CONFIG, [1, 4])
    assert usual_exits(trained) == (1, 4)


@pytest.mark.parametrize("exits", [(), (0, 2), (2, 5), (3, 2), (2, 2)])
def test_exits_that_cannot_be_used(exits: tuple[int, ...]) -> None:
    given = ",".join(map(str, exits)) or "none"
    with pytest.raises(
        ValueError, match=f"the exits are {given}: give increasing numbers of layers, from 1 to"
    ):
        s2d.build(target(), draft=draft(), exits=exits)


def test_what_else_cannot_be_built_is_said() -> None:
    with pytest.raises(ValueError, match="there are 2 thresholds for 3 exits: give one for each exit"):
        run(thresholds=(0.5, 0.5))
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match=f"threshold is {wrong}; give a probability from 0 to 1"):
            run(thresholds=(0.5, wrong, 0.5))
    with pytest.raises(
        ValueError, match="object has no layers to exit from: use a transformers model as draft"
    ):
        no_model: Any = object()
        exits_of(no_model, (1,))


def test_it_is_used_by_name(loaded) -> None:
    model, small = loaded
    given = {"method": "s2d", "draft": small, "exits": "1,2", "thresholds": "0.5,0.2", "max_tokens": 12}
    found = outpace.generate(model, ["def add(a, b):", "for"], **given)
    plain = outpace.generate(model, ["def add(a, b):", "for"], method="autoregressive", max_tokens=12)
    assert [each.text for each in found] == [each.text for each in plain]
    assert any(each.statistics.mean_acceptance_length > 1.2 for each in found)
