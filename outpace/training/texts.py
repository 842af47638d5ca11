"""The texts of a training run: prompts from files or the package, their answers, and the tokens to learn.

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
from outpace.api.prompt_texts import read_text, split_lines, split_prompts
from outpace.api.prompts import encode, required
from outpace.training.marked_answers import marked_answers

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
    labels: tuple[int, ...] = ()  # of the answer's tokens, where it is marked: see training.marked_answers


@dataclass(frozen=True)
class Example:
    """A text to learn from."""

    tokens: tuple[int, ...]  # (T,)
    first: int  # index of the first generated token; the drafter learns to predict tokens from it on
    labels: tuple[
        int, ...
    ] = ()  # (T,) of the tokens of a marked answer and its prompt; empty: it is not marked

    def pieces(self, length: int) -> Iterator[Example]:
        """The text in pieces of at most `length` tokens, without pieces that have no generated token."""
        for start in range(0, len(self.tokens), length):
            tokens = self.tokens[start : start + length]
            first = max(1, self.first - start)
            if len(tokens) >= 4 and first < len(tokens) - 2:
                yield Example(tokens, first, self.labels[start : start + length])


def read_prompts(source: str, model: Model, limit: int, seed: int, *, marked: bool = False) -> list[Prompt]:
    """At most `limit` prompts, in an order that depends on the seed. `builtin:code`: source code of Python's
    standard library. A .jsonl file: "prompt" or "messages" in each line, and if the target has answered, an
    "answer" or a last message of the assistant. Any other file: a prompt per line, or prompts separated by
    lines `---`. Files may be compressed (.gz). `marked`: every row has an answer in which an error may be
    marked, as `marked_answers` reads it. DataError if nothing can be used, and for a row that is no
    prompt."""
    if source.startswith("builtin:"):
        if source != BUILT_IN:
            raise DataError(f"there is no data {source}: use {BUILT_IN} or a file")
        given: list[tuple[str, Any]] = [("", text) for text in _library()]
    else:
        given = list(_file(Path(source)))
    random.Random(f"{seed} prompts").shuffle(given)
    prompts: list[Prompt] = []
    for place, row in given:
        if len(prompts) >= limit:
            break
        try:
            prompts += _marked(row, model) if marked else [_prompt(row, model)]
        except ValueError as error:
            raise DataError(f"{place}{error}") from error
    if len(prompts) < 2:
        raise DataError(f"{source} has {len(prompts)} prompts: give at least two, better thousands")
    return prompts


def split_texts(
    examples: Sequence[Example], length: int, held_out: float
) -> tuple[list[Example], list[Example]]:
    """Cut texts into pieces of at most `length` tokens; returns (pieces for training, pieces for evaluation).
    The first texts are for evaluation, up to a share `held_out` of all pieces. All pieces of a text are on
    one side, and a text that occurs twice counts once."""
    pieces = {example: list(example.pieces(length)) for example in examples}  # each text once
    wanted = max(1, round(sum(map(len, pieces.values())) * held_out))
    learned: list[Example] = []
    evaluated: list[Example] = []
    for parts in pieces.values():
        (evaluated if len(evaluated) < wanted else learned).extend(parts)
    return learned, evaluated


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """A hash of the prompts and answers."""
    rows = [
        [each.tokens, each.answer, *([each.labels] if each.labels else [])]  # the hash of others stays
        for each in prompts
    ]
    data = json.dumps(rows, separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()[:16]


def _marked(given: Any, model: Model) -> list[Prompt]:
    """The prompt with its answer, and with a wrong answer if the row has one."""
    tokens, found = _prompt(given, model).tokens, marked_answers(given, model.tokenizer)
    return [Prompt(tokens, answer, labels) for answer, labels in found]


def _prompt(given: Any, model: Model) -> Prompt:
    vocab = model.target.vocab
    if isinstance(given, str):
        return Prompt(tuple(encode(model.tokenizer, given, vocab)))
    assert isinstance(given, Mapping)
    messages = given.get("messages")
    if messages:
        if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
            raise ValueError('"messages" is a list of objects with "role" and "content"')
        answer = messages[-1].get("content") if messages[-1].get("role") == "assistant" else None
        if answer is None and messages[-1].get("role") == "assistant":
            raise ValueError("the last message has no content: leave it out, or give its text")
        question = messages[:-1] if answer is not None else messages
        tokens = encode(model.tokenizer, question, vocab)
    else:
        answer = given.get("answer")
        tokens = encode(model.tokenizer, given["prompt"], vocab)
    return Prompt(tuple(tokens), None if answer is None else tuple(_answer(answer, model)))


def _answer(answer: Any, model: Model) -> list[int]:
    """The tokens of an answer, which follows a prompt: without special tokens at its beginning and end."""
    if isinstance(answer, str):
        tokenizer = required(model.tokenizer, "an answer in text")
        tokens = tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
    else:
        tokens = [] if not answer else encode(None, answer, model.target.vocab, "the answer")
    if not tokens:
        raise ValueError("the answer is empty: leave it out, or give it some text")
    return tokens


def _file(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows or texts of a file, each with its place for messages."""
    if not path.is_file():
        raise DataError(f"there is no file {path}: give a .jsonl file with prompts, or {BUILT_IN}")
    try:
        text = read_text(path)
    except ValueError as error:
        raise DataError(str(error)) from error
    if ".jsonl" not in path.suffixes:
        yield from ((f"{path}: ", prompt) for prompt in split_prompts(text))
        return
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}: "
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{place}not JSON ({error.msg})") from error
        if not isinstance(row, dict) or not (row.get("prompt") or row.get("messages")):
            raise DataError(f'{place}a row has a "prompt" or "messages" that is not empty')
        yield place, row


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
