"""Which tokens follow one another in the prompts of one language or domain: tells whether a new prompt is of
their kind."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf, log
from pathlib import Path
from statistics import median
from typing import Any

FILE = "prompts.json"  # in the folder of a draft model
MAX_PROMPT = 1024  # tokens of a prompt that are read; of longer prompts the last ones
MAX_PAIRS = 50_000  # most frequent pairs that are kept
PRIOR = 4.0  # pairs that the frequencies of single tokens count for, after each token
NO_TOKEN = -1  # before a prompt of one token
SHARE = 1 / 3  # a low one: that another profile fits better tells more than how well one fits
FOLDS = 5  # parts of the prompts, each of which is compared with the others

Counts = Mapping[int, int]
Pairs = Mapping[tuple[int, int], int]


class ProfileError(ValueError):
    """A profile cannot be made or read; the message is for users."""


class PromptProfile:
    """Numbers of tokens and of pairs of tokens in prompts of one kind.

    The likelihood of a prompt is the mean logarithm of the probability of each token after the one before it;
    frequencies of pairs are smoothed by those of single tokens. Tokens are the target's, so that no alphabet
    and no way of dividing texts into words is assumed."""

    def __init__(self, vocab: int, tokens: Counts, pairs: Pairs, least: float) -> None:
        """`least`: the smallest likelihood of a prompt of this kind."""
        self.vocab, self.tokens, self.pairs, self.least = vocab, tokens, pairs, least
        self._total = sum(tokens.values())
        self._followed = Counter[int]()  # token -> number of pairs that begin with it
        for (token, _), count in pairs.items():
            self._followed[token] += count

    @staticmethod
    def learned(prompts: Sequence[Sequence[int]], vocab: int) -> PromptProfile:
        """The profile of these prompts, of a token or more each. The least likelihood exceeds that of equally
        likely tokens by `SHARE` of what the median of these prompts does, each under the profile of others:
        new prompts may have words that none of these has. ProfileError for fewer than two prompts."""
        if len(prompts) < 2:
            raise ProfileError(f"there are {len(prompts)} prompts: give two or more, better hundreds")
        found: list[float] = []
        for fold in range(min(FOLDS, len(prompts))):
            others = [prompt for index, prompt in enumerate(prompts) if index % FOLDS != fold]
            of_others = PromptProfile(vocab, *_counted(others), least=-inf)
            found += [of_others.likelihood(prompt) for prompt in prompts[fold::FOLDS]]
        chance = -log(vocab)
        return PromptProfile(vocab, *_counted(prompts), least=chance + SHARE * (median(found) - chance))

    def likelihood(self, prompt: Sequence[int]) -> float:
        """The mean logarithm of the probabilities of the prompt's tokens after the first; of a single token,
        that of its own."""
        pairs = list(pairwise(prompt[-MAX_PROMPT:])) or [(NO_TOKEN, prompt[0])]
        return sum(log(self._prob(*pair)) for pair in pairs) / len(pairs)

    def _prob(self, before: int, token: int) -> float:
        alone = (self.tokens.get(token, 0) + 0.5) / (self._total + 0.5 * self.vocab)
        after = self.pairs.get((before, token), 0) + PRIOR * alone
        return after / (self._followed[before] + PRIOR)

    def save(self, folder: Path) -> None:
        """Write the profile into a folder."""
        data = {
            "vocab": self.vocab,
            "least": self.least,
            "tokens": [[*each] for each in self.tokens.items()],
            "pairs": [[*pair, count] for pair, count in self.pairs.items()],
        }
        partial = folder / f"{FILE}.partial"
        partial.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
        os.replace(partial, folder / FILE)

    @staticmethod
    def load(folder: Path) -> PromptProfile:
        """Read the profile in a folder. ProfileError if there is none."""
        path = folder / FILE
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            tokens = {int(token): int(count) for token, count in data["tokens"]}
            pairs = {(int(a), int(b)): int(count) for a, b, count in data["pairs"]}
            return PromptProfile(int(data["vocab"]), tokens, pairs, float(data["least"]))
        except OSError as error:
            raise ProfileError(
                f"{folder} has no file {FILE}, by which requests are routed: "
                "`outpace train multilingual-drafter` writes it, with --set steps=0 beside unchanged weights"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise ProfileError(f"{path} cannot be read: restore it") from error


def _counted(prompts: Sequence[Sequence[int]]) -> tuple[Counts, Pairs]:
    tokens, pairs = Counter[int](), Counter[tuple[int, int]]()
    for prompt in prompts:
        tokens.update(prompt[-MAX_PROMPT:])
        pairs.update(pairwise(prompt[-MAX_PROMPT:]))
    return dict(tokens), dict(pairs.most_common(MAX_PAIRS))
