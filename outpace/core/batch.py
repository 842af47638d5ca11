"""The requests of a session: which slot each has, and what the target reads of them in the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from outpace.core.context import Context
from outpace.core.contracts import Cache, KnowsPrompts, PrefixCache, Prompt
from outpace.core.noise import Noise
from outpace.core.request_state import RequestState
from outpace.core.sampling_params import SamplingParams

# for rows that only read: their next token is known, and greedy choices use no random numbers
READING = SamplingParams()
MakeNoise = Callable[[Sequence[int], Sequence[int], Sequence[int]], Noise]  # seeds, steps, lengths of rows


class Batch:
    """Requests in slots. The rows of a step are the unfinished requests whose text the target has read up to
    the last token, or whose next chunk it reads in that step."""

    def __init__(self, cache: Cache, noise: MakeNoise, prompt_tokens: int) -> None:
        self.cache = cache
        self.requests: list[RequestState] = []  # by slot, the last request that used it
        self.rows: list[int] = []  # slots of the unfinished requests, in the order in which they joined
        self._noise, self._prompt_tokens = noise, prompt_tokens
        # finds KV entries for prefixes of new requests; None: the target reads every text from its start
        self.prefix_cache: PrefixCache | None = None

    def next_slot(self) -> int:
        """The lowest free slot; the KV cache is enlarged if it lacks it."""
        used = set(self.rows)
        slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        self.cache.grow(slot + 1)
        return slot

    def add(self, slot: int, request: RequestState) -> None:
        """Add a request in this free slot, with the KV entries that the prefix cache has of its text. The
        last token is always read, as the output at it is needed."""
        if self.prefix_cache is not None:
            self._name(self.rows)
            num_cached = self.prefix_cache.restore(slot, request.text(request.length - 1))
            if request.num_cached is None:
                request.num_cached = num_cached
        if isinstance(self.cache, KnowsPrompts):
            self.cache.begin(slot, request.prompt_length)
        self.requests[slot : slot + 1] = [request]
        self.rows.append(slot)

    def release(self, slots: Sequence[int]) -> None:
        """Remove finished or cancelled requests; their texts stay until the slots are used again."""
        self._name([slot for slot in slots if slot in self.rows])
        self.rows = [slot for slot in self.rows if slot not in slots]

    def _name(self, slots: Sequence[int]) -> None:
        """Register the committed tokens of these slots with the prefix cache."""
        if self.prefix_cache is not None:
            for slot in slots:
                self.prefix_cache.name(slot, self.requests[slot].text(self.cache.lengths[slot]))

    def num_unread(self, slot: int) -> int:
        """Number of tokens before the last one that the target has not read."""
        return self.requests[slot].length - 1 - self.cache.lengths[slot]

    def _next_part(self, unread: int) -> int:
        """Number of unread tokens that a row reads at once. Independent of the other rows, since methods see
        where a chunk ends, and what a row generates would otherwise depend on the rest of the batch."""
        return min(unread, self._prompt_tokens)

    def next_step(self, *, reads: bool = True) -> Context:
        """The state of the rows of the next step, with new noise. With `reads`, rows with unread tokens read
        their next chunk, in the order in which they joined; rows whose chunk exceeds the step's limit
        wait."""
        free = self._prompt_tokens if reads else 0
        rows, lengths, any_unread = list[int](), list[int](), False
        for slot in self.rows:
            request, unread = self.requests[slot], self.num_unread(slot)
            if unread:
                read = self._next_part(unread)
                if read > free:
                    continue
                any_unread, free, unread = True, free - read, unread - read
            if not unread:
                request.num_steps += 1
            rows.append(slot)
            lengths.append(request.length - unread)
        ctx = self._context(rows, lengths)
        if not any_unread:
            return ctx
        begins = [self.cache.lengths[slot] for slot in rows]
        return replace(ctx, unread=tuple([t[b:-1] for t, b in zip(ctx.tokens, begins, strict=True)]))

    def next_prefill(self) -> tuple[Context, list[Prompt]]:
        """The state before a prefill of unread tokens; per row these tokens and the one that follows them."""
        free, rows, parts = self._prompt_tokens, list[int](), list[Prompt]()
        for slot in self.rows:
            read = self._next_part(self.num_unread(slot))
            if 0 < read <= free:
                free -= read
                begin = self.cache.lengths[slot]
                rows.append(slot)
                parts.append(Prompt(self.requests[slot].text(begin + read + 1)[begin:]))
        return self._context(rows, [self.cache.lengths[slot] + 1 for slot in rows]), parts

    def _context(self, rows: Sequence[int], lengths: Sequence[int]) -> Context:
        requests = [self.requests[slot] for slot in rows]
        pairs = list(zip(requests, lengths, strict=True))
        sampling = [r.sampling if r.length == end else READING for r, end in pairs]
        return Context(
            tokens=tuple([r.text(length) for r, length in pairs]),
            committed=tuple(lengths),
            max_draft_depth=tuple([r.max_draft_depth if r.length == end else 0 for r, end in pairs]),
            slots=tuple(rows),
            cache=self.cache,
            sampling=tuple(sampling),
            noise=self._noise([s.seed for s in sampling], [r.num_steps for r in requests], lengths),
            prompt_lengths=tuple([r.prompt_length for r in requests]),
        )
