"""Recurrent layers read draft trees: every node from the states after its parent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from outpace.api.settings import resolve_settings
from outpace.core.tree import Forest, TokenTree
from outpace.models.eager.recurrent_forward import RecurrentForward
from outpace.models.eager.recurrent_tree import levels_below_root, parents_of
from outpace.models.eager.tree_product import NodesOfTree
from outpace.models.hf.target import HFTarget
from outpace.proof.models import RecurrentCode, recurrent_models
from outpace.proof.suite import Subject, ragged
from outpace.recipes import get
from outpace.serving.request import GenerationRequest
from outpace.serving.scheduler import Scheduler
from tests.models.conftest import Reference
from tests.serving.clients import Client
from tests.tiers import only, slow

EXACT = 1e-9
FAMILIES = (
    *("qwen3_5_text", "qwen3_next", "olmo_hybrid", "kimi_linear"),  # linear attention
    "lfm2",  # short convolutions
    "zaya",  # convolutions inside attention, whose layers return more than one tensor
    *("granitemoehybrid", "bamba", "nemotron_h", "zamba2", "falcon_h1"),  # Mamba 2 beside attention
    "mamba2",
)


def test_the_nodes_below_the_root_are_read_by_levels() -> None:
    parents = [-1, 0, 1, 1, 2, 3, 3]
    visible = torch.zeros(7, 7, dtype=torch.bool)
    for node, parent in enumerate(parents):
        visible[node] = visible[parent] if node else False
        visible[node, node] = True
    assert parents_of(visible) == parents
    assert levels_below_root(parents, 0) == [[1], [2, 3], [4, 5, 6]]
    # nodes that were read before are among them where new ones descend from them
    assert levels_below_root(parents, 5) == [[1], [3], [5, 6]]


class Texts:
    """Texts that grow by parts of random trees, read in random parts, some of them taken back."""

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        self.fresh, self.target = Reference(model), HFTarget(model)
        self.cache = self.target.open(3, 200)
        self.choose = random.Random(seed)
        self.texts = [self.some(1, 9) for _ in range(3)]

    def some(self, least: int, most: int) -> list[int]:
        return [self.choose.randrange(3, 61) for _ in range(self.choose.randrange(least, most))]

    def step(self, chains: float = 0.3) -> float:
        """One tree in some rows; returns the largest difference of its logits from those of whole texts.
        `chains`: probability that a node's parent is the node before it."""
        choose, cache = self.choose, self.cache
        slots = choose.sample(range(3), choose.randrange(1, 4))
        rows, size = len(slots), len(slots) + choose.randrange(14)
        below = [
            node - 1 if choose.random() < chains else choose.randrange(node) for node in range(rows, size)
        ]
        parents = [-1] * rows + below
        tokens = torch.tensor([self.texts[slot][-1] for slot in slots] + self.some(size, size + 1)[rows:])
        gap = [torch.tensor(self.texts[s][cache.lengths[s] : -1], dtype=torch.int64) for s in slots]
        trees = [
            TokenTree(tokens[:end], Forest.of(parents[:end], rows))
            for end in sorted({size, *(choose.randrange(rows, size + 1) for _ in range(choose.randrange(4)))})
        ]
        read = [self.target.score(tree, slots, cache, gap=None if i else gap) for i, tree in enumerate(trees)]
        logits = torch.cat([scores.logits for scores in read if scores.logits is not None])
        forest, worst = trees[-1].forest, 0.0
        for leaf in (node for node in range(size) if not forest.children[node]):
            path = forest.path(leaf)
            text = torch.tensor(self.texts[slots[forest.rows[leaf]]][:-1] + tokens[path].tolist())
            expected = self.fresh(text).logits[0, -len(path) :]
            worst = max(worst, float((logits[path] - expected).abs().max()))
        leaves = [choose.choice((*nodes, -1)) for nodes in forest.nodes]
        cache.commit(trees[-1], leaves, slots)
        for slot, leaf in zip(slots, leaves, strict=True):
            if leaf >= 0:
                self.texts[slot][-1:] = tokens[forest.path(leaf)].tolist()
            self.texts[slot] += self.some(1, 4)
            if choose.random() < 0.3:
                length = choose.randrange(cache.lengths[slot] + 1)
                cache.rewind([slot], [length])
                self.texts[slot] = self.texts[slot][:length] + self.some(3, 4)
            if choose.random() < 0.1:
                cache.release([slot])
        return worst


@pytest.mark.parametrize("name", only({"qwen3_5_text", "lfm2", "bamba", "mamba2"}, FAMILIES))
def test_nodes_of_any_tree_have_the_logits_of_their_paths(
    name: str, tiny: Any, float64_throughout: None
) -> None:
    """Also of trees that follow unread tokens, that grow in several forwards, and that were taken back."""
    texts = Texts(tiny(name), seed=1)
    assert not texts.target.chains_only
    assert max(texts.step() for _ in range(12)) < EXACT


OF_DELTA_RULE = ("qwen3_5_text", "qwen3_next")


