"""The texts of a training run: prompts from files or of the package, their answers, and which tokens count.

Letters: T tokens.
"""

from __future__ import annotations

import hashlib
import json
import random
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.api.model import Model
from outpace.api.prompts import encode

BUILT_IN = "builtin:code"
PROMPT_CHARACTERS = 400  # of a built-in prompt
# modules of the standard library on which the package's models were not trained
HELD_OUT_MODULES = frozenset(
    "textwrap heapq bisect shlex fnmatch statistics calendar queue sched csv getopt string graphlib colorsys "
    "cmd".split()
)
LEFT_OUT_FOLDERS = frozenset(
    "__pycache__ encodings ensurepip idlelib lib2to3 pydoc_data site-packages dist-packages test tests "
    "turtledemo".split()
)


class DataError(ValueError):
    """The data cannot be used; the message is for users."""


@dataclass(frozen=True)
class Prompt:
    """A prompt of the data, and its answer if the data has one."""

    tokens: tuple[int, ...]
    answer: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Example:
    """A text to learn from."""

    tokens: tuple[int, ...]  # (T,)
    first: int  # index of the first token that was generated; the drafter learns to predict those from it on

    def pieces(self, length: int) -> Iterator[Example]:
        """The text in pieces of at most `length` tokens that have something to learn."""
        for start in range(0, len(self.tokens), length):
            tokens = self.tokens[start : start + length]
            first = max(1, self.first - start)
            if len(tokens) >= 4 and first < len(tokens) - 2:
                yield Example(tokens, first)


def read_prompts(source: str, model: Model, limit: int, seed: int) -> list[Prompt]:
    """At most `limit` prompts, in an order that follows from the seed: `builtin:code` is source of Python's
    standard library; a .jsonl file has a "prompt" or "messages" in each line, with an "answer" or a last
    message of the assistant where the target has answered; any other file is one text. DataError if nothing
    can be used."""
    if source.startswith("builtin:"):
        if source != BUILT_IN:
            raise DataError(f"there is no data {source}: use {BUILT_IN} or a file")
        given: list[Any] = list(_library())
    else:
        path = Path(source)
        if not path.is_file():
            raise DataError(f"there is no file {source}: give a .jsonl file with prompts, or {BUILT_IN}")
        given = list(_rows(path)) if ".jsonl" in path.suffixes else [path.read_text(encoding="utf-8")]
    random.Random(f"{seed} prompts").shuffle(given)
    found: list[Prompt] = []
    for each in given:
        if len(found) == limit:
            break
        found.append(_prompt(each, model))
    if len(found) < 2:
        raise DataError(f"{source} has {len(found)} prompts: give at least two, better thousands")
    return found


def split_texts(
    examples: Sequence[Example], length: int, held_out: float
) -> tuple[list[Example], list[Example]]:
    """Cut texts into pieces of at most `length` tokens; returns those for training and those for evaluation.
    The first texts are for evaluation, as many as hold the share `held_out` of all pieces. All pieces of a
    text are on one side, and a text that the data has twice counts once."""
    pieces = {each: list(each.pieces(length)) for each in examples}  # each text once
    wanted = max(1, round(sum(map(len, pieces.values())) * held_out))
    learned: list[Example] = []
    evaluated: list[Example] = []
    for each in pieces.values():
        (evaluated if len(evaluated) < wanted else learned).extend(each)
    return learned, evaluated


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """A hash of the prompts and answers."""
    data = json.dumps([[each.tokens, each.answer] for each in prompts], separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()[:16]


def _prompt(given: Any, model: Model) -> Prompt:
    vocab = model.target.vocab
    if isinstance(given, str):
        return Prompt(tuple(encode(model.tokenizer, given, vocab)))
    assert isinstance(given, Mapping)
    messages = given.get("messages")
    if messages:
        answer = messages[-1]["content"] if messages[-1].get("role") == "assistant" else None
        question = messages[:-1] if answer is not None else messages
        tokens = encode(model.tokenizer, question, vocab)
    else:
        answer = given.get("answer")
        tokens = encode(model.tokenizer, given["prompt"], vocab)
    if answer is None:
        return Prompt(tuple(tokens))
    after = encode(model.tokenizer, answer, vocab, "the answer") if isinstance(answer, str) else answer
    return Prompt(tuple(tokens), tuple(after))


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error.msg})") from error
        if not isinstance(row, dict) or not (row.get("prompt") or row.get("messages")):
            raise DataError(f'{path}, line {number}: a row has a "prompt" or "messages"')
        yield row


def _library() -> Iterator[str]:
    """Pieces of the standard library's source of the running Python, cut at lines."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        folders = set(path.relative_to(root).parts[:-1])
        if folders & LEFT_OUT_FOLDERS or path.stem in HELD_OUT_MODULES or path.stem.startswith("_sysconfig"):
            continue
        piece = ""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            piece += line
            if len(piece) >= PROMPT_CHARACTERS:
                yield piece
                piece = ""
