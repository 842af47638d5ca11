"""How models mark their reasoning, by the names that vLLM's server has for its parsers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from outpace.sampling.thinking import Phase

NONE = "none"
TAIL = 64  # tokens at the end of a prompt that are searched for a tag


@dataclass(frozen=True)
class Reasoning:
    """The tags around reasoning."""

    start: str
    end: str
    is_always: bool = False  # whether a text begins with reasoning even without the start tag

    def phase_after(self, prompt: str, prefill: str | None) -> Phase:
        """What a text begins with. `prompt`: its end suffices. `prefill`: the part of the answer that the
        prompt ends with, if it has any."""
        if prefill is not None and (begin := prefill.rfind(self.start)) >= 0:
            return Phase.ANSWER if self.end in prefill[begin:] else Phase.THINKING
        end = prompt.rstrip()
        if end.endswith(self.start):
            return Phase.THINKING
        if prefill or end.endswith(self.end):
            return Phase.ANSWER
        return Phase.THINKING if self.is_always else Phase.UNDECIDED


THINK = Reasoning("<think>", "</think>")
FORMATS = {
    "deepseek_r1": replace(THINK, is_always=True),
    "deepseek_v3": THINK,
    "qwen3": THINK,
    "glm45": THINK,
    "kimi_k2": THINK,
    "olmo3": THINK,
    "granite": Reasoning("Here is my thought process:", "Here is my response:"),
    "mistral": Reasoning("[THINK]", "[/THINK]"),
    "seed_oss": Reasoning("<seed:think>", "</seed:think>"),
}


def reasoning_of(tokenizer: Any, name: str | None) -> Reasoning | None:
    """The format of this name; None: that of which the tokenizer's chat template has the end tag. None if
    there is none, or for the name "none". ValueError for an unknown name."""
    if name is None:
        source = str(getattr(tokenizer, "chat_template", None) or "")
        found = (each for each in FORMATS.values() if each.end in source and not each.is_always)
        return next(found, None)
    if name not in (NONE, *FORMATS):
        known = ", ".join([*FORMATS, NONE])
        raise ValueError(f"there is no reasoning parser {name!r}: use one of {known}")
    return FORMATS.get(name)
