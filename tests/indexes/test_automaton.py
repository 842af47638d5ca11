"""Suffix automata against a search through the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from outpace.indexes.automata.online import Match, SuffixAutomaton
from outpace.indexes.automata.static import Pointer, StaticAutomaton

Texts = Callable[..., list[list[int]]]
Count = Callable[[Sequence[Sequence[int]], Sequence[int]], int]


def longest_earlier(text: Sequence[int]) -> Match:
    """The longest suffix that occurs earlier, and the index after its first occurrence."""
    for length in range(len(text) - 1, 0, -1):
        for start in range(len(text) - length):
            if text[start : start + length] == text[-length:]:
                return Match(length, start + length)
    return Match(0, 0)


def longest_known(documents: Sequence[Sequence[int]], text: Sequence[int], count: Count) -> int:
    return next(length for length in range(len(text), -1, -1) if count(documents, text[len(text) - length :]))


def test_the_match_is_the_longest_end_that_occurred_earlier(loops: str, texts: Texts) -> None:
    for text in texts(0, 60):
        automaton = SuffixAutomaton()
        for end, token in enumerate(text, 1):
            assert automaton.match([token]) == Match(*_assumed(text[: end - 1], [token]))
            automaton.extend([token])
            assert automaton.match() == longest_earlier(text[:end])
        assert len(automaton) == len(text)
        assert automaton.num_states <= max(2 * len(text), 1)
        assert automaton.num_edges <= 3 * len(text)
        assert SuffixAutomaton(text).match() == automaton.match()


def _assumed(text: Sequence[int], assumed: Sequence[int]) -> Match:
    """As `longest_earlier`, but the assumed tokens are not in the text."""
    whole = [*text, *assumed]
    for length in range(len(whole), 0, -1):
        for start in range(len(text) - length + 1):
            if text[start : start + length] == whole[-length:]:
                return Match(length, start + length)
    return Match(0, 0)


def test_what_followed_is_as_much_as_a_shorter_match_offers(loops: str) -> None:
    automaton = SuffixAutomaton([1, 2, 3, 9, 8, 7, 5, 2, 3, 1, 2, 3])
    assert automaton.match() == Match(3, 3)
    assert automaton.continuation(4) == [9, 8, 7, 5]
    assert automaton.continuation(100) == [9, 8, 7, 5, 2, 3, 1, 2, 3]
    assert automaton.continuation(2, assumed=[9]) == [8, 7]
    assert automaton.continuation(2, assumed=[6]) == []
    repeated = SuffixAutomaton([4] * 10)
    assert repeated.match() == Match(9, 9)
    assert repeated.continuation(1) == [4]
    assert repeated.continuation(6) == [4] * 6  # the match of 4 tokens is the longest with 6 behind it


def longest_recent(text: Sequence[int]) -> list[int]:
    """What follows the most recent occurrence of the longest suffix that occurs earlier."""
    length = longest_earlier(text).length
    for start in reversed(range(len(text) - length if length else 0)):
        if text[start : start + length] == text[len(text) - length :]:
            return list(text[start + length :])
    return []


@pytest.mark.parametrize("noted", [4, 1000])
def test_what_followed_last_comes_from_the_most_recent_occurrence(
    monkeypatch: pytest.MonkeyPatch, texts: Texts, noted: int
) -> None:
    from outpace.indexes.automata import online
    from outpace.indexes.compiled_loops import CompiledLoop

    monkeypatch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
    monkeypatch.setattr(online, "NOTED", noted)
    num_recent = num_matches = 0
    for text in texts(4, 60):
        automaton = SuffixAutomaton()
        for end, token in enumerate(text, 1):
            automaton.extend([token])
            read, match = text[:end], automaton.match()
            following, most_recent = automaton.recent_continuation(1), longest_recent(read)
            assert bool(following) == bool(match.length)
            num_matches += len(following)
            num_recent += bool(following) and following == most_recent[:1]
            # whatever was noted, the match occurs before the tokens that are said to follow it
            whole = [*read[end - match.length :], *following]
            assert any(read[start : start + len(whole)] == whole for start in range(end))
    assert num_matches > 1000
    assert num_recent == num_matches if noted == 1000 else num_recent > 0.95 * num_matches


def test_a_text_that_repeats_itself_goes_on_with_its_period(loops: str) -> None:
    assert SuffixAutomaton([1, 2, 3, 9, 8, 7, 1, 2, 3]).recent_continuation(9) == [9, 8, 7, 1, 2, 3]
    assert SuffixAutomaton([5, 1, 2, 3, 1, 2, 3]).recent_continuation(7) == [1, 2, 3, 1, 2, 3, 1]
    assert SuffixAutomaton([4] * 10).recent_continuation(3) == [4] * 3
    assert SuffixAutomaton([6, 4, 4]).recent_continuation(3) == [4] * 3
    assert SuffixAutomaton([1, 2, 3]).recent_continuation(3) == []
    assert SuffixAutomaton().recent_continuation(3) == []


def test_both_ways_of_running_build_the_same_automaton(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    from outpace.indexes.compiled_loops import CompiledLoop

    pytest.importorskip("numba")
    for text in texts(1, 20, longest=300):
        compiled = SuffixAutomaton(text)
        with monkeypatch.context() as patch:
            patch.setattr(CompiledLoop, "__call__", lambda self, *arguments: self.plain(*arguments))
            plain = SuffixAutomaton(text)
        for name, array in compiled.arrays.items():
            assert np.array_equal(array, plain.arrays[name]), name


def test_negative_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="none of them negative"):
        SuffixAutomaton([3, -1])


@pytest.mark.parametrize("vocab", [2, 50, 4000])
def test_there_are_at_most_two_states_and_three_edges_per_token(vocab: int) -> None:
    tokens = np.random.default_rng(1).integers(0, vocab, 20_000).tolist()
    for size in (2, 3, 100, 20_000):
        automaton = SuffixAutomaton(tokens[:size])
        assert automaton.num_states <= 2 * size and automaton.num_edges <= 3 * size


def test_memory_grows_with_the_text_and_is_what_the_arrays_have() -> None:
    for size in (0, 1, 1000, 50_000):
        automaton = SuffixAutomaton(np.random.default_rng(0).integers(0, 100, size).tolist())
        arrays = [automaton.text, automaton.states, automaton.edges, *automaton.map, automaton.fields]
        assert automaton.nbytes == sum(array.nbytes for array in arrays)
        assert automaton.nbytes <= 9216 + 258 * size


def test_the_pointer_has_the_longest_end_that_occurs_in_the_corpus(
    loops: str, texts: Texts, occurrences: Count
) -> None:
    documents, queries = texts(2, 12), texts(3, 12)
    automaton = StaticAutomaton.build(documents)
    assert automaton.metadata == {"tokens": sum(map(len, documents)), "documents": len(documents)}
    for text in queries:
        pointer = Pointer()
        for end, token in enumerate(text, 1):
            pointer = automaton.move(pointer, [token])
            assert pointer.length == longest_known(documents, text[:end], occurrences)
            if not pointer.length:
                continue
            matched = text[end - pointer.length : end]
            assert automaton.count(pointer) == occurrences(documents, matched)
            known = {token: occurrences(documents, [*matched, token]) for token in range(6)}
            best = sorted(
                ((token, n) for token, n in known.items() if n), key=lambda each: (-each[1], each[0])
            )
            assert automaton.successors(pointer, 3) == best[:3]
        assert automaton.move(Pointer(), text) == pointer


def test_a_state_with_many_edges_finds_all_of_them(loops: str, occurrences: Count) -> None:
    rng = np.random.default_rng(0)
    documents = [rng.zipf(1.2, 300).clip(max=60).tolist() for _ in range(4)]
    automaton = StaticAutomaton.build(documents)
    for token in {token for text in documents for token in text}:
        assert automaton.count(automaton.move(Pointer(), [token])) == occurrences(documents, [token])
    assert automaton.move(Pointer(), [61]) == Pointer()
    after_one = automaton.move(Pointer(), [1])
    known = [(token, occurrences(documents, [1, token])) for token in range(62)]
    counts = sorted((n for _, n in known), reverse=True)[:8]
    # a place among the first eight edges may go to the end of a document
    assert [n for _, n in automaton.successors(after_one)][:7] == counts[:7]


def test_ngrams_back_off_to_the_longest_context_that_a_token_followed(
    loops: str, texts: Texts, occurrences: Count
) -> None:
    documents, backed_off = texts(5, 12), 0
    automaton, tokens = StaticAutomaton.build(documents), [*range(6), 40]
    for text in texts(6, 12):
        for context in (text[:0], text[:1], text[-2:], text[-3:], [*text[-2:], 40]):
            found = automaton.next_probs(context, tokens)
            for token, prob in zip(tokens, found, strict=True):
                contexts = [context[start:] for start in range(len(context) + 1)]
                known = [each for each in contexts if occurrences(documents, [*each, token])]
                total = occurrences(documents, known[0]) if known and known[0] else sum(map(len, documents))
                share = occurrences(documents, [*known[0], token]) / total if known else 0.0
                assert prob == pytest.approx(share)
                backed_off += 0 < len(known) < len(contexts)
    assert backed_off > 20


def test_what_followed_ends_with_its_document(loops: str) -> None:
    automaton = StaticAutomaton.build([[1, 2, 3], [4, 1, 2, 5]])
    pointer = automaton.move(Pointer(), [7, 1, 2])
    assert automaton.continuation(pointer, 10) == [3]
    assert automaton.continuation(automaton.move(pointer, [5]), 10) == []
    assert automaton.continuation(Pointer(), 10) == []
    assert automaton.continuation_tree(Pointer()).tokens == []


def test_branches_are_the_likeliest_continuations(loops: str, texts: Texts, occurrences: Count) -> None:
    documents = [[1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 5], *texts(4, 5)]
    automaton = StaticAutomaton.build(documents)
    pointer = automaton.move(Pointer(), [1])
    found = automaton.continuation_tree(pointer, num_nodes=25, per_depth=4)
    paths = []
    for token, parent, weight in zip(found.tokens, found.parents, found.weights, strict=True):
        above = paths[parent] if parent >= 0 else [1]
        paths.append([*above, token])
        # the shares along a path multiply to this
        assert weight == pytest.approx(occurrences(documents, paths[-1]) / occurrences(documents, [1]))
    assert all(a >= b for a, b in pairwise(found.weights))
    assert len(set(map(tuple, paths))) == len(paths) == 25
    depths = [len(path) for path in paths]
    assert max(depths.count(depth) for depth in set(depths)) <= 4
    everything = automaton.continuation_tree(pointer, num_nodes=400, per_depth=400)
    best = [weight for weight in everything.weights if weight > found.weights[-1]]
    assert len(automaton.continuation_tree(pointer, num_nodes=len(best), per_depth=400).tokens) == len(best)
