"""A trainer in a process of its own, so that updates take no time from decoding."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import pickle
import signal
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any
from weakref import ReferenceType, ref

import torch

from outpace.drafters.learning.online_adam import Weights
from outpace.drafters.learning.online_learning import OnlineLearning
from outpace.drafters.learning.trainer import Lesson, LocalTrainer
from outpace.serving.learning import weights_file
from outpace.serving.learning.weights_file import Learned

RESTARTS = 3  # of a trainer that has died
SECONDS_BETWEEN = 30.0  # from one saved version to the next
NICE = 10  # lower priority than that of the server
NETWORK = "network"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Where the trainer computes, and where it saves."""

    folder: Path
    drafter: Mapping[str, Any]  # as in `Learned`
    cpus: Collection[int] = ()  # on which it runs; empty: on all, with one thread
    seconds_between: float = SECONDS_BETWEEN


@dataclass(frozen=True)
class _Request:
    """An update to compute."""

    lessons: Sequence[Lesson]
    version: int  # number of the weights in use: those of the last update, or `start`
    start: Weights | None  # weights to go on from in place of those of the last update


@dataclass(frozen=True)
class _Reply:
    weights: Weights | None
    warnings: Sequence[str]


class TrainerProcess:
    """Implementation of drafters.learning.trainer.Trainer: the same updates as those of a `LocalTrainer`, in
    a process with lower priority.

    One update is in flight at a time. Lessons and weights are copied through a pipe by a thread, so that no
    decoding step waits for them. The weights in use are saved before an update, at most once in
    `seconds_between`, and when the server stops: so those in the file were not found to be worse than the
    ones before them. A trainer that dies is started again, up to RESTARTS times, with the weights in use; the
    lessons of its update are lost. What goes wrong is logged, and decoding goes on. Memory: a copy of the
    drafter in the process, and its bytes here, from which a further process begins."""

    def __init__(self, learning: OnlineLearning, trainer: LocalTrainer, settings: Settings) -> None:
        """Computes the updates of `learning` in place of `trainer`. ValueError if the network that learns
        cannot be copied to a process."""
        self.learning, self.versions, self._settings = learning, learning.versions, settings
        try:
            self._copied = _dumps((self.versions.model.network, trainer))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ValueError(
                f"the drafter cannot be copied to another process ({error}): serve without --learn, and it "
                "learns between decoding steps"
            ) from error
        self._start: Weights | None = None
        self._flight: Future[Weights | None] | None = None
        self._thread = ThreadPoolExecutor(1, "trainer")
        self._logged = set[str]()
        self._is_closed = False
        self.num_deaths = 0
        self._open()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self._process.pid

    @property
    def is_busy(self) -> bool:
        return self._flight is not None

    def learn(self, lessons: Sequence[Lesson]) -> None:
        current = self.versions.current
        request = _Request(tuple(lessons), current.number, self._start)
        self._start = None
        self._flight = self._thread.submit(self._exchange, request, current.weights)

    def poll(self) -> Weights | None:
        if self._flight is None or not self._flight.done():
            return None
        flight, self._flight = self._flight, None
        return flight.result()

    def restart(self, weights: Weights) -> None:
        self._start = weights

    def close(self) -> None:
        """End the process and save the weights in use. An update in flight is lost."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.kill()
        self._process.join()
        found, before = self.versions.current, self.versions.before
        if before is not None and found.is_worse_than(before):
            found = before
        if found.number:
            self._log(_save(self._settings, found.number, found.weights))

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = other, self._copied, self._settings
        self._process = context.Process(target=_run, args=arguments, name="outpace-trainer", daemon=True)
        self._process.start()
        other.close()
        self._is_new = True  # it has the weights from the beginning

    def _exchange(self, request: _Request, current: Weights) -> Weights | None:
        """The weights of an update, in the thread; None if there are none."""
        if not self._process.is_alive() and not self._again():
            return None
        if self._is_new and request.start is None:
            request = replace(request, start=current)
        try:
            self._connection.send_bytes(_dumps(request, self.versions.model.network))
            self._is_new = False
            reply: _Reply = _loads(self._connection.recv_bytes(), self.versions.model.network)
        except (EOFError, OSError):
            self._again()
            return None
        self._log(reply.warnings)
        if reply.weights is None:
            return None
        return tuple(new.to(old.device) for new, old in zip(reply.weights, current, strict=True))

    def _again(self) -> bool:
        """Start the process again after its death; returns False if it was ended, or died too often."""
        self._process.join()
        if self._is_closed or self.num_deaths > RESTARTS:
            return False
        self.num_deaths += 1
        sentence = f"the trainer ended with exit code {self._process.exitcode}; serving goes on"
        if self.num_deaths > RESTARTS:
            log.error("%s, and nothing more is learned: restart the server to learn again", sentence)
            return False
        log.error("%s, and it is started again", sentence)
        self._open()
        return True

    def _log(self, sentences: Sequence[str]) -> None:
        """Log each sentence once."""
        for sentence in sentences:
            if sentence not in self._logged:
                self._logged.add(sentence)
                log.warning(sentence)


def _run(connection: Connection, copied: bytes, settings: Settings) -> None:
    """The process."""
    # a signal to the server's whole group: the server completes its requests, then ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if settings.cpus:
        os.sched_setaffinity(0, settings.cpus)
    torch.set_num_threads(max(1, len(settings.cpus)))
    network, trainer = pickle.loads(copied)
    os.nice(NICE)  # not before: on a busy machine its start would take minutes
    time_saved, last = monotonic(), 0
    while True:
        try:
            request: _Request = _loads(connection.recv_bytes(), network)
        except EOFError:  # the server has ended
            return
        sentences: list[str] = []
        if request.start is not None:
            trainer.restart(request.start)
        if request.version != last and monotonic() - time_saved >= settings.seconds_between:
            sentences += _save(settings, request.version, trainer.weights)
            time_saved, last = monotonic(), request.version
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.learn(request.lessons)
        sentences += [str(each.message) for each in caught]
        try:
            connection.send_bytes(_dumps(_Reply(trainer.poll(), sentences), network))
        except OSError:  # the server has ended
            return


def _save(settings: Settings, version: int, weights: Weights) -> list[str]:
    """Write weights to the file; returns what went wrong, in sentences."""
    try:
        weights_file.save(settings.folder, Learned(settings.drafter, version, weights))
    except OSError as error:
        return [f"learned weights cannot be saved in {settings.folder}: {error}"]
    return []


class _Pickler(pickle.Pickler):
    """Writes the name NETWORK in place of the network that lessons refer to, which both processes have, and
    dead weak references in place of those to what stays here, such as a head's target."""

    def __init__(self, file: io.BytesIO, network: object | None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._network = network

    def persistent_id(self, obj: Any) -> str | None:
        return NETWORK if obj is not None and obj is self._network else None

    def reducer_override(self, obj: Any) -> Any:
        return (_dead_reference, ()) if isinstance(obj, ReferenceType) else NotImplemented


def _dead_reference() -> Any:
    return ref(set[None]())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, network: object) -> None:
        super().__init__(file)
        self._network = network

    def persistent_load(self, pid: Any) -> Any:
        assert pid == NETWORK
        return self._network


def _dumps(value: object, network: object | None = None) -> bytes:
    file = io.BytesIO()
    _Pickler(file, network).dump(value)
    return file.getvalue()


def _loads(data: bytes, network: object) -> Any:
    return _Unpickler(io.BytesIO(data), network).load()
