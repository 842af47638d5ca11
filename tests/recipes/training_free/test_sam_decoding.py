"""SAM Decoding: the longest match decides what is drafted, how much, and by which drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.lookup.suffix_automata import SuffixAutomatonLookup
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.head_model import HeadModel
from outpace.models.table import TableTarget
from outpace.proof.enumeration import BOUND, Case, enumerate_distributions, largest_error
from outpace.proof.models import Models, tables, transformers_models
from outpace.proof.option_values import choices
from outpace.proof.per_row_drafter import row_by_row
from outpace.recipes import RecipeError, configure
from outpace.recipes._option_kinds import FunctionOpener
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.sam_decoding import sam_decoding
from outpace.sampling.target_probs import LazyTargetProbs
from tests.recipes.counting_model import counting

VOCAB = 120
TABLE = TableTarget(4)


def saved(folder: Path, *texts: Sequence[int]) -> str:
    store.save(StaticAutomaton.build(texts), folder / "corpus.index")
    return str(folder / "corpus.index")


def run(parts: Parts, prompt: Sequence[int], tokens: int = 80, **options: Any) -> list[Step]:
    session = Session(
        parts, [torch.tensor(prompt)], [SamplingParams(max_tokens=tokens, **options)], LazyTargetProbs
    )
    return [step for step in session.steps() if step.scores.logits is not None]


def context(text: Sequence[int], stop: tuple[int, ...] = ()) -> Context:
    noise = KeyedNoise([0], [1], [len(text)])
    return Context(
        (torch.tensor(text),),
        (len(text),),
        (99,),
        (0,),
        TABLE.open(1, 9),
        (SamplingParams(stop=stop),),
        noise,
        (1,),
    )


def earlier(text: Sequence[int]) -> tuple[int, int]:
    """The longest end of a text that occurred before, and what followed its first occurrence."""
    for size in range(len(text) - 1, 0, -1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[-size:]:
                return size, start + size
    return 0, 0


def test_what_is_drafted_followed_the_longest_end_that_occurred_before() -> None:
    random = Random(0)
    for _ in range(2_000):
        text = [random.randrange(random.choice((2, 3, 8))) for _ in range(random.randrange(1, 30))]
        lookup, middle = SuffixAutomatonLookup(), random.randrange(1, len(text) + 1)
        first = context(text[:middle])
        lookup.look_up(first, Plan((5,)))  # reads the text in two parts
        whole = Context(
            (torch.tensor(text),), (len(text),), (99,), (0,), first.cache, (SamplingParams(),), first.noise
        )
        [found] = lookup.look_up(whole, Plan((99,)))
        size, start = earlier(text)
        assert found.matched == size
        if size:
            drafted = found.tokens
            assert len(drafted) <= 1 + 4 * size
            # or a shorter match, where the longest has fewer tokens to offer
            starts = [start, *(at for at in range(1, len(text)) if text[at - 1] == text[-1])]
            assert drafted in [text[at : at + len(drafted)] for at in starts]


def test_a_text_does_not_match_itself() -> None:
    [found] = SuffixAutomatonLookup().look_up(context([1, 2, 3]), Plan((9,)))
    assert found.tokens == []


def test_a_draft_ends_where_the_text_would() -> None:
    [found] = SuffixAutomatonLookup().look_up(context([1, 2, 3, 0, 5, 1, 2], stop=(0,)), Plan((9,)))
    assert found.tokens == [3, 0]


def test_recent_lookups_continue_the_last_occurrence_and_its_period() -> None:
    first, recent = (SuffixAutomatonLookup(min_ngram=1, recent=each) for each in (False, True))
    text = [1, 2, 8, 8, 1, 2, 9, 9, 1, 2]
    (before,), (after,) = (each.look_up(context(text), Plan((2,))) for each in (first, recent))
    assert (before.tokens, after.tokens) == ([8, 8], [9, 9]) and before.matched == after.matched == 2
    for lookup in (first, recent):
        lookup.release([0])
    [after] = recent.look_up(context([5, 1, 2, 3, 1, 2, 3]), Plan((7,)))
    assert after.tokens == [1, 2, 3, 1, 2, 3, 1]
    recent.release([0])
    [after] = recent.look_up(context([5, 1, 0, 1, 0], stop=(0,)), Plan((7,)))
    assert after.tokens == [1, 0]


def test_copying_takes_long_steps() -> None:
    steps = run(sam_decoding.build(counting(VOCAB)), [*range(VOCAB), 0, 1])
    assert sum(len(step.generated[0]) for step in steps) / len(steps) > 10
    assert len(run(sam_decoding.build(counting(VOCAB)), [5])) == 80  # nothing came twice


def test_a_longer_match_gives_a_longer_draft_up_to_the_most() -> None:
    for matched in range(1, 20):
        prompt = [*range(VOCAB - 1), VOCAB - 1, *range(20, 20 + matched)]
        for least in (1, 11):
            [step, *_] = run(
                sam_decoding.build(counting(VOCAB), standalone_depth=30, length_offset=least), prompt
            )
            assert len(step.draft.tree) - 1 == min(30, least + 4 * matched)


def test_a_corpus_is_drafted_from_where_it_knows_more(tmp_path: Path) -> None:
    corpus = saved(tmp_path, range(40), [50, 51, 52], range(60, VOCAB))
    target = counting(VOCAB)
    for length in (1, 8):  # no match in its own text, so that any match in the index counts
        [step, *_] = run(sam_decoding.build(target, index=corpus), [119, *range(10, 10 + length)], 25)
        assert int(step.draft.tree.tokens[1]) == 10 + length
    # its own text has 7 8 too, followed by 90: the corpus has to be ahead by more than the bias
    prompt = [7, 8, 90, 3, 4, 5, 6, 7, 8]
    for bias, token in ((5, 90), (3, 9)):
        [step, *_] = run(sam_decoding.build(target, index=corpus, bias=bias), prompt, 25)
        assert int(step.draft.tree.tokens[1]) == token
    steps = run(sam_decoding.build(target, index=corpus), [60], 50)
    assert len(steps) < 12


def test_a_corpus_gives_a_tree_of_what_followed(tmp_path: Path) -> None:
    corpus = saved(tmp_path, [1, 2, 3], [1, 2, 4], [1, 2, 3])
    [step, *_] = run(sam_decoding.build(counting(VOCAB), index=corpus), [9, 1, 2], 20)
    tree = step.draft.tree
    assert [int(tree.tokens[node]) for node in tree.forest.children[0]] == [3, 4]  # the more frequent first


def test_a_corpus_for_other_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        sam_decoding.build(TableTarget(4), index=saved(tmp_path, [1, 2, 99]))


def test_short_matches_are_left_to_the_auxiliary() -> None:
    parts = sam_decoding.build(counting(VOCAB), auxiliary=counting(VOCAB), widths=(2, 1), min_ngram=3)
    for matched, nodes, forwards in ((1, 4, 2), (2, 4, 2), (3, 40, 0), (9, 40, 0)):
        prompt = [*range(VOCAB), *range(20, 20 + matched)]
        [step, *_] = run(parts, prompt)
        assert (len(step.draft.tree) - 1, step.draft.forwards) == (nodes, forwards)


def test_short_matches_are_left_to_the_trees_of_a_head() -> None:
    models = transformers_models(vocab=12)
    target: Any = models.target
    head = HeadModel(untrained_eagle(target, seed=1))
    parts = sam_decoding.build(target, head=head, min_ngram=3)
    prompt = [*range(12), 3, 4, 5]
    steps = run(parts, prompt, 24)
    sizes = [(step.draft.forwards, len(step.draft.tree) - 1) for step in steps]
    assert (0, 9) in sizes[:1]  # the match's continuation, to the end of the text
    assert any(forwards == 6 and nodes == 59 for forwards, nodes in sizes)
    plain = [token for step in run(autoregressive.build(target), prompt, 24) for token in step.generated[0]]
    assert [token for step in steps for token in step.generated[0]] == plain
    with pytest.raises(ValueError, match="give one of them"):
        sam_decoding.build(target, head=head, auxiliary="token-recycling")


def test_together_they_need_fewer_steps_than_either() -> None:
    draft = counting(VOCAB)
    draft.logits[60:VOCAB] = draft.logits[VOCAB + 60 :] = 0.0  # it knows only the first half of the numbers
    draft.logits[:, 0] += 0.1
    prompt = [*range(60, 110), 119]
    both = sam_decoding.build(counting(VOCAB), auxiliary=draft, min_ngram=2)
    model = sam_decoding.build(counting(VOCAB), auxiliary=draft, min_ngram=99)
    alone = sam_decoding.build(counting(VOCAB))
    steps = [len(run(parts, prompt, 110)) for parts in (both, model, alone)]
    assert steps[0] < min(steps[1:])


@pytest.mark.parametrize("make", [tables, transformers_models])
@pytest.mark.parametrize("auxiliary", [False, True])
def test_distribution_is_the_targets_with_a_corpus(
    make: Callable[[], Models], auxiliary: bool, tmp_path: Path
) -> None:
    models = make()
    corpus = saved(tmp_path, [0, 1, 2, 0, 1, 1, 2], [2, 2, 1, 0], [1, 0, 0])
    options: dict[str, Any] = (
        {"auxiliary": models.drafts[0], "min_ngram": 3, "widths": (2, 1)} if auxiliary else {}
    )

    def build() -> Parts:
        return sam_decoding.build(models.target, index=corpus, bias=1, **options)

    cases = [
        Case(prompt, SamplingParams(t, max_tokens=3))
        for prompt in ((0, 1, 2, 0), (2,))
        for t in (0.0, 0.7, 1.0)
    ]
    assert largest_error(enumerate_distributions(build, cases), models.logits, cases) < BOUND
    assert any(len(step.draft.tree) > 2 for step in run(build(), (0, 1, 2, 0), 6, temperature=1.0))


def test_short_matches_are_left_to_token_recycling() -> None:
    parts = sam_decoding.build(counting(VOCAB), auxiliary="token-recycling", min_ngram=3, nodes=6)
    prompt = [*range(50, VOCAB), 0]
    first, second, *_ = run(parts, prompt, 60)
    assert len(first.draft.tree) == 1  # nothing is known of any token yet
    steps = run(parts, prompt, 60)  # the table stays, and knows the successors now
    assert len(steps) < 40 and {step.draft.forwards for step in steps} == {0}
    assert [int(token) for token in steps[0].draft.tree.tokens[:2]] == [0, 1]
    assert len(steps[0].draft.tree) - 1 <= 6
    # a match of 3 tokens gives a chain, and the table learns from its nodes too
    [step, *_] = run(parts, [*range(VOCAB), 20, 21, 22])
    assert len(step.draft.tree) - 1 == 40 and step.draft.tree.forest.is_chain


def test_an_auxiliary_is_a_word_or_a_model() -> None:
    opened: list[Any] = []

    def open_model(name: Any) -> TableTarget:
        opened.append(name)
        return counting(VOCAB)

    target = counting(VOCAB)
    for given, kind in (("token-recycling", str), ("none", type(None)), ("a folder", TableTarget)):
        found = configure(sam_decoding, target, {"auxiliary": given}, FunctionOpener(open_model))["auxiliary"]
        assert isinstance(found, kind)
    assert opened == ["a folder"]
    with pytest.raises(RecipeError, match="vocabulary of 4 tokens"):
        configure(sam_decoding, target, {"auxiliary": "other"}, FunctionOpener(lambda name: TABLE))


@pytest.mark.slow
@pytest.mark.parametrize("make", [tables, transformers_models])
def test_the_distribution_is_the_targets_with_token_recycling(make: Callable[[], Models]) -> None:
    models = make()
    build = row_by_row(
        lambda: sam_decoding.build(models.target, auxiliary="token-recycling", min_ngram=2, nodes=4)
    )
    cases = [
        Case(prompt, SamplingParams(t, max_tokens=4))
        for prompt in ((0, 1, 2, 0, 1), (2,))
        for t in (0.0, 1.0)
    ]
    assert largest_error(enumerate_distributions(build, cases), models.logits, cases) < BOUND


def test_an_audit_proves_each_auxiliary() -> None:
    models = tables()
    found = [(choice.get("auxiliary"), "head" in choice) for choice in choices(sam_decoding, models, [(2,)])]
    assert found == [(None, False), ("token-recycling", False), (models.drafts[0], False), (None, True)]
