"""A chain that a compiled model continues in one call is the one of a forward per token."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.contracts import Draft, Drafter, Parts, Prompt, ReadsChains, Want
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import untrained_eagle3
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.openvino.size_policy import MAX_TOKENS
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection
from tests.tiers import slow

VOCAB = 61
ROUNDING = 3e-5  # of logits of about 1, in float32
PROMPT = torch.tensor([5, 9, 31, 7, 44, 5, 9, 12, 60, 3, 18, 5])
made: dict[str, HFTarget] = {}


def compiled(name, tiny) -> HFTarget:
    if name not in made:
        made[name] = HFTarget(tiny(name).float(), compile=True)
        assert made[name].compiled is not None
    return made[name]


class Ending(Fixed):
    """Ends drafts with tokens of a low draft probability."""

    def plan(self, ctx):
        return replace(super().plan(ctx), stop=self.ends)

    def ends(self, frontier):
        assert frontier.logits is not None and frontier.logits.shape == (len(frontier.rows), VOCAB)
        # a sum of both inputs that is above its limit at about every third token
        top = frontier.logits.float().softmax(-1).amax(-1).tolist()
        return [(40 * path[-1] + 40 * each) % 1 > 0.7 for path, each in zip(frontier.paths, top, strict=True)]


def most_probable(logits) -> int:
    return int(logits.argmax())


def level_by_level(model, root, cache, depth, choose, gap) -> tuple[list[int], Tensor]:
    tokens, every_logits = list[int](), list[Tensor]()
    for level in range(depth):
        tree = TokenTree(torch.tensor([int(root), *tokens]), Forest.chain((level,)))
        logits = model.score(tree, [0], cache, gap=None if level or gap is None else [gap]).logits
        every_logits.append(logits[-1])
        tokens.append(choose(logits[-1:]))
    return tokens, torch.stack(every_logits)


@pytest.mark.parametrize("name", ["llama", slow("gemma3_text"), slow("gpt2")])
@pytest.mark.parametrize("gap", [None, 1, 5])
def test_tokens_logits_and_cache_are_those_of_one_forward_per_token(name, gap, tiny):
    model, caches = compiled(name, tiny), []
    assert isinstance(model, ReadsChains)
    missing = PROMPT[len(PROMPT) - 1 - gap : -1] if gap else None
    found = []
    for at_once in (True, False):
        cache = model.open(1, 160)
        model.prefill([Prompt(PROMPT[: len(PROMPT) - (gap or 0)])], [0], cache, Want())
        seen: list[Tensor] = []

        def second(logits, seen=seen):
            """The second most probable token."""
            seen.append(logits.clone())
            return int(logits.topk(2).indices[0, 1])

        for choose in (None, second):  # the second chain follows a part of the first
            if at_once:
                chain = model.continue_chain(PROMPT[-1:], 0, cache, 4, choose, gap=missing)
                assert chain is not None
            else:
                chain = level_by_level(model, PROMPT[-1], cache, 4, choose or most_probable, missing)
            found.append(chain)
            assert cache.tree is not None and cache.tree.tokens.tolist() == [5, *chain[0][:-1]]
            cache.commit(cache.tree, [2 if choose is None else 3], [0])
            missing = None
        assert torch.equal(torch.cat(seen), found[-1][1]) and seen[0].shape == (1, model.vocab)
        missing = PROMPT[len(PROMPT) - 1 - gap : -1] if gap else None
        caches.append(cache)
    for (ours, logits), (theirs, expected) in zip(found[:2], found[2:], strict=True):
        assert ours == theirs and len(ours) == 4 and (logits - expected).abs().max() < ROUNDING
    assert caches[0].lengths == caches[1].lengths == [len(PROMPT) + 6]
    views = (each.views(0, 0, each.lengths[0]) for each in caches)
    assert all((ours - theirs).abs().max() < ROUNDING for ours, theirs in zip(*views, strict=True))


def test_what_cannot_be_read_so_is_left_as_it_was(tiny):
    model = compiled("llama", tiny)
    eager = HFTarget(copy.deepcopy(model.model))
    long = torch.arange(MAX_TOKENS) % 60
    for each, gap in ((eager, None), (model, long)):
        cache = each.open(1, 200)
        assert each.continue_chain(PROMPT[-1:], 0, cache, 3, None, gap=gap) is None
        assert cache.lengths == [0] and cache.read == 0
    cache = model.open(1, 64)
    model.score(TokenTree(torch.tensor([3, 4]), Forest.chain((1,))), [0], cache)
    assert model.continue_chain(PROMPT[-1:], 0, cache, 3, None) is None  # that tree is not committed


class Recorded:
    """Records what a drafter proposes."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.drafts = drafter, list[Draft]()

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def propose(self, ctx, plan):
        self.drafts.append(self.drafter.propose(ctx, plan))
        return self.drafts[-1]


