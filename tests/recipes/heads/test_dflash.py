"""DFlash: a block of masks filled in one forward over keys and values of the text, files and training."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.dflash.head import DFlashHead, default_taps, untrained_dflash
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.heads.dflash import dflash
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.training.packed_blocks import packed_blocks

VOCAB = 12
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))
CASES = (Case((0, 1, 2, 0), SamplingParams(temperature=1.0, max_tokens=3)),)


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


def head_of(seed: int = 4) -> Any:
    return untrained_dflash(target(), seed)


def steps_of(parts: Parts, temperature: float = 0.0, max_tokens: int = 14) -> list[Any]:
    params = [SamplingParams(temperature, max_tokens=max_tokens, seed=seed) for seed in range(len(PROMPTS))]
    session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def taps_of(text: Tensor, head: Any) -> Tensor:  # (T, taps × D)
    """The outputs of the target's layers, before the norm that transformers applies to the last one's."""
    found = dict[int, Tensor]()
    layers: Any = target().model.get_decoder().layers
    hooks = [
        layers[tap].register_forward_hook(lambda module, given, states, tap=tap: found.update({tap: states}))
        for tap in head.taps
    ]
    with torch.no_grad():
        target().model(text[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.cat([found[tap][0] for tap in head.taps], -1).to(next(head.parameters()))


def muse_of(head: Any, layer_types: str = "full_attention") -> Any:
    """The class of transformers with the weights of a head."""
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    shape = head.config
    config = MuseGlimmerAssistantConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters=shape.rope_parameters,
        layer_types=[layer_types] * shape.num_hidden_layers,
        block_size=head.num_masks + 1,
        mask_token_id=head.mask_token,
        target_layer_ids=list(head.taps),
        pad_token_id=None,
    )
    model: Any = MuseGlimmerAssistantModel(config).to(next(head.parameters())).eval()
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    weights = {names.get(name, name): tensor for name, tensor in head.own.items()}
    model.load_state_dict(weights)
    return model


def states_of(muse: Any, head: Any, text: Tensor) -> Tensor:  # (levels, D)
    """The inputs of the LM head in the block behind a text, by transformers in one forward without cache."""
    block = torch.cat((text[-1:], torch.full((head.num_masks,), head.mask_token)))
    with torch.no_grad():
        states = muse(head.embed_tokens(block)[None], taps_of(text[:-1], head)[None], use_cache=False)
    return states.last_hidden_state[0, 0 if head.drafts_at_root else 1 :]


def alone(muse: Any, head: Any, text: Tensor) -> Tensor:  # (levels, V)
    """The logits in that block."""
    with torch.no_grad():
        return head.lm_head(states_of(muse, head, text))


def recorded(head: Any, steps: Any) -> list[tuple[Tensor, Tensor]]:
    """The texts before each draft of more than one row, and the tokens that were drafted."""
    found = list[tuple[Tensor, Tensor]]()
    for step in steps:
        forest = step.draft.tree.forest
        for row in range(len(step.ctx.slots)):
            drafted = step.draft.tree.tokens[list(forest.nodes[row][1:])]
            if len(drafted):
                assert step.draft.forwards == 1
                found.append((step.ctx.tokens[row][: step.ctx.committed[row]], drafted))
    return found


def test_drafts_are_those_of_transformers_class() -> None:
    """Read step by step with a KV cache, two texts at once, against one forward over each whole text. The
    class has no embedding and no LM head; its sliding windows, which our heads lack, are off."""
    head = head_of()
    muse = muse_of(head)
    steps = steps_of(dflash.build(target(), head=HeadModel(head)))
    found = recorded(head, steps)
    for text, drafted in found:
        logits = alone(muse, head, text)
        assert drafted.tolist() == logits.argmax(-1)[: len(drafted)].tolist()
    assert len(found) >= 10
    for step in steps_of(dflash.build(target(), head=HeadModel(head)), temperature=1.0):
        claim = step.draft.tree.claim
        if claim is None:
            continue
        assert isinstance(claim, Drawn)
        for row in range(len(step.ctx.slots)):
            if not (nodes := step.draft.tree.forest.nodes[row][1:]):
                continue
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            q = alone(muse, head, text).softmax(-1)[: len(nodes)]
            assert (claim.q[[claim.row[node] for node in nodes]] - q).abs().max() < 1e-5


def test_a_mask_reads_those_behind_it() -> None:
    """A causal block has other logits at its first mask, and the same ones at its last."""
    head, text = head_of(), torch.tensor([1, 2, 3, 4, 5])
    model, causal = HeadModel(head), HeadModel(head)
    object.__setattr__(causal.model, "_two_way", False)
    with torch.no_grad():
        features = [torch.cat((head.fuse(taps_of(text[:-1], head)), torch.zeros(8, head.feature_size)))]
        block = torch.cat((text[-1:], head.mask_inputs(7)[0]))
        tree = TokenTree(block, Forest.chain((len(block) - 1,)))
        both = [
            each.model.score(tree, [0], each.model.open(1, 16), gap=[text[:-1]], features=features).logits
            for each in (model, causal)
        ]
    expected = alone(muse_of(head), head, text)
    assert both[0] is not None and both[1] is not None
    assert (both[0][1:] - expected).abs().max() < 1e-5
    assert (both[1][1:] - expected).abs().max() > 1e-3


@pytest.mark.slow
def test_a_compiled_head_drafts_the_same_in_one_forward() -> None:
    pytest.importorskip("openvino")
    model = copy.deepcopy(target().model).float()
    of = HFTarget(model)
    head = untrained_dflash(of, 4)
    found = list[list[list[int]]]()
    for opened in (HeadModel(head), HeadModel(head, compile=True)):
        steps = steps_of(dflash.build(of, head=opened))
        found.append([drafted.tolist() for _, drafted in recorded(head, steps)])
    assert opened.model.compiled is not None
    assert found[0] == found[1] and len(found[0]) >= 10


def test_texts_are_the_target_s_and_drafts_are_accepted() -> None:
    params = [SamplingParams(0.0, max_tokens=40)] * 2
    parts = dflash.build(target(), head=HeadModel(head_of()))
    assert texts(parts, PROMPTS, params) == texts(autoregressive.build(target()), PROMPTS, params)
    assert len(steps_of(parts, max_tokens=40)) < len(steps_of(autoregressive.build(target()), max_tokens=40))


def test_packed_blocks_are_the_columns_one_at_a_time() -> None:
    head: Any = head_of()
    muse = muse_of(head)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [5, 3, 1, 9, 11, 2, 0, 4]])
    with torch.no_grad():
        features = torch.stack([head.fuse(taps_of(text[:-1], head)) for text in tokens])
    columns = torch.zeros(2, 7, dtype=torch.bool)
    columns[0, [1, 4, 6]], columns[1, [0, 3]] = True, True
    with torch.no_grad():
        steps = list(packed_blocks(head, tokens, features, columns, 5))
        found = torch.stack([head.lm_head(step.features) for step in steps], 1)
    assert [step.step for step in steps] == [0, 1, 2, 3, 4]
    for of_block, (row, column) in zip(found, columns.nonzero().tolist(), strict=True):
        assert (of_block - alone(muse, head, tokens[row, : column + 2])[:5]).abs().max() < 1e-5
    taps = torch.stack([taps_of(text[:-1], head) for text in tokens])
    steps = list(packed_blocks(head, tokens, head.fuse(taps), columns, 7))
    sum(step.features.square().sum() for step in steps).backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in head.own.values())


@pytest.mark.parametrize("layout", ["z-lab", "speculators"])
def test_files_are_read_as_they_were_written(layout: str, tmp_path: Path) -> None:
    head = head_of()
    save_head(head, tmp_path, target(), layout=layout)
    config = json.loads((tmp_path / "config.json").read_text())
    ids = {"z-lab": ("dflash_config", "target_layer_ids"), "speculators": ("aux_hidden_state_layer_ids",)}
    numbers: Any = config
    for key in ids[layout]:
        numbers = numbers[key]
    assert numbers == [tap + (layout == "speculators") for tap in head.taps]
    assert config["block_size"] == 8 and config.get("sliding_window_non_causal", True) is True
    found: Any = load_head("dflash", tmp_path, target())
    assert found.taps == head.taps and found.num_masks == 7 and found.mask_token == VOCAB - 1
    assert all(torch.equal(found.own[name], weight) for name, weight in head.own.items())


def test_a_draft_vocabulary_is_stored_by_speculators_alone(tmp_path: Path) -> None:
    head, ids = head_of(), torch.tensor([0, 3, 4, 7, 11])
    config = copy.deepcopy(head.config)
    config.vocab_size = len(ids)
    small: Any = DFlashHead(
        config, target().embed, target().head, head.taps, mask_token=5, num_masks=3, draft_ids=ids
    ).to(next(head.parameters()))
    with pytest.raises(HeadFileError, match="z-lab has no draft vocabulary: write the layout speculators"):
        save_head(small, tmp_path, target(), layout="z-lab")
    save_head(small, tmp_path, target(), layout="speculators")
    found: Any = load_head("dflash", tmp_path, target())
    assert torch.equal(found.draft_ids, ids) and torch.equal(found.lm_head.weight, small.lm_head.weight)
    drafted = {
        int(token)
        for _, tokens in recorded(found, steps_of(dflash.build(target(), head=HeadModel(found))))
        for token in tokens
    }
    assert drafted and drafted <= set(ids.tolist())


def test_a_head_that_drafts_at_the_last_token_too_is_stored_by_speculators_alone(tmp_path: Path) -> None:
    head = head_of()
    head.drafts_at_root = True
    with pytest.raises(HeadFileError, match="z-lab has no heads that draft at the last token"):
        save_head(head, tmp_path, target(), layout="z-lab")
    save_head(head, tmp_path, target(), layout="speculators")
    found: Any = load_head("dflash", tmp_path, target())
    assert found.drafts_at_root and found.block_levels == 8
    drafts = recorded(found, steps_of(dflash.build(target(), head=HeadModel(found))))
    for text, drafted in drafts:
        logits = alone(muse_of(head), head, text)
        assert drafted.tolist() == logits.argmax(-1)[: len(drafted)].tolist()
    assert max(len(drafted) for _, drafted in drafts) == 8


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("z-lab", {"block_size": 1}, "a block of one token has no mask to draft at: restore its config.json"),
        ("z-lab", {"block_size": None}, "does not name the block_size: restore that file"),
        ("z-lab", {"num_target_layers": 36}, "for a target of 36 layers, and this one has"),
        ("z-lab", {"dflash_config.causal": True}, "its blocks are causal"),
        ("z-lab", {"dflash_config.mask_token_id": 12}, "12, and the target has the tokens 0 to 11: give"),
        ("z-lab", {"dflash_config.target_layer_ids": [0, 9]}, "layers 0, 9, and the target has layers 0 to"),
        ("z-lab", {"dflash_config.target_layer_ids": [0]}, "fc.weight reads 2 layers and its config.json"),
        ("speculators", {"sliding_window_non_causal": False}, "set it to true in its config.json"),
        ("speculators", {"mask_token_id": "x"}, "mask_token_id 'x', but it is a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(
    layout: str, changes: Any, message: str, tmp_path: Path
) -> None:
    save_head(head_of(), tmp_path, target(), layout=layout)
    config = json.loads((tmp_path / "config.json").read_text())
    for name, value in changes.items():
        *above, last = name.split(".")
        (config[above[0]] if above else config)[last] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadFileError, match=message):
        load_head("dflash", tmp_path, target())


class OneTooDeep(FeatureDrafter):
    """Mutant: a token is claimed to be drawn from the distribution of the next depth, as by a reader that
    takes the logits at a mask for those of the token after it."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        claim, forest = draft.tree.claim, draft.tree.forest
        if not isinstance(claim, Drawn):
            return draft
        below = [next(iter(children), node) for node, children in enumerate(forest.children)]
        rows = tuple(
            [claim.row[after] if row >= 0 else row for after, row in zip(below, claim.row, strict=True)]
        )
        return replace(draft, tree=replace(draft.tree, claim=replace(claim, row=rows)))


@pytest.mark.slow
def test_a_claim_of_the_next_depth_is_caught() -> None:
    """Also that the right claim is exact."""
    of = transformers_models()
    assert isinstance(of.target, HFTarget)
    parts = dflash.build(of.target, head=HeadModel(untrained_dflash(of.target, 1)), depth=2)
    drafter: Any = parts.drafter
    mutant: Any = copy.copy(drafter)
    mutant.__class__ = OneTooDeep
    errors = list[float]()
    for each in (drafter, mutant):
        found = enumerate_distributions(lambda each=each: replace(parts, drafter=each), CASES)
        errors.append(largest_error(found, of.logits, CASES))
    assert errors[0] < BOUND and errors[1] > 1e-3


def test_default_layers_are_the_papers() -> None:
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(28, 1) == (14,)
    assert default_taps(6, 2) == (1, 3)
    assert default_taps(2, 2) == (0, 1) and default_taps(1, 2) == (0,)
