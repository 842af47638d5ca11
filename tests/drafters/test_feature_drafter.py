"""Heads read the target's hidden states as in a forward over the whole text, in every order of reading."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Parts, Plan, Shape
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model import feature_drafter
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import grow
from outpace.models.eager.captures import OutputCapture
from outpace.models.heads.chimera.head import untrained_chimera
from outpace.models.heads.dovetail.head import untrained_dovetail
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import Eagle3Head, untrained_eagle3
from outpace.models.heads.fspad.head import untrained_fspad
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from tests.tiers import only, slow

VOCAB = 12
BOUND = 1e-9
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 3, 5], [4], [7, 7, 2], [9, 1, 0, 2, 8, 8, 3]]
UNTRAINED: dict[str, Callable[..., DraftHead]] = {
    "chimera": untrained_chimera,
    "dovetail": untrained_dovetail,
    "eagle": untrained_eagle,
    "eagle3": untrained_eagle3,
    "fspad": untrained_fspad,
}


@cache
def target(window: int | None = None) -> HFTarget:
    made = transformers_models(window, VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def reference(head: DraftHead, text: list[int], path: list[int], hidden: dict[int, Tensor]) -> Tensor:
    """(V,) logits after `text` and the draft tokens `path`, by forwards without a cache: one for each token
    of the path, in which the head's outputs take the place of hidden states that the target does not have."""
    tokens = torch.tensor([*text, *path])
    features = head.fuse(torch.cat([hidden[layer] for layer in head.taps], -1))[: len(text) - 1]
    if head.knows_tokens:
        read = torch.tensor(text[:-1])
        features = head.with_tokens(features, read, torch.cat((read[:1], read[:-1])))
    plain = copy.deepcopy(head)
    plain.config._attn_implementation = "sdpa"
    for count in range(len(path) + 1):
        end = len(text) + count
        positions = torch.arange(end - 1)[None]
        with OutputCapture(plain, 1).capture(frozenset({plain.state_layer}), True) as found:
            logits = plain(tokens[None, 1:end], positions, None, features[None]).logits[0, -1]
        features = torch.cat((features, found[plain.state_layer][0, -1:]))
    return logits


def hidden_states(model: HFTarget, text: list[int]) -> dict[int, Tensor]:
    """Layer -> (T, D), by a forward of the untouched model; -1: the input of the LM head."""
    layers = frozenset({-1, *range(model.num_layers)})
    with OutputCapture(model.model, model.num_layers).capture(layers, True) as found:
        model.model(torch.tensor([text]), use_cache=False)
    return {layer: states[0] for layer, states in found.items()}


class Recorded(FeatureDrafter):
    """Records the logits from which each draft was made: ((text, path), logits)."""

    def __init__(self, head: HeadModel, vocab: int, *, sampled: bool) -> None:
        super().__init__(head, vocab, self.growth, sampled=sampled)
        self.sampled = sampled
        self.found: list[tuple[list[int], list[int], Tensor]] = []

    def growth(self, ctx, plan, read):
        def recorded(tree):
            first, logits = read(tree)
            tokens, forest = tree.tokens.tolist(), tree.forest
            for node in range(first, len(tree)):
                row = forest.rows[node]
                path = [tokens[each] for each in forest.path(node)[1:]]
                self.found.append((ctx.tokens[row].tolist(), path, logits[node - first]))
            return first, logits

        return grow(ctx, plan, recorded, sampled=self.sampled)


def decode(drafter: FeatureDrafter, model: HFTarget, draft, sampling, *, prompts=PROMPTS, prompt_tokens=5):
    parts = Parts(model, drafter, Match(), Fixed(draft))
    tensors = [torch.tensor(each) for each in prompts]
    session = Session(parts, tensors, [sampling] * len(prompts), LazyTargetProbs, prompt_tokens=prompt_tokens)
    steps = list(session.steps())
    return [session.request(slot).text().tolist() for slot in range(len(prompts))], steps


