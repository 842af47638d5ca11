"""DART: a tree from one forward by the head's probabilities and n-grams, against one without caches and
heaps; its masks and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Plan
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.model.best_first import best_first, best_scored
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.drafters.model.grow import Read
from outpace.drafters.model.mask_reader import MaskReader
from outpace.drafters.model.ngram_scores import NGramScores
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.models.heads.dart.head import DartHead, draw_mask, untrained_dart
from outpace.models.heads.draft_head import head_config
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.models import transformers_models
from outpace.recipes.heads.dart import HEAD_DECAY, LEVEL_POWER, dart
from outpace.sampling.target_probs import LazyTargetProbs
from tests.recipes.heads.test_parallelspec import features_of, read_alone

VOCAB, WIDTH, DEPTH, NUM_NODES, STOP = 12, 5, 3, 20, 8
PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 4))
SOME = (0, 1, 3, 4, 5, 6, 9, 10, 11)
DOCUMENTS = ((1, 2, 3, 4, 5, 6, 7, 1, 2, 4), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3), (7, 7, 2, 11, 0, 8, 10, 3, 6))


@cache
def target() -> HFTarget:
    made = transformers_models(vocab=VOCAB).target
    assert isinstance(made, HFTarget)
    return made


@cache
def head() -> Any:
    return untrained_dart(target(), 4)


def over_some_tokens(ids: Sequence[int]) -> Any:
    """The same head with an LM head for these tokens alone."""
    made = DartHead(
        head_config(target(), len(ids)), target().embed, (0, 1), draft_ids=torch.tensor(ids)
    ).double()
    own = head().own
    with torch.no_grad():
        for name, weight in made.own.items():
            weight.copy_(own[name][list(ids)] if name.startswith("lm_head") else own[name])
    return made.eval()


def steps_of(growth: Any, *params: SamplingParams, drafts: Any = None) -> list[Any]:
    model = HeadModel(drafts or head())
    reader = partial(MaskReader, levels=DEPTH)
    drafter = FeatureDrafter(model, VOCAB, growth, sampled=False, reader=reader)
    parts = replace(dart.build(target(), head=model, depth=DEPTH), drafter=drafter)
    session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
    return [step for step in session.steps() if any(step.generated)]


def paths_of(tree: TokenTree, row: int) -> set[tuple[int, ...]]:
    forest = tree.forest
    return {tuple(tree.tokens[forest.path(node)[1:]].tolist()) for node in forest.nodes[row][1:]}


@cache
def ngram_prob(context: tuple[int, ...], token: int) -> float:
    """By search in the documents, with at most two tokens of context."""

    def times(ngram: tuple[int, ...]) -> int:
        return sum(
            tuple(text[start : start + len(ngram)]) == tuple(ngram)
            for text in DOCUMENTS
            for start in range(len(text) - len(ngram) + 1)
        )

    for length in (2, 1):
        known = context[len(context) - length :]
        if len(context) >= length and (seen := times((*known, token))):
            return seen / times(known)
    return times((token,)) / sum(map(len, DOCUMENTS))


def plain_paths(text: Sequence[int], logits: Tensor, stop: Sequence[int]) -> set[tuple[int, ...]]:
    """The best paths among all, from the levels' logits (k, V)."""
    found, tokens = logits.double().topk(WIDTH)
    log_probs = found.log_softmax(-1).tolist()
    scores = dict[tuple[int, ...], float]()
    for depth in range(1, DEPTH + 1):
        for ranks in product(range(WIDTH), repeat=depth):
            path = tuple(int(tokens[level, rank]) for level, rank in enumerate(ranks))
            if any(token in stop for token in path[:-1]):
                continue
            scores[path] = 0.0
            for level, rank in enumerate(ranks):
                by_ngrams = log(max(ngram_prob((*text, *path[:level])[-2:], path[level]), 1e-10))
                by_both = 0.9**level * max(log_probs[level][rank], log(1e-10)) + 0.5 * by_ngrams
                scores[path] += (level + 1) ** -0.7 * by_both
    return set(sorted(scores, key=lambda path: -scores[path])[:NUM_NODES])


def mistaken(of_tree: Callable[..., TokenTree]) -> bool:
    """Whether a tree is not everywhere the one that is found without caches and heaps."""
    params = [SamplingParams(0.0, max_tokens=16, stop=(STOP,))] * 2
    differs, count = False, 0
    for step in steps_of(of_tree, *params):
        assert step.draft.forwards == 1 or len(step.draft.tree) == len(step.ctx.slots)
        for row in range(len(step.ctx.slots)):
            if step.ctx.max_draft_depth[row] < DEPTH or not paths_of(step.draft.tree, row):
                continue
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            with torch.no_grad():
                levels = read_alone(head(), text, features_of(text, head()), DEPTH - 1)
            expected = plain_paths(text.tolist(), levels, (STOP,))
            differs |= paths_of(step.draft.tree, row) != expected
            count += 1
    assert count > 3
    return differs


def by_level(counts: StaticAutomaton | None) -> NGramScores:
    return NGramScores(counts, 0.5, model_decay=HEAD_DECAY, level_power=LEVEL_POWER)


SCORED: Any = partial(best_scored, num_nodes=NUM_NODES, width=WIDTH, context=2)


