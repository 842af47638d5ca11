"""CoSine: which draft models draft, what they agree on, and that all of them read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Step, Target
from outpace.core.noise import Key, KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.models import tables, transformers_models
from outpace.proof.suite import CAUGHT, Subject, mistakes, ragged
from outpace.recipes.control.cosine.fused_chains import FusedChains, Proposal, agreement
from outpace.recipes.control.cosine.recipe import cosine
from outpace.recipes.control.cosine.routing_scores import EXPLORE, RoutingScores
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from tests.recipes.control.test_hedge import context
from tests.recipes.counting_model import counting

VOCAB, HALF = 60, 30


def expert(first: int, end: int, sure: float = 1.0) -> TableTarget:
    """Right after the tokens from `first` to before `end` only; elsewhere `sure` of a wrong token."""
    model = counting(VOCAB)
    last = torch.arange(len(model.logits)) % VOCAB
    right = (first <= last) & (last < end)
    model.logits = torch.where(right[:, None], model.logits, sure * model.logits.roll(1, -1))
    return model


def started(
    target: Target, drafts: Sequence[Target], prompts: Sequence[Sequence[int]], tokens: int, **options
) -> tuple[Session, Iterator[Step], FusedChains]:
    given = {"depth": 4, "adaptive": False, "explore": 0.0, "temperature": 1.0, **options}
    temperature = given.pop("temperature")
    parts = cosine(target, drafts=tuple(drafts), **given)
    assert isinstance(parts.drafter, FusedChains)
    sampling = [SamplingParams(temperature, max_tokens=tokens, seed=3)] * len(prompts)
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    return session, session.steps(), parts.drafter


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_model_without_fusion_is_greedy_drafting(temperature: float) -> None:
    target, draft, prompts = TableTarget(8, seed=1), TableTarget(8, seed=2), [[1, 2], [3]]
    options = {"chosen": 1, "fusion": False, "depth": 3, "temperature": temperature}
    _, steps, _ = started(target, [draft], prompts, 40, **options)
    greedy = Parts(target, DraftModel(draft, sampled=False), Match(), Fixed(3))
    sampling = [SamplingParams(temperature, max_tokens=40, seed=3)] * 2
    session = Session(greedy, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    for own, other in zip(steps, session.steps(), strict=True):
        assert own.generated == other.generated and own.draft.forwards == other.draft.forwards
        assert sorted(paths(own)) == sorted(paths(other))


def paths(step: Step) -> list[tuple[int, ...]]:
    """(row, tokens) of every node of the draft."""
    tree = step.draft.tree
    tokens, forest = tree.tokens.tolist(), tree.forest
    return [(forest.rows[n], *(tokens[each] for each in forest.path(n)[1:])) for n in range(len(tree))]


@pytest.mark.parametrize("fusion", [True, False])
def test_routing_finds_the_expert_and_fusion_needs_none(fusion: bool) -> None:
    drafts = [expert(0, 0), expert(HALF, VOCAB), expert(0, HALF)]
    _, steps, drafter = started(counting(VOCAB), drafts, [[0]], 29, chosen=1, fusion=fusion)
    lengths = [len(step.generated[0]) for step in steps]
    assert lengths[-3:-1] == [5, 5] and 1 in lengths[:3]
    session, steps, drafter = started(counting(VOCAB), drafts[1:], [[0], [HALF]], 25, fusion=fusion)
    for number, step in enumerate(steps):
        for row, slot in enumerate(step.ctx.slots):
            # at first both are as sure, and fusion cannot tell who is right
            if step.ctx.max_draft_depth[row] >= 4 and (number or not fusion):
                assert len(step.generated[row]) == 5
            if slot in session.rows:
                scores = drafter.routing.scores(slot)
                assert scores[1 - slot] == pytest.approx(1.0) and scores[slot] < 0.9


def test_a_fused_token_has_the_largest_product_and_the_others_are_siblings() -> None:
    """Two models whose drafts are known: the surer one leads until its score is below half of the other's."""
    right, wrong = expert(0, VOCAB), expert(0, 0)
    right.logits = right.logits / 30 * 6  # confidence 6 / (6 + ...) of the next token
    _, steps, drafter = started(counting(VOCAB), [wrong, right], [[0]], 30, beta=0.5)
    confidence = float(right.logits[0].softmax(-1).max())
    score, seen = 1.0, list[bool]()
    for step in steps:
        tree, own = step.draft.tree, 0.5 ** len(seen)
        if step.ctx.max_draft_depth[0] < 4:
            break
        leads = score * confidence > own  # of the right model
        seen.append(leads)
        root = step.ctx.committed[0] - 1
        first, second = (tree.tokens[child].item() for child in tree.forest.children[0])
        assert (first == root + 1) == leads and {first, second} == {root + 1, root + 2}
        assert all(len(tree.forest.children[n]) in (0, 2) for n in range(len(tree)))
        chain = [n for n in range(len(tree)) if tree.forest.children[n]]
        assert all(
            tree.forest.children[above][0] == below for above, below in zip(chain, chain[1:], strict=False)
        )
        assert len(step.generated[0]) == (5 if leads else 2)
        score = 0.5 * score + 0.5 * confidence
        if len(seen) > 5:
            break
    assert not seen[0] and all(seen[2:])


