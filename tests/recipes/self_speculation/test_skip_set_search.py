"""SWIFT's search, with a target that predicts the better the nearer its skip set is to a given one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from outpace.core.noise import KeyedNoise
from outpace.models.skip_set import SkipSet
from outpace.recipes.self_speculation.swift import recipe as skip_set_search
from outpace.recipes.self_speculation.swift.recipe import SkipSetSearch, SubLayers

LAYERS, WINDOW, PROMPT = 8, 20, 5
VOCAB = 7


class Task:
    """Requests of a task whose best skip set is known."""

    def __init__(self, best: SkipSet) -> None:
        self.best = best
        self.calls: list[tuple[SkipSet, int, int]] = []

    def share(self, skip_set: SkipSet) -> float:
        common = len(skip_set.attention & self.best.attention) + len(skip_set.mlp & self.best.mlp)
        return common / len(self.best)

    def reread(self, skip_set, cache, slot, text, begin):
        self.calls.append((skip_set, len(text), begin))
        following = torch.arange(begin + 1, len(text) + 1) % VOCAB  # the text counts
        right = round(WINDOW * self.share(skip_set))
        logits = torch.zeros(len(following), VOCAB)
        for index, token in enumerate(following.tolist()):
            logits[index, token if index < right else (token + 1) % VOCAB] = 1
        return logits


def best_sets() -> tuple[SkipSet, SkipSet]:
    return (
        SkipSet(frozenset({1, 4, 6}), frozenset({2, 6})),
        SkipSet(frozenset({2, 3, 5}), frozenset({4, 5})),
    )


def run(search: SkipSetSearch, slot: int = 0, steps: int = 400, seed: int = 0):
    """The sets that drafted and the best matchness after each step of a request."""
    sets, best = [], []
    for turn in range(steps):
        length = PROMPT + 1 + turn
        ctx = SimpleNamespace(
            slots=(slot,),
            tokens=(torch.arange(length) % VOCAB,),
            committed=(length,),
            prompt_lengths=(PROMPT,),
            cache=None,
            noise=KeyedNoise([seed], [turn], [length]),
        )
        search.observe(SimpleNamespace(ctx=ctx, generated=([1],), finished=()))
        sets.append(search.of(slot))
        best.append(search._scores.get(slot, {}).get(search._search.best, -1.0))
    return sets, best


def test_matchness_never_falls_and_the_size_is_fixed() -> None:
    task = Task(best_sets()[0])
    search = SkipSetSearch(task.reread, LAYERS, 0.45, WINDOW)
    sets, best = run(search)
    assert best == sorted(best) and best[-1] > 0.75
    assert {len(each) for each in sets} == {5} and len(set(sets)) > 2
    assert {layer for each in sets for layer in each.attention | each.mlp} <= set(range(1, LAYERS - 1))
    tried = [task.share(each) for each, _, _ in task.calls]
    assert max(tried) == best[-1] == task.share(sets[-1]) > tried[0]
    assert len({each for each, _, _ in task.calls}) == len(task.calls)  # none is scored twice


def test_only_generated_tokens_are_scored() -> None:
    task = Task(best_sets()[0])
    search = SkipSetSearch(task.reread, LAYERS, 0.45, WINDOW)
    run(search, steps=WINDOW - 1)
    assert not task.calls  # not so many tokens are generated yet
    run(search, steps=WINDOW + 10)
    # read are the last token of the prompt and all generated ones but the last, always the same
    assert len(task.calls) > 5 and {call[1:] for call in task.calls} == {(PROMPT + WINDOW - 1, PROMPT - 1)}


def test_every_25th_candidate_is_the_gaussian_process_s(monkeypatch) -> None:
    asked = list[int]()
    inner = skip_set_search.most_promising

    def counted(points, values, *, noise):
        asked.append(len(points))
        return inner(points, values, noise=noise)

    monkeypatch.setattr(skip_set_search, "most_promising", counted)
    monkeypatch.setattr(skip_set_search, "ENOUGH", 2.0)
    task = Task(best_sets()[0])
    search = SkipSetSearch(task.reread, LAYERS, 0.45, WINDOW)
    run(search, steps=WINDOW + 105)
    assert search._search.num_trials == 106 and len(asked) == 4
    # candidates are rarely repeated, and each is reported once
    assert asked == sorted(asked) and asked[0] > 20


@pytest.mark.parametrize(
    ("constants", "trials"),
    [({"ENOUGH": 0.1}, 1), ({"ENOUGH": 2.0, "MOST": 7}, 7), ({"ENOUGH": 2.0, "PATIENCE": 1}, 2)],
)
def test_the_search_stops(constants, trials, monkeypatch) -> None:
    for name, value in constants.items():
        monkeypatch.setattr(skip_set_search, name, value)
    task = Task(SkipSet(frozenset({1, 3, 5}), frozenset({1, 3})))  # the set that it begins with
    search = SkipSetSearch(task.reread, LAYERS, 0.45, WINDOW)
    run(search, steps=WINDOW + 60)
    assert search._search.num_trials == trials
    for slot in range(1, 21):
        run(search, slot=slot, steps=WINDOW + 60)
        search.release([slot])
    assert search._search.num_trials == trials  # later requests start no search of their own
    assert len(task.calls) <= trials + 20


def test_a_search_that_has_ended_starts_again_when_matchness_falls_for_certain(monkeypatch) -> None:
    monkeypatch.setattr(skip_set_search, "PATIENCE", 30)
    first, second = (Task(each) for each in best_sets())
    task = SimpleNamespace(now=first)
    search = SkipSetSearch(lambda *given: task.now.reread(*given), LAYERS, 0.45, WINDOW)
    found = run(search)[0][-1]
    assert search._search.level is not None and len(first.calls) <= 300
    trials, level = search._num_trials, first.share(found)
    for slot, share in enumerate((level - 0.05, level, level - 0.1), 1):  # as texts of one task differ
        monkeypatch.setattr(first, "share", lambda skip_set, share=share: share)
        assert run(search, slot=slot)[0][-1] == found
    assert search._num_trials == trials
    task.now = second
    assert second.share(found) < level - 0.3
    sets, best = run(search, slot=5)
    assert search._num_trials > trials + 9 and best[-1] > second.share(found) and sets[-1] != found
    ended = search._num_trials
    assert search._search.level is not None
    run(search, slot=6)
    assert search._num_trials == ended


def test_a_request_goes_on_with_what_earlier_ones_found_and_a_change_of_task_changes_it() -> None:
    first, second = (Task(each) for each in best_sets())
    task = SimpleNamespace(now=first)
    search = SkipSetSearch(lambda *given: task.now.reread(*given), LAYERS, 0.45, WINDOW)
    found = run(search)[0][-1]
    search.release([0])
    assert search.of(1) == found
    task.now = second
    sets, best = run(search, slot=1)
    assert best[-1] > second.share(found) and sets[-1] != found


def test_sub_layers_of_small_models() -> None:
    assert SubLayers(2, 0.45).skip_set(SubLayers(2, 0.45).alternate()) == SkipSet(frozenset({1}))
    parts = SubLayers(6, 0.45)
    assert parts.skip_set(parts.alternate()) == SkipSet(frozenset({1, 3}), frozenset({1, 3}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0.45, 4), "one layer cannot skip any"),
        ((8, 0.0, 4), "skip_ratio is 0.0, and 12 sub-layers can be skipped: use 0.083 to 1"),
        ((8, 1.1, 4), "skip_ratio is 1.1, and 12 sub-layers can be skipped: use 0.083 to 1"),
        ((8, float("nan"), 4), "skip_ratio is nan, and 12"),
        ((8, 0.45, 0), "window is 0: score candidates by at least one"),
    ],
)
def test_what_cannot_be_searched(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        SkipSetSearch(Task(best_sets()[0]).reread, *arguments)
