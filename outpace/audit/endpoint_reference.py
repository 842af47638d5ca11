"""Another server as the reference: the same model without speculation.

A server that gives the log probabilities of prompts, as those of vLLM and outpace do, states the most
probable tokens after every beginning of a text. Of any other only texts are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

import torch

from outpace.audit.endpoint import Answer, Endpoint, EndpointError
from outpace.audit.probe import SEED, probe
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
    _is_probed: bool = False  # whether the fields that it refuses are known

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
            top = sorted((each.log_prob, id) for id, each in row.items() if each.rank <= NUM_TOP)[::-1]
            top = [*top[:NUM_TOP], *[(float("-inf"), VOCAB)] * (NUM_TOP - len(top))]
            own, names = [exp(value) for value, _ in top], [id for _, id in top]
            rest = max(0.0, 1 - sum(own))
            probs.append([each / (sum(own) + rest) for each in (*own, rest)])
            ids.append([*names, VOCAB])
            log_probs.append(row[token].log_prob)
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
            max(each.log_prob for each in row.values()) - row[token].log_prob
            for row, token in zip(rows, tokens, strict=True)
        ]

    def text_gap(self, prompt: str, answer: Answer, max_tokens: int) -> float | None:
        own = self.sample(prompt, GREEDY, max_tokens, 0)
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
        if not self._is_probed:
            probe(self.endpoint, prompt, None)
            self._is_probed = True
        given: dict[str, Any] = {} if SEED in self.endpoint.refused else {"seed": seed}
        return self.endpoint.complete(prompt, max_tokens, **setting.fields, **given)

    def _rows(self, tokens: list[int]) -> list[dict[int, _Listed]]:
        """Of each token those that are listed there, by token id; of the first an empty row. EndpointError if
        they are not, or not with the token itself."""
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": NUM_TOP}
        found = self.endpoint.post("/completions", body)
        try:
            rows = [_listed(row or {}) for row in found["choices"][0]["prompt_logprobs"]]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EndpointError(f"{self.name} gives no log probabilities of a prompt") from error
        if len(rows) != len(tokens) or any(
            token not in row for token, row in zip(tokens[1:], rows[1:], strict=True)
        ):
            raise EndpointError(f"{self.name} gives no log probability of some tokens of a prompt")
        return rows


@dataclass(frozen=True)
class _Listed:
    """A token that a server lists at a position of a prompt."""

    log_prob: float
    rank: int  # 1: no token is more probable


def _listed(row: Mapping[str, Any]) -> dict[int, _Listed]:
    return {int(id): _Listed(float(each["logprob"]), int(each["rank"])) for id, each in row.items()}
