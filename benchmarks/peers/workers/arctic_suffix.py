"""Worker that replays recorded texts through the suffix cache of Snowflake's arctic-inference, without a
model or an engine.

`benchmarks.suffix_trees` runs `replayed` with outpace's suffix trees too, so that both are timed by the same
code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from time import process_time
from typing import Any, Protocol

Texts = Sequence[tuple[Sequence[int], Sequence[int]]]  # (prompt, generated tokens) of each text


class Cache(Protocol):
    """A suffix cache that drafts from the current request's text and from earlier outputs. Token arrays are
    int32."""

    def begin(self, prompt: Any) -> None: ...
    def draft(self, context: Any, max_tokens: int) -> tuple[Sequence[int], Sequence[int]]:
        """At most `max_tokens` draft tokens, and the parent index of each; parent -1 is the last token of the
        context."""
        ...

    def add(self, tokens: Any) -> None: ...
    def end(self) -> None: ...


def replayed(
    cache: Cache, texts: Texts, max_tokens: int, clock: Callable[[], float] = process_time
) -> list[list[float]]:
    """Per text, in order: [steps, tokens drafted, tokens accepted, seconds inside the cache]. As in decoding,
    a step commits the accepted draft tokens and a bonus token; `max_tokens` is the maximum number of draft
    tokens."""
    numpy = import_module("numpy")
    found: list[list[float]] = []
    for prompt, tokens in texts:
        text, size = numpy.array([*prompt, *tokens], numpy.int32), len(prompt)
        steps = drafted = accepted = 0
        began = clock()
        cache.begin(text[:size])
        seconds = clock() - began
        while size < len(text):
            max_draft = min(max_tokens, len(text) - size - 1)
            began = clock()
            drafts, parents = cache.draft(text[:size], max_draft) if max_draft else ((), ())
            seconds += clock() - began
            num_accepted = num_correct(drafts, parents, text[size : size + max_draft].tolist())
            new = text[size : size + num_accepted + 1]
            began = clock()
            cache.add(new)
            seconds += clock() - began
            steps, drafted, accepted = steps + 1, drafted + len(drafts), accepted + num_accepted
            size += num_accepted + 1
        began = clock()
        cache.end()
        seconds += clock() - began
        found.append([steps, drafted, accepted, seconds])
    return found


def num_correct(drafts: Sequence[int], parents: Sequence[int], truth: Sequence[int]) -> int:
    """The number of leading tokens of `truth` that form a path from the root of the draft tree."""
    children = {
        (parent, token): node for node, (token, parent) in enumerate(zip(drafts, parents, strict=True))
    }
    node, num_accepted = -1, 0
    for token in truth:
        if (node, token) not in children:
            break
        node, num_accepted = children[node, token], num_accepted + 1
    return num_accepted


class Arctic:
    """arctic-inference's SuffixDecodingCache at its default settings, except for the depth and `settings`."""

    def __init__(self, make: Any, depth: int, settings: Mapping[str, Any]) -> None:
        self.cache, self.settings, self.request = make(max_tree_depth=depth), settings, 0

    def begin(self, prompt: Any) -> None:
        self.cache.start_request(self.request, prompt)

    def draft(self, context: Any, max_tokens: int) -> tuple[Sequence[int], Sequence[int]]:
        draft = self.cache.speculate(self.request, context, max_spec_tokens=max_tokens, **self.settings)
        return draft.token_ids, draft.parents

    def add(self, tokens: Any) -> None:
        self.cache.add_active_response(self.request, tokens)

    def end(self) -> None:
        self.cache.stop_request(self.request)
        self.request += 1


def start(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], list[list[float]]]]:
    """There are no models to load. Returns an empty dict of facts, and a function that replays the texts of a
    request with its settings."""
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
