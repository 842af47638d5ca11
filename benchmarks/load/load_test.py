"""A load test: contenders in interleaved turns, with the same prompts and arrival times for each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

import httpx2

from benchmarks.load.plan import Contender, LoadPlan, PlannedRequest
from benchmarks.load.request import Response, open_client, read_response, stream_completion
from benchmarks.load.speculation import read_counters
from benchmarks.load.turn import Turn, closed_loop, open_loop

TIMEOUT = 120.0  # seconds that a request may take
Progress = Callable[[str, int], None]  # takes a label and the number of turns just done


class LoadTest:
    """Runs a plan and keeps its turns. Turns that an interrupted run of the same plan has made may be put
    into `turns` before `run`, which goes on after them. `fields`: those of every request."""

    def __init__(self, contenders: Sequence[Contender], plan: LoadPlan, fields: Mapping[str, Any]) -> None:
        self.contenders, self.plan, self.fields = contenders, plan, fields
        self.models: dict[str, str] = {}  # URL of a server -> the first model that it names
        self.turns: list[Turn] = []

    @property
    def num_turns(self) -> int:
        return self.plan.rounds * len(self.plan.levels) * len(self.contenders)

    async def run(self, on_progress: Progress) -> None:
        """Find the models, send one request for each contender to see that it works, then make all turns
        that are missing. A turn that is cancelled is not kept.

        Raises ConnectionError if a server cannot be used; failures in the turns are recorded.
        """
        async with open_client() as client:
            for contender in self.contenders:
                await self._check(client, contender)
            turns = islice(self.plan.turns(self.contenders), len(self.turns), None)
            try:
                for round_index, level_index, contender in turns:
                    self.turns.append(await self._turn(client, contender, round_index, level_index))
                    on_progress(f"{contender.name}, {self.turns[-1].level.label}", 1)
            finally:
                gc.unfreeze()

    async def _check(self, client: httpx2.AsyncClient, contender: Contender) -> None:
        try:
            found = await client.get(f"{contender.url}/models", timeout=TIMEOUT)
            self.models[contender.url] = str(found.json()["data"][0]["id"])
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ConnectionError(f"no server names its models at {contender.url}/models: {error}") from error
        response = await self._send(client, contender, PlannedRequest(self.plan.items[0], 0, None))
        if error := read_response(response, None, response.sent).error:
            raise ConnectionError(f"{contender.name} does not answer at {contender.url}: {error}")

    async def _turn(
        self, client: httpx2.AsyncClient, contender: Contender, round_index: int, level_index: int
    ) -> Turn:
        level = self.plan.levels[level_index]
        answered: list[tuple[PlannedRequest, Response]] = []

        async def send(request: PlannedRequest) -> None:
            answered.append((request, await self._send(client, contender, request)))

        requests = self.plan.requests(round_index, level_index)
        metrics = contender.url.removesuffix("/v1") + "/metrics"
        before = await read_counters(client, metrics)
        # Later garbage collections pass over what exists now: with all objects of the imported libraries,
        # one of them stops every stream for up to 0.3 s.
        gc.collect()
        gc.freeze()
        began = perf_counter()
        if level.streams:
            await closed_loop(requests, send, streams=int(level.value), until=began + self.plan.seconds)
        else:
            await open_loop(requests, send, began)
        seconds = max((response.ended for _, response in answered), default=began) - began
        # events are read only now: reading them during the turn would delay others
        records = [read_response(response, request.arrival, began) for request, response in answered]
        records.sort(key=lambda record: record.sent)
        after = await read_counters(client, metrics)
        counted = after.since(before) if before and after else None
        return Turn(contender.name, level, round_index, tuple(records), seconds, counted)

    async def _send(
        self, client: httpx2.AsyncClient, contender: Contender, request: PlannedRequest
    ) -> Response:
        body = {
            "model": self.models[contender.url],
            "prompt": request.item.turns[0],
            "seed": request.seed,
            **self.fields,
            **contender.extra_body,
        }
        return await stream_completion(client, contender.url, body, timeout=TIMEOUT)
