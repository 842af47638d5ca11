"""The forwards of one draft, as all drafters around a model or a draft head count, time and check them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from outpace.core.clock import Seconds, clock_of

MOST_UNREAD = 64  # committed tokens that wait for a draft; a draft head reads more of them without one


class DraftReader:
    """Base of the functions (drafters.model.grow.Read) that run the forwards of one draft."""

    def __init__(self, device: torch.device) -> None:
        self.forwards = 0
        self.seconds: Seconds = 0.0  # of the forwards
        self.logits: list[Tensor] = []  # what `checked` looks at
        self._clock = clock_of(device)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time inside as that of forwards."""
        began = self._clock()
        yield
        self.seconds += began.until(self._clock())

    @contextmanager
    def checked(self, *, every_level: bool = False) -> Iterator[None]:
        """ValueError if the logits that are read inside are NaN or +inf. Of a draft without another error
        only the last are looked at, as NaN in a KV cache makes all later logits NaN; `every_level`: all, for
        a head without a KV cache."""
        try:
            yield
        # NaN logits give token ids outside the vocabulary, which raise many kinds of errors
        except Exception as error:
            for logits in self.logits:
                check_logits(logits, error)
            raise
        for logits in self.logits if every_level else self.logits[-1:]:
            check_logits(logits)


def check_logits(logits: Tensor, cause: Exception | None = None) -> None:
    """Raise ValueError for NaN or +inf among the logits; -inf is allowed, since it masks a token."""
    if not float(logits.amax()) < float("inf"):
        raise ValueError(
            "the draft model gave NaN or infinite logits: load it in another dtype, such as float32, or use "
            "another draft"
        ) from cause
