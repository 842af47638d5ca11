"""Which optional fields of requests a server takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outpace.audit.endpoint import Answer, Endpoint, Refused
from outpace.audit.setting import GREEDY

TOKEN_IDS, LOG_PROBS, SEED = "return_token_ids", "logprobs", "seed"
# what a checkpoint's generation_config.json may set otherwise, at servers that apply it
NEUTRAL = "top_k, min_p and repetition_penalty"
FIELDS: Mapping[str, Mapping[str, Any]] = {
    TOKEN_IDS: {"return_token_ids": True},
    LOG_PROBS: {"logprobs": 5},
    NEUTRAL: {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    SEED: {"seed": 1},
}
TOKENS = 4  # of the text that is asked for


def probe(server: Endpoint, prompt: str, ids: list[int] | None) -> tuple[Answer, bool]:
    """Ask for a short text with all optional fields, and again without those that the server refuses, which
    are remembered. Returns the answer, and whether the prompt was sent as token ids (`ids`; None: unknown).
    Refused if the server refuses the request without them too."""
    fields, as_ids = dict(FIELDS), ids is not None
    while True:
        server.fields = [each for name, each in fields.items() if name != SEED]
        sent = ids if as_ids and ids is not None else prompt
        try:
            return server.complete(sent, TOKENS, **GREEDY.fields, **fields.get(SEED, {})), as_ids
        except Refused as error:
            said = str(error)
            named = [name for name, each in fields.items() if any(field in said for field in each)]
            if as_ids and ("prompt" in said or not fields) and not named:
                as_ids = False
            elif fields:
                name = next(iter(named or fields))
                server.refused[name] = said
                del fields[name]
            else:
                raise
