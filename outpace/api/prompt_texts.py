"""Reading files of prompts: plain or compressed, one prompt a line or several lines between separators."""

from __future__ import annotations

import gzip
from pathlib import Path

SEPARATOR = "---"  # line between two prompts of a text file


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, decompressed if its name ends with .gz. ValueError for another file."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return file.read()
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (at byte {error.start}): convert it to UTF-8") from error
    except gzip.BadGzipFile as error:
        raise ValueError(f"{path} is not compressed by gzip ({error}): give it another name") from error


def split_lines(text: str) -> list[str]:
    """The lines of a text, without their line feeds. Form feeds and U+2028, at which `str.splitlines` cuts
    too, are part of a line: JSON strings and source code have them."""
    return text.removesuffix("\n").split("\n")


def split_prompts(text: str) -> list[str]:
    """The prompts of a text: those between separators or, without any, each line."""
    lines = split_lines(text)
    if SEPARATOR not in lines:
        return [line for line in lines if line.strip()]
    prompts: list[list[str]] = [[]]
    for line in lines:
        if line == SEPARATOR:
            prompts.append([])
        else:
            prompts[-1].append(line)
    return [prompt for lines in prompts if (prompt := "\n".join(lines)).strip()]