@cache
def heads(target: HFTarget, kind: str) -> HeadModel:
    head = untrained_eagle(target) if kind == "eagle" else untrained_eagle3(target)
    if kind == "eagle3":
        size = head.config.hidden_size
        head.draft_ids = torch.tensor([3, 8, 9, 20, 21, 33, 50])
        head.lm_head = torch.nn.Linear(size, len(head.draft_ids), bias=False)
    return HeadModel(head, compile=True)


@pytest.mark.parametrize("controller", [Fixed, Ending])
@pytest.mark.parametrize("kind", ["draft", slow("eagle"), "eagle3"])
@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 3}]
)
def test_drafts_and_their_claims_are_those_of_one_forward_per_token(
    kind, settings, controller, tiny, monkeypatch
):
    target, calls = compiled("llama", tiny), []
    at_once = HFTarget.continue_chain

    def counted(*args, **keywords):
        found = at_once(*args, **keywords)
        calls.append(found is not None)
        return found

    def drafts(prompts):
        drafter = (
            DraftModel(target)
            if kind == "draft"
            else FeatureDrafter(heads(target, kind), target.vocab, grow, sampled=True)
        )
        recorded = Recorded(drafter)
        parts = Parts(target, recorded, Rejection(), controller(3))
        sampling = [SamplingParams(max_tokens=14, seed=7, **settings)] * len(prompts)
        for _ in Session(parts, prompts, sampling, LazyTargetProbs).steps():
            pass
        return recorded.drafts

    monkeypatch.setattr(HFTarget, "continue_chain", counted)
    ours = drafts([PROMPT])
    assert any(calls) and len(calls) >= len(ours) - 2  # the last steps have room for no draft
    monkeypatch.setattr(HFTarget, "continue_chain", lambda *_, **__: None)
    theirs = drafts([PROMPT])
    for one, other in zip(ours, theirs, strict=True):
        assert one.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert one.tree.forest is other.tree.forest and one.forwards == other.forwards
        assert (one.tree.confidence is None) == (controller is Fixed or len(one.tree) == 1)
        if one.tree.confidence is not None and other.tree.confidence is not None:
            assert (one.tree.confidence - other.tree.confidence).abs().max() < ROUNDING
        claim, expected = one.tree.claim, other.tree.claim
        assert (claim is None) == (expected is None)
        if isinstance(claim, Drawn) and isinstance(expected, Drawn):
            assert claim.row == expected.row and claim.replace == expected.replace
            assert claim.ids is None and claim.draws is None
            assert (claim.q - expected.q).abs().max() < ROUNDING
    assert any(each.tree.claim is not None for each in ours) == (settings["temperature"] > 0)
    if controller is Ending:
        assert len({each.forwards for each in ours} - {0}) > 1
    calls.clear()
    monkeypatch.setattr(HFTarget, "continue_chain", counted)
    drafts([PROMPT, PROMPT[:5]])
    assert len(calls) < len(ours)  # only when one row is left


@pytest.mark.parametrize("kind", ["draft", "eagle"])
def test_nan_logits_within_a_chain_are_named(kind, tiny, monkeypatch):
    target = compiled("llama", tiny)

    def broken(model, root, slot, cache, depth, choose, **_):
        choose(torch.full((1, model.vocab), float("nan")))
        raise IndexError("token id outside the vocabulary")

    monkeypatch.setattr(HFTarget, "continue_chain", broken)
    drafter = (
        DraftModel(target)
        if kind == "draft"
        else FeatureDrafter(heads(target, kind), target.vocab, grow, sampled=True)
    )
    parts = Parts(target, drafter, Rejection(), Fixed(3))
    sampling = [SamplingParams(max_tokens=14, temperature=1.0)]
    with pytest.raises(ValueError, match="the draft model gave NaN"):
        list(Session(parts, [PROMPT], sampling, LazyTargetProbs).steps())
