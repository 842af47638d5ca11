"""A draft with a smaller LM head: the kept tokens have the logits of the whole model, compiled and eager."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outpace.core.contracts import Prompt, ReadsChains, Target, Want
from outpace.core.tree import Forest, TokenTree
from outpace.models.heads import trimmed_draft as module
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.trimmed_draft import TrimmedDraft, trimmed_draft
from outpace.models.hf.logits_head import ScaledHead
from outpace.models.hf.target import HFTarget
from outpace.models.hf.trimmed_head import with_trimmed_head
from outpace.models.openvino.compressed_weights import compress
from outpace.models.table import TableTarget
from tests.tiers import slow

ROUNDING = 3e-5  # of logits of about 1, in float32
IDS = torch.tensor([2, 3, 5, 9, 12, 31, 44, 60])
TREE = TokenTree(torch.tensor([5, 9, 31, 7, 44]), Forest.of((-1, 0, 0, 1, 1), 1))
NOT_KEPT = [token for token in range(61) if token not in IDS.tolist()]


def logits(model: Target, tree: TokenTree = TREE) -> Tensor:
    cache = model.open(1, 64)
    model.prefill([Prompt(torch.tensor([1, 8, 5, 4, 30]))], [0], cache, Want())
    found = model.score(tree, [0], cache).logits
    assert found is not None
    return found


# a bias, scaled logits, capped logits, a tied embedding
@pytest.mark.parametrize("name", ["llama", "gptj", "granite", "gemma2", slow("gpt2"), slow("cohere2")])
def test_kept_tokens_have_their_logits_and_the_others_none(name: str, tiny: Any) -> None:
    draft = HFTarget(tiny(name))
    small = TrimmedDraft(draft, IDS)
    ours, whole = logits(small), logits(draft)
    assert ours.shape == whole.shape == (5, 61) and small.vocab == 61
    assert (ours[:, IDS] - whole[:, IDS]).abs().max() < 1e-12
    assert bool((ours[:, NOT_KEPT] == -torch.inf).all())
    assert bool((ours.softmax(-1)[:, NOT_KEPT] == 0).all())


@pytest.mark.parametrize("name", ["granite", "gemma2"])
def test_a_draft_head_keeps_the_scale_or_cap_of_the_targets_logits(name: str, tiny: Any) -> None:
    head = untrained_eagle(HFTarget(tiny(name)))
    made, _ = with_trimmed_head(head, IDS)
    whole, small, states = head.lm_head, made.get_output_embeddings(), torch.randn(3, 32, dtype=torch.float64)
    assert isinstance(whole, ScaledHead) and isinstance(small, ScaledHead)
    assert (small(states) - whole(states)[:, IDS]).abs().max() < 1e-12


@pytest.mark.parametrize("tied", [True, False])
def test_only_the_lm_head_shrinks_and_the_users_model_stays_whole(tied: bool, tiny: Any) -> None:
    model = tiny("llama", tie_word_embeddings=tied)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    made, _ = with_trimmed_head(model, IDS)
    whole, small = model.get_output_embeddings(), made.get_output_embeddings()
    assert isinstance(whole, nn.Linear) and isinstance(small, nn.Linear)
    assert torch.equal(small.weight, whole.weight[IDS])
    num_bytes = [each.weight.numel() * each.weight.element_size() for each in (small, whole)]
    assert num_bytes[0] / num_bytes[1] == len(IDS) / 61  # falls by 1 - K / V
    embeddings = [each.get_input_embeddings().weight for each in (made, model)]
    assert embeddings[0] is embeddings[1] and embeddings[0].shape[0] == 61
    others = [
        {name: each for name, each in one.named_parameters() if "lm_head" not in name}
        for one in (made, model)
    ]
    assert others[0].keys() == others[1].keys() and all(each is others[1][k] for k, each in others[0].items())
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[k], each) for k, each in before.items())
    assert (model.get_input_embeddings().weight is whole.weight) is tied


@pytest.mark.slow
def test_a_compiled_draft_is_trimmed_to_a_compiled_one(tiny: Any) -> None:
    model = tiny("llama", tie_word_embeddings=True).float()
    eager, made = (TrimmedDraft(HFTarget(model, compile=each), IDS) for each in (False, True))
    assert isinstance(made.model, HFTarget) and made.model.compiled is not None and made.torch_threads == 1
    assert made.sizes and made.model.vocab == len(IDS)
    ours, theirs = logits(made), logits(eager)
    assert (ours[:, IDS] - theirs[:, IDS]).abs().max() < ROUNDING
    assert bool((ours[:, NOT_KEPT] == -torch.inf).all())


@pytest.mark.slow
def test_a_chain_in_one_call_is_chosen_from_the_kept_tokens(tiny: Any) -> None:
    made = TrimmedDraft(HFTarget(tiny("llama").float(), compile=True), IDS)
    assert isinstance(made, ReadsChains)
    for choose in (None, lambda logits: int(logits.argmax())):
        cache = made.open(1, 64)
        found = made.continue_chain(torch.tensor([7]), 0, cache, 4, choose)
        assert found is not None and found[1].shape == (4, len(IDS))
        tokens, level = [7], made.open(1, 64)
        for depth in range(4):
            tree = TokenTree(torch.tensor(tokens), Forest.chain((depth,)))
            scored = made.score(tree, [0], level).logits
            assert scored is not None
            tokens.append(int(scored[-1].argmax()))
        assert found[0] == tokens[1:] and set(found[0]) <= set(IDS.tolist())


def test_compressed_weights_stay_compressed(tiny: Any, tmp_path: Any) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "tie_word_embeddings": False}
    model = tiny("llama", **sizes).float()
    weights = compress(model, "int8", {"XDG_CACHE_HOME": str(tmp_path)})
    made, small = with_trimmed_head(model, IDS, weights)
    assert small is not None and small.format == "int8" and small.nodes.keys() == weights.nodes.keys()
    assert small.nodes["lm_head.weight"] is not weights.nodes["lm_head.weight"]
    rows, whole = made.get_output_embeddings().weight, model.get_output_embeddings().weight
    assert all(len(row.unique()) <= 256 for row in rows)
    # compressed a second time: to within rounding of scales to float16
    assert (rows - whole[IDS]).abs().max() < 2e-3 * whole.abs().max()


def test_another_model_computes_all_logits_of_which_some_are_kept() -> None:
    table, ids = TableTarget(5, seed=1), torch.tensor([1, 2, 4])
    small = TrimmedDraft(table, ids)
    tree = TokenTree(torch.tensor([0, 3]), Forest.chain((1,)))
    ours = small.score(tree, [0], small.open(1, 8)).logits
    whole = table.score(tree, [0], table.open(1, 8)).logits
    assert ours is not None and whole is not None
    assert torch.equal(ours[:, ids], whole[:, ids]) and bool((ours[:, [0, 3]] == -torch.inf).all())
    assert small.continue_chain(torch.tensor([0]), 0, small.open(1, 8), 3, None) is None


@pytest.mark.slow
def test_a_draft_is_trimmed_once_and_forgotten_with_it(tiny: Any) -> None:
    draft, count = HFTarget(tiny("llama")), len(module._DRAFTS)
    assert trimmed_draft(draft, None) is draft
    small = trimmed_draft(draft, IDS)
    assert trimmed_draft(draft, IDS.clone()) is small is not trimmed_draft(draft, IDS[:4])
    assert len(module._DRAFTS) == count + 1
    del draft, small
    gc.collect()
    assert len(module._DRAFTS) == count


def test_its_caches_are_counted_with_those_of_the_draft(tiny: Any) -> None:
    draft = HFTarget(tiny("llama"))
    cache = trimmed_draft(draft, IDS).open(1, 64)
    assert draft.caches == [cache]


def test_an_lm_head_that_is_no_linear_layer_is_refused(tiny: Any) -> None:
    model = copy.deepcopy(tiny("llama"))
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(ValueError, match="no linear layer .Sequential., which cannot be reduced"):
        TrimmedDraft(HFTarget(model), IDS)
