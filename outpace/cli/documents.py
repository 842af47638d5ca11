"""Texts to index: files, folders, and JSON with texts or tokens, such as what was generated before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

TOKENS = ("tokens", "token_ids")  # names of lists of numbers; `text` is tokenised


def sources(paths: Sequence[Path]) -> list[Path]:
    """The files behind these paths: of a folder all in it, hidden ones left out."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (each.relative_to(path) for each in sorted(path.rglob("*")))
            found += [path / each for each in inside if not any(part.startswith(".") for part in each.parts)]
        elif path.is_file():
            found.append(path)
        else:
            raise ValueError(f"there is no {path}: give --from files, folders or .jsonl files")
    return [path for path in found if path.is_file()]


def documents(
    paths: Sequence[Path], encode: Callable[[str], list[int]], vocab: int, tell: Callable[[int], None]
) -> Iterator[list[int]]:
    """Tokens of one document after another; `tell` hears how many bytes were read.

    A line of a .jsonl file, or a result in the JSON that `outpace generate --json` prints, is a document, and so is
    any other file that is UTF-8 text.
    """
    for path in paths:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _tokens(_parsed(line, f"{path}:{number}"), encode, vocab, f"{path}:{number}")
                    tell(len(line))
            continue
        data = path.read_bytes()
        if path.suffix == ".json" and (results := _results(data)) is not None:
            for number, each in enumerate(results):
                yield _tokens(each, encode, vocab, f"{path}, result {number},")
        else:
            try:
                yield encode(data.decode())
            except UnicodeDecodeError:
                raise ValueError(f"{path} is no UTF-8 text: leave it out, or convert it") from None
        tell(len(data))


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise ValueError(f"{where} is no JSON: each line of a .jsonl file is an object of its own") from None


def _results(data: bytes) -> list[Any] | None:
    """What `outpace generate --json` printed; None for other JSON, which is text like any other."""
    try:
        found = json.loads(data)["results"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None


def _tokens(item: Any, encode: Callable[[str], list[int]], vocab: int, where: str) -> list[int]:
    if isinstance(item, dict):
        for name in TOKENS:
            tokens = item.get(name)
            if isinstance(tokens, list) and all(type(each) is int for each in tokens):
                if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
                    raise ValueError(
                        f"{where} has tokens beyond the {vocab} of --tokenizer: give the model's own"
                    )
                return tokens
        if isinstance(item.get("text"), str):
            return encode(item["text"])
    raise ValueError(f'{where} has neither "text" nor a list of numbers as "tokens" or "token_ids": add one')