def test_the_tree_has_the_best_paths_by_head_and_ngrams() -> None:
    """Read anew for every draft, without a KV cache, with n-grams that are counted in the documents."""
    assert not mistaken(partial(SCORED, scored=by_level(StaticAutomaton.build(DOCUMENTS))))


def test_ngrams_that_do_not_reach_into_the_text_are_caught() -> None:
    scores = by_level(StaticAutomaton.build(DOCUMENTS))

    def of_path(context: Sequence[int], level: int, *more: Any) -> Any:
        return scores(context[max(0, len(context) - level) :], level, *more)

    assert mistaken(partial(SCORED, scored=of_path))
    assert mistaken(partial(SCORED, scored=by_level(None)))


@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_without_ngrams_and_weights_of_levels_it_is_the_tree_of_the_most_probable_paths(
    penalty: float,
) -> None:
    scored = NGramScores(StaticAutomaton.build(DOCUMENTS), 0.0)

    def both(ctx: Context, plan: Plan, read: Read) -> TokenTree:
        found = best_scored(ctx, plan, read, num_nodes=9, width=VOCAB, context=2, scored=scored)
        other = best_first(ctx, plan, read, num_nodes=9)
        assert all(paths_of(found, row) == paths_of(other, row) for row in range(len(ctx.slots)))
        return found

    params = SamplingParams(0.0, max_tokens=9, frequency_penalty=penalty, logit_bias=((5, penalty),))
    for drafts in (head(), over_some_tokens(SOME)):
        steps = steps_of(both, params, replace(params, frequency_penalty=0.0), drafts=drafts)
        assert max(len(step.draft.tree) for step in steps) == 20
    assert all(set(step.draft.tree.tokens[2:].tolist()) <= {*SOME} for step in steps)


def test_levels_over_large_vocabularies_are_searched() -> None:
    """Where the most probable tokens of rows are found by blocks."""
    logits = torch.randn(2, 3, 20_000, generator=torch.Generator().manual_seed(0))

    class Levels:
        def next_levels(self, roots: TokenTree) -> tuple[Tensor, None]:
            return logits, None

    made: Any = Context
    ctx = made(
        slots=(0, 1),
        tokens=(torch.tensor([1]), torch.tensor([2])),
        committed=(1, 1),
        max_draft_depth=(3, 3),
        sampling=(SamplingParams(),) * 2,
        cache=None,
        noise=None,
    )
    read: Any = Levels()
    tree = best_first(ctx, Plan((3, 3)), read, num_nodes=6)
    log_probs, tokens = logits.log_softmax(-1).topk(6)
    for row in range(2):
        scores = {
            tuple(int(tokens[row, level, rank]) for level, rank in enumerate(ranks)): sum(
                float(log_probs[row, level, rank]) for level, rank in enumerate(ranks)
            )
            for depth in (1, 2, 3)
            for ranks in product(range(6), repeat=depth)
        }
        assert paths_of(tree, row) == set(sorted(scores, key=lambda path: -scores[path])[:6])


@pytest.mark.parametrize("ids", [None, SOME])
def test_a_head_is_read_as_it_was_written(ids: tuple[int, ...] | None, tmp_path: Path) -> None:
    """In the layout of its authors."""
    of = target()
    draft_ids = None if ids is None else torch.tensor(ids)
    config = head_config(of, VOCAB if ids is None else len(ids))
    written = DartHead(config, of.embed, (0, 1), num_masks=5, draft_ids=draft_ids).double().eval()
    draw_mask(written, 3)
    save_head(written, tmp_path, of)
    kind = kind_in(tmp_path)
    assert kind is not None and kind.method == "dart"
    again: Any = load_head("dart", tmp_path, of)
    assert again.num_masks == 5 and again.taps == (0, 1)
    assert all(torch.equal(again.own[name], weight) for name, weight in written.own.items())
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["midlayer.mask_rep"].shape == (2 * config.hidden_size,)
    assert ("d2t" in stored) == (ids is not None)
    changed = json.loads((tmp_path / "config.json").read_text()) | {"draft_length": -1}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(HeadFileError, match="draft_length is -1, the number of its masks: correct it"):
        load_head("dart", tmp_path, of)


def test_drafts_are_as_deep_as_the_masks_allow_and_ngrams_come_from_a_file(tmp_path: Path) -> None:
    store.save(StaticAutomaton.build(DOCUMENTS), tmp_path / "index")
    build: Any = partial(dart.build, target(), head=HeadModel(head()))
    params = [SamplingParams(0.0, max_tokens=20)] * 2
    trees = list[list[Any]]()
    for options in ({"width": 1}, {"width": 9}, {"width": 9, "index": str(tmp_path / "index")}):
        parts = build(depth=20, num_nodes=30, **options)
        session = Session(parts, [torch.tensor(each) for each in PROMPTS], params, LazyTargetProbs)
        trees.append([paths_of(step.draft.tree, 0) for step in session.steps() if any(step.generated)])
    assert max(len(path) for tree in trees[0] for path in tree) == 8
    assert trees[1] != trees[2]
    for wrong in ({"width": 0}, {"max_ngram": 0}, {"ngram_weight": -0.5}):
        with pytest.raises(ValueError, match="give 1 or more tokens and a weight that is not negative"):
            build(**wrong)
