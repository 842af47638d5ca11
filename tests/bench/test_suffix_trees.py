"""Comparison of our suffix trees with another implementation, here a stub with the same interface."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suffix_trees
from benchmarks.peers.workers.arctic_suffix import num_correct, replayed
from outpace.bench.measure.replay import RecordedText

STUB = '''
from types import SimpleNamespace

class SuffixDecodingCache:
    """Drafts 7 and then 8, once per step, and asserts the order of the calls."""

    def __init__(self, max_tree_depth):
        assert max_tree_depth == 64
        self.active = None

    def start_request(self, request, prompt):
        assert self.active is None and prompt.dtype == "int32"
        self.active, self.held = request, len(prompt)

    def speculate(
        self,
        request,
        context,
        max_spec_tokens,
        max_spec_factor,
        max_spec_offset,
        min_token_prob,
        use_tree_spec,
    ):
        assert request == self.active and len(context) == self.held
        assert (max_spec_factor, max_spec_offset, min_token_prob) == (1.0, 0.0, 0.1)
        return SimpleNamespace(token_ids=[7, 8][:max_spec_tokens], parents=[-1, 0][:max_spec_tokens])

    def add_active_response(self, request, tokens):
        assert request == self.active
        self.held += len(tokens)

    def stop_request(self, request):
        self.active = None
'''


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "other" / "arctic_inference"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "suffix_decoding.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent), prepend=":")
    return f"arctic={sys.executable}"


def test_a_step_keeps_what_was_drafted_rightly_and_gets_a_token_more() -> None:
    assert num_correct([7, 9, 8], [-1, -1, 0], [7, 8, 5]) == 2
    assert num_correct([7, 9, 8], [-1, -1, 0], [9, 8]) == 1 and num_correct([], [], [1]) == 0

    class Same:
        calls: list[tuple[str, list[int]]] = []

        def begin(self, prompt: Any) -> None:
            self.calls.append(("begin", prompt.tolist()))

        def draft(self, context: Any, most: int) -> tuple[list[int], list[int]]:
            self.calls.append(("draft", context.tolist()))
            return [7, 7, 7][:most], [-1, 0, 1][:most]

        def add(self, tokens: Any) -> None:
            self.calls.append(("add", tokens.tolist()))

        def end(self) -> None:
            self.calls.append(("end", []))

    ticks = iter(range(100))
    [[steps, drafted, accepted, seconds]] = replayed(Same(), [([1, 2], [7, 5, 7, 7])], 2, lambda: next(ticks))
    # 7 and a bonus token, then the last 7, where one draft token fits
    assert (steps, drafted, accepted) == (2, 3, 2)
    assert seconds == 2 + 2 * steps  # one tick a call
    assert Same.calls == [
        ("begin", [1, 2]),
        ("draft", [1, 2]),
        ("add", [7, 5]),
        ("draft", [1, 2, 7, 5]),
        ("add", [7, 7]),
        ("end", []),
    ]


@pytest.mark.slow
def test_our_trees_alone_draft_what_the_method_drafts_in_the_engine() -> None:
    numbers = [*range(5, 30), 6, 7, 8, 50, *range(9, 20)]
    texts = [
        RecordedText([1, 2, 3], numbers),
        RecordedText([3, 7, 8, 9], numbers[::-1]),
        RecordedText([2], numbers[5:]),
    ]
    rows = suffix_trees.compare({"made": texts}, None, 1)
    assert [(row["who"], row["tree"]) for row in rows] == [
        (who, tree) for tree in (False, True) for who in (suffix_trees.TREES, suffix_trees.METHOD)
    ]
    for alone, method in (rows[:2], rows[2:]):
        assert alone["accepted"] > 10
        assert all(
            alone[name] == method[name] for name in ("steps", "drafted", "accepted", "mean_acceptance_length")
        )
        assert min(alone["microseconds_per_token"], method["microseconds_per_token"]) > 0


@pytest.mark.slow
def test_both_sides_get_the_same_texts(
    tiny: Any, tmp_path: Path, stand_in: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suffix-trees.json"
    short = [
        "--target",
        tiny.target,
        "--num-prompts",
        "4",
        "--max-tokens",
        "6",
        "--repeats",
        "1",
        "--threads",
        "1",
    ]
    assert suffix_trees.main([*short, "--peer", stand_in, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert data["schema"] == suffix_trees.SCHEMA and data["settings"]["max_tokens"] == 6
    rows = data["results"]
    assert len(rows) == 12 and {row["who"] for row in rows} == {
        suffix_trees.TREES,
        suffix_trees.METHOD,
        suffix_trees.PEER,
    }
    for kind in ("greedy", "4 samples"):
        assert len({(row["tokens"], row["num_texts"]) for row in rows if row["texts"] == kind}) == 1
    assert "arctic-inference" in capsys.readouterr().out


def test_a_missing_peer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert suffix_trees.main(["--peer", "arctic"]) == 2
    assert "arctic_inference is not installed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        suffix_trees.main(["--peer", "antarctic"])
    assert "--peer takes arctic=" in capsys.readouterr().err
