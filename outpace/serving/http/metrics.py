"""Metrics of the server for Prometheus, under names of our own and under those of vLLM's server, which its
dashboards and its benchmark read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from outpace.api.row_output import Piece
from outpace.core.contracts import Step
from outpace.serving.engine_thread import EngineThread
from outpace.serving.learning.trainer_process import TrainerProcess
from outpace.serving.request import Event, Failed, Finished
from outpace.serving.scheduler import Scheduler

FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
BETWEEN_TOKENS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 1, 2.5, 5)
WHOLE_REQUEST = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960)


class Metrics:
    """The counters and histograms of one server, in a registry of its own."""

    def __init__(self, model: str) -> None:
        """`model`: the name under which the model is served."""
        self.registry = _Registry()
        self._model = model
        self._prompt_tokens = self._counters("prompt_tokens", "prompt_tokens", "Tokens of prompts.")
        self._generated = self._counters("generation_tokens", "generation_tokens", "Generated tokens.")
        self._drafts = self._counters(
            "drafts", "spec_decode_num_drafts", "Steps of requests in which tokens were drafted."
        )
        self._drafted = self._counters("draft_tokens", "spec_decode_num_draft_tokens", "Draft tokens.")
        self._accepted = self._counters(
            "accepted_draft_tokens", "spec_decode_num_accepted_tokens", "Accepted draft tokens."
        )
        per_position = "Accepted draft tokens by their depth in the draft, from 0."
        self._per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            per_position,
            ["model_name", "position"],
            registry=self.registry,
        )
        self._positions: list[Counter] = []  # by depth
        self._first_token = self._histograms(
            "time_to_first_token_seconds",
            "time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            FIRST_TOKEN,
        )
        self._inter_token = self._histograms(
            "inter_token_seconds",
            "inter_token_latency_seconds",
            "Time between pieces of a text; a piece has one token or several.",
            BETWEEN_TOKENS,
        )
        self._whole = self._histograms(
            "request_seconds",
            "e2e_request_latency_seconds",
            "Time from a request's arrival to its end.",
            WHOLE_REQUEST,
        )
        self._outcomes = Counter(
            "outpace_requests",
            "Samples of requests that were decoded, by outcome: stop, length, cancelled or failed.",
            ["outcome"],
            registry=self.registry,
        )
        self._errors = Counter(
            "outpace_http_errors", "Error responses, by status.", ["status"], registry=self.registry
        )

    def watch(self, engine: EngineThread, scheduler: Scheduler) -> None:
        """Add the metrics that are read from the engine when they are asked for."""
        for name, other, about, read in (
            (
                "requests_running",
                "num_requests_running",
                "Requests being decoded.",
                lambda: engine.num_running,
            ),
            (
                "requests_waiting",
                "num_requests_waiting",
                "Requests in the queue.",
                lambda: engine.num_waiting,
            ),
        ):
            self._gauges(name, other, about, read)
        self.registry.register(_SchedulerMetrics(scheduler, self._model))

    def watch_learning(self, trainer: TrainerProcess) -> None:
        """Add the metrics of a drafter that learns in a process of its own."""
        self.registry.register(_LearningMetrics(trainer))

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Add the number of tasks of the event loop that serves HTTP, which grows if one is left behind."""
        tasks = Gauge("outpace_event_loop_tasks", "Tasks of the event loop.", registry=self.registry)
        tasks.set_function(lambda: len(asyncio.all_tasks(loop)))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def http_error(self, status: int) -> None:
        """Count an error response."""
        self._errors.labels(str(status)).inc()

    def step(self, step: Step) -> None:
        """Count a step's drafts. Called in the engine's thread."""
        forest = step.draft.tree.forest
        for row, generated in enumerate(step.generated):
            drafted = len(forest.nodes[row]) - 1
            if not generated or not drafted:
                continue  # a row that generates nothing only reads
            accepted = min(forest.depths[step.verdict.leaf[row]], len(generated))
            for counters, amount in ((self._drafts, 1), (self._drafted, drafted), (self._accepted, accepted)):
                for counter in counters:
                    counter.inc(amount)
            while len(self._positions) < accepted:
                position = str(len(self._positions))
                self._positions.append(self._per_position.labels(self._model, position))
            for counter in self._positions[:accepted]:
                counter.inc()

    def sample(self, num_prompt_tokens: int, arrived: float) -> Callable[[Event], None]:
        """A function that counts the events of one sample of a request that arrived at this time of
        `perf_counter`. It is called in the engine's thread."""
        last: float | None = None  # time of the last piece

        def count(event: Event) -> None:
            nonlocal last
            now = perf_counter()
            if isinstance(event, Piece):
                if last is None:
                    _add(self._prompt_tokens, num_prompt_tokens)
                    _observe(self._first_token, now - arrived)
                else:
                    _observe(self._inter_token, now - last)
                _add(self._generated, len(event.tokens))
                last = now
                return
            if last is None and isinstance(event, Finished) and event.result.finish_reason:
                _add(self._prompt_tokens, num_prompt_tokens)  # only the prompt was wanted
            outcome = "failed" if isinstance(event, Failed) else event.result.finish_reason or "cancelled"
            self._outcomes.labels(outcome).inc()
            if isinstance(event, Finished) and event.result.finish_reason:
                _observe(self._whole, now - arrived)

        return count

    def _counters(self, name: str, other: str, about: str) -> list[Counter]:
        own = Counter(f"outpace_{name}", about, registry=self.registry)
        labelled = Counter(f"vllm:{other}", about, ["model_name"], registry=self.registry)
        return [own, labelled.labels(self._model)]

    def _histograms(self, name: str, other: str, about: str, buckets: tuple[float, ...]) -> list[Histogram]:
        own = Histogram(f"outpace_{name}", about, buckets=buckets, registry=self.registry)
        labelled = Histogram(f"vllm:{other}", about, ["model_name"], buckets=buckets, registry=self.registry)
        return [own, labelled.labels(self._model)]

    def _gauges(self, name: str, other: str, about: str, read: Callable[[], float]) -> None:
        Gauge(f"outpace_{name}", about, registry=self.registry).set_function(read)
        labelled = Gauge(f"vllm:{other}", about, ["model_name"], registry=self.registry)
        labelled.labels(self._model).set_function(read)


