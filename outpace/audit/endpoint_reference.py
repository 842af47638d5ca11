"""Another server as the reference: the same model without speculation.

A server that gives the log probabilities of prompts, as those of vLLM and outpace do, states the most
probable tokens after every beginning of a text. Of any other only texts are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from outpace.audit.endpoint import Answer, Endpoint, EndpointError
from outpace.audit.reference import Scored
from outpace.audit.scored_text import ScoredText
from outpace.audit.setting import GREEDY, PLAIN, Rounding, Setting

NUM_TOP = 20  # most probable tokens that vLLM's server gives at most by default
VOCAB = 1 << 19  # above all token ids


@dataclass
class EndpointReference:
    """Implementation of Reference by a server."""

    endpoint: Endpoint
    rounding: Rounding
    vocab: int = VOCAB

    @property
    def name(self) -> str:
        """Its address."""
        return self.endpoint.url

    @cached_property
    def _root(self) -> Endpoint:
        """The server without the path of OpenAI's API: vLLM's and ours tokenize there."""
        own = self.endpoint
        return Endpoint(own.url.removesuffix("/v1"), own.model, own.key, own.seconds)

    @cached_property
    def has_prompt_log_probs(self) -> bool:
        """Whether it reads a text as token ids and gives the log probability of each."""
        try:
            tokens = self.encode("Hello, world")
            return tokens is not None and len(self._rows(tokens)) == len(tokens)
        except EndpointError:
            return False

    def encode(self, prompt: str) -> list[int] | None:
        try:
            found = self._root.post("/tokenize", {"prompt": prompt})
            return [int(each) for each in found["tokens"]]
        except (EndpointError, KeyError, TypeError, ValueError):
            return None

    def read(self, answer: Answer) -> list[int] | None:
        return None if answer.token_ids is None else list(answer.token_ids)

    def states(self, setting: Setting) -> bool:
        return setting == PLAIN and self.has_prompt_log_probs

    def score(self, prompt: Sequence[int], tokens: Sequence[int], setting: Setting) -> Scored:
        probs, ids, columns, log_probs = list[list[float]](), list[list[int]](), list[int](), list[float]()
        for row, token in zip(self._rows([*prompt, *tokens])[len(prompt) :], tokens, strict=True):
            # the token itself is listed beside the most probable ones: which columns there are must not
            # depend on what was drawn
            top = sorted(
                ((each["logprob"], int(id)) for id, each in row.items() if each["rank"] <= NUM_TOP),
                reverse=True,
            )[:NUM_TOP]
            own = [math.exp(value) for value, _ in top] + [0.0] * (NUM_TOP - len(top))
            rest = max(0.0, 1 - sum(own))
            names = [id for _, id in top] + [VOCAB] * (NUM_TOP - len(top))
            probs.append([each / (sum(own) + rest) for each in (*own, rest)])
            ids.append([*names, VOCAB])
            log_probs.append(row[str(token)]["logprob"])
            columns.append(names.index(token) if token in names else NUM_TOP)
        known = [token if at < NUM_TOP else VOCAB for token, at in zip(tokens, columns, strict=True)]
        text = ScoredText(
            torch.tensor(probs, dtype=torch.float64),
            torch.tensor(ids),
            torch.tensor(columns),
            range(len(tokens)),
            known,
            prompt,
            VOCAB,
        )
        return Scored(text, tokens, log_probs)

    def gaps(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        rows = self._rows([*prompt, *tokens])[len(prompt) :]
        return [
            max(each["logprob"] for each in row.values()) - row[str(token)]["logprob"]
            for row, token in zip(rows, tokens, strict=True)
        ]

    def text_gap(self, prompt: str, answer: Answer, max_tokens: int) -> float | None:
        own = self.endpoint.complete(prompt, max_tokens, **GREEDY.fields)
        if own.text == answer.text:
            return 0.0
        if own.words is None or own.tops is None or answer.words is None:
            return None
        pairs = zip(own.words, answer.words, own.tops, strict=False)
        found = next(((mine, word, top) for mine, word, top in pairs if mine != word), None)
        if found is None:
            return None  # one text ended earlier, and the token that ended it has no log probability
        mine, word, top = found
        if mine not in top:
            return None
        lowest = min(top.values())
        gap = top[mine] - top.get(word, lowest)
        # a token that is not listed has at least this gap
        return gap if word in top or gap > self.rounding.tie else None

    def describe(self, prompt: str, answer: Answer, setting: Setting) -> dict[str, float]:
        return {}

    def sample(self, prompt: str, setting: Setting, max_tokens: int, seed: int) -> Answer:
        given: dict[str, Any] = {"seed": seed} if "seed" not in self.endpoint.refused else {}
        return self.endpoint.complete(prompt, max_tokens, **setting.fields, **given)

    def _rows(self, tokens: list[int]) -> list[Mapping[str, Any]]:
        """Of each token the log probabilities there, by token id; of the first an empty row."""
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": NUM_TOP}
        found = self.endpoint.post("/completions", body)
        try:
            rows: list[Mapping[str, Any]] = [each or {} for each in found["choices"][0]["prompt_logprobs"]]
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError(f"{self.name} gives no log probabilities of a prompt") from error
        if len(rows) != len(tokens):
            raise EndpointError(f"{self.name} gives {len(rows)} log probabilities for {len(tokens)} tokens")
        return rows
