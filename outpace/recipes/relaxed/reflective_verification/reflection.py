"""The text with which a target is asked to check a draft."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reflection:
    """A fixed text between a draft and its copy. A recipe has it as an option: its default holds the text
    alone, which `recipes.configure` turns into tokens, as a recipe does not know the tokenizer."""

    text: str
    tokens: tuple[int, ...] | None = None  # token ids of the target; None: not opened

    def __str__(self) -> str:
        return self.text

    @property
    def opened(self) -> tuple[int, ...]:
        """The token ids. ValueError for a text that was not opened, and for one without tokens."""
        if self.tokens is None:
            raise ValueError(
                "the reflection is a text, and a recipe does not know the tokenizer: open it with "
                "recipes.configure, or give Reflection token ids"
            )
        if not self.tokens:
            raise ValueError("the reflection is empty: give a text or token ids")
        return self.tokens


USUAL = Reflection(" Check the last words, and write them again, corrected where they are wrong: ")
