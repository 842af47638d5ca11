"""EMS-SD: rows draft different numbers of tokens, and the target processes those tokens and no others."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import pytest
import torch

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Parts, Plan, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import DRAFT_NODES, Session
from outpace.models.eager.contiguous_cache import ContiguousCache
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.forward.request import ForwardRequest
from outpace.models.hf.target import HFTarget
from outpace.models.openvino.paged_attention import BLOCK_SIZE
from outpace.models.openvino.paged_cache import PagedCache
from outpace.proof.decode_all import texts
from outpace.proof.models import Models, transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.serving.ems_sd import ems_sd
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from tests.tiers import slow

VOCAB = 12
PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 6, 5, 6, 5, 6, 7, 5], [11, 0]]
SAMPLING = [SamplingParams(0.8 * (row % 2), max_tokens=20 + row, seed=row) for row in range(4)]


@cache
def small() -> Models:
    return transformers_models(vocab=VOCAB)


class Lengths:
    """Implementation of core.contracts.Drafter: chains of these lengths, of the text's last tokens, shifted
    by one row after every step."""

    want = Fixed.want
    claims = ()
    learns_across_rows = drafts_across_rows = False

    def __init__(self, *lengths: int) -> None:
        self._lengths, self._step = lengths, 0

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._step += 1
        lengths, tokens = list[int](), [ctx.roots]
        for row, limit in enumerate(plan.depth):
            length = min(limit, self._lengths[(row + self._step) % len(self._lengths)])
            tokens.append(ctx.tokens[row][-1:].repeat(length))
            lengths.append(length)
        return Draft(TokenTree(torch.cat(tokens), Forest.chain(tuple(lengths))))

    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


@contextmanager
def counted(target: HFTarget) -> Iterator[list[int]]:
    """The number of tokens in each forward of the target's model, counted at its embedding."""
    sizes: list[int] = []
    layer = target.forward.model.get_input_embeddings()
    hook = layer.register_forward_hook(lambda module, inputs, output: sizes.append(inputs[0].numel()))
    try:
        yield sizes
    finally:
        hook.remove()


def processed(parts: Parts, target: HFTarget, prompts: Sequence[list[int]]) -> list[tuple[int, list[int]]]:
    """Per step the number of tokens that the target's model processed, and per row the tokens that it has to:
    its last token, its draft and what it has not read of its prompt."""
    found: list[tuple[int, list[int]]] = []
    with counted(target) as sizes:
        session = Session(parts, [torch.tensor(p) for p in prompts], SAMPLING, LazyTargetProbs)
        for step in session.steps():
            unread = step.ctx.unread or [()] * len(step.ctx.slots)
            rows = zip(step.draft.tree.forest.nodes, unread, strict=True)
            found.append((sum(sizes), [len(nodes) + len(tokens) for nodes, tokens in rows]))
            sizes.clear()
    return found


def test_the_target_processes_the_rows_tokens_and_no_others() -> None:
    target = small().target
    assert isinstance(target, HFTarget)
    scripted = Parts(target, Lengths(0, 3, 7), Match(), Fixed(7))
    recipes = ems_sd.build(target), ems_sd.build(target, fallback=small().drafts[0])
    for parts in (scripted, *recipes):
        steps = processed(parts, target, PROMPTS)
        assert all(count == sum(rows) for count, rows in steps)
        # a padded batch would process as many tokens in each row as in the longest
        assert sum(max(rows) * len(rows) for _, rows in steps) > 1.2 * sum(count for count, _ in steps)
        assert {len(set(rows)) for _, rows in steps} >= {1, 2, 3}


def test_a_padded_batch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small().target
    assert isinstance(target, HFTarget)
    read = target.forward.read

    def padded(request: ForwardRequest, cache: SlotCache):
        tokens, sizes = request.tokens, request.sizes
        padding = tokens.new_zeros(max(sizes) * len(sizes) - len(tokens))
        target.forward.model.get_input_embeddings()(padding)
        return read(request, cache)

    monkeypatch.setattr(target.forward, "read", padded)
    parts = Parts(target, Lengths(0, 3, 7), Match(), Fixed(7))
    assert any(count > sum(rows) for count, rows in processed(parts, target, PROMPTS))


@pytest.mark.parametrize("draft", [False, True])
def test_every_row_gets_the_text_it_gets_alone(draft: bool) -> None:
    models = small()
    build = partial(ems_sd.build, models.target, fallback=models.drafts[0] if draft else None)
    together = texts(build(), PROMPTS, SAMPLING)
    assert together == [texts(build(), [p], [s])[0] for p, s in zip(PROMPTS, SAMPLING, strict=True)]
    plain = texts(autoregressive.build(models.target), PROMPTS, SAMPLING)
    if draft:  # at temperature 0; where tokens are drawn, rejection sampling uses other noise
        together, plain = together[::2], plain[::2]
    assert together == plain


def test_mixed_lengths_leave_every_text_as_it_is() -> None:
    target = small().target
    scripted = Parts(target, Lengths(0, 3, 7), Match(), Fixed(7))
    assert texts(scripted, PROMPTS, SAMPLING) == texts(autoregressive.build(target), PROMPTS, SAMPLING)


def test_rows_without_a_match_are_drafted_by_the_model() -> None:
    models = small()
    prompts = [torch.tensor(prompt) for prompt in ([1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 5, 6])]
    parts = ems_sd.build(models.target, fallback=models.drafts[0], fallback_depth=2)
    sampling = [SamplingParams(1.0, max_tokens=9)] * 2
    step = next(Session(parts, prompts, sampling, LazyTargetProbs).steps())
    tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
    assert [tokens[node] for node in forest.nodes[0]] == [2, 3, 4, 1, 2]  # what followed 1, 2
    assert len(forest.nodes[1]) == 3


@pytest.mark.parametrize("recipe", [slow(True), False])
def test_a_slot_of_the_paged_cache_holds_the_blocks_of_its_own_text(recipe: bool) -> None:
    target = HFTarget(copy.deepcopy(small().target.model).float(), compile=True)
    parts = ems_sd.build(target) if recipe else Parts(target, Lengths(0, 3, 7), Match(), Fixed(7))
    prompts = [*PROMPTS[:2], PROMPTS[2] * 4]
    session = Session(parts, [torch.tensor(p) for p in prompts], SAMPLING[:3], LazyTargetProbs)
    cache, longest = session.cache, dict.fromkeys(range(3), 0)
    assert isinstance(cache, PagedCache)
    for step in session.steps():
        held = 0
        for row, slot in enumerate(step.ctx.slots):
            text = step.ctx.committed[row] - 1
            longest[slot] = max(longest[slot], text + len(step.draft.tree.forest.nodes[row]))
            if slot in session.rows:
                held += -(-longest[slot] // BLOCK_SIZE)
        assert cache.num_bytes == held * BLOCK_SIZE * cache.planes.token_bytes
    assert len(set(longest.values())) == 3 and cache.num_bytes == 0


def test_a_slot_of_an_eager_cache_is_allocated_for_its_longest_text() -> None:
    prompts = [torch.tensor(prompt) for prompt in PROMPTS]
    session = Session(ems_sd.build(small().target), prompts, SAMPLING, LazyTargetProbs)
    cache = session.cache
    assert isinstance(cache, ContiguousCache)
    capacity = max(len(p) + s.max_tokens for p, s in zip(PROMPTS, SAMPLING, strict=True)) + DRAFT_NODES
    for _ in session.steps():
        assert cache.num_bytes == len(session.rows) * capacity * cache.planes.token_bytes
