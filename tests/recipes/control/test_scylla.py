"""Scylla: trees that shrink with the batch, and heads of several layers."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumeration import BOUND, enumerate_distributions, largest_error
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error
from outpace.proof.models import peaked_tables, transformers_models
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.reference import table_logits
from outpace.proof.suite import ragged
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.control.scylla import scylla
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match

PROMPTS = [[1, 2, 3, 1], [4], [5, 6, 5], [7, 0]]


@cache
def target() -> HFTarget:
    return transformers_models(vocab=12).target


def with_layers(num_layers: int) -> HeadModel:
    return HeadModel(untrained_eagle(target(), num_layers=num_layers))


def steps(parts: Parts, rows: int, tokens: int = 30) -> list[Step]:
    sampling = [SamplingParams(max_tokens=tokens, seed=row) for row in range(rows)]
    prompts = [torch.tensor(prompt) for prompt in PROMPTS[:rows]]
    return list(Session(parts, prompts, sampling, LazyTargetProbs).steps())


def of_nodes(parts: Parts, count: int) -> Parts:
    """The parts with trees of `count` nodes per row, whatever the times are."""
    sizes = SimpleNamespace(num_tokens=lambda rows, context: count, observe=lambda step: None)
    vars(parts.controller)["_idle"] = sizes
    return parts


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_the_tree_is_the_one_without_pruning_and_takes_no_more_forwards(count: int) -> None:
    head = with_layers(1)
    pruned = steps(of_nodes(scylla.build(target(), head=head, depth=4, width=4), count), 3)
    growth = partial(dynamic_tree, width=4, num_nodes=count)
    whole = Parts(target(), FeatureDrafter(head, 12, growth, sampled=False), Match(), Fixed(4))
    every = steps(whole, 3)
    for one, other in zip(pruned, every, strict=True):
        assert one.draft.tree.forest is other.draft.tree.forest
        assert torch.equal(one.draft.tree.tokens, other.draft.tree.tokens)
        assert one.draft.forwards <= other.draft.forwards
    if count == 1:
        assert sum(each.draft.forwards for each in pruned) < sum(each.draft.forwards for each in every)


def test_all_rows_have_trees_of_the_planned_size() -> None:
    found = steps(of_nodes(scylla.build(target(), head=with_layers(1)), 9), 4)
    sizes = {len(nodes) - 1 for step in found[2:5] for nodes in step.draft.tree.forest.nodes}
    assert sizes == {9}


@pytest.mark.parametrize("num_layers", [2, 3])
def test_heads_of_several_layers_draft_and_the_text_is_plain_decodings(num_layers: int) -> None:
    head = with_layers(num_layers)
    assert len(head.head.layers) == num_layers
    sampling = [SamplingParams(0.8 * (row % 2), max_tokens=24, seed=row) for row in range(4)]
    drafted = scylla.build(target(), head=head, depth=3)
    assert texts(drafted, PROMPTS, sampling) == texts(autoregressive.build(target()), PROMPTS, sampling)


@pytest.mark.slow
def test_heads_of_two_layers_are_exact_and_accepted_below_the_first_token() -> None:
    models = peaked_tables()
    head = HeadModel(untrained_eagle(models.target, num_layers=2))
    build = controllers_by_row(lambda: scylla.build(models.target, head=head))
    cases = ragged(9)
    found = enumerate_distributions(build, cases)
    assert largest_error(found, models.logits, cases) < models.bound
    assert found.counts.accepted and found.counts.deepest >= 2


@pytest.mark.slow
def test_rows_whose_trees_follow_their_number_are_independent() -> None:
    table = TableTarget(3, seed=1)
    groups = [Group((1, 1), (SamplingParams(1.0, top_k=2, max_tokens=4),) * 2)]
    head = HeadModel(untrained_eagle(table))

    def build() -> Parts:
        made = scylla.build(table, head=head, depth=3, width=2)
        sizes = SimpleNamespace(num_tokens=lambda rows, context: 6 // rows, observe=lambda step: None)
        vars(made.controller)["_idle"] = sizes
        return made

    found = enumerate_joint(build, groups, batch=1)
    assert largest_joint_error(found, table_logits(table.logits, table.state), groups) < BOUND
    assert found.counts.accepted and found.counts.deepest >= 2


def test_a_head_of_two_layers_is_written_and_read(tmp_path: Path) -> None:
    big = HFTarget(llama())
    head = untrained_eagle(big, num_layers=2)
    save_head(head, tmp_path, big)
    read: DraftHead = load_head("eagle", tmp_path, big)
    assert read.own.keys() == head.own.keys() and any("layers.1.input_layernorm" in name for name in read.own)
    assert all(torch.equal(read.own[name], each) for name, each in head.own.items())
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 0'))
    with pytest.raises(HeadFileError, match="num_hidden_layers is 0"):
        load_head("eagle", tmp_path, big)


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, num_hidden_layers=2, **sizes)).eval()
