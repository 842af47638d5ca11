"""Fields of the routes that continue a conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from outpace.serving.http.schemas.fields import Flag, SamplingBody

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ConversationBody(SamplingBody):
    """Fields that the JSON bodies of /v1/chat/completions and /v1/responses share, named as in vLLM's
    server."""

    chat_template: str | None = None  # refused: it is a program
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the chat template
    thinking_token_budget: Annotated[int, Strict(), Field(ge=-1)] | None = None  # -1: no limit
    include_reasoning: Flag | None = None  # false: the answer alone
    parallel_tool_calls: Flag | None = None  # false: refused unless a call is forced, which is one

    @property
    def effort(self) -> Effort | None:
        """How much the model is to think; "none": not at all; None: as it does by default."""
        return None
