"""Where the drafts of a schedule are made: in a thread beside the target's forwards, or between them.

Forwards release Python's interpreter lock, so that a thread's run at the same time as the target's. Random
numbers are functions of keys (core.noise), so no text depends on which of them comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Protocol

import torch

from outpace.core.contracts import Draft

PATIENCE = 120.0  # seconds that a step waits for a draft before the thread counts as hanging
GLANCE = 0.5  # seconds after which a waiting step looks whether the thread is alive

Propose = Callable[[], Draft]


class ThreadLost(RuntimeError):
    """The thread has died, or hangs and may still use the drafter."""

    def __init__(self, what: str, *, hangs: bool) -> None:
        super().__init__(what)
        self.hangs = hangs


class Drafting(Protocol):
    """Makes one draft at a time."""

    def start(self, propose: Propose) -> None:
        """Begin a draft."""
        ...

    def draft(self) -> Draft:
        """The draft that was begun last, once it is made; an exception of `propose` is raised here."""
        ...

    def close(self) -> None: ...


class InTurn:
    """Implementation of Drafting: drafts are made when they are asked for."""

    def start(self, propose: Propose) -> None:
        self._propose = propose

    def draft(self) -> Draft:
        return self._propose()

    def close(self) -> None:
        """Does nothing."""


class DraftThread:
    """Implementation of Drafting: a thread with a share of torch's threads (a quarter, at least one), and
    with a stream of its own if the device is a GPU (not run on one yet)."""

    def __init__(self, device: torch.device) -> None:
        threads = max(1, torch.get_num_threads() // 4)
        self._tasks: SimpleQueue[tuple[Propose, Future[Draft]] | None] = SimpleQueue()
        self._draft = Future[Draft]()
        self.thread = Thread(
            target=_work, args=(self._tasks, device, threads), name="outpace-draft", daemon=True
        )
        self.thread.start()

    def start(self, propose: Propose) -> None:
        self._draft = Future[Draft]()
        self._tasks.put((propose, self._draft))

    def draft(self) -> Draft:
        """ThreadLost if the thread has died or takes longer than PATIENCE."""
        end = monotonic() + PATIENCE
        while True:
            try:
                error = self._draft.exception(min(GLANCE, PATIENCE))
            except TimeoutError:
                if not self.thread.is_alive() and not self._draft.done():
                    raise ThreadLost("has died", hangs=False) from None
                if monotonic() > end:
                    raise ThreadLost(f"has not answered for {PATIENCE:g} seconds", hangs=True) from None
                continue
            if error is None or isinstance(error, Exception):
                return self._draft.result()
            raise ThreadLost(f"was ended by {type(error).__name__}", hangs=False) from None

    def close(self) -> None:
        """End the thread, after the draft that it makes."""
        self._tasks.put(None)


def _work(
    tasks: SimpleQueue[tuple[Propose, Future[Draft]] | None], device: torch.device, threads: int
) -> None:
    torch.set_num_threads(threads)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    while (task := tasks.get()) is not None:
        propose, made = task
        try:
            with torch.inference_mode(), torch.cuda.stream(stream):
                draft = propose()
                if stream is not None:
                    stream.synchronize()  # the target's stream reads the draft
        except Exception as error:
            made.set_exception(error)
        except BaseException as error:
            made.set_exception(error)
            return
        else:
            made.set_result(draft)
        del task, propose, made
