"""Decides which requests are decoded: who joins the session, who waits, who leaves when memory runs short."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from outpace.api.row_output import RowOutput
from outpace.core.contracts import Parts, Step, Target
from outpace.core.request_state import RequestState
from outpace.core.row_error import NoTokenLeft, RowError
from outpace.decode import PROMPT_TOKENS
from outpace.engine.engine import Engine
from outpace.serving.guarded import GuardedDrafter
from outpace.serving.prompt_reader import PromptReader
from outpace.serving.request import Event, Failed, Finished, GenerationRequest
from outpace.serving.routed import routed

DRAFT_MARGIN = 64  # cache positions reckoned for each row's next draft when memory is planned
SHORTEST = 1 + DRAFT_MARGIN  # cache positions reckoned for a prompt of one token
RETAINED_BYTES = 1 << 30  # memory for the KV entries of ended requests where the KV cache has no limit
FAILED = "decoding failed: see the server's log"
log = logging.getLogger(__name__)


class Ticket:
    """A request and its state in the scheduler. Its events are passed to `on_event`; the last is Finished or
    Failed."""

    def __init__(
        self, request: GenerationRequest, on_event: Callable[[Event], None], tokenizer: Any = None
    ) -> None:
        self.request, self.on_event = request, on_event
        self.output = RowOutput(
            0,
            request.prompt,
            request.seed,
            request.settings,
            tokenizer,
            num_top=request.num_top,
            include_steps=request.include_steps,
        )
        params = request.settings.row_params(request.seed, request.max_new_tokens)
        self.state = RequestState(torch.tensor(request.prompt, dtype=torch.int64), params)


class Scheduler:
    """Requests wait in a queue, join the session when a row and memory are free, and leave it when they end.

    When memory runs short, the requests that joined last leave the session and wait again, before all others;
    they lose nothing but time, since the target reads their texts again.

    With the prefix cache the target does not read the longest beginning that a joining request has in common
    with a running request, or with one that ended before and whose KV entries are still in memory.
    """

    def __init__(
        self,
        methods: Mapping[str, Parts],  # by name; a request uses the first unless it names another
        *,
        max_rows: int = 16,  # most requests that are decoded at the same time
        drafts: Sequence[Target] = (),  # the methods' draft models
        kv_bytes: int | None = None,  # memory for the KV caches of target and drafts; None: no limit
        prefix_cache: bool = True,  # it has no effect if a method needs the target's outputs at prompts
        prompt_tokens: int = PROMPT_TOKENS,  # most prompt tokens that one step reads
        on_step: Callable[[Step], None] = lambda step: None,  # called before the events of a step
    ) -> None:
        """ValueError if `kv_bytes` is too little for any request."""
        self._max_rows, self._drafts, self._kv_bytes = max_rows, drafts, kv_bytes
        self._on_step = on_step
        parts, self._routes = routed(methods)
        guarded = GuardedDrafter(self._routes, parts.target.vocab, self._drafter_failed)
        self._engine = Engine[Ticket](
            replace(parts, drafter=guarded),
            done=lambda ticket, text: ticket.output.stops(text),
            on_row_error=_end_alone,
            predicts=True,
            prompt_tokens=prompt_tokens,
        )
        self._engine.share_prefixes(prefix_cache)
        self._session = self._engine.session
        if kv_bytes is not None:
            least = self._bytes_for({self._session.batch.next_slot(): SHORTEST})
            if kv_bytes < least:
                raise ValueError(
                    f"{kv_bytes} bytes for KV caches hold no prompt, not even one of one token: "
                    f"give at least {-(-least // 1024)}KiB"
                )
        self._reading: tuple[Ticket, PromptReader] | None = None  # a waiting request whose prompt is read
        self.waiting: deque[Ticket] = deque()
        self.num_preemptions = 0  # requests that left the session because memory ran short
        self.num_drafter_errors = 0  # exceptions raised by drafters
        self.num_queried_tokens = 0  # prompt tokens that were looked up in the prefix cache
        self.num_cached_tokens = 0  # those of them that were found

    @property
    def running(self) -> dict[int, Ticket]:
        """The requests that are being decoded, by slot, in the order in which they joined."""
        return self._engine.running

    @property
    def num_bytes(self) -> int:
        """Memory that the requests being decoded hold in the target's KV cache, in bytes."""
        return self._session.cache.num_bytes

    @property
    def retained_bytes(self) -> int:
        """Memory that the prefix cache retains for later requests, in bytes."""
        prefix_cache = self._engine.prefix_cache
        return 0 if prefix_cache is None else prefix_cache.retained_bytes

    @property
    def draft_bytes(self) -> int:
        """Memory that the draft models' KV caches hold, in bytes."""
        return sum(cache.num_bytes for draft in self._drafts for cache in draft.caches)

    @property
    def num_free_rows(self) -> int:
        """Number of requests that can join besides those being decoded, if memory suffices."""
        return self._max_rows - len(self.running)

    def submit(self, ticket: Ticket) -> None:
        """Add a request to the end of the queue."""
        self.waiting.append(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """End a request, if it has not ended, and free its memory; its last event is Finished."""
        slot = self._slot_of(ticket)
        if slot is not None:
            self._engine.cancel(slot)
        elif ticket in self.waiting:
            if self._reading and self._reading[0] is ticket:
                self._reading = None
            self.waiting.remove(ticket)
        else:
            return
        ticket.on_event(Finished(ticket.output.result()))

    def step(self) -> Step | None:
        """Let requests join, decode one step and pass on its events; None if there is no request.

        An exception that concerns one request ends that request; any other ends all that are being decoded,
        and is raised.
        """
        self._schedule()
        if not self.running:
            return None
        try:
            step = self._engine.step()
            if step is not None:
                self._on_step(step)
        except Exception:
            self._engine.close()
            self._session.cache.discard()
            for ticket in self.running.values():
                ticket.on_event(Failed(FAILED, ticket.output.result(), True))
            self.running.clear()
            raise
        if step is not None:  # else a RowError ended the last request
            self._deliver(step)
        if not self.running:
            self._engine.close()
        return step

    def _deliver(self, step: Step) -> None:
        for new in self._engine.new_tokens(step):
            ticket, slot = new.owner, step.ctx.slots[new.row]
            try:
                ticket.on_event(ticket.output.add(new))
            except Exception:  # of the tokenizer, for one: the others go on
                log.exception("the output of the request in slot %s cannot be passed on", slot)
                if not new.finished:
                    self._engine.cancel(slot)
                ticket.on_event(Failed(FAILED, ticket.output.result(), True))
            else:
                if new.finished:
                    ticket.on_event(Finished(ticket.output.result()))

    def _schedule(self) -> None:
        """Decide who takes part in the next step."""
        if self._reading and not self._fits():
            self._reading = None  # read again later
        while self.running and not self._fits():
            ticket = self._engine.cancel(next(reversed(self.running)))
            if self.running:
                self.num_preemptions += 1
                self.waiting.appendleft(ticket)
            else:
                self._refuse(ticket)
        while self.waiting and len(self.running) < self._max_rows:
            if self._fits(self.waiting[0]):
                if not self._is_read(self.waiting[0]):
                    break
                ticket = self.waiting.popleft()
                if ticket.request.generates:
                    self._join(ticket)
                else:
                    self._end(ticket)
            elif self.running:
                break
            else:
                self._refuse(self.waiting.popleft())
        self._limit_retained()

    def _is_read(self, ticket: Ticket) -> bool:
        """Whether the log probabilities of a prompt are known, if wanted; otherwise reads a part of it."""
        num_top = ticket.request.num_prompt_top
        if num_top is None or ticket.output.prompt_logprobs is not None:
            return True
        try:
            if self._reading is None:
                target = self._session.parts.target
                self._reading = ticket, PromptReader(target, ticket.state.text(), num_top)
            _, reader = self._reading
            if reader.next_part():
                return False
        except Exception:
            # the request would be read again and again
            self._reading = None
            self.waiting.remove(ticket)
            ticket.on_event(Failed(FAILED, None, True))
            raise
        ticket.output.prompt_logprobs, self._reading = reader.found, None
        return True

    def _end(self, ticket: Ticket) -> None:
        """End a request with the text that it has."""
        ticket.output.finish()
        ticket.on_event(Finished(ticket.output.result()))

    def _limit_retained(self) -> None:
        """Leave to the prefix cache what the next step does not need."""
        prefix_cache = self._engine.prefix_cache
        if prefix_cache is not None:
            limit = prefix_cache.num_bytes + RETAINED_BYTES
            if self._kv_bytes is not None:
                limit = self._kv_bytes - self._draft_bytes_for(self._lengths()) - self._reading_bytes()
            prefix_cache.limit(limit)

    def _join(self, ticket: Ticket) -> None:
        request, state, slot = ticket.request, ticket.state, None
        begins = state.num_cached is None
        prediction = () if request.max_draft_depth == 0 else request.prediction
        try:
            slot = self._engine.rejoin(ticket, state, prediction)
            self._routes.choose(slot, request.method, request.max_draft_depth)
        except Exception:
            # the request is neither waiting nor running, and would never end
            if slot is not None:
                self._engine.cancel(slot)
            ticket.on_event(Failed(FAILED, ticket.output.result(), True))
            raise
        if begins and state.num_cached is not None:
            ticket.output.num_cached_tokens = state.num_cached
            self.num_queried_tokens += state.prompt_length
            self.num_cached_tokens += state.num_cached

    def _refuse(self, ticket: Ticket) -> None:
        """End a request whose text does not fit into memory even alone."""
        if ticket.state.output():
            self._end(ticket)
        else:
            reason = f"a prompt of {ticket.state.length} tokens does not fit into the server's KV cache"
            ticket.on_event(Failed(f"{reason}: shorten it", None, False))

    def _fits(self, joining: Ticket | None = None) -> bool:
        """Whether memory suffices for the next step of the running requests, and of one that would join."""
        if self._kv_bytes is None:
            return True
        lengths = self._lengths()
        if joining is not None:
            lengths[self._session.batch.next_slot()] = joining.state.length + DRAFT_MARGIN
        return self._bytes_for(lengths) + self._reading_bytes(joining) <= self._kv_bytes

    def _bytes_for(self, lengths: Mapping[int, int]) -> int:
        """Memory that all KV caches would hold with at least `lengths[slot]` cache positions, in bytes."""
        return self._session.cache.bytes_for(lengths) + self._draft_bytes_for(lengths)

    def _reading_bytes(self, joining: Ticket | None = None) -> int:
        """Memory in which a prompt is read. It is free again when that request joins, in bytes."""
        if self._reading is None or self._reading[0] is joining:
            return 0
        return self._reading[1].num_bytes

    def _lengths(self) -> dict[int, int]:
        """Slot -> cache positions that the running request in it needs in the next step."""
        return {slot: ticket.state.length + DRAFT_MARGIN for slot, ticket in self.running.items()}

    def _draft_bytes_for(self, lengths: Mapping[int, int]) -> int:
        """Memory in bytes that the draft models' KV caches would hold with at least `lengths[slot]` cache
        positions. A slot that none of a model's caches has yet counts as if the model would draft for it."""
        needed = 0
        for draft in self._drafts:
            caches, new = draft.caches, dict(lengths)
            for cache in caches:
                held = [slot for slot in lengths if slot < len(cache.lengths) and cache.lengths[slot]]
                needed += cache.bytes_for({slot: lengths[slot] for slot in held})
                for slot in held:
                    new.pop(slot, None)
            first = max((cache.capacity for cache in caches), default=self._session.cache.capacity)
            needed += sum(max(length, first) for length in new.values()) * draft.token_bytes
            needed += len(new) * draft.state_bytes
        return needed

    def _slot_of(self, ticket: Ticket) -> int | None:
        return next((slot for slot, each in self.running.items() if each is ticket), None)

    def _drafter_failed(self, slot: int | None, error: Exception) -> None:
        self.num_drafter_errors += 1
        log.error("the drafter failed in slot %s; its request goes on without drafts", slot, exc_info=error)


def _end_alone(ticket: Ticket, error: RowError) -> None:
    by_server = not isinstance(error, NoTokenLeft)
    ticket.on_event(Failed(str(error), ticket.output.result(), by_server))
