"""Multi-candidate decoding: more candidates are accepted more often."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from outpace.core.contracts import Draft
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.expected_acceptance import expected_accepted
from outpace.proof.reference import table_logits
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.verification.mcsd import mcsd
from outpace.sampling.target_probs import LazyTargetProbs


def accepted(seed: int, **options: object) -> float:
    target, draft = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 100, order=2)
    widths = options.get("widths", (2,))
    assert isinstance(widths, tuple)
    return expected_accepted(lambda: mcsd.build(target, draft=draft, **options), len(widths))


@pytest.mark.slow
def test_without_replacement_accepts_at_least_as_much_on_average() -> None:
    pairs = [(accepted(seed, widths=(2,)), accepted(seed, widths=(2,), replace=True)) for seed in range(25)]
    without, independent = (sum(side) for side in zip(*pairs, strict=True))
    assert without > independent


@pytest.mark.parametrize("seed", range(3))
def test_one_candidate_a_level_is_speculative_sampling(seed: int) -> None:
    target, draft = TableTarget(4, seed=seed, order=2), TableTarget(4, seed=seed + 100, order=2)
    chain = expected_accepted(lambda: speculative_sampling.build(target, draft=draft, depth=2), 2)
    assert accepted(seed, widths=(1, 1)) == pytest.approx(chain, abs=1e-12)


def test_every_token_as_a_candidate_is_always_accepted() -> None:
    assert accepted(0, widths=(4,)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_naive_rule_accepts_less(seed: int) -> None:
    assert accepted(seed, widths=(2,), naive=True) < accepted(seed, widths=(2,))


def test_a_tree_of_any_shape() -> None:
    assert accepted(1, parents=(0, 0)) == pytest.approx(accepted(1, widths=(2,)), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocab", "widths", "replace"),
    [
        (3, (2, 2), False),
        (2, (2, 2), True),
        (3, (3, 1), False),
        (2, (3, 1), True),
        (4, (3,), False),
        (4, (3,), True),
    ],
)
def test_distribution_is_the_targets_on_wide_and_deep_trees(
    vocab: int, widths: tuple[int, ...], replace: bool
) -> None:
    # with four tokens something is left after two refusals, so that the third distribution matters too
    target, draft = TableTarget(vocab, seed=1), TableTarget(vocab, seed=2, order=2)
    cases = [Case((0, 1, 1), SamplingParams(temperature=1.0, max_tokens=len(widths) + 1))]
    found = enumerate_distributions(
        lambda: mcsd.build(target, draft=draft, widths=widths, replace=replace), cases
    )
    assert largest_error(found, table_logits(target.logits, target.state), cases) < BOUND


def drafted(temperature: float, **options: object) -> Draft:
    """The first draft after the token 0."""
    parts = mcsd.build(TableTarget(8, seed=1), draft=TableTarget(8, seed=2, order=2), **options)
    sampling = SamplingParams(temperature=temperature, max_tokens=9, seed=3)
    return next(iter(Session(parts, [torch.tensor([0])], [sampling], LazyTargetProbs).steps())).draft


def test_the_default_tree_takes_one_forward_of_the_draft_a_level() -> None:
    draft = drafted(1.0)
    assert len(draft.tree) == 1 + 4 + 8 + 16 and draft.forwards == 3


@pytest.mark.parametrize("replace", [False, True])
def test_at_temperature_zero_the_likeliest_are_chosen_and_differ(replace: bool) -> None:
    tree = drafted(0.0, replace=replace).tree
    assert tree.claim is None
    model, tokens = TableTarget(8, seed=2, order=2), tree.tokens.tolist()

    def best(text: Sequence[int], width: int) -> list[int]:
        return model.logits[model.state(text)].topk(width).indices.tolist()

    for node, children in enumerate(tree.forest.children):
        path = [tokens[each] for each in tree.forest.path(node)]
        assert [tokens[child] for child in children] == (best(path, len(children)) if children else [])
