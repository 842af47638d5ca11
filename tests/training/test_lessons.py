"""What drafters learn: agreement is what decoding accepts, losses are those of the papers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import OPTConfig, OPTForCausalLM

from outpace import recipes
from outpace.api.model import Model
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.hydra.head import HydraHead
from outpace.models.heads.kangaroo.lesson import AdapterLesson
from outpace.models.heads.position_head import PositionHead, random_parameters
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.answers import sampled
from outpace.training.config import TOKEN_LOSSES, ConfigError, Distillation, EarlyExits, TrainConfig, changed
from outpace.training.draft_model import smaller
from outpace.training.evaluation import DrafterEvaluation
from outpace.training.features import FeatureSource
from outpace.training.lessons.draft_models import (
    AlignmentLesson,
    DraftModelLesson,
    FilteredLesson,
    SequenceLesson,
    largest_gaps,
    logits_of,
    offline_lesson,
)
from outpace.training.lessons.early_exits import EarlyExitLesson
from outpace.training.lessons.feature_heads import FeatureHeadLesson
from outpace.training.lessons.lesson import DrafterLesson, Lesson
from outpace.training.lessons.position_heads import NUM_RANKS, PositionHeadLesson
from outpace.training.losses import forward_kl, jensen_shannon, total_variation_plus
from outpace.training.methods import named
from outpace.training.texts import Example
from outpace.training.trainer import Trainer
from tests.models.conftest import build
from tests.tiers import slow
from tests.training.families import METHODS, POSITION_HEADS

VOCAB, LENGTH, STEPS = 12, 18, 4
NO_NOISE = torch.Generator()
CONFIG = changed(TrainConfig(), [f"head.num_heads={STEPS}"])


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def draft() -> HFTarget:
    made = transformers_models(vocab=VOCAB).drafts[0]
    assert isinstance(made, HFTarget)
    return made


@cache
def greedy_text(*prompt: int) -> tuple[int, ...]:
    params = SamplingParams(0, max_tokens=LENGTH - len(prompt))
    session = Session(autoregressive.build(target()), [torch.tensor(prompt)], [params], LazyTargetProbs)
    list(session.steps())
    return tuple(session.request(0).text().tolist())


def source(*texts: Sequence[int], first: int = 2, layers: Sequence[int] = (-1,)) -> FeatureSource:
    return FeatureSource(target(), [Example(tuple(each), first) for each in texts], layers, Path("none"))


def head_of(method: str, config: TrainConfig = CONFIG) -> PositionHead:
    examples = [Example(greedy_text(1, 2, 6), 3)]
    head = named(method).untrained(Model("target", target()), config, examples)
    assert isinstance(head, PositionHead)
    random_parameters(head, seed=3)
    return head


def trained(method: str, num_steps: int, folder: Path, changes: Sequence[str] = ()) -> Trainer:
    """A run on the target's greedy texts, from random weights."""
    given = f"steps={num_steps} batch=6 optimizer.rate=1e-2 optimizer.warm_up=1 save_every=100"
    config = changed(CONFIG, [*given.split(), *changes])
    texts = source(*(greedy_text(first, second) for first in range(VOCAB) for second in (1, 7)), first=1)
    made = named(method).lesson(head_of(method, config), target(), config)
    trainer = Trainer(made, texts, texts, config, folder)
    trainer.run(lambda label, done: None, evaluate=False)
    return trainer


def accepted(method: str, options: dict[str, object], start: int) -> int:
    """How many tokens of the first greedy draft are accepted after `start` tokens of the text."""
    parts = recipes.get(method).build(target(), **options)
    params = SamplingParams(0, max_tokens=STEPS + 3)
    # heads that read states at drafts only draft after the step that reads the end of the prompt
    waits = parts.want.hidden and not parts.want.outputs_at_prompt
    text = torch.tensor(greedy_text(1, 2, 6)[: start - 1 if waits else start])
    session = Session(parts, [text], [params], LazyTargetProbs)
    first = next(step for step in session.steps() if any(step.generated) and step.ctx.committed[0] == start)
    return len(first.generated[0]) - 1


