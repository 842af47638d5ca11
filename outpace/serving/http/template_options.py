"""What a request says about the chat template."""

from __future__ import annotations

import inspect
import re
from typing import Any

from outpace.serving.http.schemas.conversation import ConversationBody

SWITCHES = ("enable_thinking", "thinking")  # variables of chat templates that turn thinking on and off


def template_options(tokenizer: Any, body: ConversationBody) -> dict[str, Any]:
    """The variables that the chat template gets. ValueError for one that it does not read, and for a template
    of the request's own."""
    if body.chat_template is not None:
        raise ValueError("chat_template is a program and not taken from requests: use serve --chat-template")
    given = body.chat_template_kwargs or {}
    own = inspect.signature(tokenizer.apply_chat_template).parameters
    for name in given:
        if name in own or not _reads(tokenizer, name):
            what = "is no variable of a chat template" if name in own else "is not read by the chat template"
            raise ValueError(f"chat_template_kwargs has {name!r:.60}, which {what}: leave it out")
    options: dict[str, Any] = {}
    if body.effort is not None:
        options = dict.fromkeys(SWITCHES, body.effort != "none") | {"reasoning_effort": body.effort}
    return {name: value for name, value in options.items() if _reads(tokenizer, name)} | given


def _reads(tokenizer: Any, name: str) -> bool:
    """Whether the source of the chat template has the name."""
    return re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)) is not None
