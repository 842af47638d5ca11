"""Prompts for drafters of the zoo's target."""

from __future__ import annotations

import json

import pytest
import typer

from zoo_training import prompts
from zoo_training.corpus import read_corpus


@pytest.mark.slow
def test_prompts_are_of_all_kinds_and_of_the_training_split(tmp_path) -> None:
    path = tmp_path / "prompts.jsonl"
    prompts.main(path, number=120, seed=1)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == list(prompts.prompts(120, 1)) != list(prompts.prompts(120, 2))
    code = [row["prompt"] for row in rows if "prompt" in row]
    chats = [row["messages"] for row in rows if "messages" in row]
    assert len(code) == len(chats) == 60 and all(each[-1]["role"] == "user" for each in chats)
    held_out = read_corpus().held_out
    assert not any(len(text) > prompts.SHORTEST and text in each for text in code for each in held_out)
    assert all(0 < len(text) <= prompts.LONGEST for text in code)


def test_prompts_may_be_of_one_kind(tmp_path) -> None:
    path = tmp_path / "prompts.jsonl"
    prompts.main(path, number=4, kinds="arithmetic")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 4 and all("messages" in row for row in rows)
    with pytest.raises(
        typer.BadParameter, match="there are no prompts of poetry: use arithmetic, chat, code"
    ):
        prompts.main(path, kinds="code,poetry")