def check_agreement(found: Lesson, method: str, options: dict[str, object]) -> None:
    counts = {}
    for start in range(4, LENGTH - STEPS - 1):
        counts[start] = accepted(method, options, start)
        # the only column whose drafts lie in the text and begin after `start` tokens
        text = greedy_text(1, 2, 6)[: start + STEPS]
        sums = found.agreement(source(text, first=start, layers=found.layers).batch([0]), STEPS).tolist()
        assert sums[0] == 1 and sum(sums[2:]) == counts[start]
    assert 0 < sum(counts.values()) < STEPS * len(counts)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *(slow(method, "") for method in POSITION_HEADS),
        ("medusa", "head.draft_vocab=9"),
        slow("hydra", "head.draft_vocab=9"),
        slow("redrafter", "head.draft_vocab=9"),
        ("mlp-speculator", "head.tied=true"),
    ],
)
def test_agreement_of_a_head_is_what_decoding_accepts(method: str, changes: str, tmp_path: Path) -> None:
    made = trained(method, 25, tmp_path, changes.split()).lesson
    assert isinstance(made, PositionHeadLesson)
    assert made.head.num_draft_tokens == (9 if "vocab" in changes else VOCAB)
    check_agreement(made, method, {"head": PositionModel(made.head), "tree": "chain", "depth": STEPS})


def test_agreement_of_a_draft_model_is_what_decoding_accepts() -> None:
    made = DraftModelLesson(draft().model, target().head, Distillation())
    check_agreement(made, "speculative-sampling", {"draft": draft(), "depth": STEPS})


def trained_adapter(num_steps: int, folder: Path) -> AdapterLesson:
    config = changed(CONFIG, [f"steps={num_steps}", "batch=12", "optimizer.rate=1e-2", "save_every=100"])
    head = named("kangaroo").untrained(Model("target", target()), config)
    made = named("kangaroo").lesson(head, target(), config)
    assert isinstance(made, AdapterLesson)
    texts = [greedy_text(first, second) for first in range(VOCAB) for second in (1, 7, 3, 9)]
    data = source(*texts, first=1, layers=made.layers)
    Trainer(made, data, data, config, folder).run(lambda label, done: None, evaluate=False)
    return made


@pytest.mark.slow
def test_agreement_of_an_adapter_is_what_decoding_accepts(tmp_path: Path) -> None:
    made = trained_adapter(40, tmp_path)
    made.head.double()  # as the target
    options = {"head": HeadModel(made.head), "depth": STEPS, "threshold": 0.0}
    check_agreement(made, "kangaroo", options)


def test_an_evaluation_is_the_mean_over_the_places_of_all_batches() -> None:
    # sums of each batch: places, acceptance, and first 1, 2 and 3 tokens that agree
    sums: dict[Any, Tensor] = {0: torch.tensor([3, 1.5, 3, 2, 1]), 1: torch.tensor([1, 0.5, 1, 0, 0])}

    class Measured(DrafterLesson):
        max_depth = 3

        def agreement(self, batch: Any, num_steps: int) -> Tensor:
            assert num_steps == 3
            return sums[batch]

    found = Measured.evaluation(Measured.__new__(Measured), 7, sums)
    assert found == DrafterEvaluation(7, 0.5, 2.75, (1.0, 0.5, 0.25))


@pytest.mark.slow
def test_a_trained_adapter_agrees_more_than_the_early_exit_without_one(tmp_path: Path) -> None:
    made, raw = trained_adapter(120, tmp_path), EarlyExitLesson(target().model, target().head, EarlyExits(1))
    others = [greedy_text(first, second) for first in range(VOCAB) for second in (2, 5)]
    batch = source(*others, first=1, layers=made.layers).batch(list(range(len(others))))
    ours, theirs = made.evaluation(0, [batch]), raw.evaluation(0, [batch])
    assert ours.acceptance_length > theirs.acceptance_length + 0.1
    assert ours.acceptance > theirs.acceptance + 0.05


