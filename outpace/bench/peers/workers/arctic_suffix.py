"""Snowflake's suffix cache (arctic-inference) as a worker: recorded texts through it, with no model and no
engine.

`replayed` is used on our side too, with our trees in place of theirs, so that both are timed by the same
lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from time import process_time
from typing import Any, Protocol

Texts = Sequence[tuple[Sequence[int], Sequence[int]]]  # prompts, and what was said


class Cache(Protocol):
    """What drafts from a request's own text and from what earlier ones said. Tokens are arrays of int32."""

    def begin(self, prompt: Any) -> None: ...
    def draft(self, context: Any, most: int) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens and the parent of each, -1 for the last token of the context."""
        ...

    def add(self, tokens: Any) -> None: ...
    def end(self) -> None: ...


def replayed(
    cache: Cache, texts: Texts, most: int, clock: Callable[[], float] = process_time
) -> list[list[float]]:
    """A text at a time: steps, tokens drafted and accepted, and seconds in the cache. A step keeps what it
    drafted rightly and gets one token more, as in decoding; `most` is the longest draft."""
    numpy = import_module("numpy")
    found: list[list[float]] = []
    for prompt, tokens in texts:
        whole, size = numpy.array([*prompt, *tokens], numpy.int32), len(prompt)
        steps = drafted = accepted = 0
        began = clock()
        cache.begin(whole[:size])
        seconds = clock() - began
        while size < len(whole):
            room = min(most, len(whole) - size - 1)
            began = clock()
            drafts, parents = cache.draft(whole[:size], room) if room else ((), ())
            seconds += clock() - began
            kept = right(drafts, parents, whole[size : size + room].tolist())
            new = whole[size : size + kept + 1]
            began = clock()
            cache.add(new)
            seconds += clock() - began
            steps, drafted, accepted = steps + 1, drafted + len(drafts), accepted + kept
            size += kept + 1
        began = clock()
        cache.end()
        seconds += clock() - began
        found.append([steps, drafted, accepted, seconds])
    return found


def right(drafts: Sequence[int], parents: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens of what was said a draft has, from its root on."""
    children = {
        (parent, token): node for node, (token, parent) in enumerate(zip(drafts, parents, strict=True))
    }
    node, kept = -1, 0
    for token in truth:
        if (node, token) not in children:
            break
        node, kept = children[node, token], kept + 1
    return kept


class Arctic:
    """Their cache with its own defaults but for what is named."""

    def __init__(self, make: Any, depth: int, settings: Mapping[str, Any]) -> None:
        self.cache, self.settings, self.request = make(max_tree_depth=depth), settings, 0

    def begin(self, prompt: Any) -> None:
        self.cache.start_request(self.request, prompt)

    def draft(self, context: Any, most: int) -> tuple[Sequence[int], Sequence[int]]:
        draft = self.cache.speculate(self.request, context, max_spec_tokens=most, **self.settings)
        return draft.token_ids, draft.parents

    def add(self, tokens: Any) -> None:
        self.cache.add_active_response(self.request, tokens)

    def end(self) -> None:
        self.cache.stop_request(self.request)
        self.request += 1


def start(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], list[list[float]]]]:
    """Nothing to load; a request names the texts and how to draft."""
    make = import_module("arctic_inference.suffix_decoding").SuffixDecodingCache

    def run(request: Mapping[str, Any]) -> list[list[float]]:
        named = {
            "max_spec_factor": request["max_spec_factor"],
            "max_spec_offset": request["max_spec_offset"],
            "min_token_prob": request["min_token_prob"],
            "use_tree_spec": request["tree"],
        }
        return replayed(Arctic(make, request["max_tree_depth"], named), request["texts"], request["depth"])

    return {}, run