class _Registry(CollectorRegistry):
    """A registry without the times at which its counters were created. vLLM's benchmark adds all values of a
    line that begins with a counter's name, so it would count the seconds since 1970."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [each for each in family.samples if not each.name.endswith("_created")]
            yield family


class _SchedulerMetrics(Collector):
    """The scheduler's own counters."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler, self._model = scheduler, model

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        scheduler = self._scheduler
        for name, about, value in (
            ("kv_cache", "Memory of the running requests in the target's KV cache.", scheduler.num_bytes),
            ("prefix_cache", "Memory that the prefix cache retains besides.", scheduler.retained_bytes),
            ("draft_kv_cache", "Memory of the draft models' KV caches.", scheduler.draft_bytes),
        ):
            yield GaugeMetricFamily(f"outpace_{name}_bytes", about, value=value)
        for name, other, about, value in (
            (
                "queried",
                "queries",
                "Prompt tokens looked up in the prefix cache.",
                scheduler.num_queried_tokens,
            ),
            ("hit", "hits", "Prompt tokens found in the prefix cache.", scheduler.num_cached_tokens),
        ):
            yield CounterMetricFamily(f"outpace_prefix_cache_{name}_tokens", about, value=value)
            labelled = CounterMetricFamily(f"vllm:prefix_cache_{other}", about, labels=["model_name"])
            labelled.add_metric([self._model], value)
            yield labelled
        yield CounterMetricFamily(
            "outpace_preemptions",
            "Requests that left the batch because memory ran short, and joined it again.",
            value=scheduler.num_preemptions,
        )
        yield CounterMetricFamily(
            "outpace_drafter_errors",
            "Exceptions of drafters; their requests go on without drafts.",
            value=scheduler.num_drafter_errors,
        )


class _LearningMetrics(Collector):
    """The counters of a drafter that learns."""

    def __init__(self, trainer: TrainerProcess) -> None:
        self._trainer = trainer

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        trainer, versions = self._trainer, self._trainer.versions
        for name, about, gauge in (
            ("version", "Number of the weights that the drafter has.", versions.current.number),
            ("trainer_up", "1 while the trainer runs.", trainer.is_alive),
        ):
            yield GaugeMetricFamily(f"outpace_learning_{name}", about, value=gauge)
        for name, about, count in (
            ("updates", "Versions of the drafter's weights that were made.", versions.num_updates),
            ("rolled_back", "Versions that were taken back for worse drafts.", versions.num_rolled_back),
            ("steps_left_out", "Steps not noted, since the trainer was busy.", trainer.learning.num_left_out),
            ("trainer_deaths", "Times that the trainer has died.", trainer.num_deaths),
        ):
            yield CounterMetricFamily(f"outpace_learning_{name}", about, value=count)


def _add(counters: list[Counter], amount: int) -> None:
    for counter in counters:
        counter.inc(amount)


def _observe(histograms: list[Histogram], seconds: float) -> None:
    for histogram in histograms:
        histogram.observe(seconds)