@torch.no_grad()
def test_an_adapter_learns_the_targets_distribution_from_the_layer_before_it() -> None:
    model = Model("target", target())
    made = named("kangaroo").lesson(named("kangaroo").untrained(model, CONFIG), target(), CONFIG)
    assert isinstance(made, AdapterLesson) and made.layers == [-1, 0]
    made.head.double()  # as the target
    texts = [greedy_text(1, 2, 6), greedy_text(4, 3, 1)[:9]]
    total = torch.zeros(())
    for text in texts:
        ids = torch.tensor([text])
        found = target().model(ids, output_hidden_states=True, use_cache=False)
        states = found.hidden_states[1]
        logits = made.head(ids, torch.arange(len(text))[None], features=states).logits[0].log_softmax(-1)
        losses = -(found.logits[0].softmax(-1) * logits).sum(-1)
        total += losses[2:-1].sum()  # of the tokens that were generated, from the fourth on
    loss = made(source(*texts, first=3, layers=made.layers).batch([0, 1]), NO_NOISE)
    assert float(loss) == pytest.approx(float(total) / (LENGTH - 3 + 9 - 3), rel=1e-4)
    layer = target().model.model.layers[0]
    own = sum(each.numel() for each in made.head.own.values())
    assert made.num_draft_parameters == own + sum(each.numel() for each in layer.parameters())


@torch.no_grad()
def test_hydra_drops_a_share_of_the_inputs_of_blocks_and_lm_heads_in_training() -> None:
    text, given = greedy_text(3, 1), list[Tensor]()
    config = changed(CONFIG, ["head.prefix=false", "head.num_layers=3", "head.dropout=0.25"])
    head = head_of("hydra", config)
    made = named("hydra").lesson(head, target(), config)
    batch = source(text, first=2).batch([0])

    def loss(seed: int) -> float:
        return made(batch, torch.Generator().manual_seed(seed)).item()

    assert loss(1) == loss(1) != loss(2)
    (drafted, *_), (again, *_) = (list(made.drafted(batch, STEPS)) for _ in range(2))
    assert torch.equal(drafted, again)  # in drafts nothing is dropped
    assert isinstance(head, HydraHead)
    layers = [head.mixers[0].linear, *head.blocks[0].layers, head.lm_heads[0]]
    hooks = [layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0])) for layer in layers]
    list(made.drafted(batch, 1))
    whole, _ = given.copy(), given.clear()
    loss(1)
    for hook in hooks:
        hook.remove()
    assert len(given) == len(whole) == 4
    for dropped in given:
        assert 0.1 < (dropped == 0).float().mean() < 0.4
    kept = given[0] != 0  # of the first block, whose input nothing has changed before
    torch.testing.assert_close(given[0][kept], whole[0][kept] / 0.75)
    plain = named("hydra").lesson(head, target(), changed(config, ["head.dropout=0"]))
    assert plain(batch, NO_NOISE).item() == plain(batch, torch.Generator().manual_seed(1)).item()


