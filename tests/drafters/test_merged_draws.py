"""Equal independent draws below a node are one node, which is scored once and counts every draw."""

from __future__ import annotations

import pytest
import torch

from outpace.core.claim import Drawn
from outpace.core.context import Context, SamplingParams
from outpace.core.contracts import Draft, Recipe, Scores, TargetProbs
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.tree import Forest, TokenTree
from outpace.decode import Session
from outpace.drafters.compose.union import merged_trees
from outpace.models.table import TableTarget
from outpace.recipes.verification.specinfer import specinfer
from outpace.recipes.verification.spectr_kseq import spectr_kseq
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.block import Block
from outpace.verifiers.traversal import Traversal

WIDTHS = (6, 1, 1)


def drafts(recipe: Recipe, num_models: int = 1, *, dtype: torch.dtype = torch.float64) -> list[Draft]:
    models = [TableTarget(4, seed=seed) for seed in range(1, num_models + 1)]
    for model in models:
        model.logits = model.logits.to(dtype)
    options = {"drafts": tuple(models)} if recipe is specinfer else {"draft": models[0]}
    params = [SamplingParams(1.0, max_tokens=40, seed=row) for row in range(3)]
    parts = recipe.build(TableTarget(4, seed=9), widths=WIDTHS, **options)
    session = Session(parts, [torch.tensor([row, 1]) for row in range(3)], params, LazyTargetProbs)
    return [step.draft for step in session.steps() if step.scores.logits is not None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("recipe", "num_models"), [(spectr_kseq, 1), (specinfer, 1), (specinfer, 2)])
def test_every_text_is_read_once_and_every_draw_is_kept(
    recipe: Recipe, num_models: int, dtype: torch.dtype
) -> None:
    repeated = 0
    for draft in drafts(recipe, num_models, dtype=dtype):
        tree, claim = draft.tree, draft.tree.claim
        tokens, forest = tree.tokens.tolist(), tree.forest
        texts = [
            (forest.rows[node], *(tokens[each] for each in forest.path(node))) for node in range(len(tree))
        ]
        assert len(set(texts)) == len(tree)
        if not isinstance(claim, Drawn):
            continue
        draws = claim.all_draws()
        repeated += len(draws) - len({node for node, _ in draws})
        for node in range(forest.num_rows):
            below = [(child, row) for child, row in draws if forest.parents[child] == node]
            assert len(below) in (0, 6 * num_models)  # a row with one token left gets no draft
        # draws of one node that are extended by the same model share a row of q: one text has one
        # distribution
        rows_at = {(forest.parents[node], row) for node, row in draws}
        assert len(rows_at) == len({row for _, row in draws})
    assert repeated > 20


def test_merging_keeps_the_draws_of_both_trees() -> None:
    q = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    one = TokenTree(torch.tensor([0, 1, 2]), Forest.of([-1, 0, 1], 1), None, None)
    one = TokenTree(one.tokens, one.forest, None, Drawn(q.repeat(2, 1), (-1, 0, 1), (True, True)))
    other = TokenTree(
        torch.tensor([0, 1, 0, 2]),
        Forest.of([-1, 0, 0, 1], 1),
        None,
        Drawn(q.repeat(2, 1), (-1, 0, 0, 1), (True, True)),
    )
    tree = merged_trees(one, other)
    assert tree.tokens.tolist() == [0, 1, 2, 0] and tree.forest.parents == (-1, 0, 1, 0)
    claim = tree.claim
    assert isinstance(claim, Drawn)
    assert claim.row == (-1, 0, 1, 2) and claim.draws == ((1, 0), (2, 1), (1, 2), (3, 2), (2, 3))


@pytest.mark.parametrize("verifier", [Block(), Traversal()])
def test_rules_that_count_nodes_refuse_repeated_draws(verifier: Block | Traversal) -> None:
    q = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    claim = Drawn(q, (-1, 0), (True,), draws=((1, 0), (1, 0)))
    tree = TokenTree(torch.tensor([0, 1]), Forest.chain((1,)), None, claim)
    with pytest.raises(ValueError, match="one draw per node"):
        verifier.verify(tree, *_nothing())


def _nothing() -> tuple[TargetProbs, Scores, Noise]:
    """What is never looked at."""
    target = TableTarget(3)
    tree = TokenTree.roots(torch.tensor([0]))
    scores = target.score(tree, [0], target.open(1, 4))
    context = Context(
        (tree.tokens,), (1,), (4,), (0,), target.open(1, 4), (SamplingParams(1.0),), KeyedNoise([0], [1], [1])
    )
    return LazyTargetProbs(scores, tree, context), scores, context.noise
