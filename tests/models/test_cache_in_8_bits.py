"""A KV cache in 8 bits: rounded token by token, the same eagerly and compiled, and movable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.core.contracts import NOTHING, Prompt, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.eager.eight_bits import LARGEST, NUM_BYTES, from_rows, rounded, to_rows
from outpace.models.hf.target import HFTarget
from outpace.models.openvino import runtime
from outpace.models.openvino.paged_cache import PagedCache

# of logits of about 1: rounding errors of float32 that move some numbers by a step of 8 bits
STEPS = 2e-3
TREE = Forest.of([-1, 0, 0, 1, 2, 4], 1)


def some(length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def made() -> dict[str, HFTarget]:
    """What was compiled so far."""
    return {}


@pytest.fixture
def targets(made: dict[str, HFTarget], tiny: Any) -> dict[str, HFTarget]:
    if not made:
        model = tiny("llama").float()
        made["compiled"] = HFTarget(model, compile=True, kv_cache="int8")
        made["eager"] = HFTarget(model, kv_cache="int8")
        made["whole"] = HFTarget(model)
        assert made["compiled"].compiled is not None
    return made


def opened(target: HFTarget, text: Tensor) -> Any:
    """A cache that holds the text but for its last token."""
    cache = target.open(1, 128)
    target.prefill([Prompt(text)], (0,), cache, NOTHING)
    return cache


def scored(target: HFTarget, cache: Any, tokens: Tensor, forest: Forest, want: Want = NOTHING) -> Any:
    tree = TokenTree(tokens, forest)
    return tree, target.score(tree, (0,), cache, want)


def test_rounding_is_to_the_nearest_of_evenly_spaced_values() -> None:
    entries = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(1))
    entries[0, 0, 0] = 0.0
    entries[0, 0, 1] = 3.0
    step = (entries.amax(-1) - entries.amin(-1)) / LARGEST
    found = rounded(entries)
    assert to_rows(entries).shape == (2, 3, 5, 16 + NUM_BYTES)
    assert ((found - entries).abs() <= 0.501 * step[..., None] + 1e-6).all()
    assert all(len(row.unique()) <= LARGEST + 1 for row in found.flatten(0, 2))
    # once more changes nothing
    assert (rounded(found) - found).abs().max() < 1e-5


@pytest.mark.slow
def test_compiled_and_eager_forwards_round_alike(targets: dict[str, HFTarget]) -> None:
    text, tokens = some(40), some(len(TREE.parents), 1)
    found, caches = {}, {}
    for name, target in targets.items():
        caches[name] = opened(target, text)
        found[name] = scored(target, caches[name], tokens, TREE)[1].logits
    assert (found["compiled"] - found["eager"]).abs().max() < STEPS
    assert (found["compiled"] - found["whole"]).abs().max() > 2 * STEPS
    for ours, theirs in zip(
        caches["compiled"].views(0, 0, 39)[:1], caches["eager"].views(0, 0, 39)[:1], strict=True
    ):  # the first layer's keys, which no attention precedes
        assert (from_rows(ours, torch.float32) - theirs).abs().max() < 1e-5


def test_what_needs_eager_forwards_is_read_on_the_same_cache(targets: dict[str, HFTarget]) -> None:
    want = Want(attention=frozenset({1}))
    found = {}
    for name in ("compiled", "eager"):
        cache = opened(targets[name], some(40))
        tree, scores = scored(targets[name], cache, some(len(TREE.parents), 1), TREE, want)
        cache.commit(tree, (5,), (0,))
        found[name] = scores.logits, scored(targets[name], cache, some(2, 5), Forest.chain((1,)))[1].logits
    for ours, theirs in zip(*found.values(), strict=True):
        assert (ours - theirs).abs().max() < STEPS


def test_rejected_nodes_leave_nothing_behind(targets: dict[str, HFTarget]) -> None:
    """Bit by bit: a token's keys do not depend on those of the other tokens of its block."""
    target, found = targets["compiled"], []
    for seed in (2, 3):
        cache = opened(target, some(40))
        tree, _ = scored(target, cache, some(6, seed), TREE)
        cache.commit(tree, (-1,), (0,))
        _, scores = scored(target, cache, some(6, 4), TREE)
        found.append((scores.logits, cache.views(0, 0, 45)))
    assert torch.equal(found[0][0], found[1][0])
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_accepted_nodes_are_moved_with_their_scales(targets: dict[str, HFTarget]) -> None:
    target, text, tokens = targets["compiled"], some(31), some(len(TREE.parents), 1)
    cache = opened(target, text)
    assert isinstance(cache, PagedCache)
    tree, _ = scored(target, cache, tokens, TREE)
    before = [view.clone() for view in cache.views(0, 30, 36)]
    cache.commit(tree, (5,), (0,))
    for old, new in zip(before, cache.views(0, 30, 34), strict=True):
        assert torch.equal(old[:, :, [0, 2, 4, 5]], new)
    # the same text without drafts
    path = torch.cat((text[:-1], tokens[[0, 2, 4, 5]], some(2, 6)))
    ours = scored(target, cache, path[-2:], Forest.chain((1,)))[1].logits
    theirs = scored(target, opened(target, path[:-1]), path[-2:], Forest.chain((1,)))[1].logits
    assert (ours - theirs).abs().max() < STEPS


def test_it_is_smaller(targets: dict[str, HFTarget]) -> None:
    size = targets["whole"].model.config.head_dim
    assert targets["compiled"].token_bytes * 4 * size == targets["whole"].token_bytes * (size + NUM_BYTES)


@pytest.mark.slow
def test_texts_are_those_of_plain_decoding() -> None:
    model = outpace.load("zoo:target", dtype="float32", compile=True, kv_cache="int8")
    assert model.target.compiled is not None and model.target.kv_cache == "int8"
    options = {"max_tokens": 32, "temperature": 0.0}
    [expected] = outpace.generate(model, "def add(a, b):", method="autoregressive", **options)
    for method, draft in (("specinfer", {"drafts": "zoo:draft"}), ("prompt-lookup", {})):
        [found] = outpace.generate(model, "def add(a, b):", method=method, **draft, **options)
        assert found.text == expected.text and found.statistics.num_spec_steps
    assert model.drafts["zoo:draft"].target.kv_cache is None


@pytest.mark.slow
def test_keys_that_share_scales_with_their_block_are_refused(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With OpenVINO's default a rejected token would change the keys of the tokens before it."""
    original = runtime.openvino().Core.compile_model

    def by_channel(core: Any, model: Any, device: str, options: dict[str, Any]) -> Any:
        options = {name: each for name, each in options.items() if name != "KEY_CACHE_QUANT_MODE"}
        return original(core, model, device, options)

    monkeypatch.setattr(runtime.openvino().Core, "compile_model", by_channel)
    with pytest.warns(UserWarning, match="keys and values in another layout"):
        target = HFTarget(tiny("llama").float(), compile=True, kv_cache="int8")
    assert target.compiled is None and target.kv_cache == "int8"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kv_cache": "int8"}, "compile=True"), ({"kv_cache": "int4", "compile": True}, "use int8")],
)
def test_unsuited_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        outpace.load("zoo:draft", **options)
