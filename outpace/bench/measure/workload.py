"""The prompts of a benchmark: built-in sets, files of public benchmarks, or other files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outpace.api.prompt_texts import read_text, split_lines, split_prompts

FOLDER = Path(__file__).parent.parent / "prompts"
BUILT_IN = ("code", "arithmetic", "edit")


@dataclass(frozen=True)
class WorkloadItem:
    """One prompt: a text to continue, or the user turns of a conversation."""

    id: str
    workload: str
    turns: tuple[str, ...]
    chat: bool  # whether the turns are user messages; otherwise there is one, a text to continue
    answer: str | None = None  # the right answer to the last turn, if the file has it


def load_items(source: str, max_items: int | None = None) -> list[WorkloadItem]:
    """Prompts of a built-in set or a file; at most `max_items`, spread evenly over it, so that each kind is
    represented where a file is sorted by kind. ValueError if the file is missing, malformed or empty."""
    name, path = (source, FOLDER / f"{source}.jsonl") if source in BUILT_IN else (_stem(source), Path(source))
    if not path.is_file():
        raise ValueError(f"no prompts called {source!r}: use {', '.join(BUILT_IN)} or the path of a file")
    text = read_text(path)
    if ".jsonl" in path.suffixes:
        items = [_from_row(row, index, name) for index, row in enumerate(_rows(text, path))]
    else:
        items = [
            WorkloadItem(f"{name}/{index}", name, (prompt,), False)
            for index, prompt in enumerate(split_prompts(text))
        ]
    if not items:
        raise ValueError(f"{path} holds no prompts")
    if max_items is None or max_items >= len(items):
        return items
    return [items[index * len(items) // max_items] for index in range(max_items)]


def _stem(source: str) -> str:
    return Path(source).name.split(".")[0]


def _rows(text: str, path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from error
        if not isinstance(row, dict) or not row.keys() & {"turns", "prompt", "messages"}:
            raise ValueError(
                f'{path}, line {number}: a prompt is an object with "prompt", "messages" or a list of "turns"'
            )
        try:
            yield row if "messages" not in row else row | {"turns": user_turns(row["messages"])}
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


def user_turns(messages: Any) -> list[str]:
    """What the user says in a conversation; answers in it are left out, as a benchmark generates its own.
    ValueError without a user's text and for other roles."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ValueError('"messages" is a list of objects with "role" and "content"')
    if others := {str(each.get("role")) for each in messages} - {"user", "assistant"}:
        raise ValueError(f"a conversation is one of user and assistant; here is a message of {min(others)}")
    turns = [each.get("content") for each in messages if each["role"] == "user"]
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError("there is no message of the user whose content is a text")
    return turns


def _from_row(row: Mapping[str, Any], index: int, name: str) -> WorkloadItem:
    label = next((str(row[key]) for key in ("id", "question_id", "task_id") if key in row), f"{name}/{index}")
    answer = None if row.get("answer") is None else str(row["answer"])
    if "turns" in row:
        return WorkloadItem(label, name, tuple(map(str, row["turns"])), True, answer)
    return WorkloadItem(label, name, (str(row["prompt"]),), bool(row.get("chat", False)), answer)


def encode(tokenizer: Any, item: WorkloadItem, replies: Sequence[str] = ()) -> Tensor:  # (T,) int64
    """Token ids of the conversation up to the turn after these replies, by the tokenizer's chat template if
    it has one."""
    turns = item.turns[: len(replies) + 1]
    if not item.chat:
        ids = tokenizer(turns[0])["input_ids"]
    elif getattr(tokenizer, "chat_template", None):
        messages = [{"role": "user", "content": turns[0]}]
        for reply, turn in zip(replies, turns[1:], strict=True):
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": turn}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        texts = [turns[0], *(text for pair in zip(replies, turns[1:], strict=True) for text in pair)]
        ids = tokenizer("\n\n".join(texts) + "\n\n")["input_ids"]
    return torch.tensor(ids, dtype=torch.int64)
