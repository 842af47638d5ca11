"""How often a step waits for an accelerator: each read of a number of one of its tensors waits until it has
done all work launched before, and nothing is launched meanwhile. So does, by default, each copy of a tensor
of the host to it.

The accelerator is simulated. The allowed numbers are those of a step after the prompt was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from outpace.core.contracts import Step
from outpace.core.device_copies import on_host
from outpace.core.row_error import NotFinite
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.proof.models import Models, transformers_models
from outpace.proof.option_values import choices
from outpace.recipes import find
from outpace.sampling.target_probs import LazyTargetProbs
from tests.other_device import AWAY, Away, Elsewhere, moved, moved_head, reads, simulated, uploads
from tests.tiers import slow

PROMPT = torch.tensor([0, 1, 2, 0, 1, 2, 0])
DEPTH, WIDTHS = 4, (2, 2)
SAMPLED = SamplingParams(1.0, max_tokens=20, seed=1)
ALL = replace(
    SAMPLED,
    top_k=5,
    top_p=0.9,
    min_p=0.02,
    repetition_penalty=1.2,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias=((3, 1.0),),
    bad_words=((4, 5), (6,)),
    min_tokens=3,
    stop=(2,),
)

VERDICT = 1
# The draft model's logits are not NaN: known before the target reads tokens that would be none
CHECK = 1
# Python follows the draft's tokens to find the accepted path. They are read after the target's forward was
# launched, and once for all that ask
TOKENS = 1
# Which tokens of its last forward the draft model keeps, when nothing is being computed
CATCH_UP = 1
# Verification of drawn tokens: that p is a distribution, p / q of all tokens, the tokens where chains ended
# and where they were rejected
CHAINS = 4


# Copies to the accelerator that wait. In each forward the tokens, and with several rows the order of their
# nodes, of inputs and of outputs; in a step also which entries of the KV cache are moved, the features of the
# text, and which of the target's states a head reads
COPIES, COPIES_OF_ROWS, OTHER_COPIES = 1, 3, 3
# Verification by the target's own tokens: those after the roots, then on 2 and 4 levels
MATCH = 3


Most = Callable[[Step], int]


@dataclass(frozen=True)
class Case:
    """A method, and how often its steps may read numbers of the accelerator."""

    name: str
    method: str
    sampling: tuple[SamplingParams, ...]
    most: Most
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.name


def case(name: str, method: str, *sampling: SamplingParams, most: int | Most, **options: Any) -> Case:
    return Case(name, method, sampling, most if callable(most) else lambda step: most, options)


def drawn_tree(step: Step) -> int:
    """For a tree of drawn tokens. At each level the draws, of which some may not exist, make the tree. Once,
    the q of all. For each node on the path, that p is a distribution, and p of the first token below it; and
    for each test that fails what is left of p, on which the next one depends, and of q if that is little."""
    forest, leaf = step.draft.tree.forest, step.verdict.leaf[0]
    path = forest.path(leaf)
    failed = sum(forest.children[above].index(node) for above, node in pairwise(path))
    failed += len(forest.children[leaf])
    return CHECK + TOKENS + step.draft.forwards + 1 + 2 * (len(path) + failed) + VERDICT


GREEDY = replace(SAMPLED, temperature=0.0)
BATCH = tuple(replace(SAMPLED, seed=seed) for seed in range(3))
CASES = (
    case("plain, greedy", "autoregressive", GREEDY, most=VERDICT),
    case("plain, sampled", "autoregressive", SAMPLED, most=VERDICT),
    case("plain, three rows", "autoregressive", *BATCH, most=VERDICT),
    case("plain, all parameters", "autoregressive", ALL, ALL, ALL, most=VERDICT),
    case(
        "chain, greedy",
        "speculative-sampling",
        GREEDY,
        most=CHECK + TOKENS + VERDICT + CATCH_UP,
        depth=DEPTH,
    ),
    case(
        "chain, sampled",
        "speculative-sampling",
        SAMPLED,
        most=CHECK + TOKENS + CHAINS + CATCH_UP,
        depth=DEPTH,
    ),
    case(
        "chain, three rows",
        "speculative-sampling",
        *BATCH,
        most=CHECK + TOKENS + CHAINS + CATCH_UP,
        depth=DEPTH,
    ),
    case(
        "chain, all parameters",
        "speculative-sampling",
        ALL,
        ALL,
        ALL,
        # penalties of draft tokens depend on those before them: read at every level but the first
        most=CHECK + TOKENS + CHAINS + CATCH_UP + DEPTH - 1,
        depth=DEPTH,
    ),
    case(
        "drawn tree",
        "mcsd",
        SAMPLED,
        most=lambda step: drawn_tree(step) + CATCH_UP,
        widths=WIDTHS,
    ),
    case("tree of a head, greedy", "eagle", GREEDY, most=CHECK + TOKENS + VERDICT),
    case("tree of a head, drawn", "eagle", SAMPLED, most=drawn_tree),
    # each level: Python chooses among the paths of all levels
    case("dynamic tree, greedy", "eagle2", GREEDY, most=DEPTH + CHECK + VERDICT, depth=DEPTH),
    case("dynamic tree, three rows", "eagle2", *BATCH, most=DEPTH + CHECK + MATCH, depth=DEPTH),
)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return simulated(monkeypatch)


@pytest.fixture(scope="module")
def models() -> Models:
    here = transformers_models(vocab=16)
    return replace(here, target=moved(here.target), drafts=tuple(map(moved, here.drafts)))


QUICK = ("plain, all parameters", "chain, sampled", "tree of a head, drawn")


@pytest.mark.parametrize("case", [each if str(each) in QUICK else slow(each) for each in CASES], ids=str)
def test_a_step_reads_no_more_than_it_must(case: Case, models: Models, elsewhere: Elsewhere) -> None:
    recipe = find()[case.method]
    options = {name: moved_head(value) for name, value in next(choices(recipe, models)).items()}
    options = {name: value for name, value in options.items() if name in recipe.options} | case.options
    num_steps = 0
    with elsewhere:
        prompts = [PROMPT[: len(PROMPT) - row] for row in range(len(case.sampling))]
        session = Session(recipe.build(models.target, **options), prompts, case.sampling, LazyTargetProbs)
        for step in session.steps():
            if step.ctx.unread is None and all(step.generated):
                num_steps += 1
                assert reads.total() <= case.most(step), f"it read {dict(reads)}"
                copies = COPIES if len(case.sampling) == 1 else COPIES_OF_ROWS
                most = copies * (step.draft.forwards + 1) + OTHER_COPIES
                assert uploads.total() <= most, f"it copied {dict(uploads)}"
            reads.clear()
            uploads.clear()
    assert num_steps > 3


def test_logits_of_an_accelerator_that_are_nan_are_reported(elsewhere: Elsewhere) -> None:
    here = transformers_models(vocab=16)
    with torch.no_grad():
        here.target.model.lm_head.weight[3] = float("nan")
    there = moved(here.target)
    for sampling in (GREEDY, SAMPLED, ALL):
        for method in ("autoregressive", "mcsd"):
            recipe = find()[method]
            options = {"draft": moved(here.drafts[0])} if method == "mcsd" else {}
            with elsewhere, pytest.raises(NotFinite):
                list(Session(recipe.build(there, **options), [PROMPT], [sampling], LazyTargetProbs).steps())


def test_tensors_are_brought_to_the_host_as_they_are_in_one_copy(elsewhere: Elsewhere) -> None:
    found = (
        torch.tensor([True, False, True]),
        torch.randn(2, 3, dtype=torch.float32),
        torch.tensor([1 << 60]),
        torch.randn(1, dtype=torch.bfloat16),
        torch.randn(4, dtype=torch.float64),
        torch.empty(0, 2),
    )
    assert all(each is same for each, same in zip(on_host(*found), found, strict=True))
    with elsewhere:
        reads.clear()
        there = [Away(each) for each in found]
        assert all(each.device == AWAY for each in there)
        here = on_host(*there)
        assert reads.total() == 1
    for each, same in zip(here, found, strict=True):
        assert each.dtype == same.dtype and each.shape == same.shape and torch.equal(each, same)
