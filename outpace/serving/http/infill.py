"""Prompts for text between a beginning and an end (`suffix`), as models of code learnt to fill it in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# special tokens before the beginning, the end, and the text between them, which comes last ("PSM" of
# Bavarian et al. 2022)
MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    (
        "<\uff5cfim\u2581begin\uff5c>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<\uff5cfim\u2581end\uff5c>",
    ),  # DeepSeek-Coder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama
)


def infill(tokenizer: Any, before: Sequence[int], suffix: str) -> list[int]:
    """Token ids of a prompt after which a model writes the text between `before`, token ids, and `suffix`.
    ValueError for a tokenizer without tokens for that."""
    words = tokenizer.get_vocab()
    marks = next((each for each in MARKS if all(mark in words for mark in each)), None)
    if marks is None:
        raise ValueError(
            "suffix needs a model with tokens for infilling, which this one has not: leave it out"
        )
    first, second, third = (words[mark] for mark in marks)
    begin = [] if tokenizer.bos_token_id is None or before[:1] != [tokenizer.bos_token_id] else before[:1]
    after = tokenizer(suffix, add_special_tokens=False, verbose=False)["input_ids"]
    return [*begin, first, *before[len(begin) :], second, *after, third]