DRAFTS: dict[str, int | Shape] = {"chain": 4, "tree": Shape((0, 0, 1, 1, 2, 3))}
KINDS = ("chimera", "dovetail", "eagle", "eagle3", "eagle3, normed output", "eagle3, window", "fspad")
QUICK = [
    ("chimera", "tree"),
    ("dovetail", "tree"),
    ("eagle", "chain"),
    ("eagle3", "tree"),
    ("eagle3, normed output", "chain"),
    ("eagle3, window", "tree"),
    ("fspad", "tree"),
]


@pytest.mark.parametrize(("kind", "shape"), only(QUICK, product(KINDS, DRAFTS)))
def test_logits_are_those_of_forwards_over_the_whole_text(kind: str, shape: str) -> None:
    """In a ragged batch with prompts that are read in parts, over many steps with accepted tokens."""
    model, draft = target(3 if "window" in kind else None), DRAFTS[shape]
    head = UNTRAINED[kind.split(",")[0]](model, seed=3)
    if kind.endswith("output"):
        head.state_layer = -1
    drafter = Recorded(HeadModel(head), VOCAB, sampled=False)
    _, steps = decode(drafter, model, draft, SamplingParams(1.0, max_tokens=16, seed=2))
    assert sum(len(each) - 1 for step in steps for each in step.generated if each) > 0  # accepted
    checked = 0
    with torch.no_grad():
        for text, path, logits in drafter.found[:: 7 if isinstance(draft, int) else 11]:
            if len(text) > 1:
                expected = reference(head, text, path, hidden_states(model, text))
                assert (logits - expected).abs().max() < BOUND
                checked += 1
    assert checked > 10


class Rarely(Fixed):
    """Plans drafts in one step of so many."""

    def __init__(self, draft: int | Shape, every: int) -> None:
        super().__init__(draft)
        self._every, self._num_steps = every, 0

    def plan(self, ctx: Context) -> Plan:
        self._num_steps += 1
        return super().plan(ctx).within((0 if self._num_steps % self._every else 99,) * len(ctx.slots))


