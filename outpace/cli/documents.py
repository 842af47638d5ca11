"""Reads documents to index: text files, folders, and JSON with texts or token ids, such as results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

TOKEN_FIELDS = ("tokens", "token_ids")  # JSON fields with token ids; without them the field "text" is encoded
PROMPT_FIELDS = ("messages", "prompt")  # JSON fields of prompts, as in the files of generate, bench and train


def sources(paths: Sequence[Path]) -> list[Path]:
    """The given files and all files in the given folders, hidden ones in folders excepted.

    Raises ValueError for a path that does not exist, or if there are no files.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (each.relative_to(path) for each in sorted(path.rglob("*")))
            visible = (each for each in inside if not any(part.startswith(".") for part in each.parts))
            files += [path / each for each in visible if (path / each).is_file()]
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(f"there is no {path}: give --from files, folders or .jsonl files")
    if not files:
        raise ValueError("there are no files in the folders of --from: give others")
    return files


def documents(
    paths: Sequence[Path],
    encode: Callable[[str], list[int]],
    vocab: int,
    on_progress: Callable[[int], None],
    encode_prompt: Callable[[Any], list[int]] | None = None,
) -> Iterator[list[int]]:
    """Yield the token ids of each document; `on_progress` is called with the number of bytes just read.

    A document is a line of a .jsonl file, a result in the JSON that `outpace generate --json` prints, or any
    other file of UTF-8 text. With `encode_prompt`, for an index of prompts, a line or result with a "prompt"
    or "messages" is that prompt. Raises ValueError for other contents and for token ids of `vocab` or more.
    """
    for path in paths:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        where = f"{path}:{number}"
                        yield _tokens(_parsed(line, where), encode, vocab, where, encode_prompt)
                    on_progress(len(line))
            continue
        data = path.read_bytes()
        if path.suffix == ".json" and (results := _results(data)) is not None:
            for number, result in enumerate(results):
                yield _tokens(result, encode, vocab, f"{path}, result {number},", encode_prompt)
        else:
            try:
                yield encode(data.decode())
            except UnicodeDecodeError:
                raise ValueError(f"{path} is not UTF-8 text: leave it out, or convert it") from None
        on_progress(len(data))


def not_empty(texts: Iterator[list[int]]) -> Iterator[list[int]]:
    """Yield the documents unchanged; ValueError at the end if all were empty."""
    num_tokens = 0
    for tokens in texts:
        num_tokens += len(tokens)
        yield tokens
    if not num_tokens:
        raise ValueError("the files of --from hold no tokens, so there is nothing to index: give others")


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON: each line of a .jsonl file is an object of its own") from None


def _results(data: bytes) -> list[Any] | None:
    """The list "results" in the JSON of `outpace generate --json`; None for any other content."""
    try:
        results = json.loads(data)["results"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return results if isinstance(results, list) else None


def _tokens(
    item: Any,
    encode: Callable[[str], list[int]],
    vocab: int,
    where: str,
    encode_prompt: Callable[[Any], list[int]] | None,
) -> list[int]:
    if isinstance(item, dict):
        prompt = next((item[name] for name in PROMPT_FIELDS if item.get(name)), None)
        if encode_prompt is not None and prompt is not None:
            try:
                return encode_prompt(prompt)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        for name in TOKEN_FIELDS:
            tokens = item.get(name)
            if isinstance(tokens, list) and all(type(each) is int for each in tokens):
                if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
                    raise ValueError(
                        f"{where} has tokens beyond the {vocab} of --tokenizer: give the model's own"
                    )
                return tokens
        if isinstance(item.get("text"), str):
            return encode(item["text"])
    prompts = "" if encode_prompt is None else '"prompt", "messages", '
    raise ValueError(
        f'{where} has neither {prompts}"text" nor a list of token ids as "tokens" or "token_ids": add one'
    )