def test_an_mlp_speculator_can_scale_its_input() -> None:
    heads = [
        head_of("mlp-speculator", changed(CONFIG, [f"head.scale_input={on}"])) for on in ("false", "true")
    ]
    hidden = torch.tensor([[3.0, 4.0] * (heads[0].hidden_size // 2)])
    root = math.sqrt(12.5) * math.sqrt(2)  # of the mean square, and the square root of 2
    torch.testing.assert_close(heads[0].begin(hidden), hidden)
    torch.testing.assert_close(heads[1].begin(hidden), hidden / root)


def test_methods_are_trained_as_in_their_papers_unless_told_otherwise() -> None:
    found = {method: named(method).defaults() for method in METHODS}
    clipped = {method for method, config in found.items() if config.optimizer.clip_by == "value"}
    of_eagle = {"coral", "dovetail", "eagle", "falcon", "fspad", "gumiho", "hass", "jakiro"}
    assert clipped == {*of_eagle, "parallelspec"}
    curved = {method for method, config in found.items() if config.optimizer.decay == "cosine"}
    assert curved == {"chimera", "medusa", "hydra", "jakiro"}
    hydra = found["hydra"]
    assert (hydra.head.dropout, hydra.optimizer.weight_decay, hydra.optimizer.last) == (0.2, 0.1, 0.33)
    assert found["medusa"].optimizer.last == 0 == found["medusa"].head.dropout


@torch.no_grad()
@pytest.mark.parametrize("method", [each for each in POSITION_HEADS if each != "s4c"])  # reads whole texts
def test_a_head_learns_the_text_or_the_targets_distribution_with_the_weights_of_its_paper(
    method: str,
) -> None:
    config, text = changed(CONFIG, ["head.prefix=false"]), greedy_text(3, 1)
    # what the target samples, not its most probable token, so that both labels differ
    text = (*text[:9], (text[9] + 1) % VOCAB, *text[10:])
    head = head_of(method, config)
    found = target().model(torch.tensor([text]), output_hidden_states=True, use_cache=False)
    hidden, true = found.hidden_states[-1][0], found.logits[0].softmax(-1)
    losses: list[list[Tensor]] = [[] for _ in range(STEPS)]
    for t in range(LENGTH - 2):
        states = head.begin(hidden[t : t + 1])
        # at token t the head has the root t + 1, and its draft token of this step is t + 2 + step
        for step in range(min(STEPS, LENGTH - 2 - t)):
            logits, states = head(step, states, torch.tensor([text[t + 1 + step]]))
            label = t + 2 + step
            expected = (
                true[label - 1] if method == "hydra" else functional.one_hot(torch.tensor(text[label]), VOCAB)
            )
            if label >= 5:
                losses[step].append(-(expected * logits[0].log_softmax(-1)).sum())
    weights = [0.8 ** (step + 1) if method == "medusa" else 1.0 for step in range(STEPS)]
    total = sum(weight * torch.stack(each).mean() for weight, each in zip(weights, losses, strict=True))
    made = named(method).lesson(head, target(), config)
    assert made(source(text, first=5).batch([0]), NO_NOISE).item() == pytest.approx(float(total), rel=1e-5)


def test_all_steps_of_a_head_are_learned_further() -> None:
    head = head_of("mlp-speculator")  # of STEPS steps
    made = named("mlp-speculator").lesson(head, target(), named("mlp-speculator").defaults())
    assert made.num_steps == STEPS != named("mlp-speculator").defaults().head.num_heads
    assert (
        named("redrafter").lesson(head_of("redrafter"), target(), named("redrafter").defaults()).num_steps
        == 5
    )


@torch.no_grad()
@pytest.mark.parametrize("method", ["medusa", "redrafter"])
def test_the_order_of_the_draft_vocabulary_does_not_matter(method: str) -> None:
    config = changed(CONFIG, ["head.draft_vocab=9"])
    batch, head = source(greedy_text(3, 1), first=2).batch([0]), head_of(method, config)
    expected = named(method).lesson(head, target(), config)(batch, NO_NOISE)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    assert head.draft_ids is not None
    head.draft_ids = head.draft_ids[order]
    for name, each in head.own.items():
        if name.startswith("lm_head"):
            each.copy_(each[order])
    assert named(method).lesson(head, target(), config)(batch, NO_NOISE).item() == pytest.approx(
        expected.item()
    )


@torch.no_grad()
@pytest.mark.parametrize("method", ["medusa", "hydra", "redrafter"])
def test_training_begins_with_the_targets_own_lm_head(method: str) -> None:
    config = changed(CONFIG, ["head.prefix=false"])
    head = named(method).untrained(Model("target", target()), config)
    assert isinstance(head, PositionHead)
    hidden = torch.randn(3, head.hidden_size)
    logits, _ = head(0, head.begin(hidden), torch.tensor([1, 2, 3]))
    expected = target().head(hidden.to(torch.float64))
    assert (logits - expected).abs().max() < 1e-3


def test_training_of_eagle3_begins_with_the_targets_lm_head_for_the_draft_vocabulary() -> None:
    config = changed(CONFIG, ["head.draft_vocab=5"])
    head = named("eagle3").untrained(Model("target", target()), config, [Example(greedy_text(1, 2, 6), 3)])
    assert isinstance(head, Eagle3Head)
    assert head.draft_ids is not None
    (lm_head,) = target().head.parameters()
    assert torch.equal(head.lm_head.weight, lm_head[head.draft_ids].float())


def test_heads_of_eagle3_are_trained_for_the_layout_that_they_are_written_in(tmp_path: Path) -> None:
    model = Model("target", target())
    head = named("eagle3").untrained(model, CONFIG)
    named("eagle3").save(head, tmp_path / "speculators", model)
    config = json.loads((tmp_path / "speculators" / "config.json").read_text())
    assert config["norm_before_residual"] is True
    assert isinstance(head, Eagle3Head)
    with pytest.raises(HeadFileError, match=r"head\.norm_before_residual=false"):
        save_head(head, tmp_path / "raw", target(), layout="raw")
    plain = named("eagle3").untrained(model, changed(CONFIG, ["head.norm_before_residual=false"]))
    assert isinstance(plain, Eagle3Head)
    save_head(plain, tmp_path / "raw", target(), layout="raw")


@torch.no_grad()
@pytest.mark.parametrize("method", ["eagle3", "kangaroo"])
def test_a_target_that_projects_its_hidden_states_is_refused(method: str) -> None:
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "word_embed_proj_dim": 24, "num_attention_heads": 4}
    config = OPTConfig(**sizes, ffn_dim=32, num_hidden_layers=4, max_position_embeddings=64)
    projecting = Model("projecting", HFTarget(OPTForCausalLM(config)))
    with pytest.raises(ConfigError, match="projects hidden states of 32 numbers to 24 before its LM head"):
        named(method).untrained(projecting, CONFIG, [Example((1, 2, 3, 4), 1)])


def test_ranks_are_counted_at_every_depth() -> None:
    head, text = head_of("redrafter"), greedy_text(3, 1)
    made = named("redrafter").lesson(head, target(), CONFIG)
    assert isinstance(made, PositionHeadLesson)
    found, counts = made.ranks(source(text, first=2).batch([0]))
    hidden = target().model.base_model(torch.tensor([text]), use_cache=False).last_hidden_state[0]
    expected = torch.zeros_like(found)
    for t in range(LENGTH - 2):
        states = head.begin(hidden[t : t + 1])
        for step in range(min(STEPS, LENGTH - 2 - t)):
            logits, states = head(step, states, torch.tensor([text[t + 1 + step]]))
            rank = logits[0].argsort(descending=True).tolist().index(text[t + 2 + step])
            if rank < NUM_RANKS:
                expected[step, rank] += 1
    assert torch.equal(found, expected) and counts.tolist() == [LENGTH - 2 - step for step in range(STEPS)]
    assert found.sum() > 0


def pair(batch_of: FeatureSource) -> tuple[Tensor, Tensor]:
    """The draft's and the target's logits for the tokens of the answer, by whole forwards."""
    text = torch.tensor([batch_of.examples[0].tokens])
    first = batch_of.examples[0].first
    with torch.no_grad():
        return draft().model(text).logits[0, first - 1 : -1], target().model(text).logits[0, first - 1 : -1]


def test_drafts_learn_the_divergence_that_is_asked_for() -> None:
    texts = source(greedy_text(3, 1), first=5)
    own, true = pair(texts)
    mask = torch.ones(len(own), dtype=torch.bool)
    for divergence in ("forward_kl", "total_variation"):
        made = DraftModelLesson(draft().model, target().head, Distillation(divergence=divergence))
        p, q = true.softmax(-1), own.softmax(-1)
        expected = {
            "forward_kl": (p * (p / q).log()).sum(-1).mean(),
            "total_variation": (p - q).abs().sum(-1).mean() / 2,
        }[divergence]
        assert made(texts.batch([0]), NO_NOISE).item() == pytest.approx(expected.item(), rel=1e-5)
    settings = Distillation(divergence="jensen_shannon", beta=0.2)
    made = DraftModelLesson(draft().model, target().head, settings)
    expected = jensen_shannon(own, true, mask, beta=0.2).item()
    assert made(texts.batch([0]), NO_NOISE).item() == pytest.approx(expected)
    assert expected != pytest.approx(jensen_shannon(own, true, mask).item(), rel=0.05)
    hot = DraftModelLesson(draft().model, target().head, Distillation(temperature=2.0))
    assert hot(texts.batch([0]), NO_NOISE).item() == pytest.approx(forward_kl(own / 2, true / 2, mask).item())


@pytest.mark.parametrize("draft_vocab", [VOCAB, 7])
def test_heads_learn_the_token_loss_that_is_asked_for(draft_vocab: int) -> None:
    text = greedy_text(3, 1)
    found, expected = dict[str, float](), dict[str, float]()
    for name in TOKEN_LOSSES:
        changes = [f"head.token_loss={name}", "head.unroll=1", f"head.draft_vocab={draft_vocab}"]
        config = changed(CONFIG, changes)
        # every other token of the text, so that some of the target's most probable tokens are not drafted
        frequent = Example(tuple(sorted(set(text)))[::2] * 2, 0)
        head = named("eagle3").untrained(Model("target", target()), config, [frequent])
        assert isinstance(head, Eagle3Head)
        made = named("eagle3").lesson(head, target(), config)
        assert isinstance(made, FeatureHeadLesson)
        batch = source(text, first=5, layers=made.layers).batch([0])
        found[name] = made(batch, NO_NOISE).item()
        with torch.no_grad():
            (logits,) = made.drafted(batch, 1)
        ids = torch.arange(VOCAB) if head.draft_ids is None else head.draft_ids
        p, q = made.target_logits(batch, 0).softmax(-1), logits.softmax(-1)
        learned = made.learned(batch, 0) & torch.isin(p.argmax(-1), ids)
        assert 2 < learned.sum() and (learned.sum() < made.learned(batch, 0).sum()) == (draft_vocab < VOCAB)
        p, q = p[learned][:, ids], q[learned]
        given = p / p.sum(-1, keepdim=True)
        accepted = torch.minimum(p, q).sum(-1)
        divergence = (given * (given / q).log()).sum(-1).mean()
        rejected = (1 - accepted).mean()
        weight = torch.exp(-3 * (1 - rejected))
        expected[name] = {
            "soft_cross_entropy": -(given * q.log()).sum(-1).mean(),
            "total_variation": rejected,
            "negative_log_acceptance": -accepted.log().mean(),
            "lk_hybrid": weight * divergence + (1 - weight) * rejected,
        }[name].item()
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_acceptance_of_a_drawn_token_is_what_decoding_measures() -> None:
    """Decoding of one drafted token after every place of a text, in which every random choice is played
    through."""
    made = DraftModelLesson(draft().model, target().head, Distillation())
    text, first = greedy_text(3, 1)[:11], 5
    parts = speculative_sampling.build(target(), draft=draft(), depth=1)
    # drafts of two tokens from the last token of the text are not compared
    accepted = [expected_accepted(lambda: parts, 1, text[:end]) for end in range(first, len(text) - 1)]
    sums = made.agreement(source(text, first=first).batch([0]), 2)
    assert sums[0] == len(accepted) == 5 and sums[1].item() == pytest.approx(sum(accepted), rel=1e-5)
    assert min(accepted) < 0.9 * max(accepted)


def test_drafts_answer_a_share_of_the_batches_themselves() -> None:
    settings = Distillation(on_policy=0.5, on_policy_tokens=7)
    made = DraftModelLesson(draft().model, target().head, settings)
    texts = source(greedy_text(3, 1), greedy_text(2), first=5)
    found = {"data": 0, "own": 0}
    for seed in range(12):
        batch = made.batch(texts, [0, 1], seed)
        again = made.batch(texts, [0, 1], seed)
        assert torch.equal(batch.tokens, again.tokens)
        found["data" if batch.tokens.shape[1] == LENGTH else "own"] += 1
        assert batch.tokens[:, :5].tolist() == [list(greedy_text(3, 1)[:5]), list(greedy_text(2)[:5])]
        if batch.tokens.shape[1] == 12:
            assert batch.learns.tolist() == [[False] * 5 + [True] * 7] * 2
            expected = texts.computed([Example(tuple(row), 5) for row in batch.tokens.tolist()])
            assert torch.equal(batch.hidden[-1], expected.hidden[-1])
    assert min(found.values()) >= 3
    # drawn from the draft's distribution
    many = sampled(draft(), [(3, 1)] * 400, 1, [1.0] * 400, 5)
    shares = torch.bincount(torch.tensor(many).flatten(), minlength=VOCAB) / 400
    with torch.no_grad():
        own = draft().model(torch.tensor([[3, 1]])).logits[0, -1].softmax(-1)
    assert (shares - own).abs().sum() / 2 < 0.1


def test_adaspec_keeps_the_largest_gaps_to_its_reference() -> None:
    own, reference = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]), torch.tensor([1.0, 1.0, 2.5, 4.5, 0.0])
    assert largest_gaps(own, reference, 0.4).tolist() == [True, False, False, False, True]
    assert largest_gaps(own, reference, 0.01).sum() == 1 and not len(largest_gaps(own[:0], own[:0], 0.4))
    texts = source(greedy_text(3, 1), greedy_text(2), first=5)
    batch, other = texts.batch([0, 1]), smaller(target().model, TrainConfig()).double()
    plain = DraftModelLesson(draft().model, target().head, Distillation())(batch, NO_NOISE)
    every = FilteredLesson(draft().model, other, target().head, Distillation(keep=1.0))
    assert torch.equal(every(batch, NO_NOISE), plain)
    # a reference that equals the draft leaves any tokens; one that equals the target those far from it
    ideal = FilteredLesson(draft().model, target().model, target().head, Distillation(keep=0.3))
    assert ideal(batch, NO_NOISE) > plain


