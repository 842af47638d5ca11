"""Answers with a token behind every fragment of a program (Xu et al. 2025): identifiers, keywords and
operators, as Python's tokenizer finds them.

Prompts have none, as they have none when the target answers later."""

from __future__ import annotations

import io
import tokenize
from typing import Any

from outpace.training.texts import Example

SIGNIFICANT = (tokenize.NAME, tokenize.OP)  # keywords are names


def with_fragments(example: Example, tokenizer: Any, marker: int) -> Example:
    """The text with the token `marker` behind each of its generated tokens with which a fragment ends.
    Without the markers it is the same text; a fragment that ends inside a token has none."""
    ends, tokens = _ends(_decoded(tokenizer, example.tokens)), list(example.tokens[: example.first])
    for place in range(example.first, len(example.tokens)):
        tokens.append(example.tokens[place])
        if len(_decoded(tokenizer, example.tokens[: place + 1])) in ends:
            tokens.append(marker)
    return Example(tuple(tokens), example.first)


def _decoded(tokenizer: Any, tokens: tuple[int, ...]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _ends(text: str) -> set[int]:
    """Where the fragments of a text end, in characters from its beginning; up to the first place that is no
    Python."""
    begins, ends = [0], set[int]()
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    try:
        for found in tokenize.generate_tokens(io.StringIO(text).readline):
            if found.type in SIGNIFICANT:
                line, column = found.end
                ends.add(begins[line - 1] + column)
    except (tokenize.TokenError, SyntaxError):  # as in a text that was cut
        pass
    return ends
