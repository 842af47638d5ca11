"""The reasoning of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from outpace.api.settings import Settings
from outpace.sampling.thinking import Phase, Place, ThinkingRule, ThinkingTags
from outpace.serving.http.output import OutputParser
from outpace.serving.http.reasoning.formats import Reasoning
from outpace.serving.http.reasoning.output import ReasoningOutput


@dataclass(frozen=True)
class Thinking:
    """Reasoning that comes, or may come, before the answer."""

    reasoning: Reasoning
    tags: ThinkingTags
    is_open: bool  # whether the prompt ends with the start tag
    budget: int | None = None  # most tokens of the reasoning
    is_included: bool = True  # whether the client gets them

    def restrict(self, settings: Settings, vocab: int) -> Settings:
        """Settings with the budget, and with a grammar, if they have one, that begins with the answer."""
        make = settings.grammar
        if make is None and self.budget is None:
            return settings
        return replace(
            settings,
            grammar=lambda: ThinkingRule(
                self.tags,
                vocab,
                is_open=self.is_open,
                budget=self.budget,
                grammar=make() if make else None,
                stop=settings.ends,
            ),
        )

    def parser(self, answer: Callable[[int], OutputParser]) -> Callable[[], OutputParser]:
        """Returns a parser of a text. `answer`: returns one of the answer, which begins at this place, in
        characters."""
        return partial(
            ReasoningOutput, self.reasoning, answer, is_open=self.is_open, is_included=self.is_included
        )

    def num_tokens(self, tokens: Sequence[int]) -> int:
        """How many of the generated tokens are in the reasoning, the end tag's included."""
        return reduce(
            self.tags.after, tokens, Place(Phase.THINKING if self.is_open else Phase.UNDECIDED)
        ).num_thinking