@pytest.mark.parametrize(
    "name", only({"bamba"}, ("granitemoehybrid", "bamba", "nemotron_h", "zamba2", "mamba2", *OF_DELTA_RULE))
)
def test_trees_are_read_in_one_product_as_level_by_level(
    name: str, tiny: Any, float64_throughout: None
) -> None:
    """The test before this one reads their trees in products."""
    texts = Texts(tiny(name), seed=2)
    forward = texts.target.forward
    assert isinstance(forward, RecurrentForward) and forward.products
    forward.products = ()
    assert max(texts.step() for _ in range(12)) < EXACT


@pytest.mark.parametrize(
    "name", only({"mamba2", "qwen3_5_text"}, ("bamba", "nemotron_h", "mamba2", *OF_DELTA_RULE))
)
def test_drafted_chains_are_read_in_one_product_and_their_accepted_tokens_in_another(
    name: str, tiny: Any, float64_throughout: None
) -> None:
    lengths, accepted = list[int](), list[int]()
    texts = Texts(tiny(name), seed=3)
    assert isinstance(texts.target.forward, RecurrentForward)
    [layer, *_] = texts.target.forward._layers.values()
    assert layer.product is not None
    product = layer.product

    def counted(layer: Any, tree: NodesOfTree, *args: Any) -> Any:
        assert tree.ancestors.equal(torch.ones_like(tree.ancestors).tril())
        lengths.append(len(tree.ancestors))
        return product.outputs(layer, tree, *args)

    def followed(layer: Any, states: Any, projected: Sequence[torch.Tensor]) -> None:
        accepted.append(projected[0].shape[1])
        product.follow(layer, states, projected)

    layer.product = replace(product, outputs=counted, follow=followed)
    assert max(texts.step(chains=1.0) for _ in range(12)) < EXACT
    assert len(lengths) >= 6 and max(lengths) > 6
    assert len(accepted) >= 4 and max(accepted) > 1


@pytest.mark.parametrize("code,widths,most", [("qwen3_5", (2, 1), 150), slow("bamba", (1, 2), 300)])
def test_the_distribution_with_trees_is_plain_decoding(
    code: RecurrentCode, widths: tuple[int, ...], most: int
) -> None:
    """The draft model is recurrent too, and its trees grow level by level."""
    models = recurrent_models(code)
    subject = Subject(get("traversal"), {"draft": models.drafts[0], "widths": widths}, models)
    proof = subject.prove(partial(ragged, top_k=2, prompt=models.greedy_text), most)
    assert proof.error is not None and proof.error <= models.bound
    assert proof.deepest >= 2


@pytest.mark.parametrize("name", ["bamba", "qwen3_5_text"])
def test_a_tree_needs_no_more_memory_than_a_chain(name: str, tiny: Any) -> None:
    target = HFTarget(tiny(name))
    held = list[int]()
    for parents in ([-1, 0, 1, 2], [-1, 0, 0, 1]):
        cache = target.open(1, 16)
        target.score(TokenTree(torch.tensor([5, 6, 7, 8]), Forest.of(parents, 1)), (0,), cache)
        held.append(cache.num_bytes)
    assert held[0] == held[1] == 16 * target.token_bytes + target.state_bytes


def of_the_first(change: Callable[..., Any], layer: Any, hidden: Any, *args: Any, **options: Any) -> Any:
    return change(layer, hidden[:1].expand_as(hidden), *args, **options)


def refused(change: Callable[..., Any], layer: Any, hidden: Any, *args: Any, **options: Any) -> Any:
    if len(hidden) > 1:
        raise ValueError("one text at a time")
    return change(layer, hidden, *args, **options)


@pytest.mark.parametrize("mistake", [of_the_first, refused])
def test_models_whose_layers_cannot_read_siblings_score_chains(
    mistake: Callable[..., Any], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Mamba2Mixer.forward
    monkeypatch.setattr(Mamba2Mixer, "forward", lambda *args, **rest: mistake(change, *args, **rest))
    with pytest.warns(UserWarning, match="layers that cannot read siblings in one forward: it scores chains"):
        target = HFTarget(tiny("mamba2"))
    tree = TokenTree(torch.tensor([5, 6, 7]), Forest.of([-1, 0, 0], 1))
    with pytest.raises(ValueError, match="scores chains only"):
        target.score(tree, (0,), target.open(1, 16))
    assert target.score(tree.first_chain(), (0,), target.open(1, 16)).logits is not None


def test_a_server_decodes_with_trees(tiny: Any, float64_throughout: None) -> None:
    target = HFTarget(tiny("qwen3_5_text"))
    draft = HFTarget(tiny("qwen3_5_text"))
    settings = resolve_settings({"max_tokens": 8, "temperature": 0}, vocab=61)

    def texts(method: Any) -> Sequence[list[int]]:
        scheduler = Scheduler({"model": method}, drafts=[draft])
        prompts = ([5, 6, 7], [9, 8], [4])
        clients = [Client(scheduler, GenerationRequest(prompt, settings, 20, 1)) for prompt in prompts]
        while scheduler.waiting or scheduler.running:
            scheduler.step()
        return [client.tokens for client in clients]

    trees = get("traversal").build(target, draft=draft, widths=(2, 1))
    assert texts(trees) == texts(get("autoregressive").build(target))