def test_agreement_counts_verified_tokens_only() -> None:
    levels = [
        [Proposal(0, 5, 0.5, 1), Proposal(1, 7, 0.9, 1)],
        [Proposal(0, 6, 0.25, 5), Proposal(1, 6, 1.0, 7)],
        [Proposal(0, 8, 1.0, 6), Proposal(1, 8, 1.0, 6)],
        [Proposal(0, 9, 1.0, 8)],
    ]
    # model 1 continues its own token 7, which was not generated
    assert agreement(levels, [5, 6, 0]) == {0: pytest.approx((0.5 + 0.25 + 0) / 3), 1: 0.0}
    assert agreement(levels, [7]) == {0: 0.0, 1: pytest.approx(0.9)}
    assert agreement(levels, []) == {}


class Counting(TableTarget):
    """Counts the tokens that it reads, by slot."""

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__(vocab, seed=seed, order=1)
        self.read: list[int] = []

    def score(self, tree, slots, cache, want=None, *, gap=None, carry=None):
        scores = super().score(tree, slots, cache, gap=gap)
        self.read.append(len(tree) - scores.first + sum(map(len, gap or ())))
        return scores


def test_every_chosen_model_reads_each_fused_token_once() -> None:
    """Two drafts that differ: what the other one led with is read from the draft, not again afterwards."""
    drafts = [Counting(VOCAB, 1), Counting(VOCAB, 2)]
    drafts[0].logits, drafts[1].logits = expert(0, HALF, 0.1).logits, expert(HALF, VOCAB, 0.1).logits
    _, steps, _ = started(counting(VOCAB), drafts, [[25, 26, 27]], 41)
    forwards = 0
    for number, step in enumerate(steps):
        assert number > 6 or len(step.generated[0]) == 5
        for draft in drafts:
            # root and what the step before did not read: the last token of its chain, or the prompt
            expected = [3 if number == 0 else 2, 1, 1, 1]
            if step.ctx.max_draft_depth[0] >= 4:
                assert draft.read[forwards : forwards + 4] == expected
        forwards += 4


