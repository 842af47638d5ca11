"""A load test: contenders in interleaved turns, with the same prompts and arrival times for each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from time import perf_counter

import httpx2

from outpace.bench.load.load_level import Concurrency
from outpace.bench.load.plan import LoadPlan, PlannedRequest
from outpace.bench.load.preflight import check_response, first_model
from outpace.bench.load.record import read_response
from outpace.bench.load.request_body import RequestOptions
from outpace.bench.load.server import Contender
from outpace.bench.load.speculation import read_counters
from outpace.bench.load.stream import Response, open_client, stream_completion
from outpace.bench.load.turn import Turn, closed_loop, open_loop

Progress = Callable[[str, int], None]  # takes a label and the number of units just done


class LoadTest:
    """Runs a plan and keeps its turns; `models`: name of a server -> name of its model. Turns that an
    interrupted run of the same plan has made may be put into `turns` before `run`, which goes on after them.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        plan: LoadPlan,
        options: RequestOptions,
        *,
        model: str | None = None,  # None: each server's first
        api_key: str | None = None,
        timeout: float,  # seconds a request may take
    ) -> None:
        self.contenders, self.plan, self.options = contenders, plan, options
        self.models = {each.server.name: model for each in contenders} if model else dict[str, str]()
        self.turns: list[Turn] = []
        self.reports_usage = True  # whether every server's first answer gave its number of tokens
        self._api_key, self._timeout = api_key, timeout

    @property
    def num_turns(self) -> int:
        return self.plan.rounds * len(self.plan.levels) * len(self.contenders)

    @property
    def num_units(self) -> int:
        """Units of a progress bar for the whole test."""
        return self.num_turns * self.plan.length.units

    @property
    def complete(self) -> bool:
        """Whether all turns were made to their end."""
        return len(self.turns) == self.num_turns and all(turn.complete for turn in self.turns)

    @property
    def num_requests(self) -> int:
        """Requests with an answer or a failure so far."""
        return sum(len(turn.records) for turn in self.turns)

    async def run(self, on_progress: Progress) -> None:
        """Find the models, send one request for each contender to see that it works, then make all turns.

        If the task is cancelled, the turn in progress is kept as incomplete. Raises ValueError or
        ConnectionError if a server cannot be used; failures in the turns are recorded.
        """
        async with AsyncExitStack() as stack:
            stack.callback(gc.unfreeze)
            clients: dict[str, httpx2.AsyncClient] = {}
            for server in dict.fromkeys(contender.server for contender in self.contenders):
                client = await stack.enter_async_context(open_client(self._api_key))
                clients[server.name] = client
                if server.name not in self.models:
                    self.models[server.name] = await first_model(client, server.url, timeout=self._timeout)
            for contender in self.contenders:
                await self._check(clients[contender.server.name], contender)
            turns = islice(self.plan.turns(self.contenders), len(self.turns), None)
            for round_index, level_index, contender in turns:
                client = clients[contender.server.name]
                await self._turn(client, contender, round_index, level_index, on_progress)

    async def _check(self, client: httpx2.AsyncClient, contender: Contender) -> None:
        request = PlannedRequest(self.plan.items[0], self.plan.seed, None)
        response = await self._send(client, contender, request)
        record = read_response(response, request, response.sent)
        check_response(response, record.error, self._address(contender))
        self.reports_usage &= record.output_tokens is not None

    async def _turn(
        self,
        client: httpx2.AsyncClient,
        contender: Contender,
        round_index: int,
        level_index: int,
        on_progress: Progress,
    ) -> None:
        level, length = self.plan.levels[level_index], self.plan.length
        answered: list[tuple[PlannedRequest, Response]] = []
        shown = 0  # units of this turn that the progress bar shows

        def advance(units: int) -> None:
            nonlocal shown
            units = min(units, length.units)
            on_progress(f"{contender.name}, {level.label}", units - shown)
            shown = units

        async def send(request: PlannedRequest) -> None:
            answered.append((request, await self._send(client, contender, request)))
            advance(len(answered) if length.num_requests else int(perf_counter() - began))

        requests = self.plan.requests(round_index, level_index)
        before = await read_counters(client, contender.server.metrics_url)
        complete = False
        # Later garbage collections pass over what exists now: with all objects of the imported libraries,
        # one of them stops every stream for up to 0.3 s.
        gc.collect()
        gc.freeze()
        began = perf_counter()
        try:
            if isinstance(level, Concurrency):
                until = None if length.seconds is None else began + length.seconds
                await closed_loop(requests, send, streams=level.value, until=until)
            else:
                await open_loop(requests, send, began)
            complete = True
        finally:
            ended = max((response.ended for _, response in answered), default=began)
            seconds = (ended if complete else perf_counter()) - began
            # events are read only now: reading them during the turn would delay others
            records = [read_response(response, request, began) for request, response in answered]
            records.sort(key=lambda record: record.sent)
            self.turns.append(Turn(contender.name, level, round_index, tuple(records), seconds, complete))
        advance(length.units)
        after = await read_counters(client, contender.server.metrics_url)
        if before and after:
            self.turns[-1] = replace(self.turns[-1], speculation=after.since(before))

    async def _send(
        self, client: httpx2.AsyncClient, contender: Contender, request: PlannedRequest
    ) -> Response:
        model = self.models[contender.server.name]
        body = self.options.body(request.item, model, request.seed, contender.extra_body)
        return await stream_completion(client, self._address(contender), body, timeout=self._timeout)

    def _address(self, contender: Contender) -> str:
        return contender.server.url + self.options.endpoint.path
