"""OmniDraft with a draft model that learns while it drafts, and with a head that ends drafts early."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Scores, Step, TargetProbs, Verdict
from outpace.core.noise import Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.learning.online_adam import OnlineAdam
from outpace.drafters.lookup.prediction import PredictionDrafter
from outpace.models.hf.low_rank import LowRankAdapter
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.models.vocabulary import CrossVocabularyDraft, Vocabulary
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import Case, Enumeration, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.mutants.cross_vocabulary import HiddenStop
from outpace.proof.per_row_drafter import Apart
from outpace.proof.reference import table_logits
from outpace.recipes.vocabularies.omnidraft.early_stop import INTERVAL, AcceptanceHead, Stop
from outpace.recipes.vocabularies.omnidraft.online_distillation import OnlineDistillation
from outpace.recipes.vocabularies.omnidraft.pair_merging import PairMergingDrafter
from outpace.recipes.vocabularies.omnidraft.recipe import omnidraft
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection

LEARN = {"learn_every": 2, "learning_rate": 0.02}
CASES = [
    Case((0, 1, 2), SamplingParams(temperature=1.0, max_tokens=4, top_k=2)),
    Case((1,), SamplingParams(temperature=0.7, max_tokens=3, top_k=3)),
    Case((2, 0, 1), SamplingParams(max_tokens=7)),
]


@cache
def models() -> Models:
    return transformers_models()


def learning_parts(**options: Any) -> Parts:
    return omnidraft.build(models().target, **{"draft": models().cross_vocabulary, "depth": 3, **options})


def drafter_of(parts: Parts) -> PairMergingDrafter:
    assert isinstance(parts.drafter, PairMergingDrafter)
    return parts.drafter


def learning_of(parts: Parts) -> OnlineDistillation:
    learning = drafter_of(parts).learning
    assert learning is not None
    return learning


def requests(count: int, seed: int, temperature: float = 1.0) -> list[SamplingParams]:
    return [SamplingParams(temperature, max_tokens=30, seed=100 * seed + row) for row in range(count)]


def decode(parts: Parts, seeds: Sequence[int], temperature: float = 1.0) -> tuple[int, int]:
    """Numbers of drafted and of accepted tokens of four requests per seed."""
    drafted = accepted = 0

    def count(step: Step) -> None:
        nonlocal drafted, accepted
        forest = step.draft.tree.forest
        drafted += len(step.draft.tree) - len(step.ctx.slots)
        accepted += sum(forest.depths[node] for node in step.kept)

    for seed in seeds:
        prompts = [(row % 3, 1) for row in range(4)]
        texts(parts, prompts, requests(4, seed, temperature), observe=count)
    return drafted, accepted


def error_of(found: Enumeration[tuple[int, ...]]) -> float:
    return largest_error(found, models().logits, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"pairs": "all", "stop_threshold": 0.5}])
def test_the_distribution_is_the_targets_while_the_draft_learns(options: dict[str, Any]) -> None:
    """Each run begins with an untrained adapter, so that it can be repeated, and learns in every step."""
    updates: list[int] = []

    class Counted(Apart):
        def observe(self, step: Step) -> None:
            super().observe(step)
            for each in self._drafters.values():
                assert isinstance(each, PairMergingDrafter) and each.learning is not None
                updates.append(each.learning.num_updates)

    def build() -> Parts:
        return learning_parts(**LEARN, **options)

    example = build()
    found = enumerate_distributions(
        lambda: replace(example, drafter=Counted(example.drafter, lambda: build().drafter)),
        CASES,
        replays=2,
        most=3_000,
    )
    assert error_of(found) < 1e-10
    assert max(updates) >= 2 and found.counts.enough and found.counts.accepted > 20


@pytest.mark.slow
def test_the_distribution_is_the_targets_with_learned_frozen_weights() -> None:
    """Adapter and head are trained on other requests and then shared by all rows of the proof."""
    trained = learning_parts(**LEARN, stop_threshold=0.5, pairs="all")
    decode(trained, range(3))
    learning, stop = learning_of(trained), drafter_of(trained).stop
    assert learning.num_updates > 20 and stop is not None and stop.head.num_updates > 0
    draft = replace(models().cross_vocabulary, model=learning.adapter.target)

    class Frozen(Stop):
        def observe(self, step: Step) -> None:
            """Learns nothing more."""

    frozen = Frozen(0.5)
    frozen.head = stop.head

    def build() -> Parts:
        drafter = PairMergingDrafter(draft, models().target.vocab, 3, 4, pairs="all", stop=frozen)
        return Parts(models().target, drafter, Rejection(), Fixed(3))

    found = enumerate_distributions(build, CASES, replays=5, most=3_000)
    assert error_of(found) < 1e-10
    assert found.counts.enough and found.counts.accepted > 20


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.2, 0.4, 0.6])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([b"b", b"a", b"bb"], [b"a", b"b", b"ab", b"ba"]),
        ([b"x", b"y", b"a"], [b"xy", b"a", b"ay"]),  # x begins pairs only: no draft can end with it
    ],
)
def test_drafts_that_end_early_keep_the_distribution(
    theirs: list[bytes | None], ours: list[bytes | None], threshold: float
) -> None:
    target, model = TableTarget(len(ours), seed=1, order=2), TableTarget(len(theirs), seed=2, order=2)
    draft = CrossVocabularyDraft(model, Vocabulary.longest_match(theirs), Vocabulary.longest_match(ours))
    cases = [
        Case((0, 1), SamplingParams(temperature=1.0, max_tokens=4, top_k=2)),
        Case((1, 0), SamplingParams(max_tokens=6)),
    ]

    def build(stop: Stop | None) -> Parts:
        drafter = PairMergingDrafter(draft, target.vocab, 3, 4, pairs="all", stop=stop)
        return Parts(target, drafter, Rejection(), Fixed(3))

    found = enumerate_distributions(lambda: build(HiddenStop(threshold)), cases)
    assert largest_error(found, table_logits(target.logits, target.state), cases) < 1e-12
    every = enumerate_distributions(lambda: build(None), cases)
    assert found.counts.accepted > 10
    assert found.counts.drafted / found.runs < every.counts.drafted / every.runs


class Watched:
    """Implementation of core.contracts.Drafter and Verifier: those of other parts. Notes the adapter's
    weights when a draft begins and compares them when it ends and before and after its verification."""

    def __init__(self, parts: Parts, check: Callable[[TokenTree, Context], None] | None = None) -> None:
        self._drafter, self._verifier, self._check = drafter_of(parts), parts.verifier, check
        self.want, self.claims = self._drafter.want, self._drafter.claims
        self.accepts, self.guarantee = self._verifier.accepts, self._verifier.guarantee
        self.learns_across_rows, self.drafts_across_rows = True, False
        self.weights: list[Tensor] = []
        self.versions = self.changes = 0
        self._ctx: Context | None = None

    def _present(self) -> list[Tensor]:
        learning = self._drafter.learning
        assert learning is not None
        return [each.clone() for each in learning.adapter.weights]

    def _compare(self) -> None:
        self.changes += not all(map(torch.equal, self.weights, self._present()))

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self.versions += not all(map(torch.equal, self.weights, self._present())) or not self.weights
        self.weights, self._ctx = self._present(), ctx
        draft = self._drafter.propose(ctx, plan)
        self._compare()
        return draft

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        self._compare()
        if self._check is not None and self._ctx is not None:
            self._check(tree, self._ctx)
        verdict = self._verifier.verify(tree, target_probs, scores, noise)
        self._compare()
        return verdict

    def observe(self, step: Step) -> None:
        self._drafter.observe(step)

    def release(self, slots: Sequence[int]) -> None:
        self._drafter.release(slots)


def run_with_requests_that_join(parts: Parts) -> Session:
    """Three rows of different lengths, and further requests that join while others are in flight."""
    sampling = [SamplingParams(1.0, max_tokens=length, seed=length) for length in (9, 17, 26)]
    session = Session(parts, [torch.tensor([row]) for row in range(3)], sampling, LazyTargetProbs)
    for number, _ in enumerate(session.steps()):
        if number in (3, 5, 11):
            session.add(torch.tensor([1, 2, 0]), SamplingParams(1.0, max_tokens=12, seed=number))
    return session


def test_weights_do_not_change_between_drafting_and_verification() -> None:
    parts = learning_parts(**LEARN)
    watched = Watched(parts)
    run_with_requests_that_join(replace(parts, drafter=watched, verifier=watched))
    assert watched.changes == 0 and watched.versions > 5


def test_an_update_while_a_draft_is_pending_would_be_seen() -> None:
    class Early(PairMergingDrafter):
        def propose(self, ctx: Context, plan: Plan) -> Draft:
            draft = super().propose(ctx, plan)
            assert self.learning is not None
            self.learning._update()
            return draft

    parts = learning_parts(**LEARN)
    learning = learning_of(parts)
    learning._interval = 1 << 30  # not in `observe`
    early = Early(learning._cross_vocabulary, 4, 3, 4, pairs="request", learning=learning)
    watched = Watched(replace(parts, drafter=early))
    run_with_requests_that_join(replace(parts, drafter=watched, verifier=watched))
    assert watched.changes > 5


def test_drafts_are_drawn_with_the_present_weights() -> None:
    """After an update no keys and values of the weights before it are used."""
    parts = learning_parts(**LEARN, pair_starts=0, depth=2)
    learning, draft = learning_of(parts), models().cross_vocabulary
    compared = 0

    def check(tree: TokenTree, ctx: Context) -> None:
        nonlocal compared
        own, match = draft.shared
        for row, tokens in enumerate(ctx.tokens):
            if len(tree.forest.nodes[row]) < 2:
                continue
            translated = [each for token in tokens.tolist() for each in draft.translated(token)]
            adapter = learning.adapter
            q = adapter.network.logits(torch.tensor(translated), adapter.weights)[-1, own].softmax(-1)
            assert isinstance(tree.claim, Drawn)
            found = tree.claim.q[tree.claim.row[tree.forest.nodes[row][1]]]
            torch.testing.assert_close(found[match], q)
            compared += 1

    watched = Watched(parts, check)
    run_with_requests_that_join(replace(parts, drafter=watched, verifier=watched))
    assert compared > 20 and watched.versions > 5


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_learning_raises_acceptance(temperature: float) -> None:
    fixed, learning = learning_parts(), learning_parts(learn_every=8, learning_rate=5e-3)
    decode(learning, range(3), temperature)
    drafted, accepted = decode(fixed, [3, 4], temperature)
    more_drafted, more_accepted = decode(learning, [3, 4], temperature)
    assert more_accepted / more_drafted > 1.5 * accepted / drafted


def test_the_users_draft_stays_as_it_was() -> None:
    draft = models().cross_vocabulary.model
    assert isinstance(draft, HFTarget)
    before = {name: each.clone() for name, each in draft.model.state_dict().items()}
    tokens = torch.tensor([[0, 1, 1, 3]])
    with torch.no_grad():
        logits = draft.model(tokens).logits
    parts = learning_parts(**LEARN)
    decode(parts, [0])
    assert learning_of(parts).num_updates > 5
    assert all(torch.equal(each, before[name]) for name, each in draft.model.state_dict().items())
    assert all(each.grad is None and each.requires_grad for each in draft.model.parameters())
    assert not any(module._forward_hooks for module in draft.model.modules())
    with torch.no_grad():
        assert torch.equal(draft.model(tokens).logits, logits)
    other = learning_of(learning_parts(**LEARN))  # of a recipe of its own
    assert all(not each.any() for each in other.adapter.weights[1::2])


def test_the_same_seeds_give_the_same_weights_and_texts() -> None:
    def run() -> tuple[list[list[int]], tuple[Tensor, ...]]:
        parts = learning_parts(**LEARN, stop_threshold=0.5)
        return texts(parts, [(0, 1), (2,)], requests(2, 7)), learning_of(parts).adapter.weights

    (some, weights), (same, again) = run(), run()
    assert some == same and all(map(torch.equal, weights, again))


def test_global_random_numbers_are_not_used() -> None:
    before = torch.random.get_rng_state()
    decode(learning_parts(**LEARN, stop_threshold=0.5), [0])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_text_learns_the_hybrid_loss() -> None:
    """The loss of the first update against a sum by hand over the generated tokens."""
    parts, draft = learning_parts(learn_every=25, pairs="all"), models().cross_vocabulary
    learning, losses = learning_of(parts), list[float]()
    target, own = models().target, draft.model
    assert isinstance(target, HFTarget) and isinstance(own, HFTarget)

    class Noted(OnlineAdam):
        def update(self, found: Callable[..., Iterator[Tensor]]) -> bool:
            losses.append(float(sum(found(self.weights))))
            return False

    learning._adam = Noted(learning.adapter.weights, 1.0)
    steps: list[Step] = []
    (found,) = texts(parts, [(0, 2)], [SamplingParams(1.0, max_tokens=29, seed=3)], observe=steps.append)
    count = 0
    for step in steps:
        count += len(step.generated[0])
        if count >= 25:
            break
    text = [0, 2, *found[:count]]
    tokens = [each for token in text for each in draft.translated(token)]
    with torch.no_grad():
        p_all = target.model(torch.tensor([text])).logits[0].softmax(-1)
        q_all = own.model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    total, at, learned, num_pairs = 0.0, 0, 0, 0
    for index, token in enumerate(text):
        ids = draft.translated(token)
        if index >= 2 and len(ids) == 2:  # "ab"
            total -= 0.2 * float(q_all[at - 1, ids[0]] + q_all[at, ids[1]])
            num_pairs += 1
        elif index >= 2:
            p = torch.zeros(4, dtype=torch.float64)
            for match, mine in ((0, 1), (1, 0), (3, 2), (2, 1)):  # "ab" begins with a
                p[mine] += p_all[index - 1, match]
            # the draft's "bb" is no target token
            log_q = q_all[at - 1, :3] - q_all[at - 1, :3].logsumexp(-1)
            log_p = (p[:3] / p[:3].sum()).log()
            total += float((log_q.exp() * (log_q - log_p)).sum())
        learned += index >= 2
        at += len(ids)
    assert learned == count and 0 < num_pairs < count
    assert losses == [pytest.approx(total / count, rel=1e-9)]


@pytest.mark.slow
def test_a_loss_that_is_no_number_leaves_the_last_weights() -> None:
    parts = learning_parts(**LEARN)
    learning = learning_of(parts)
    decode(parts, [0])
    good, updates = learning.adapter.weights, learning.num_updates
    loss = learning._loss
    learning._loss = lambda text, weights: loss(text, weights) * math.nan
    found = texts(parts, [(0, 1), (2,)], requests(2, 1))
    assert [len(text) for text in found] == [30, 30]
    assert learning.adapter.weights is good and learning.num_failed > 5
    learning._loss = loss
    decode(parts, [2])
    assert learning.num_updates > updates and all(each.isfinite().all() for each in learning.adapter.weights)


@pytest.mark.slow
def test_an_update_that_raises_ends_learning_not_decoding() -> None:
    parts = learning_parts(**LEARN)
    learning = learning_of(parts)
    decode(parts, [0])
    good, updates = learning.adapter.weights, learning.num_updates

    def fails(text: object, weights: object) -> Tensor:
        raise torch.OutOfMemoryError("no memory is left")

    learning._loss = fails
    with pytest.warns(UserWarning, match="stops learning, since an update failed: no memory"):
        found = texts(parts, [(0, 1), (2,)], requests(2, 1))
    assert [len(text) for text in found] == [30, 30]
    assert learning.adapter.weights is good and learning.num_updates == updates


@pytest.mark.slow
def test_an_interrupted_update_leaves_the_last_weights() -> None:
    parts = learning_parts(**LEARN)
    learning = learning_of(parts)
    decode(parts, [0])
    good, loss = learning.adapter.weights, learning._loss

    def interrupted(text: object, weights: object) -> Tensor:
        raise KeyboardInterrupt

    learning._loss = interrupted
    with pytest.raises(KeyboardInterrupt):
        decode(parts, [1])
    assert learning.adapter.weights is good
    learning._loss = loss
    assert decode(parts, [1])[1] > 0


def test_what_is_kept_of_a_text_ends_with_the_update() -> None:
    parts = learning_parts(learn_every=10, learning_rate=1e-3)
    learning, most = learning_of(parts), 0
    session = Session(parts, [torch.tensor([0]), torch.tensor([1, 2])], requests(2, 5), LazyTargetProbs)
    for _ in session.steps():
        texts_kept = [*learning._ended, *learning._texts.values()]
        most = max(most, sum(len(text.new) for text in texts_kept))
    assert 0 < most < 10 + 2 * 4 and learning._texts == {}
    assert learning.num_updates >= 4


def test_the_start_of_a_text_beyond_the_models_length_is_not_read() -> None:
    """The draft reads at most 64 tokens; the text has more."""
    parts = learning_parts(learn_every=16, learning_rate=1e-3, pairs="all")
    learning, lengths = learning_of(parts), list[int]()
    network = learning.adapter.network
    logits = network.logits

    def noted(tokens: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        lengths.append(len(tokens))
        return logits(tokens, weights)

    network.logits = noted
    prompt = [0, 2] * 20  # 60 draft tokens
    texts(parts, [prompt], [SamplingParams(1.0, max_tokens=20, seed=1)])
    assert max(lengths) == 64 and learning.num_updates == 1 and learning.num_failed == 0


def test_a_draft_that_cannot_learn_is_refused() -> None:
    small = tables()
    with pytest.raises(ValueError, match="the draft is TableTarget"):
        omnidraft.build(small.target, draft=small.cross_vocabulary, learn_every=4)
    with pytest.raises(ValueError, match="learn_every is -1"):
        learning_parts(learn_every=-1)
    with pytest.raises(ValueError, match="learning_rate 0"):
        learning_parts(learn_every=1, learning_rate=0.0)
    for threshold in (0.0, 1.0):
        with pytest.raises(ValueError, match="stop_threshold"):
            learning_parts(stop_threshold=threshold)
    with torch.inference_mode():
        frozen = transformers_models().cross_vocabulary.model
    with pytest.raises(ValueError, match="loaded in inference mode"):
        LowRankAdapter(frozen)


def test_an_untrained_adapter_changes_nothing_and_a_trained_one_all_outputs() -> None:
    draft = models().cross_vocabulary.model
    assert isinstance(draft, HFTarget)
    adapter, tokens = LowRankAdapter(draft), torch.tensor([0, 1, 3, 1])
    with torch.no_grad():
        plain = draft.model(tokens[None]).logits[0]
        network, given = adapter.network, adapter.weights
        assert torch.equal(network.logits(tokens, given), plain)
        down, up = given[-2:]  # of the LM head
        hidden = draft.model.base_model(tokens[None]).last_hidden_state[0]
        torch.testing.assert_close(
            network.logits(tokens, (*given[:-1], torch.ones_like(up))),
            plain + (hidden @ down.mT).sum(-1, keepdim=True),
        )
        assert network.weights is given and torch.equal(network.logits(tokens, given), plain)


def test_adam_is_torchs_and_keeps_its_weights_when_an_update_fails() -> None:
    begin = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    ours, theirs = OnlineAdam([begin], 0.1), begin.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    scale = torch.tensor([1.0, 3.0, 0.2], dtype=torch.float64)
    for _ in range(5):
        with torch.inference_mode():
            # in two parts, and with a weight that a part does not use
            assert ours.update(lambda w: iter([(w[0] ** 4 * scale).sum(), w[0].sin().sum()]))
        optimizer.zero_grad()
        ((theirs**4 * scale).sum() + theirs.sin().sum()).backward()
        optimizer.step()
    torch.testing.assert_close(ours.weights[0], theirs.detach())
    good = ours.weights
    assert not ours.update(lambda w: iter([w[0].sum(), w[0].sum() * math.inf]))
    assert not ours.update(lambda w: iter([(w[0] - w[0].detach()).clamp_min(0).sqrt().sum()]))  # gradient NaN
    assert ours.weights is good and torch.equal(begin, torch.tensor([1.0, -2.0, 0.5]).double())


def test_the_head_learns_which_states_are_accepted() -> None:
    head, generator = AcceptanceHead(), torch.Generator().manual_seed(0)
    hidden = 5 * torch.randn(40 * INTERVAL, 8, generator=generator)
    accepted = (hidden[:, 2] > 0).tolist()
    assert head.accepted(hidden[:3]) == [1.0] * 3
    hidden[7] = math.nan  # not remembered
    for first in range(0, len(hidden), 16):
        head.learn(hidden[first : first + 16], accepted[first : first + 16])
    assert head.num_updates > 100
    seen = [(each, label) for each, label in zip(hidden, accepted, strict=True) if abs(each[2]) > 4]
    right = [(head.accepted(each[None])[0] > 0.5) == label for each, label in seen]
    assert sum(right) > 0.95 * len(right) and len(right) > 100


@pytest.mark.slow
def test_the_head_ends_drafts_that_would_be_rejected() -> None:
    plain, stopping = learning_parts(depth=4), learning_parts(depth=4, stop_threshold=0.6)
    decode(stopping, range(3))
    drafted, accepted = decode(plain, [3, 4])
    fewer, kept = decode(stopping, [3, 4])
    assert fewer < 0.7 * drafted and kept / fewer > 1.3 * accepted / drafted


@pytest.mark.parametrize("pair_starts", [0, 4])
def test_a_draft_ends_by_the_probability_that_any_of_its_tokens_is_rejected(pair_starts: int) -> None:
    """Of tokens that are accepted with probability 0.8 each, 0.8 ** 4 is the first product below a half."""
    parts, lengths = learning_parts(depth=9, stop_threshold=0.5, pair_starts=pair_starts, pairs="all"), []
    stop = drafter_of(parts).stop
    assert stop is not None
    stop.head.accepted = lambda hidden: [0.8] * len(hidden)

    def count(step: Step) -> None:
        if step.draft.forwards and step.ctx.max_draft_depth[0] > 9:
            lengths.append(len(step.draft.tree) - 1)

    texts(parts, [(0, 1)], requests(1, 3), observe=count)
    assert lengths and set(lengths) == {4}


def test_drafts_of_others_are_not_learned() -> None:
    """A predicted output is drafted in place of the row's own draft."""
    parts = learning_parts(**LEARN, stop_threshold=0.5)
    sampling = SamplingParams(max_tokens=30)
    (text,) = texts(parts, [(0, 1)], [sampling])
    stop = drafter_of(parts).stop
    assert stop is not None
    before = len(stop.head._remembered)
    predicted = PredictionDrafter(parts.drafter)
    session = Session(replace(parts, drafter=predicted), [torch.tensor([0, 1])], [sampling], LazyTargetProbs)
    predicted.predict(0, text)
    for _ in session.steps():
        assert session.request(0).output() == text[: len(session.request(0).output())]
    assert len(stop.head._remembered) == before
