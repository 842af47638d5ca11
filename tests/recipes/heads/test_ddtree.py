"""DDTree: the most probable paths of a block, found best first; drawn tokens in such a tree have no claim."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.model.best_first import best_first
from outpace.drafters.model.dynamic_tree import dynamic_tree
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Read, grow
from outpace.drafters.model.mask_reader import MaskReader
from outpace.models.heads.dflash.head import untrained_dflash
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.models import transformers_models
from outpace.recipes.heads.ddtree import ddtree
from outpace.recipes.heads.dflash import dflash
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.rejection import Rejection

PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))


def paths_of(tree: TokenTree) -> list[tuple[int, tuple[int, ...]]]:
    forest = tree.forest
    return sorted(
        (forest.rows[node], tuple(tree.tokens[forest.path(node)].tolist())) for node in range(len(tree))
    )


def test_the_tree_is_that_of_a_search_with_all_candidates() -> None:
    """Of the beam search that tries all tokens after all nodes; also where a text may end."""
    target = transformers_models(vocab=12).target
    assert isinstance(target, HFTarget)
    head, sizes = untrained_dflash(target, 4), set[int]()

    def both(ctx: Context, plan: Plan, read: Read) -> TokenTree:
        found = best_first(ctx, plan, read, num_nodes=20)
        other = dynamic_tree(ctx, plan, read, width=20, num_nodes=20)
        assert paths_of(found) == paths_of(other)
        assert found.confidence is not None and other.confidence is not None
        assert (found.confidence.sort().values - other.confidence.sort().values).abs().max() < 1e-6
        sizes.add(len(found))
        return found

    parts = ddtree.build(target, head=HeadModel(head))
    reader = partial(MaskReader, levels=7)
    parts = replace(parts, drafter=FeatureDrafter(HeadModel(head), 12, both, sampled=False, reader=reader))
    for stop in ((), (8, 2)):
        params = [SamplingParams(0.0, max_tokens=9, stop=stop)] * 2
        session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
        for step in session.steps():
            assert max(step.draft.tree.forest.depths) <= 7
    assert max(sizes) == 42


def test_more_tokens_are_accepted_than_of_a_chain() -> None:
    target = transformers_models(vocab=12).target
    head = untrained_dflash(target, 4)
    params = [SamplingParams(0.0, max_tokens=30)] * 2
    steps = []
    for method in (dflash, ddtree):
        session = Session(
            method.build(target, head=HeadModel(head)),
            [torch.tensor(each) for each in PROMPTS],
            params,
            LazyTargetProbs,
        )
        drafts = [step for step in session.steps() if any(step.generated)]
        assert all(step.draft.forwards <= 1 for step in drafts)
        steps.append(len(drafts))
    assert steps[1] < steps[0]


def chosen_of_drawn(ctx: Context, plan: Plan, read: Read) -> TokenTree:
    """Mutant: of two tokens that are drawn after each node the more probable one stays, still claimed."""
    tree = grow(ctx, plan, read)
    if not isinstance(claim := tree.claim, Drawn):
        return tree
    best = claim.q[list(claim.row[ctx.roots.shape[0] :])].argmax(-1)
    tokens = torch.cat((tree.tokens[: len(ctx.roots)], best))
    return replace(tree, tokens=tokens)


def test_a_claim_for_tokens_chosen_among_drawn_ones_is_caught() -> None:
    of: Any = transformers_models()
    cases = (Case((0, 1, 2, 0), SamplingParams(temperature=1.0, max_tokens=3)),)
    model = HeadModel(untrained_dflash(of.target, 1))

    def build() -> Any:
        parts = dflash.build(of.target, head=model, depth=2)
        reader = partial(MaskReader, levels=7)
        drafter = FeatureDrafter(model, of.target.vocab, chosen_of_drawn, sampled=True, reader=reader)
        return replace(parts, drafter=drafter, verifier=Rejection())

    found = enumerate_distributions(build, cases)
    assert largest_error(found, of.logits, cases) > 1e-3
