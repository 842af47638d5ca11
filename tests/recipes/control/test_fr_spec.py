"""FR-Spec: the reduced head drafts what the whole one does with the other tokens masked, node for node."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Read, grow
from outpace.indexes import store
from outpace.indexes.token_counts import TokenCounts
from outpace.models.heads.compressed import weights_of_head
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle.kind import EagleModel
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.trimmed_draft import trimmed_head
from outpace.models.hf.target import HFTarget
from outpace.models.openvino.compressed_weights import compress
from outpace.proof.decode_all import texts
from outpace.recipes.control.fr_spec import fr_spec
from outpace.recipes.heads.eagle2 import eagle2
from outpace.verifiers.rejection import Rejection
from tests.tiers import slow

VOCAB, KEPT = 24, (1, 4, 5, 9, 13, 20, 23)
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [17, 7, 2]]
SAMPLING = [SamplingParams(1.0, max_tokens=16, seed=3), SamplingParams(0.0, max_tokens=16)]
# changes of logits are made by token id, and the tokens of a draft vocabulary have other columns
BIASED = [replace(each, logit_bias=((KEPT[-1], 3.0),)) for each in SAMPLING]
TREE = {"depth": 4, "width": 3, "num_nodes": 9}


@cache
def targets(dtype: torch.dtype) -> HFTarget:
    torch.manual_seed(1)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, initializer_range=0.5, tie_word_embeddings=True, **shape)
    return HFTarget(LlamaForCausalLM(config).to(dtype).eval())


@cache
def heads(dtype: torch.dtype, compile: bool) -> EagleModel:
    return EagleModel(HeadModel(untrained_eagle(targets(dtype)), compile=compile))


def target() -> HFTarget:
    return targets(torch.float64)


def head() -> EagleModel:
    return heads(torch.float64, False)


@pytest.fixture
def counts(tmp_path: Path) -> str:
    """A file in which the kept tokens are the most frequent ones."""
    store.save(TokenCounts.build([KEPT, KEPT, [0, 2, 3]]), tmp_path / "counts")
    return str(tmp_path / "counts")


@pytest.fixture(autouse=True)
def without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target().model.generation_config, "eos_token_id", None)
    monkeypatch.setattr(target().model.config, "eos_token_id", None)


def steps(parts: Parts, sampling: Sequence[SamplingParams] = SAMPLING) -> list[Step]:
    found: list[Step] = []
    texts(parts, PROMPTS, sampling, observe=found.append)
    return found


def check_equal(ours: Sequence[Step], theirs: Sequence[Step]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.draft.tree.tokens, other.draft.tree.tokens)
        assert one.draft.tree.forest is other.draft.tree.forest and one.generated == other.generated
        claims = one.draft.tree.claim, other.draft.tree.claim
        assert type(claims[0]) is type(claims[1])
        if isinstance(claims[0], Drawn) and isinstance(claims[1], Drawn):
            assert (claims[0].q - claims[1].q).abs().max() < 1e-9


def masked(ctx: Context, plan: Plan, read: Read, *, tree: str) -> TokenTree:
    """The draft of the whole head if the tokens that are not kept have the logit -inf."""

    def kept(nodes: TokenTree) -> tuple[int, Tensor]:
        first, logits = read(nodes)
        others = [token for token in range(VOCAB) if token not in KEPT]
        return first, logits.clone().index_fill_(1, torch.tensor(others), -torch.inf)

    if tree == "chain":
        return grow(ctx, plan, kept)
    return dynamic_tree(ctx, plan, kept, width=TREE["width"], num_nodes=TREE["num_nodes"])


@pytest.mark.parametrize(
    ("tree", "sampling"), [("dynamic", SAMPLING), ("dynamic", BIASED), ("chain", SAMPLING)]
)
def test_it_drafts_what_the_whole_head_does_with_the_other_tokens_masked(
    tree: str, sampling: Sequence[SamplingParams], counts: str
) -> None:
    """So ids are mapped at every level, in the tree and before the embedding."""
    ours = fr_spec.build(target(), head=head(), counts=counts, size=len(KEPT), tree=tree, **TREE)
    drafter = FeatureDrafter(head(), VOCAB, partial(masked, tree=tree), sampled=tree == "chain")
    found = steps(ours, sampling)
    check_equal(found, steps(Parts(target(), drafter, Rejection(), Fixed(TREE["depth"])), sampling))
    drafts = [step.draft.tree for step in found if any(step.generated)]  # the others read prompts
    drafted = {token for draft in drafts for token in draft.tokens[draft.forest.num_rows :].tolist()}
    assert drafted <= set(KEPT) and len(drafted) >= 4
    assert max(max(draft.forest.depths) for draft in drafts) == TREE["depth"]


@pytest.mark.parametrize("size", [VOCAB, 10 * VOCAB, None])
def test_with_all_tokens_kept_it_is_eagle2_node_for_node(size: int | None) -> None:
    whole = steps(eagle2.build(target(), head=head(), **TREE))
    if size is None:  # with a head of which every row is copied, which `size` never asks for
        copied = trimmed_head(head(), torch.arange(VOCAB))
        assert copied.head is not head().head
        check_equal(steps(eagle2.build(target(), head=EagleModel(copied), **TREE)), whole)
    else:
        check_equal(steps(fr_spec.build(target(), head=head(), size=size, **TREE)), whole)


@pytest.mark.parametrize("tree", [slow("dynamic"), "chain"])
def test_compiled_and_eager_heads_draft_the_same(tree: str, counts: str) -> None:
    options = {"counts": counts, "size": len(KEPT), "tree": tree, **TREE}
    found = [
        steps(fr_spec.build(targets(torch.float32), head=heads(torch.float32, each), **options))
        for each in (False, True)
    ]
    assert trimmed_head(heads(torch.float32, True), torch.tensor(KEPT)).model.compiled is not None
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.draft.tree.tokens, other.draft.tree.tokens)
        assert one.draft.tree.forest is other.draft.tree.forest and one.generated == other.generated


def test_the_target_and_the_whole_head_are_left_as_they_are() -> None:
    whole = head().head
    before = {name: (id(each), each.clone()) for name, each in whole.named_parameters()}
    small = trimmed_head(head(), torch.tensor(KEPT))
    assert trimmed_head(head(), torch.tensor(KEPT)) is small and small.head.is_for(target())
    assert whole.lm_head is target().head and whole.draft_ids is None
    after = dict(whole.named_parameters())
    assert after.keys() == before.keys()
    assert all(id(after[k]) == place and torch.equal(after[k], each) for k, (place, each) in before.items())
    assert isinstance(small.head.lm_head, nn.Linear)
    assert torch.equal(small.head.lm_head.weight, target().head.weight[list(KEPT)])
    # the embedding, which is tied to the target's LM head, keeps its rows
    assert small.head.embed_tokens.weight is target().embed.weight and len(target().embed.weight) == VOCAB


@pytest.mark.slow
def test_compressed_weights_of_the_target_are_those_of_the_small_head(tmp_path: Path) -> None:
    model = copy.deepcopy(targets(torch.float32).model)
    weights = compress(model, "int8", {"XDG_CACHE_HOME": str(tmp_path)})
    whole = untrained_eagle(HFTarget(model, weights=weights))
    shared = weights_of_head(whole, None, model, weights)
    small = trimmed_head(HeadModel(whole, weights=shared), torch.tensor(KEPT))
    assert shared is not None and small.model.compressed_weights is not None
    assert "lm_head.weight" in small.model.compressed_weights.nodes
    rows, before = (each.weight.detach() for each in (small.head.lm_head, model.lm_head))
    # compressed a second time: to within rounding of scales to float16
    assert (rows - before[list(KEPT)]).abs().max() < 2e-3 * before.abs().max()


def test_sizes_of_trees_and_chains_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="adaptive sizes trees"):
        fr_spec.build(target(), head=head(), tree="chain", adaptive=True)
