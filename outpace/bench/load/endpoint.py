"""The endpoints of the OpenAI API that generate text."""

from __future__ import annotations

from enum import StrEnum


class Endpoint(StrEnum):
    """The endpoint that requests are sent to."""

    chat = "chat"
    completions = "completions"

    @property
    def path(self) -> str:
        """Its path below /v1."""
        return "/chat/completions" if self is Endpoint.chat else "/completions"