@pytest.mark.parametrize("kind", UNTRAINED)
def test_the_head_reads_on_where_nothing_is_drafted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else features would pile up, and be copied in every step."""
    monkeypatch.setattr(feature_drafter, "MOST_UNREAD", 4)
    model = target()
    head = UNTRAINED[kind](model, seed=3)
    drafter = Recorded(HeadModel(head), VOCAB, sampled=False)
    parts = Parts(model, drafter, Match(), Rarely(3, 11))
    sampling = [SamplingParams(1.0, max_tokens=40, seed=2)] * len(PROMPTS)
    tensors = [torch.tensor(each) for each in PROMPTS]
    session = Session(parts, tensors, sampling, LazyTargetProbs, prompt_tokens=5)
    most = max(max(map(len, drafter._features.values()), default=0) for _ in session.steps())
    assert most == 4
    with torch.no_grad():
        for text, path, logits in drafter.found[::3]:
            expected = reference(head, text, path, hidden_states(model, text))
            assert (logits - expected).abs().max() < BOUND
    assert max(len(text) for text, _, _ in drafter.found) > 30


@pytest.mark.slow
def test_a_text_is_plain_decodings_and_its_rows_do_not_depend_on_their_batch() -> None:
    model = target()
    sampling = SamplingParams(1.0, max_tokens=12, seed=5)
    tensors = [torch.tensor(each) for each in PROMPTS]
    plain = Session(autoregressive.build(model), tensors, [sampling] * 4, LazyTargetProbs)
    list(plain.steps())
    for kind in UNTRAINED:
        opened = HeadModel(UNTRAINED[kind](model))

        def drafter(opened: HeadModel = opened) -> FeatureDrafter:
            return FeatureDrafter(opened, VOCAB, grow, sampled=True)

        together, steps = decode(drafter(), model, 3, sampling)
        assert together == [plain.request(slot).text().tolist() for slot in range(4)]
        drafts: list[list[int]] = []
        for row, prompt in enumerate(PROMPTS):
            alone, own = decode(drafter(), model, 3, sampling, prompts=[prompt])
            assert alone == together[row : row + 1]
            drafts.append([token for step in own for token in step.draft.tree.tokens.tolist()])
        batched = [
            [int(step.draft.tree.tokens[node]) for step in steps for node in nodes_of(step.draft, step, row)]
            for row in range(4)
        ]
        assert [sorted(each) for each in drafts] == [sorted(each) for each in batched]


def nodes_of(draft: Draft, step, slot: int) -> list[int]:
    if slot not in step.ctx.slots:
        return []
    return list(draft.tree.forest.nodes[step.ctx.slots.index(slot)])


def test_a_draft_vocabulary_limits_what_is_drafted_and_not_the_text() -> None:
    model = target()
    whole = untrained_eagle3(model)
    assert isinstance(whole, Eagle3Head)
    ids = torch.tensor([2, 3, 7, 11])
    config = copy.deepcopy(whole.config)
    config.vocab_size = len(ids)
    head = Eagle3Head(config, model.embed, whole.taps, draft_ids=ids).double()
    own = {name: each for name, each in whole.state_dict().items() if not name.startswith("lm_head")}
    head.load_state_dict(own | {"lm_head.weight": whole.lm_head.weight[ids]})
    found = {}
    for name, each in (("whole", whole), ("part", head)):
        drafter = Recorded(HeadModel(each), VOCAB, sampled=True)
        text, steps = decode(drafter, model, 3, SamplingParams(1.0, max_tokens=10, seed=1))
        drafted = {
            token
            for step in steps
            if any(step.generated)
            for token in step.draft.tree.tokens[step.draft.tree.forest.num_rows :].tolist()
        }
        found[name] = text, drafted, drafter.found[0][2]
    assert found["part"][0] == found["whole"][0]  # the target's own tokens, whatever was drafted
    assert found["part"][1] <= set(ids.tolist()) and not found["whole"][1] <= set(ids.tolist())
    logits = found["part"][2]
    assert torch.equal(logits[ids], found["whole"][2][ids]) and (logits == -torch.inf).sum() == VOCAB - 4


def test_a_request_that_leaves_and_comes_back_drafts_as_if_it_had_stayed() -> None:
    model = target()
    head = untrained_eagle(model)
    drafter = Recorded(HeadModel(head), VOCAB, sampled=False)
    session = Session(
        Parts(model, drafter, Match(), Fixed(3)),
        [torch.tensor(PROMPTS[0])],
        [SamplingParams(0, max_tokens=12)],
        LazyTargetProbs,
    )
    steps = session.steps()
    while not any(next(steps).generated):
        pass
    next(steps)
    request = session.request(0)
    session.cancel(0)
    assert drafter._cache is None  # its memory is free
    del drafter.found[:]
    session.rejoin(request)
    list(session.steps())
    text, path, logits = drafter.found[0]
    with torch.no_grad():
        assert (logits - reference(head, text, path, hidden_states(model, text))).abs().max() < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "draft"), [slow("eagle", DRAFTS["chain"]), ("eagle3", DRAFTS["tree"])], ids=["chain", "tree"]
)
def test_compiled_heads_draft_the_same(kind: str, draft: int | Shape) -> None:
    pytest.importorskip("openvino")
    made = copy.deepcopy(target().model).float()
    model = HFTarget(made, compile=True)
    assert model.compiled
    head = UNTRAINED[kind](model, seed=1)
    found = []
    for compile in (False, True):
        opened = HeadModel(head, compile=compile)
        assert (opened.model.compiled is not None) == compile
        drafter = Recorded(opened, VOCAB, sampled=False)
        text, _ = decode(drafter, model, draft, SamplingParams(0, max_tokens=9))
        found.append((text, drafter.found))
    assert found[0][0] == found[1][0]
    for (text, path, logits), (other, nodes, compiled) in zip(found[0][1], found[1][1], strict=True):
        assert (text, path) == (other, nodes) and (logits - compiled).abs().max() < 1e-4


def test_nan_in_a_head_is_named() -> None:
    model = target()
    head = untrained_eagle(model)
    with torch.no_grad():
        head.fc.weight[0] = torch.nan
    drafter = FeatureDrafter(HeadModel(head), VOCAB, grow, sampled=True)
    with pytest.raises(ValueError, match="the draft model gave NaN or infinite logits"):
        decode(drafter, model, 3, SamplingParams(1.0, max_tokens=4))
