"""The body of a completion request, as the OpenAI API defines it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outpace.bench.load.endpoint import Endpoint
from outpace.bench.measure.workload import WorkloadItem


@dataclass(frozen=True)
class RequestOptions:
    """What all requests of a load test have in common."""

    endpoint: Endpoint
    max_tokens: int
    temperature: float
    ignore_eos: bool = False

    def body(self, item: WorkloadItem, model: str, seed: int, extra: Mapping[str, Any]) -> bytes:
        """The JSON body of a streaming request for one prompt; of a conversation, its first turn. Fields of
        `extra` replace others."""
        text = item.turns[0]
        prompt = (
            {"messages": [{"role": "user", "content": text}]}
            if self.endpoint is Endpoint.chat
            else {"prompt": text}
        )
        fields = {
            "model": model,
            **prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            # only if it is asked for: it is vLLM's field, and strict servers refuse what they do not know
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **extra,
        }
        return json.dumps(fields).encode()


def check_prompts(items: Sequence[WorkloadItem], endpoint: Endpoint) -> None:
    """ValueError if an item is a conversation and the endpoint takes texts only."""
    chats = [item.id for item in items if item.chat]
    if chats and endpoint is Endpoint.completions:
        raise ValueError(f"the prompt {chats[0]} is a conversation: use --endpoint chat, or texts as prompts")