@torch.no_grad()
def test_adaspec_compares_with_its_reference_at_the_temperature_of_the_distributions() -> None:
    texts = source(greedy_text(3, 1), first=5)
    own, true = (each / 2 for each in pair(texts))
    reference = smaller(target().model, TrainConfig()).double()
    other = reference(torch.tensor([texts.examples[0].tokens])).logits[0, 4:-1] / 2
    losses, theirs = (
        (true.softmax(-1) * (true.log_softmax(-1) - q.log_softmax(-1))).sum(-1) for q in (own, other)
    )
    made = FilteredLesson(draft().model, reference, target().head, Distillation(keep=0.3, temperature=2.0))
    kept = (losses - theirs).topk(round(0.3 * len(losses))).indices
    assert set(kept.tolist()) != set(losses.topk(len(kept)).indices.tolist())
    assert made(texts.batch([0]), NO_NOISE).item() == pytest.approx(losses[kept].mean().item(), rel=1e-5)


def test_direct_alignment_mixes_in_the_text_of_the_prompts() -> None:
    # the second text is padded
    texts = source(greedy_text(3, 1), greedy_text(2)[:9], first=5)
    batch = texts.batch([0, 1])
    made = [
        AlignmentLesson(draft().model, target().head, Distillation(text_weight=weight))(batch, NO_NOISE)
        for weight in (0.0, 0.25, 1.0)
    ]
    logits = logits_of(draft().model, batch)
    text = functional.cross_entropy(logits[:, :4].flatten(0, 1), batch.tokens[:, 1:5].flatten())
    assert made[2].item() == pytest.approx(text.item(), rel=1e-5)
    assert made[1].item() == pytest.approx((0.75 * made[0] + 0.25 * text).item(), rel=1e-5)
    own, true = (
        torch.cat(each) for each in zip(pair(texts), pair(source(greedy_text(2)[:9], first=5)), strict=True)
    )
    mask = torch.ones(len(own), dtype=torch.bool)
    assert made[0].item() == pytest.approx(total_variation_plus(own, true, mask).item(), rel=1e-5)


