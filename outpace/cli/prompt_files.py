"""Reads prompts from arguments, stdin and files, and writes results to files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outpace.cli.options import read_text
from outpace.cli.output import json_text


@dataclass(frozen=True)
class PromptItem:
    """One prompt and the other fields of its .jsonl line."""

    prompt: Any  # text, token ids or chat messages
    extra: dict[str, Any] = field(default_factory=dict)  # copied into the results of this prompt

    @property
    def label(self) -> str:
        """The prompt in one line of at most 40 characters."""
        text = self.prompt if isinstance(self.prompt, str) else json.dumps(self.prompt, ensure_ascii=False)
        line = " ".join(text.split())
        return line if len(line) <= 40 else line[:39] + "…"


def read_prompts(arguments: Sequence[str] | None, path: Path | None, *, chat: bool) -> list[PromptItem]:
    """The prompts of the arguments, the file or stdin, in order; with `chat`, texts become user messages.

    Raises ValueError if there is none, or for text that is empty or not UTF-8.
    """
    if path is not None and arguments:
        raise ValueError("give prompts as arguments or with --prompt-file, not both")
    if path is not None:
        items = read_prompt_file(path)
    else:
        if not arguments and sys.stdin.isatty():
            raise ValueError('there is no prompt: give one, as in outpace generate "def add(a, b):"')
        items = [PromptItem(standard_input() if each == "-" else each) for each in arguments or ["-"]]
    if not all(item.prompt for item in items):
        raise ValueError("the prompt is empty: give it some text")
    if chat:
        items = [
            PromptItem([{"role": "user", "content": item.prompt}], item.extra)
            if isinstance(item.prompt, str)
            else item
            for item in items
        ]
    return items


def standard_input() -> str:
    """All of stdin as text; ValueError if it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is not UTF-8 text (at byte {error.start}): convert it") from error


def read_prompt_file(path: Path) -> list[PromptItem]:
    """The prompts of a file: one per line of a .jsonl file ("prompt" or "messages"), else the whole text.

    Raises ValueError for a malformed line or a .jsonl file without prompts.
    """
    text = read_text(path) or ""
    if path.suffix != ".jsonl":
        return [PromptItem(text)]
    from outpace.api.prompt_texts import split_lines

    items: list[PromptItem] = []
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}, is not JSON: {error.msg}") from error
        names = [name for name in ("prompt", "messages") if isinstance(found, dict) and name in found]
        if len(names) != 1:
            raise ValueError(
                f'{path}, line {number}, has no prompt: each line is an object with "prompt" or "messages"'
            )
        items.append(PromptItem(found.pop(names[0]), found))
    if not items:
        raise ValueError(f'{path} has no prompts: each line is an object with "prompt" or "messages"')
    return items


class ResultFile:
    """A result file, rewritten after each result: JSON lines (.jsonl), one JSON document (.json), or text."""

    def __init__(self, path: Path) -> None:
        """Create the file, so that an unwritable path raises ValueError before decoding starts."""
        self._path, self._found = path, list[dict[str, Any]]()
        self.save()

    def add(self, result: dict[str, Any]) -> None:
        """Add one result and rewrite the file."""
        self._found.append(result)
        self.save()

    def save(self) -> None:
        """Write all results added so far; ValueError if the file cannot be written."""
        if self._path.suffix == ".jsonl":
            text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in self._found)
        elif self._path.suffix == ".json":
            text = json_text({"results": self._found}) + "\n"
        else:
            text = "".join(each["text"] + "\n" for each in self._found)
        try:
            self._path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{self._path} cannot be written: {error.strerror}") from error