@pytest.mark.slow
def test_drafts_are_those_of_models_without_a_cache() -> None:
    """Transformers in float64: after steps with rejected tokens, and steps in which a model took no part,
    every fused token and its siblings follow from forwards over the whole text."""
    models, (third, *_) = transformers_models(), transformers_models(window=3).drafts
    drafts = [draft for draft in (*models.drafts, third) if isinstance(draft, HFTarget)]
    session, steps, drafter = started(models.target, drafts, [[0, 1, 2], [3]], 24, explore=0.3, depth=3)
    chosen, scores = list[dict[int, list[int]]](), dict[int, list[float]]()
    choose = drafter.routing.choose

    def recorded(ctx: Context, rows: Sequence[int]) -> dict[int, list[int]]:
        chosen.append(choose(ctx, rows))
        scores.update({row: list(drafter.routing.scores(ctx.slots[row])) for row in rows})
        return chosen[-1]

    drafter.routing.choose = recorded
    num_checked, members = 0, set[tuple[int, ...]]()
    for step in steps:
        tree = step.draft.tree
        for row in range(len(step.ctx.slots)):
            text, node = step.ctx.tokens[row].tolist(), row
            while children := tree.forest.children[node]:
                with torch.inference_mode():
                    whole = torch.tensor([text])
                    probs = [each.model(whole, use_cache=False).logits[0, -1].softmax(-1) for each in drafts]
                products = [
                    (float(probs[each].max()) * scores[row][each], int(probs[each].argmax()))
                    for each in chosen[-1][row]
                ]
                tokens = [token for _, token in sorted(products, reverse=True)]
                assert [int(tree.tokens[child]) for child in children] == list(dict.fromkeys(tokens))
                text.append(tokens[0])
                node, num_checked = children[0], num_checked + 1
                members.add(tuple(sorted(chosen[-1][row])))
    assert num_checked > 20 and len(members) > 2


def test_scores_are_updated_and_exploration_uses_noise_of_its_own() -> None:
    routing = RoutingScores(4, 2, beta=0.75, explore=0.5)
    routing.record(7, {0: 0.5, 2: 0.0}, accepted=2)
    assert routing.scores(7) == [0.875, 1.0, 0.75, 1.0]
    added, flips = list[int](), list[bool]()
    for turn in range(60):
        ctx = context(turn, (7,))
        found = routing.choose(ctx, [0])[0]
        assert found[:2] == [1, 3]
        (flip,) = ctx.noise.flip([0.5], Key((0,), (0,), (0,), EXPLORE))
        flips.append(flip)
        assert len(found) == 2 + flip
        added += found[2:]
    assert 15 < sum(flips) < 45 and set(added) == {0, 2}
    routing = RoutingScores(3, 1, beta=0.5, explore=0.0)
    routing.record(7, {0: 1.0}, accepted=0)  # nothing was accepted: one more joins
    assert len(routing.choose(context(1, (7,)), [0])[0]) == 2
    routing.record(7, {0: 1.0}, accepted=1)
    assert routing.choose(context(2, (7,)), [0]) == {0: [0]}
    routing.release([7])
    assert routing.scores(7) == [1.0] * 3


class NoNoise(KeyedNoise):
    def uniforms(self, key: Key, draw: int = 0) -> list[float]:
        raise AssertionError("no choice is random here")


def test_without_exploration_nothing_is_random() -> None:
    routing, ctx = RoutingScores(3, 2, beta=0.5, explore=0.0), context(0)
    quiet = Context(
        **{name: getattr(ctx, name) for name in Context.__slots__} | {"noise": NoNoise([0], [0], [5])}
    )
    assert routing.choose(quiet, [0]) == {0: [0, 1]}


def test_exact_when_models_are_explored() -> None:
    models = tables()
    for fusion in (True, False):
        given = {"drafts": models.drafts, "depth": 2, "chosen": 1, "explore": 0.4, "fusion": fusion}
        proof = Subject(cosine, given, models).prove(ragged, 300)
        assert proof.holds and proof.accepted > 20 and proof.deepest >= 2, (fusion, proof.verdict)


def test_the_planted_mistake_is_caught() -> None:
    assert mistakes()["fused token claimed as drawn by one draft model"]() > CAUGHT


def test_unsuited_options_are_refused() -> None:
    target = counting(VOCAB)
    for options, message in (
        ({"drafts": ()}, "one draft model or more"),
        ({"drafts": (target,), "depth": 0}, "use 1 or more"),
        ({"drafts": (target,), "chosen": 0}, "let 1 draft model or more draft"),
        ({"drafts": (target,), "beta": 1.0}, "give 0 to below 1, and 0 to 1"),
        ({"drafts": (target, counting(40))}, "vocabularies of 40 and 60 tokens, but continue one another's"),
    ):
        with pytest.raises(ValueError, match=message):
            cosine(target, **options)