def test_only_distillspec_learns_answers_of_the_draft_and_a_divergence_that_is_chosen() -> None:
    texts = source(greedy_text(3, 1), first=5)
    batch, rest = texts.batch([0]), (draft().model, target().head)
    settings = Distillation(on_policy=1.0, divergence="reverse_kl", keep=1.0)
    lessons = {
        "domain, logits": offline_lesson(*rest, settings),
        "domain, text": offline_lesson(*rest, replace(settings, access="text")),
        "fastdraft": SequenceLesson(*rest, settings),
        "direct-alignment": AlignmentLesson(*rest, settings),
        "adaspec": FilteredLesson(draft().model, target().model, target().head, settings),
    }
    for name, made in lessons.items():
        assert all(torch.equal(made.batch(texts, [0], seed).tokens, batch.tokens) for seed in range(4)), name
    own, true = pair(texts)
    expected = forward_kl(own, true, torch.ones(len(own), dtype=torch.bool)).item()
    for name in ("domain, logits", "adaspec"):
        assert lessons[name](batch, NO_NOISE).item() == pytest.approx(expected, rel=1e-5)


def test_fastdraft_learns_the_answers_and_makes_a_smaller_model() -> None:
    texts = source(greedy_text(3, 1), first=5)
    batch = texts.batch([0])
    logits = logits_of(draft().model, batch)[0]
    expected = functional.cross_entropy(logits[4:-1], batch.tokens[0, 5:])
    made = SequenceLesson(draft().model, target().head, Distillation())
    assert made(batch, NO_NOISE).item() == pytest.approx(expected.item(), rel=1e-5)
    made = named("fastdraft").lesson(draft().model, target(), named("fastdraft").defaults())
    assert isinstance(made, DrafterLesson)
    assert len(made.evaluation(0, [batch]).agreement) == 8  # the lengths that the paper reports
    one, two = (
        smaller(target().model, changed(named("fastdraft").defaults(), [f"seed={seed}"])) for seed in (0, 1)
    )
    sizes = [sum(each.numel() for each in model.parameters()) for model in (one, target().model)]
    assert sizes[0] < sizes[1] and one.config.vocab_size == VOCAB
    assert one.config.model_type == target().model.config.model_type
    assert not torch.equal(next(one.parameters()), next(two.parameters()))


def test_fastdraft_makes_a_smaller_model_of_other_architectures_or_names_the_fix() -> None:
    config = named("fastdraft").defaults()
    made = smaller(build("falcon"), config)  # its configuration computes the size of a head
    assert made.config.num_hidden_layers == config.distillation.num_layers
    with pytest.raises(
        ConfigError, match="no smaller model can be made of Gemma3nForCausalLM .*: give a draft"
    ):
        smaller(build("gemma3n_text"), config)


def test_specee_is_not_trained_for_a_target_that_no_token_can_leave() -> None:
    falcon = Model("falcon", HFTarget(build("falcon")))
    with pytest.raises(ValueError, match="attention code of its own, which cannot leave out tokens: choose"):
        named("specee").untrained(falcon, named("specee").defaults(), [], start="head")


@pytest.mark.parametrize("method", POSITION_HEADS)
def test_a_head_learns(method: str, tmp_path: Path) -> None:
    embedding = target().embed.weight.requires_grad_(True)
    before, after = (trained(method, steps, tmp_path / str(steps)).evaluate() for steps in (0, 40))
    assert embedding.requires_grad and embedding.grad is None
    assert after.acceptance_length > before.acceptance_length + 0.5
    assert after.acceptance > before.acceptance
