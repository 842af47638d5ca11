"""Files of prompts: only line feeds end a line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from outpace.api.prompt_texts import split_prompts
from outpace.bench.measure import replay
from outpace.bench.measure.workload import load_items
from outpace.cli.prompt_files import ResultFile, read_prompt_file
from outpace.training.texts import read_prompts

# other characters at which Python cuts lines; JSON need not escape them
TEXT = "one\N{LINE SEPARATOR}two\N{NEXT LINE}three"


def rows(path: Path, **row: Any) -> Path:
    """A file as `outpace generate --output` writes it."""
    file = ResultFile(path)
    for _ in range(2):
        file.add(row)
    return path


def encode(text: str) -> list[int]:
    return [ord(each) for each in text]


def test_a_line_of_json_may_have_other_line_separators_in_its_strings(tmp_path: Path) -> None:
    path = rows(tmp_path / "some.jsonl", prompt=TEXT, text=TEXT)
    assert TEXT in path.read_text(encoding="utf-8")
    assert [each.prompt for each in read_prompt_file(path)] == [TEXT, TEXT]
    assert [each.turns for each in load_items(str(path))] == [(TEXT,), (TEXT,)]
    [first, _] = replay.read(path, encode, encode, 1 << 20)
    assert list(first.prompt) == list(first.tokens) == encode(TEXT)
    model: Any = SimpleNamespace(target=SimpleNamespace(vocab=1 << 20), tokenizer=Characters())
    assert [each.tokens for each in read_prompts(str(path), model, 9, 0)] == [tuple(encode(TEXT))] * 2


class Characters:
    """A tokenizer of characters."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": encode(text)}


def test_prompts_keep_form_feeds_and_other_line_separators() -> None:
    assert split_prompts("a\x0cb\n\nc\N{LINE SEPARATOR}d\n") == ["a\x0cb", "c\N{LINE SEPARATOR}d"]
    assert split_prompts("import os\n\x0c\n\nx\n---\ny\n\n---\n") == ["import os\n\x0c\n\nx", "y\n"]
    assert split_prompts("") == split_prompts("\n\n") == []
