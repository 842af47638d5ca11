"""The formats of calls by the names that vLLM's server has for its parsers, and the choice among them."""

from __future__ import annotations

import re
from typing import Any

from outpace.serving.http.tool_calls.call_format import CallFormat
from outpace.serving.http.tool_calls.glm45 import Glm45
from outpace.serving.http.tool_calls.hermes import Hermes
from outpace.serving.http.tool_calls.llama3_json import LlamaJson
from outpace.serving.http.tool_calls.mistral import Mistral
from outpace.serving.http.tool_calls.pythonic import Pythonic
from outpace.serving.http.tool_calls.qwen3_coder import Qwen3Coder

FORMATS: dict[str, CallFormat] = {
    "hermes": Hermes(),
    "qwen3_coder": Qwen3Coder(),
    "qwen3_xml": Qwen3Coder(),
    "glm45": Glm45(),
    "glm47": Glm45(),
    "llama3_json": LlamaJson(),
    "llama4_json": LlamaJson(),
    "pythonic": Pythonic(),
    "llama4_pythonic": Pythonic(),
    "mistral": Mistral(),
}
NAME = "probe_tool"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
CALL = {"id": "123456789", "type": "function", "function": {"name": NAME, "arguments": {"key": "x"}}}
MESSAGES = [
    {"role": "user", "content": "Call the tool."},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
]
# what a template writes for CALL, or what its source has
WRITTEN = {
    "glm45": rf"<tool_call>\s*{NAME}\s*<arg_key>|<arg_key>",
    "qwen3_coder": rf"<function={NAME}>|<function=",
    "mistral": r"\[TOOL_CALLS\]",
    "hermes": r"<tool_call>",
    "pythonic": rf"\[{NAME}\(",
    "llama3_json": rf'\{{"name":\s*"{NAME}",\s*"parameters"|<\|python_tag\|>',
}


def format_of(tokenizer: Any, name: str | None) -> CallFormat:
    """The format of this name; None: that in which the tokenizer's chat template writes calls, or hermes if
    it writes none that is known. ValueError for an unknown name."""
    if name is not None:
        if name not in FORMATS:
            raise ValueError(f"there is no tool call parser {name!r}: use one of {', '.join(FORMATS)}")
        return FORMATS[name]
    source = str(getattr(tokenizer, "chat_template", None) or "")
    for text in (_written(tokenizer), source):
        for each, pattern in WRITTEN.items():
            if re.search(pattern, text):
                return FORMATS[each]
    return FORMATS["hermes"]


def _written(tokenizer: Any) -> str:
    """What the chat template writes for a call; empty if it refuses."""
    try:
        given = [dict(each) for each in MESSAGES]
        without = tokenizer.apply_chat_template(given[:1], tools=[TOOL], tokenize=False)
        written = tokenizer.apply_chat_template(given, tools=[TOOL], tokenize=False)
    except Exception:  # a template is a program
        return ""
    # only the call: instructions before it may show other formats
    return written.removeprefix(without)
