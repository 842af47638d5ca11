"""CPUs that a server leaves to its trainer."""

from __future__ import annotations

import os

import pytest

from outpace.serving.learning.cpus import reserved


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Of a process with six CPUs; the list has the ones it chooses then."""
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 6, 7}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: chosen.append(set(cpus)), raising=False)
    return chosen


def test_the_process_leaves_the_cpus_of_the_list(usable: list[set[int]]) -> None:
    assert reserved(None) == set() and usable == []
    assert reserved("6-7,1") == {1, 6, 7} and usable == [{0, 2, 3}]
    assert reserved("3") == {3}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a", "use a list such as 4,6-7"),
        ("", "use a list such as 4,6-7"),
        ("1,", "use a list such as 4,6-7"),
        ("3-5", "has 4, which is not one of"),
        ("0-3,6,7", "leaves no CPU to the server"),
        ("7-6", "leaves no CPU|use a list"),
    ],
)
def test_other_lists_are_refused(text: str, sentence: str, usable: list[set[int]]) -> None:
    with pytest.raises(ValueError, match=sentence):
        reserved(text)
    assert usable == []


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(ValueError, match="needs Linux"):
        reserved("1")
