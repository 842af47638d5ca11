"""Models on another device than the host's tensors: every method gives the same text, and no operation mixes
devices.

The other device is simulated by tensors that report another device and raise when used with the host's, as an
accelerator's do, so that tensors created on the wrong device are found on a machine without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.core.contracts import Parts
from outpace.core.sampling_params import SamplingParams
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.formats.folder import load_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve
from outpace.proof.decode_all import texts
from outpace.proof.models import Models, recurrent_models, tables, transformers_models
from outpace.proof.option_values import choices, plain
from outpace.proof.sampling_cases import crossed
from outpace.recipes import find
from tests.other_device import AWAY, Elsewhere, moved, moved_head, reads, simulated, uploads
from tests.tiers import slow

PROMPTS = ((0, 1, 2, 0, 1, 2, 0), (2,), (1, 1, 0, 1, 1), (0, 2, 2))
MIXED = (
    SamplingParams(1.0, max_tokens=6, seed=1),
    SamplingParams(0.7, top_p=0.9, max_tokens=5, stop=(1,), seed=2),
    SamplingParams(0.0, max_tokens=7),
    SamplingParams(1.0, max_tokens=1, seed=9),
)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return simulated(monkeypatch)


@pytest.fixture(scope="module")  # so that it is loaded before torch is changed
def zoo_target() -> HFTarget:
    return load(resolve("zoo:target"), dtype="float32")[0]


def same_texts(name: str, here: Models, row_params: Sequence[SamplingParams], elsewhere: Elsewhere) -> None:
    recipe = find()[name]
    # on an accelerator drafts go on behind tokens that end a text, so that other tokens are drawn
    row_params = [replace(params, stop=()) for params in row_params]
    cross_vocabulary = replace(here.cross_vocabulary, model=moved(here.cross_vocabulary.model))
    drafts = tuple(moved(draft) for draft in here.drafts)
    there = replace(here, target=moved(here.target), drafts=drafts, cross_vocabulary=cross_vocabulary)
    shapes = [(2,), (1, 2)]
    both = [choices(recipe, each, shapes) for each in (here, there)]
    for host, other in zip(*both, strict=True):
        if MAKES_A_MODEL_WITH.get(name, {}).items() & plain(recipe, host).items():
            continue
        for rows in (slice(0, 1), slice(2, 3), slice(0, None)):
            prompts = [PROMPTS[row % len(PROMPTS)] for row in range(len(row_params))][rows]

            def decoded(parts: Parts, prompts: Any = prompts, rows: slice = rows) -> list[list[int]]:
                return texts(parts, prompts, row_params[rows])

            expected = decoded(recipe.build(here.target, **host))
            options = {option: moved_head(value) for option, value in other.items()}
            with elsewhere:
                assert decoded(recipe.build(there.target, **options)) == expected


# one method of each kind of drafting and verification
QUICK = (
    "autoregressive speculative-sampling mcsd traversal block-verification token-recycling suffix-decoding "
    "slem eagle2 medusa smartspec disco"
).split()


# they make a transformers model of the head when they are built, and these tensors cannot go through its
# trial forward
MAKES_A_MODEL = {"aurora", "fr-spec"}
# the same with some values of an option
MAKES_A_MODEL_WITH = {"taps": {"routing": "average"}}


def test_the_quick_methods_exist() -> None:
    assert set(QUICK) | MAKES_A_MODEL <= set(find())


@pytest.mark.parametrize(
    "name",
    [
        each if each in QUICK else pytest.param(each, marks=pytest.mark.slow)
        for each in find()
        if each not in MAKES_A_MODEL
    ],
)
def test_parts_meet_tables_that_are_elsewhere(name: str, elsewhere: Elsewhere) -> None:
    same_texts(name, tables(), MIXED, elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_so_they_do_with_all_sampling_parameters(name: str, elsewhere: Elsewhere) -> None:
    same_texts(name, tables(), list(crossed(3, 3)), elsewhere)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["speculative-sampling", "mcsd", "slem", "omnidraft", "speculative-cascades"]
)
def test_models_may_be_elsewhere(name: str, elsewhere: Elsewhere) -> None:
    same_texts(name, transformers_models(3), MIXED, elsewhere)


@pytest.mark.parametrize(
    ("method", "head", "options"),
    [
        slow("eagle3", "eagle3", {}),
        ("eagle3", "eagle3", {"tree": "chain"}),
        slow("medusa", "medusa", {}),
        slow("hydra", "hydra", {}),
        slow("redrafter", "redrafter", {}),
    ],
)
def test_heads_of_a_part_of_the_vocabulary_may_be_elsewhere(
    method: str, head: str, options: dict[str, Any], zoo_target: HFTarget, elsewhere: Elsewhere
) -> None:
    here = zoo_target
    read, there = load_head(method, resolve(f"zoo:{head}"), here), moved(here)
    opened = HeadModel(read) if isinstance(read, DraftHead) else PositionModel(read)
    assert read.draft_ids is not None
    recipe, prompts = find()[method], ((300, 301, 302, 303, 304), (310, 311, 312))
    params = [SamplingParams(0.0, max_tokens=8), SamplingParams(0.0, max_tokens=8)]
    expected = texts(recipe.build(here, head=opened, **options), prompts, params)
    with elsewhere:
        found = texts(recipe.build(there, head=moved_head(opened), **options), prompts, params)
    assert found == expected


@pytest.mark.slow
def test_models_with_recurrent_layers_may_be_elsewhere(elsewhere: Elsewhere) -> None:
    same_texts("speculative-sampling", recurrent_models(), MIXED, elsewhere)


def test_tensors_on_two_devices_do_not_meet(elsewhere: Elsewhere) -> None:
    with elsewhere:
        far = torch.arange(3, device=AWAY)
        assert (far + 1).tolist() == [1, 2, 3] and far[torch.tensor([2])].tolist() == [2]
        for meet in (torch.add, torch.equal, torch.maximum):
            with pytest.raises(AssertionError, match="two devices"):
                meet(far, torch.arange(3))


def test_what_waits_for_the_other_device_is_counted(elsewhere: Elsewhere) -> None:
    with elsewhere:
        far, mask = torch.arange(3, device=AWAY), torch.arange(3, device=AWAY) > 1
        for read in (
            lambda: far[0].item(),
            lambda: far.tolist(),
            lambda: far.cpu(),
            lambda: bool(mask.any()),
            lambda: mask.nonzero(),
            lambda: far[mask],
            lambda: torch.equal(far, far),
            lambda: torch.zeros(3, dtype=torch.int64).copy_(far),
        ):
            reads.clear()
            read()
            assert reads.total() == 1
        reads.clear()
        for copied in (
            lambda: torch.tensor([1], device=AWAY),
            lambda: torch.arange(3).to(AWAY),
            lambda: far[[2, 1]],
            lambda: far.clone().copy_(torch.arange(3)),
        ):
            uploads.clear()
            copied()
            assert uploads.total() == 1
        uploads.clear()
        assert (far + 1)[far].device == torch.arange(3).to(AWAY, non_blocking=True).device == AWAY
        assert not reads and not uploads
