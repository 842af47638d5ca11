"""What a forward can be asked for besides token ids in causal order, compared with the model's own forward:
embeddings as inputs, other position ids, and blocks of tokens that see one another."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.models.cuda_graphs.graph_replay import GraphReplay
from outpace.models.eager.forward import Forward
from outpace.models.forward.backend import Backend
from outpace.models.forward.request import ForwardRequest
from outpace.models.forward.row_inputs import RowInputs
from outpace.models.hf.compiling import compiled
from outpace.models.hf.target import HFTarget

ROUNDING = 1e-10  # of logits of about 1, in float64
SPLIT, LENGTH, SHIFT = (
    5,
    12,
    7,
)  # tokens of the first part of a text and of all; what the second is shifted by


def text(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(3, 61, (length,), generator=torch.Generator().manual_seed(seed))


def parts(**second: Any) -> tuple[RowInputs, RowInputs]:
    """A text in two parts, as a chain."""
    return (
        RowInputs(0, 0, SPLIT, 0, top=SPLIT - 1),
        RowInputs(0, SPLIT, LENGTH, SPLIT, top=LENGTH - 1, **second),
    )


@torch.no_grad()
def logits(reader: Backend, requests: list[ForwardRequest]) -> Tensor:
    cache, found = reader.open(2, 64), list[Tensor]()
    for request in requests:
        for row in request.rows:
            cache.reserve(row.slot, row.end)
            cache.lengths[row.slot] = row.start
        scores = reader.read(request, cache).logits
        assert scores is not None
        found.append(scores.clone())
    return torch.cat(found)


def in_parts(
    rows: tuple[RowInputs, RowInputs], tokens: Tensor, embeds: Tensor | None
) -> list[ForwardRequest]:
    ends = [(0, SPLIT), (SPLIT, LENGTH)]
    return [
        ForwardRequest(
            [row], [end - begin], tokens[begin:end], embeds=None if embeds is None else embeds[begin:end]
        )
        for row, (begin, end) in zip(rows, ends, strict=True)
    ]


def readers(model: Any) -> list[Backend]:
    """Eager forwards, and those of fixed sizes, which run what they were not recorded for eagerly."""
    forward = HFTarget(model).forward
    return [forward, GraphReplay(forward, lambda run: run)]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
@torch.no_grad()
def test_embeddings_take_the_place_of_token_ids(name, tiny):
    model, tokens = tiny(name), text()
    embeds = model.get_input_embeddings()(text(seed=1))  # those of other tokens: the ids must not be read
    expected = model(inputs_embeds=embeds[None]).logits[0]
    for reader in readers(model):
        found = logits(reader, in_parts(parts(), tokens, embeds))
        assert (found - expected).abs().max() < ROUNDING
        assert (found - logits(reader, in_parts(parts(), tokens, None))).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
@torch.no_grad()
def test_position_ids_of_a_part_are_shifted(name, tiny):
    model, tokens = tiny(name), text()
    ids = torch.arange(LENGTH) + torch.tensor([0] * SPLIT + [SHIFT] * (LENGTH - SPLIT))
    # a sliding window counts cache entries, not position ids
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    if window := getattr(model.config, "sliding_window", None):
        seen &= ~torch.ones_like(seen).tril(-window)
    expected = model(tokens[None], position_ids=ids[None], attention_mask=seen[None, None]).logits[0]
    for reader in readers(model):
        found = logits(reader, in_parts(parts(shift=SHIFT), tokens, None))
        assert (found - expected).abs().max() < ROUNDING
        assert (found - logits(reader, in_parts(parts(), tokens, None))).abs().max() > 1e-4


@torch.no_grad()
def test_a_tree_behind_a_shift_is_shifted_as_a_whole(tiny):
    forward, tokens = HFTarget(tiny("llama")).forward, text(8)
    depths, visible = torch.tensor((0, 1, 1)), torch.tensor(((1, 0, 0), (1, 1, 0), (1, 0, 1))).bool()
    prompt = ForwardRequest([RowInputs(0, 0, 5, 0, top=4)], [5], tokens[:5])
    tree = RowInputs(0, 5, 8, 5, depths, visible, 6, shift=SHIFT)
    found = logits(forward, [prompt, ForwardRequest([tree], [3], tokens[5:])])[5:]
    for leaf, node in ((6, 1), (7, 2)):
        chain = RowInputs(0, 5, 7, 5, top=6, shift=SHIFT)
        alone = logits(forward, [prompt, ForwardRequest([chain], [2], tokens[[5, leaf]])])[5:]
        assert (found[[0, node]] - alone).abs().max() < ROUNDING


@torch.no_grad()
def test_positions_of_three_axes():
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 61}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
    config = Qwen2VLConfig(text_config={**sizes, **heads, "rope_parameters": rope}, vision_config=vision)
    model = Qwen2VLForConditionalGeneration(config).double().eval()
    forward, tokens = Forward(model), text()
    forward.probe()
    axes = torch.stack([torch.arange(LENGTH), torch.arange(LENGTH) // 2, torch.arange(LENGTH) % 3])
    expected = model(tokens[None], position_ids=axes[:, None]).logits[0]
    first, second = parts(positions=axes[:, SPLIT:])
    first.positions = axes[:, :SPLIT]
    found = logits(forward, in_parts((first, second), tokens, None))
    assert (found - expected).abs().max() < ROUNDING
    assert (found - logits(forward, in_parts(parts(), tokens, None))).abs().max() > 1e-4


def block(base: int, size: int) -> RowInputs:
    """A block at the positions after `base`, whose tokens all see one another."""
    depths, visible = torch.arange(size), torch.ones(size, size, dtype=torch.bool)
    return RowInputs(0, base, base + size, base, depths, visible, base + size - 1, two_way=True)


def block_mask(model: Any, base: int, size: int) -> Tensor:
    length = base + size
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if window := getattr(model.config, "sliding_window", None):
        seen &= ~torch.ones_like(seen).tril(-window)
    seen[base:, base:] = True
    return seen[None, None]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])  # the window of mistral's layers is 6 tokens
@torch.no_grad()
def test_tokens_of_a_block_see_one_another(name, tiny):
    model, tokens = tiny(name), text(9)
    for base, size in ((5, 4), (7, 2)):
        own = tokens[: base + size]
        expected = model(own[None], attention_mask=block_mask(model, base, size)).logits[0]
        prompt = ForwardRequest([RowInputs(0, 0, base, 0, top=base - 1)], [base], own[:base])
        for reader in readers(model):
            found = logits(reader, [prompt, ForwardRequest([block(base, size)], [size], own[base:])])
            assert (found - expected).abs().max() < ROUNDING
            causal = block(base, size)
            causal.visible = torch.ones(size, size, dtype=torch.bool).tril()
            other = logits(reader, [prompt, ForwardRequest([causal], [size], own[base:])])
            assert (found - other).abs().max() > 1e-4


@pytest.mark.slow
@torch.no_grad()
def test_a_model_compiled_with_openvino_reads_these_alike(tiny, monkeypatch):
    """Embeddings eagerly, and blocks in copies, one row of them beside a chain."""
    pytest.importorskip("openvino")
    model, tokens = tiny("llama").float(), text(9)
    eager = HFTarget(copy.deepcopy(model)).forward
    fast: Any = compiled(HFTarget(model).forward)
    assert fast.outside_torch
    read, read_eagerly = list[ForwardRequest](), fast._read_eagerly
    monkeypatch.setattr(
        fast, "_read_eagerly", lambda request, cache: read.append(request) or read_eagerly(request, cache)
    )
    embeds = model.get_input_embeddings()(tokens)
    prompt = ForwardRequest([RowInputs(0, 0, 5, 0, top=4)], [5], tokens[:5], embeds=embeds[:5].flip(0))
    second = ForwardRequest([RowInputs(1, 0, 4, 0, top=3)], [4], tokens[5:])
    beside = RowInputs(1, 4, 6, 4, top=5)
    ids = torch.cat((tokens[5:], tokens[:2]))
    requests = [prompt, second, ForwardRequest([block(5, 4), beside], [4, 2], ids)]
    assert (logits(fast, requests) - logits(eager, requests)).abs().max() < 1e-4
    assert read == [prompt]


def test_what_a_model_lacks_is_refused_in_one_sentence(tiny):
    forward = HFTarget(tiny("llama")).forward
    axes = torch.zeros(3, LENGTH - SPLIT, dtype=torch.int64)
    with pytest.raises(ValueError, match="LlamaForCausalLM has position ids of 1 axis.* not of 3"):
        logits(forward, in_parts(parts(positions=axes), text(), None))
    with pytest.warns(UserWarning, match="attend by cache position"):
        bloom = HFTarget(tiny("bloom"))
    with pytest.raises(ValueError, match="takes no position ids"):
        logits(bloom.forward, in_parts(parts(shift=1), text(), None))
    recurrent = HFTarget(tiny("qwen3_5_text"))
    with pytest.raises(ValueError, match="recurrent layers, which read tokens in order"):
        logits(recurrent.forward, [ForwardRequest([block(0, 3)], [3], text(3))])
    by_layer = tiny("llama")
    by_layer.config.hidden_size_per_layer_input = 8  # as Gemma 3n, whose layers read token ids again
    with pytest.raises(ValueError, match="reads token ids"):
        logits(HFTarget(by_layer).forward, in_parts(parts(), text(), torch.zeros(LENGTH, 32).double()))


def test_a_row_alone_is_asked_for_the_same_as_in_a_batch():
    given = {
        "rows": [RowInputs(0, 0, 2, 0), RowInputs(1, 0, 3, 0)],
        "nodes": [1, 2],
        "tokens": torch.arange(5),
        "features": torch.randn(5, 4),
        "embeds": torch.randn(5, 4),
        "logits": False,
        "after": 1,
        "want": object(),
    }
    assert set(given) == {field.name for field in fields(ForwardRequest)}, "how is the new field divided?"
    assert {field.name for field in fields(RowInputs)} == {
        "slot", "start", "end", "base", "depths", "visible", "top", "two_way", "shift", "positions"
    }, "do compiled backends read the new field, or is it not `is_plain`?"  # fmt: skip
    request = ForwardRequest(**given)
    alone = request.by_row()
    assert [each.rows for each in alone] == [[row] for row in given["rows"]]
    assert [each.nodes for each in alone] == [[1], [2]]
    for name in ("tokens", "features", "embeds"):
        assert torch.equal(torch.cat([getattr(each, name) for each in alone]), given[name])
    for name in ("logits", "after", "want"):
        assert all(getattr(each, name) is given[name] for each in alone)
