"""DiffuSpec: the path through a window against a search over all paths, and the length of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.drafters.model.ngram_scores import NGramScores
from outpace.drafters.model.windows import Window
from outpace.indexes.automata.static import StaticAutomaton
from outpace.proof.models import tables
from outpace.recipes.diffusion.diffuspec import AdaptiveLength, diffuspec, lattice_path

VOCAB, MASK = 8, 7
TEXTS = ((1, 2, 3), (4, 1))
DOCUMENTS = ((1, 2, 3, 4, 5, 6, 1, 2, 4), (3, 1, 4, 1, 5, 2, 6, 5, 3), (0, 3, 5, 5, 2, 0, 6, 4, 1))


def context(**params: Any) -> Context:
    made: Any = Context
    return made(
        slots=(0, 1),
        tokens=tuple(torch.tensor(text) for text in TEXTS),
        committed=tuple(map(len, TEXTS)),
        max_draft_depth=(4, 3),
        sampling=(SamplingParams(**params),) * 2,
        prompt_lengths=tuple(map(len, TEXTS)),
        cache=None,
        noise=None,
    )


def paths(logits: Tensor, ctx: Context, **options: Any) -> list[tuple[int, ...]]:
    """The chains of both rows; `logits` (k, V): those of the j-th mask behind the text."""

    def read(tree: TokenTree) -> tuple[int, Tensor]:
        assert set(tree.tokens[2:].tolist()) == {MASK}
        return 0, torch.stack([logits[max(0, depth - 1)] for depth in tree.forest.depths])

    usual: dict[str, Any] = {
        "mass": 0.8,
        "width": 4,
        "beam": 3,
        "context": 2,
        "scored": NGramScores(None, 0.0),
    }
    tree = lattice_path(ctx, Plan((4, 3)), read, window=Window(4, MASK), **{**usual, **options})
    assert tree.claim is None
    leaves = [nodes[-1] for nodes in tree.forest.nodes]
    assert [tree.forest.depths[leaf] for leaf in leaves] == [len(nodes) - 1 for nodes in tree.forest.nodes]
    return [tuple(tree.tokens[tree.forest.path(leaf)[1:]].tolist()) for leaf in leaves]


def ngram_prob(before: Sequence[int], token: int) -> float:
    """By search in the documents, with at most two tokens before."""

    def times(ngram: tuple[int, ...]) -> int:
        places = ((text, start) for text in DOCUMENTS for start in range(len(text)))
        return sum(text[start : start + len(ngram)] == ngram for text, start in places)

    for length in (2, 1):
        known = tuple(before[-length:])
        if seen := times((*known, token)):
            return seen / times(known)
    return times((token,)) / sum(map(len, DOCUMENTS))


def plain_path(text: Sequence[int], logits: Tensor, depth: int, stop: Sequence[int]) -> tuple[int, ...]:
    """The best of all paths of the lattice."""
    probs, places = logits.double().softmax(-1), list[list[int]]()
    for of_place in probs[:depth]:
        natural, total = list[int](), 0.0
        for token in of_place.argsort(descending=True).tolist()[:4]:
            if total < 0.8:
                natural.append(token)
                total += float(of_place[token])
        places.append([*natural, *(token for token in stop if token not in natural)])
        if {*natural} & {*stop}:
            break
    means = dict[tuple[int, ...], float]()
    for length in range(1, len(places) + 1):
        for path in product(*places[:length]):
            ends = [token in stop for token in path]
            if any(ends[:-1]) or length < len(places) and not ends[-1]:
                continue
            score = 0.0
            for place, token in enumerate(path):
                by_ngrams = log(max(ngram_prob([*text, *path[:place]], token), 1e-10))
                score += 0.5 * log(max(float(probs[place, token]), 1e-10)) + 0.5 * by_ngrams
            means[path] = score / length
    return max(means, key=lambda path: means[path])


def test_the_path_is_the_best_of_all_by_model_and_ngrams() -> None:
    scored = NGramScores(StaticAutomaton.build(DOCUMENTS), 0.5, model_weight=0.5)
    ends, changed = list[bool](), 0
    for seed in range(12):
        logits = 2 * torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(seed))
        for stop in ((), (6, 2)):
            found = paths(logits, context(stop=stop), beam=1000, scored=scored)
            assert found == [
                plain_path(text, logits, depth, stop) for text, depth in zip(TEXTS, (4, 3), strict=True)
            ]
            ends.append(found[0][-1] in stop)
            changed += found[0] != tuple(logits.argmax(-1).tolist())
            # mutant: n-grams of the path alone
            changed += 100 * (found != paths(logits, context(stop=stop), beam=1000, scored=scored, context=0))
    assert any(ends) and not all(ends[1::2]) and changed % 100 > 5 and changed > 500


def test_one_path_by_the_model_alone_has_the_most_probable_tokens() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    expected = tuple(logits.argmax(-1).tolist())
    assert paths(logits, context(), beam=1) == [expected, expected[:3]]
    # a bias is heeded at every place, a penalty by the tokens on the path
    assert paths(logits, context(logit_bias=((5, 50.0),))) == [(5,) * 4, (5,) * 3]
    once, again = paths(torch.stack([logits[0]] * 4), context(frequency_penalty=2.0)), expected[:1] * 4
    assert once[0][0] == again[0] and once[0] != again


def test_an_unlikely_end_of_the_text_is_tried_but_ends_no_other_path() -> None:
    logits = torch.full((4, VOCAB), -20.0)
    logits[torch.arange(4), torch.tensor([1, 2, 3, 4])] = 0.0
    assert paths(logits, context(stop=(6,)))[0] == (1, 2, 3, 4)
    likely = logits.clone()
    likely[1, 6] = 0.5  # likelier than the token 2
    assert paths(likely, context(stop=(6,)))[0] == (1, 6)
    likely[1, 6] = -0.5
    assert paths(likely, context(stop=(6,)))[0] == (1, 2), "no path goes on where the text may end"


def step_of(drafted: Sequence[int], accepted: Sequence[int]) -> Any:
    """Chains of these lengths with so many accepted tokens in two slots."""
    nodes, depths, leaves = list[list[int]](), list[int](), list[int]()
    for length, taken in zip(drafted, accepted, strict=True):
        nodes.append(list(range(len(depths), len(depths) + length + 1)))
        leaves.append(len(depths) + taken)
        depths += range(length + 1)
    forest = SimpleNamespace(nodes=nodes, depths=depths)
    return SimpleNamespace(
        ctx=context(),
        draft=SimpleNamespace(tree=SimpleNamespace(forest=forest)),
        verdict=SimpleNamespace(leaf=leaves),
        generated=([1], [1]),
    )


def test_drafts_get_longer_where_all_is_accepted_and_follow_their_texts_ends() -> None:
    controller, lengths = AdaptiveLength(20, 10), list[tuple[int, ...]]()
    for drafted, accepted in (
        ((20, 20), (20, 3)),  # means of 20 and 20, and of 20 and 3
        ((30, 20), (29, 20)),  # of 25 and 24.5, which half a token may lack
        ((24, 30), (20, 0)),  # of 24.5 and 22.25
        ((0, 22), (0, 22)),  # nothing was drafted in the first row
    ):
        lengths.append(controller.plan(context()).depth)
        controller.observe(step_of(drafted, accepted))
    lengths.append(controller.plan(context()).depth)
    assert lengths == [(20, 20), (30, 20), (30, 20), (24, 25), (24, 23)]
    controller.release([0])
    assert controller.plan(context()).depth == (20, 23)


def test_what_cannot_be_searched_is_refused() -> None:
    small = tables(4)
    for wrong, message in (
        ({"shortest": 0}, "drafts of at least 0 tokens, growing by 10: give 1 token or more"),
        ({"growth": -1}, "growing by -1: give 1 token or more, and a growth that is not negative"),
        ({"beam": 0}, "beam 0.*: give 1 or more of the first three"),
        ({"ngram_weight": 1.5}, "ngram_weight 1.5: .*a weight of 0 to 1"),
    ):
        options: dict[str, Any] = {"mask": 0, **wrong}
        with pytest.raises(ValueError, match=message):
            diffuspec.build(small.target, draft=small.drafts[0], **options)
